"""An element of a container's chain: everything that long-term storage says of the container at one moment.

``_system/containers/<c>/journal/<n>`` is element ``n``. It is created once, conditionally, and never changed
(rules J1, J2). Each stands alone: no other one is needed to read it.

Layout, version 1: ``magic u32, version u8, kind u8, n u64, epoch u64, store id 16 bytes, log id 16 bytes,
owner id 16 bytes, folder 16 bytes, location text, predecessor (n u64, CRC u32), time u64, cycle u64, cut u64,
newest segment u64, highest version u64, highest cycle u64``; then the run list: ``0 u8, 0 u32`` if there are
no runs and never were, ``1 u8, name text, length u64, CRC u32`` of the object that has it, or ``2 u8`` and
the list itself (``run_list.py``); then the pins: ``count u32, count times (name text, cycle u64)``; and
``CRC32C u32`` of everything before, which is the element's own CRC."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import attrs

from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.sorted_runs.run_list import RunList

CONTAINERS_PREFIX = "_system/containers/"
"""Of the system objects of all containers."""
ELEMENT_BYTES_MAX = 64 << 10
"""A longer run list is moved to an object of its own, which the element names."""
_MAGIC = 0x544C454C  # "TLEL"
_VERSION = 1
_NO_RUNS, _SEPARATE, _INLINE = 0, 1, 2


class Kind(IntEnum):
    """Why an element was created."""

    OPEN = 1
    """An owner claims long-term storage."""
    CYCLE_COMPLETE = 2
    """A full flush cycle is complete."""
    COMPACTED = 3
    """Runs were merged; cycle and cut are those of the element before."""
    PROOF = 4
    """An owner proves, before a batch of deletions, that nobody went on in its place; otherwise as the
    element before."""


class Position(NamedTuple):
    """Identifies an element: its number, from 1, and its CRC."""

    n: int
    crc: int


NOTHING = Position(0, 0)
"""The predecessor of the first element."""


class StoredRunList(NamedTuple):
    """An object with the run list of an element."""

    name: str
    length: int
    crc: int


class Pin(NamedTuple):
    name: str
    cycle: int


@attrs.frozen
class Owner:
    """Identifies the owner that creates an element, 16 bytes each, and where its folder is."""

    store: bytes
    log: bytes
    owner: bytes
    """Of one opening."""
    folder: bytes = bytes(16)
    """The folder's fingerprint; zeros if it is unknown."""
    location: str = ""
    """``host:path``, for display."""


@attrs.frozen
class Progress:
    """How far a container is, as of an element. Numbers are never used twice."""

    cycle: int = 0
    """The full flush cycle last completed, numbered from 1 in each container."""
    cut: int = 0
    """The operation sequence up to which that cycle flushed."""
    newest_segment: int = 0
    """The highest segment id in use."""
    highest_version: int = 0
    """The highest version of a metadata record."""
    highest_cycle: int = 0
    """The highest number of a cycle ever used, pins included."""


@attrs.frozen(kw_only=True)
class Element:
    n: int
    kind: Kind
    epoch: int
    owner: Owner
    predecessor: Position
    time_ms: int
    """When it was made, in milliseconds since 1970; for display."""
    progress: Progress
    runs: RunList | StoredRunList = RunList()
    """The runs that make up the system table."""
    pins: tuple[Pin, ...] = ()

    def encode(self) -> bytes:
        """The bytes of the object; the last four are the CRC."""
        owner, progress = self.owner, self.progress
        out = Encoder().u32(_MAGIC).u8(_VERSION).u8(self.kind).u64(self.n).u64(self.epoch)
        out.raw(owner.store).raw(owner.log).raw(owner.owner).raw(owner.folder).text(owner.location)
        out.u64(self.predecessor.n).u32(self.predecessor.crc).u64(self.time_ms)
        for number in attrs.astuple(progress):
            out.u64(number)
        if isinstance(self.runs, StoredRunList):
            out.u8(_SEPARATE).text(self.runs.name).u64(self.runs.length).u32(self.runs.crc)
        elif self.runs == RunList():
            out.u8(_NO_RUNS).u32(0)
        else:
            out.u8(_INLINE).raw(self.runs.encode())
        out.u32(len(self.pins))
        for pin in self.pins:
            out.text(pin.name).u64(pin.cycle)
        body = out.finish()
        return body + crc32c(body).to_bytes(4, "big")

    @staticmethod
    def decode(data: Buffer) -> Element:
        """Raises ``DecodeError`` for anything but a whole element of a version that this code knows."""
        view = memoryview(data)
        # The CRC first: what is damaged is not taken for a newer version.
        if len(view) < 4 or crc32c(view[:-4]) != int.from_bytes(view[-4:], "big"):
            raise DecodeError(f"an element of {len(view)} bytes is damaged")

        fields = Decoder(view[:-4])
        magic, version = fields.u32(), fields.u8()
        if magic != _MAGIC or version != _VERSION:
            raise DecodeError(f"not an element of a version that this code knows: {magic:#x}, {version}")

        kind, n, epoch = _kind(fields.u8()), fields.u64(), fields.u64()
        store, log, owner, folder = (bytes(fields.raw(16)) for _ in range(4))
        element = Element(
            n=n,
            kind=kind,
            epoch=epoch,
            owner=Owner(store, log, owner, folder, fields.text()),
            predecessor=Position(fields.u64(), fields.u32()),
            time_ms=fields.u64(),
            progress=Progress(*(fields.u64() for _ in attrs.fields(Progress))),
            runs=_decode_runs(fields),
            pins=tuple(Pin(fields.text(), fields.u64()) for _ in range(fields.u32())),
        )
        fields.finish()
        return element


def _kind(number: int) -> Kind:
    try:
        return Kind(number)
    except ValueError as error:
        raise DecodeError(f"{number} is no kind of element that this code knows") from error


def _decode_runs(fields: Decoder) -> RunList | StoredRunList:
    form = fields.u8()
    if form == _SEPARATE:
        return StoredRunList(fields.text(), fields.u64(), fields.u32())

    if form == _INLINE:
        runs = RunList.decode(fields)
    elif form == _NO_RUNS and fields.u32() == 0:
        return RunList()
    else:
        raise DecodeError(f"the run list has no form that this code knows: {form}")
    if runs == RunList():
        # One form for each value: an element that is created again must have the same bytes (J5).
        raise DecodeError("an empty run list has another form")
    return runs


def position_of(content: bytes) -> Position:
    """The position of a whole encoded element."""
    return Position(int.from_bytes(content[6:14], "big"), int.from_bytes(content[-4:], "big"))

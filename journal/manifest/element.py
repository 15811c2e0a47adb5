"""An element of a container's chain: the state of the container in long-term storage at one moment.

``_system/containers/<c>/journal/<n>`` is element ``n``. It is created once, conditionally, and never changed
(rules J1, J2). Each stands alone: no other one is needed to read it.

Layout: ``magic u32, version u8, kind u8, n u64, epoch u64, store id 16 bytes, log id 16 bytes, owner id 16
bytes, folder 16 bytes, location text, predecessor (n u64, CRC u32), time u64, cycle u64, cut u64, newest
segment u64, highest version u64, highest cycle u64``; in version 5 ``rows_to u64, records_to u64`` and,
ascending, the segments that are held back; then the run list: ``0 u8, 0 u32`` if there are no runs and never
were, ``1 u8, name text, length u64, CRC u32`` of the object that has it, or ``2 u8`` and the list itself
(``run_list.py``); then the pins: ``count u32, count times (name text, cycle u64)``; and ``CRC32C u32`` of
everything before, which is the element's own CRC.

The version is 1 if there are no runs and never were, else 2, or 3 if the runs have the names and images of
all segments besides the records of long-term storage (rule M13), 4 if they have ended transactions too (rule
M21), or 5 if what they have is consistent: all rows as of the cut, and nothing of a segment that is held
back. Code that does not know version 2 reads no runs: its checkpoints would lack the tombstones of rows
that runs have, and deleted records would come back. Code that does not know version 3 would delete segments
and leave their names in the runs. Code that does not know version 4 would begin transactions again that have
ended. Code that does not know version 5 would take rows that were held back for published ones. So all of
them must refuse the folder.

What changes with each element comes before the run list, so that a log has a change of the list as one range
(``LogElementChange``)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import attrs

from ...storage_backends.base.backups import is_backup_name
from ...storage_backends.base.checksum import Buffer, crc32c
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder, NewerFormat
from ...storage_backends.base.ids import EPOCH_MAX
from ...storage_backends.base.values import Value
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.run_list import RunList

CONTAINERS_PREFIX = "_system/containers/"
"""The prefix of the names of all containers' system objects."""
ELEMENT_BYTES_MAX = 1280 << 10
"""What is read of an element."""
RUN_LIST_BYTES_MAX = 240 << 10
"""The most bytes of the run list in an element (rule M12)."""
HELD_MAX = 1 << 17
"""The most segments that an element names as held back (rule F10). They take up to 1 MiB, so there is room
for the pins and the folder's location."""
CONTAINERS_MAX = 1024
"""The most containers of a store."""
_MAGIC = 0x544C454C  # "TLEL"
_WITHOUT_RUNS, _WITH_RUNS, _CONSISTENT = 1, 2, 5
_NEWEST = _CONSISTENT
"""Versions."""
SEGMENTS, TRANSACTIONS, CONSISTENT = 1, 2, 3
"""The ``schema`` of a run list that has the rows of segments; of one that has ended transactions too; of one
that is consistent besides, and has ``rows_to`` and ``records_to`` of its own."""
_NO_RUNS, _INLINE = 0, 2
"""Forms of the run list."""
_VERSION_AT, _LOCATION_AT = 4, 86
ELEMENT_HEAD_BYTES = 14
"""Of an element, up to the end of its number."""
NUMBER_MAX = (1 << 63) - 1
"""The highest of the numbers that count on from element to element."""
_SHOWN = 100
"""What a message shows of a name."""
CRC_BYTES = 4
"""At the end of an element."""


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
    PINNED = 5
    """The pins changed; otherwise as the element before."""
    MIGRATED = 6
    """The container goes on at another place, the location of the owner (rule E1); otherwise as the element
    before."""


class Position(NamedTuple):
    """Identifies an element: its number, from 1, and its CRC."""

    n: int
    crc: int


PINS_MAX = 64
"""The most pins of an element: with the longest names about 7 KiB."""

NOTHING = Position(0, 0)
"""The predecessor of the first element."""


class Pin(NamedTuple):
    """A backup that keeps what a cycle had (rules P1 to P6)."""

    name: str
    cycle: int


@attrs.frozen(eq=False, repr=False)
class Owner(Value):
    """Identifies the owner that creates an element, 16 bytes each, and where its folder is."""

    store: bytes
    log: bytes
    owner: bytes
    """The id of one opening."""
    folder: bytes = bytes(16)
    """The folder's fingerprint; zeros if it is unknown."""
    location: str = ""
    """``host:path``, for display."""

    @property
    def container(self) -> int | None:
        """The container whose log it is, which the last four bytes of a log's id are; None if they are no
        container's number."""
        number = int.from_bytes(self.log[-4:], "big")
        return number if number < CONTAINERS_MAX else None


@attrs.frozen(eq=False, repr=False)
class Progress(Value):
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

    def advanced(self, others: Progress, newest_segment: int, version: int, cut: int | None) -> Progress:
        """That of the next element, beside ``others`` found in long-term storage; with ``cut`` it completes a
        cycle."""
        progress = attrs.evolve(
            self,
            newest_segment=max(self.newest_segment, others.newest_segment, newest_segment),
            highest_version=max(self.highest_version, others.highest_version, version),
            highest_cycle=max(self.highest_cycle, others.highest_cycle),
        )
        if cut is None:
            return progress

        cycle = progress.highest_cycle + 1
        return attrs.evolve(progress, cycle=cycle, cut=cut, highest_cycle=cycle)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Element(Value):
    n: int
    kind: Kind
    epoch: int
    owner: Owner
    predecessor: Position
    time_ms: int
    """When it was made, in milliseconds since 1970; for display."""
    progress: Progress
    runs: RunList = RunList()
    """The runs that make up the system table."""
    pins: tuple[Pin, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """What counts on from element to element, besides epochs."""
        numbers = self.n, self.predecessor.n, *attrs.astuple(self.progress), *(pin.cycle for pin in self.pins)
        if self.runs.schema < CONSISTENT:
            return numbers
        return *numbers, self.runs.records_to

    @property
    def leaves_room(self) -> bool:
        """Whether another history can go on above it. No history comes near the end of its numbers."""
        return self.epoch <= EPOCH_MAX >> 1 and max(self.numbers) <= NUMBER_MAX >> 1

    def encode(self) -> bytes:
        """The bytes of the object; the last four are the CRC."""
        owner, progress = self.owner, self.progress
        version = _WITHOUT_RUNS if self.runs == RunList() else _WITH_RUNS + self.runs.schema
        out = Encoder().u32(_MAGIC).u8(version).u8(self.kind).u64(self.n).u64(self.epoch)
        out.raw(owner.store).raw(owner.log).raw(owner.owner).raw(owner.folder).text(owner.location)
        out.u64(self.predecessor.n).u32(self.predecessor.crc).u64(self.time_ms)
        for number in attrs.astuple(progress):
            out.u64(number)
        if version >= _CONSISTENT:
            out.u64(self.runs.rows_to).u64(self.runs.records_to).raw(self.runs.encoded_held)
        if version == _WITHOUT_RUNS:
            out.u8(_NO_RUNS).u32(0)
        else:
            out.u8(_INLINE).raw(self.runs.encode())
        out.u32(len(self.pins))
        for pin in self.pins:
            out.text(pin.name).u64(pin.cycle)
        body = out.finish()
        return body + crc32c(body).to_bytes(4, "big")

    @staticmethod
    def decode(data: Buffer, known: Mapping[bytes, RunEntry] = MappingProxyType({})) -> Element:
        """``known``: entries of runs by their bytes, which are not decoded again. Raises ``DecodeError`` for
        anything but a whole element of a version that this code knows."""
        # The CRC first: what is damaged is not taken for a newer version.
        check_crc(data)
        fields = Decoder(memoryview(data)[:-CRC_BYTES])
        magic, version = fields.u32(), fields.u8()
        if magic == _MAGIC and version > _NEWEST:
            raise NewerFormat(f"element of version {version}")
        if magic != _MAGIC or version < _WITHOUT_RUNS:
            raise DecodeError(f"not an element of a version that this code knows: {magic:#x}, {version}")

        kind, n, epoch = fields.member(Kind), fields.u64(), fields.u64()
        store, log, owner, folder = (bytes(fields.raw(16)) for _ in range(4))
        location, predecessor = fields.text(), Position(fields.u64(), fields.u32())
        time_ms, progress = fields.u64(), Progress(*(fields.u64() for _ in attrs.fields(Progress)))
        versions: tuple[int, int] | None = None
        held: tuple[int, ...] = ()
        if version >= _CONSISTENT:
            versions = fields.u64(), fields.u64()
            held = fields.ascending()
        element = Element(
            n=n,
            kind=kind,
            epoch=epoch,
            owner=Owner(store, log, owner, folder, location),
            predecessor=predecessor,
            time_ms=time_ms,
            progress=progress,
            runs=_decode_runs(fields, known, max(0, version - _WITH_RUNS), versions, held),
            pins=tuple(Pin(fields.text(), fields.u64()) for _ in range(fields.u32())),
        )
        fields.finish()
        if element.epoch > EPOCH_MAX or max(element.numbers) > NUMBER_MAX:
            raise DecodeError(f"no element has numbers like these: epoch {element.epoch}, {element.numbers}")
        if bad := [pin.name for pin in element.pins if not is_backup_name(pin.name)]:
            raise DecodeError(f"no backup has the name {bad[0][:_SHOWN]!r}")
        # One form for each value: an element that is created again must have the same bytes (J5).
        if (version == _WITHOUT_RUNS) != (element.runs == RunList()):
            raise DecodeError(f"an element of version {version} has another run list")
        return element


def _decode_runs(
    fields: Decoder,
    known: Mapping[bytes, RunEntry],
    schema: int,
    versions: tuple[int, int] | None,
    held: tuple[int, ...],
) -> RunList:
    form = fields.u8()
    if form == _INLINE:
        return RunList.decode(fields, known, schema, versions, held)

    if form != _NO_RUNS or fields.u32() != 0:
        raise DecodeError(f"the run list has no form that this code knows: {form}")
    return RunList()


def check_crc(content: Buffer) -> None:
    """Raises ``DecodeError`` if ``content`` is no whole element."""
    view = memoryview(content)
    crc = view[-CRC_BYTES:]
    if len(view) < CRC_BYTES or crc32c(view[:-CRC_BYTES]) != int.from_bytes(crc, "big"):
        raise DecodeError(f"an element of {len(view)} bytes is damaged")


def position_of(content: bytes) -> Position:
    """The position of a whole encoded element."""
    return Position(number_of(content), int.from_bytes(content[-4:], "big"))


def number_of(content: bytes) -> int:
    """The number of an element that begins with ``content``, not checked."""
    return int.from_bytes(content[6:ELEMENT_HEAD_BYTES], "big")


def runs_at(content: bytes) -> int:
    """Where the first run of a whole encoded element begins, if it has any."""
    fields = Decoder(content, _LOCATION_AT)
    fields.text()
    # Predecessor, time, progress.
    fields.raw(12 + 8 + 40)
    if content[_VERSION_AT] >= _CONSISTENT:
        # Versions; segments that are held back.
        fields.raw(16)
        fields.skip_ascending()
    # Form, changes_from and count of the list.
    fields.raw(13)
    return fields.position

"""The judge: compares a folder with the input, through the store and without it.

Owns: reading every segment back, and comparing the files under ``lts/`` with the input. Changes nothing but what opening a store changes.
Raises ``QuickstartError`` at the first difference, with segment, offset and what differs.

The files are found by their names alone: ``<container>/<segment id>/<epoch>-<offset>-<id>``. An owner begins a new chunk where the
flushed bytes ended when it took over, so a chunk of an older epoch that begins there or later holds nothing that was ever committed, and
bytes of a chunk beyond the next one's beginning are garbage as well.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs

import tierlog
from tierlog.actors.config import CacheConfig
from tierlog.actors.config_units import MiB

from .shares import QuickstartError, Share, store_config
from .writing import WRITER

READ_BYTES = 4 * MiB
_CHUNK_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-[0-9a-f]{32}")


@attrs.frozen
class SegmentReport:
    name: str
    events: int
    length: int
    flushed: int
    """Bytes that were in chunks when the store was opened; the others were in the log alone."""
    sha256: str
    chunks: int


@attrs.frozen
class Report:
    segments: list[SegmentReport]
    read_seconds: float

    @property
    def length(self) -> int:
        return sum(segment.length for segment in self.segments)


async def verify(folder: Path, shares: list[Share], on_read: Callable[[int, int], None]) -> Report:
    """Compare everything; ``on_read(index, bytes)`` is called as segments are read."""
    begin = time.perf_counter()
    # The smallest cache there may be: replay fills it with what is still in the log, and all but the end shall come from chunks.
    config = attrs.evolve(store_config(shares), cache=CacheConfig(bytes=MiB), append_bytes_max=MiB)
    async with tierlog.open_store(folder, config=config) as store:
        await _check_names(store, shares)
        # A flush may run at any time: what is in the log is asked for at once, what the chunks hold is asked for last.
        in_chunks = [(await store.segment_info(share.name)).flushed_length for share in shares]
        infos = [await _read_back(store, share, partial(on_read, index)) for index, share in enumerate(shares)]

    seconds = time.perf_counter() - begin
    reports = [
        SegmentReport(share.name, len(share.ends), info.length, flushed, sha256_of(share.data), check_chunks(folder, info, share))
        for share, flushed, info in zip(shares, in_chunks, infos, strict=True)
    ]
    return Report(reports, seconds)


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def _check_names(store: tierlog.SegmentStore, shares: list[Share]) -> None:
    found, expected = set(await store.list_segments()), {share.name for share in shares}
    if found != expected:
        raise QuickstartError(f"missing segments: {sorted(expected - found)}; segments that nobody made: {sorted(found - expected)}")


async def _read_back(store: tierlog.SegmentStore, share: Share, on_read: Callable[[int], None]) -> tierlog.SegmentInfo:
    """Read one segment from its first byte to its tail, and compare bytes, length, checksum and the last event number."""
    digest, offset = hashlib.sha256(), 0
    while block := await _read(store, share, offset):
        compare(share, offset, block, "the store returned")
        digest.update(block)
        offset += len(block)
        on_read(offset)

    info = await store.segment_info(share.name)
    if not offset == info.length == len(share.data):
        raise QuickstartError(
            f"segment {share.name}, offset {offset}: reading ended here, of {info.length} bytes; the input has {len(share.data)}"
        )

    if digest.hexdigest() != sha256_of(share.data):
        raise QuickstartError(f"segment {share.name}: the SHA-256 of what was read is not the input's")

    last = await store.last_event_number(share.name, WRITER)
    if last != len(share.ends) - 1:
        raise QuickstartError(f"segment {share.name}: the last event number is {last}, not {len(share.ends) - 1}")

    return info


async def _read(store: tierlog.SegmentStore, share: Share, offset: int) -> bytes:
    try:
        return await store.read(share.name, offset, READ_BYTES)
    except tierlog.TierlogError as error:
        raise QuickstartError(f"segment {share.name}, offset {offset}: cannot be read: {error}") from error


def compare(share: Share, offset: int, found: bytes, who: str) -> None:
    """Raise at the first byte of ``found`` that is not the share's at ``offset``."""
    expected = share.data[offset : offset + len(found)]
    if found == expected:
        return

    same = next((at for at, (left, right) in enumerate(zip(found, expected, strict=False)) if left != right), len(expected))
    wanted = f"0x{expected[same]:02x}" if same < len(expected) else "its end"
    raise QuickstartError(f"segment {share.name}, offset {offset + same}: {who} 0x{found[same]:02x} where the input has {wanted}")


def check_chunks(folder: Path, info: tierlog.SegmentInfo, share: Share) -> int:
    """Compare the segment's files under ``lts/`` with the input, without the store; returns how many there are."""
    home = folder / "lts" / "containers" / f"{info.container:04d}" / f"{info.segment_id:016x}"
    chunks = [(start, path) for start, path in committed(home) if start < info.flushed_length]
    starts = [start for start, _ in chunks]
    if info.flushed_length and starts[:1] != [0]:
        raise QuickstartError(f"segment {share.name}, offset 0: no chunk in {home} begins there")

    for (start, path), stop in zip(chunks, [*starts[1:], info.flushed_length], strict=False):
        found = path.read_bytes()[: stop - start]
        compare(share, start, found, f"{path} holds")
        if len(found) < stop - start:
            raise QuickstartError(f"segment {share.name}, offset {start + len(found)}: {path} ends here, not at {stop}")

    return len(chunks)


def committed(home: Path) -> list[tuple[int, Path]]:
    """(offset in the segment, file) of every chunk that belongs to the segment, in order."""
    names = [(name, path) for path in home.glob("*") if (name := _CHUNK_NAME.fullmatch(path.name))]
    chunks = sorted((int(name[2], 16), int(name[1], 16), path) for name, path in names)
    return [(start, path) for start, epoch, path in chunks if not any(later > epoch and begin <= start for begin, later, _ in chunks)]

"""The judge: compares what the service returns, what Spark said, and the files under ``lts/`` with the input.

Owns: the comparisons. Raises ``QuickstartError`` at the first difference, with segment, offset and what
differs. Changes nothing.

Three ways, which share little: a client reads every byte through the service; Spark's tasks made checksums of
the events that they were given; and the chunk files are read as files. Where a segment's chunks are, is asked
of the store; what is in them, is not.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import attrs
import httpx

import tierlog
from quickstart_parts.shares import CACHE_BYTES, QuickstartError, Share
from tierlog.actors.settings.units import MiB
from tierlog.actors.store.read_only import StoreView, open_reader
from tierlog.spark_bridge import events

READ_BYTES = 4 * MiB
_FROM_CHUNKS = re.compile(r"^tierlog_chunked_bytes_read_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


@attrs.frozen
class SegmentReport:
    name: str
    events: int
    text: int
    """Bytes of the input."""
    length: int
    """Bytes of the segment, which are a little more: each event has a frame."""
    flushed: int
    """Bytes that were in chunks; the others were in the log alone."""
    sha256: str
    """Of the text."""


def sha256_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def check_names(found: list[str], shares: list[Share]) -> None:
    expected = {share.name for share in shares}
    if set(found) != expected:
        raise QuickstartError(
            f"missing segments: {sorted(expected - set(found))}; segments that nobody made: "
            f"{sorted(set(found) - expected)}"
        )


# --- through the service ------------------------------------------------------------------------


class Readable(Protocol):
    """A client of the service, or a look into a folder."""

    async def segment_info(self, name: str) -> tierlog.SegmentInfo: ...
    async def read(self, name: str, offset: int, size: int) -> bytes: ...


async def read_back(store: Readable, share: Share, on_read: Callable[[int], None]) -> SegmentReport:
    """Read one segment from its first byte to its tail, and compare bytes, length, events and checksum."""
    flushed = (await store.segment_info(share.name)).flushed_length
    expected, blocks, offset = share.framed(), list[bytes](), 0
    while block := await _read(store, share, offset):
        compare(share.name, expected, offset, block, "the service returned")
        blocks.append(block)
        offset += len(block)
        on_read(min(offset, len(share.data)))

    length = (await store.segment_info(share.name)).length
    if not offset == length == len(expected):
        raise QuickstartError(
            f"segment {share.name}, offset {offset}: reading ended here, of {length} bytes; the input makes "
            f"{len(expected)}"
        )

    found = events.decode(b"".join(blocks))
    checksum = sha256_of(b"".join(found))
    if checksum != sha256_of(share.data):
        raise QuickstartError(f"segment {share.name}: the SHA-256 of its events is not the input's")

    on_read(len(share.data))
    return SegmentReport(share.name, len(found), len(share.data), length, flushed, checksum)


async def _read(store: Readable, share: Share, offset: int) -> bytes:
    try:
        return await store.read(share.name, offset, READ_BYTES)
    except tierlog.TierlogError as error:
        raise QuickstartError(f"segment {share.name}, offset {offset}: cannot be read: {error}") from error


def compare(name: str, expected: bytes, offset: int, found: bytes, who: str) -> None:
    """Raise at the first byte of ``found`` that is not the one that belongs at ``offset``."""
    wanted = expected[offset : offset + len(found)]
    if found == wanted:
        return

    same = next(
        (at for at, (left, right) in enumerate(zip(found, wanted, strict=False)) if left != right),
        len(wanted),
    )
    there = f"0x{wanted[same]:02x}" if same < len(wanted) else "its end"
    raise QuickstartError(
        f"segment {name}, offset {offset + same}: {who} 0x{found[same]:02x} where the input has {there}"
    )


async def bytes_from_chunks(hosts: list[str]) -> int:
    """How much the hosts at these URLs have read from chunks since they began."""
    total = 0.0
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in hosts:
            answer = await client.get(f"{url}/metrics")
            total += sum(float(number) for number in _FROM_CHUNKS.findall(answer.text))
    return int(total)


def check_chunks_were_read(reports: list[SegmentReport], found: int) -> None:
    """A segment that is larger in chunks than the cache cannot have come from the cache alone."""
    if not found and any(report.flushed > CACHE_BYTES for report in reports):
        raise QuickstartError("every segment was read, but no host read a byte from chunks")


# --- through Spark ------------------------------------------------------------------------------


def check_spark(share: Share, rows: list[dict[str, Any]]) -> None:
    """``rows``: what each of Spark's tasks said of the segment."""
    expected = {
        "first": 0,
        "end": len(share.data) + events.HEADER_BYTES * share.count,
        "events": share.count,
        "bytes": len(share.data),
        "sha256": sha256_of(share.data),
    }
    if rows != [expected]:
        raise QuickstartError(f"segment {share.name}: Spark read {rows}, the input is {expected}")


# --- without either -----------------------------------------------------------------------------


async def check_files(folder: Path, shares: list[Share]) -> list[int]:
    """Compare the chunk files of a stopped store with the input; how many there are of each segment."""
    async with open_reader(folder) as view:
        check_names(await view.list_segments(), shares)
        return [await _check_chunks(view, folder, share) for share in shares]


async def _check_chunks(view: StoreView, folder: Path, share: Share) -> int:
    info = await view.segment_info(share.name)
    expected, end = share.framed(), 0
    chunks = await (await view.containers[info.container].snapshot()).storage.chunks(info.segment_id)
    for start, record in chunks:
        path = folder / "lts" / record.name
        if start != end:
            raise QuickstartError(
                f"segment {share.name}, offset {end}: no chunk begins there, the next one is {path} at "
                f"{start}"
            )
        if not path.exists():
            raise QuickstartError(f"segment {share.name}, offset {start}: the chunk {path} is missing")

        found = path.read_bytes()[: record.length]
        compare(share.name, expected, start, found, f"{path} holds")
        end = start + len(found)
        if len(found) < record.length:
            raise QuickstartError(
                f"segment {share.name}, offset {end}: {path} ends here, not at {start + record.length}"
            )

    if end < info.flushed_length:
        raise QuickstartError(
            f"segment {share.name}, offset {end}: its chunks end here, not at {info.flushed_length}"
        )

    return len(chunks)

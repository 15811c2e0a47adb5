"""Read: a range of a segment out of its chunks, in parallel, every byte verified.

Owns: the plan (which whole blocks of which chunks), the requests and the cut to the range. Blocks are read whole because their
checksum covers the whole (rule S5, hole 32); bytes behind the recorded length are never asked for (rule S3). One request brings
several blocks, and a range that is one request from its first to its last byte is handed on without a copy.

Ordering: reads take no lock. A commit may remove what a plan names: then the read begins again from the new record, and only a
chunk or record that is missing while nothing was committed is corruption.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import attrs
from anyio import create_task_group

from ...base.checksum import crc32c
from ...base.errors import ChunkNotFound, DataCorruption, InvalidArgument, SegmentTruncated, TierlogError
from ..core import Core
from ..layout import Layout, LayoutChanged
from ..records import BLOCK, ChunkRecord

T = TypeVar("T")


@attrs.frozen
class _Request:
    """Whole blocks of one chunk: ``offset`` is a block's start, ``size`` ends at a block's end or at the recorded length."""

    chunk: ChunkRecord
    offset: int
    size: int


async def read(core: Core, segment: int, offset: int, size: int) -> bytes:
    if offset < 0 or size < 0:
        raise InvalidArgument(f"offset {offset} and size {size} of a read must not be negative")

    return await on_layout(core, segment, offset + size, lambda layout: _read(core, layout, segment, offset, size))


async def on_layout(core: Core, segment: int, end: int, look: Callable[[Layout], Awaitable[T]]) -> T:
    """What ``look`` finds in a layout that reaches to ``end``, if the segment does."""
    while True:
        layout = await core.layouts.open(segment)
        if end > layout.segment.length and not await layout.is_current():
            # A commit has just been made and has not forgotten the layout yet; who knows of it may ask for what it added.
            core.layouts.forget(segment)
            continue

        try:
            return await look(layout)
        except LayoutChanged as gone:
            if await layout.is_current():
                raise DataCorruption("a chunk is missing from storage or from the metadata", file=gone.name) from gone

            core.layouts.forget(segment)


async def _read(core: Core, layout: Layout, segment: int, offset: int, size: int) -> bytes:
    if offset < layout.segment.start_offset:
        message = f"segment {segment:016x} begins at {layout.segment.start_offset}, offset {offset} was truncated"
        raise SegmentTruncated(message, segment=f"{segment:016x}", start_offset=layout.segment.start_offset)

    end = min(offset + size, layout.segment.length)
    if offset >= end:
        return b""

    known = len(layout)
    requests, skip = await _plan(layout, offset, end, core.options.read_request)
    if len(layout) != known:
        core.layouts.trim()
    data = _cut(await _fetch_all(core, requests), skip, end - offset)
    core.bytes_read += len(data)
    return data


async def _plan(layout: Layout, offset: int, end: int, request: int) -> tuple[list[_Request], int]:
    """The requests that cover ``offset .. end``, and how many bytes the first one brings before ``offset``."""
    requests: list[_Request] = []
    skip = 0
    while offset < end:
        start, chunk = await layout.locate(offset)
        first = (offset - start) // BLOCK * BLOCK
        last = min(-(-(end - start) // BLOCK) * BLOCK, chunk.length)
        skip = skip if requests else offset - start - first
        requests.extend(_Request(chunk, at, min(request, last - at)) for at in range(first, last, request))
        offset = start + chunk.length
    return requests, skip


async def _fetch_all(core: Core, requests: list[_Request]) -> list[bytes]:
    if len(requests) == 1:
        return [await _fetch(core, requests[0])]

    results = [b""] * len(requests)
    errors: list[TierlogError | LayoutChanged] = []
    pending = iter(enumerate(requests))

    async def work() -> None:
        for place, request in pending:
            try:
                results[place] = await _fetch(core, request)
            except (TierlogError, LayoutChanged) as error:
                errors.append(error)
                group.cancel_scope.cancel()

    async with create_task_group() as group:
        for _ in range(min(core.options.read_parallelism, len(requests))):
            group.start_soon(work)
    if errors:
        raise errors[0]

    return results


async def _fetch(core: Core, request: _Request) -> bytes:
    try:
        data = await core.chunks.read(request.chunk.name, request.offset, request.size)
    except ChunkNotFound as missing:
        raise LayoutChanged(request.chunk.name) from missing

    _verify(request, data)
    return data


def _verify(request: _Request, data: bytes) -> None:
    name, view = request.chunk.name, memoryview(data)
    if len(data) != request.size:
        message = f"the chunk is shorter than the {request.chunk.length} bytes that were committed"
        raise DataCorruption(message, file=name, offset=request.offset + len(data))

    crcs = request.chunk.crcs[request.offset // BLOCK :]
    for at, expected in zip(range(0, request.size, BLOCK), crcs, strict=False):
        if crc32c(view[at : at + BLOCK]) != expected:
            raise DataCorruption("the bytes of a block do not match their checksum", file=name, offset=request.offset + at)


def _cut(parts: list[bytes], skip: int, size: int) -> bytes:
    """``size`` bytes of the joined parts from ``skip`` on, copied at most once."""
    if len(parts) == 1:
        return parts[0] if len(parts[0]) == size else parts[0][skip : skip + size]

    views = [memoryview(part) for part in parts]
    views[0] = views[0][skip:]
    if excess := sum(map(len, views)) - size:
        views[-1] = views[-1][:-excess]
    return b"".join(views)

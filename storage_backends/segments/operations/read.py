"""Read: a range of a segment out of its chunks, in parallel, every block verified; and the append starts of a
range.

Blocks are read whole because their checksum covers the whole (rule S5); bytes behind the recorded length are
never requested (rule S3). A range of up to ``read_request`` bytes costs one request per chunk that it
touches, and a range that is exactly one request is returned without a copy.

Reads take no lock. A commit may remove what a plan names: then the read starts over from the new record, and
only a chunk or record that is missing although nothing was committed is corruption.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from io import BytesIO
from itertools import accumulate
from typing import TypeVar

import attrs
from anyio import create_task_group

from ...base.checksum import Buffer
from ...base.errors import ChunkNotFound, DataCorruption, InvalidArgument, SegmentTruncated, TierlogError
from ..context import StorageContext
from ..layout import Layout, LayoutChanged
from ..records import BLOCK, ChunkRecord
from ..verify import bad_blocks

T = TypeVar("T")


@attrs.frozen(eq=False, repr=False)
class _Request:
    """Whole blocks of one chunk: starts at a block, ends at a block's end or at the recorded length."""

    chunk: ChunkRecord
    offset: int
    size: int


async def read(context: StorageContext, segment: int, offset: int, size: int) -> Buffer:
    if offset < 0 or size < 0:
        raise InvalidArgument(f"offset {offset} and size {size} of a read must not be negative")

    return await on_layout(
        context, segment, offset + size, lambda layout: _read(context, layout, segment, offset, size)
    )


async def on_layout(
    context: StorageContext, segment: int, end: int, use: Callable[[Layout], Awaitable[T]]
) -> T:
    """The result of ``use`` on a layout that reaches to ``end``, if the segment does."""
    while True:
        layout = await context.layouts.open(segment)
        if end > layout.segment.length and not await layout.is_current():
            # A commit has just been made and has not discarded the layout yet; its caller may already ask for
            # what it added.
            context.layouts.discard(segment)
            continue

        try:
            return await use(layout)
        except LayoutChanged as gone:
            if await layout.is_current():
                raise DataCorruption(str(gone), file=gone.name) from gone

            context.layouts.discard(segment)


async def _read(context: StorageContext, layout: Layout, segment: int, offset: int, size: int) -> Buffer:
    if offset < layout.segment.start_offset:
        message = (
            f"segment {segment:016x} begins at {layout.segment.start_offset}, offset {offset} was truncated"
        )
        raise SegmentTruncated(message, segment=f"{segment:016x}", start_offset=layout.segment.start_offset)

    end = min(offset + size, layout.segment.length)
    if offset >= end:
        return b""

    known = len(layout)
    requests, skip = await _plan(layout, offset, end, context.options.read_request)
    # Only a read that has loaded records can exceed the cache's bounds.
    if len(layout) != known:
        context.layouts.trim()
    data = await _fetch_all(context, requests, skip, end - offset)
    context.bytes_read += len(data)
    return data


async def _plan(layout: Layout, offset: int, end: int, request: int) -> tuple[list[_Request], int]:
    """The requests that cover ``offset .. end``, and how many bytes of the first one precede ``offset``."""
    requests: list[_Request] = []
    skip = 0
    while offset < end:
        start, chunk = await layout.locate(offset)
        stop = min(end - start, chunk.length)
        if not requests:
            skip = (offset - start) % BLOCK
        requests += _divide(chunk, offset - start, stop, request)
        offset = start + chunk.length
    return requests, skip


def _divide(chunk: ChunkRecord, begin: int, stop: int, request: int) -> list[_Request]:
    """The whole blocks around ``begin .. stop`` of one chunk, in as many requests of about equal size as
    those bytes alone would need."""
    first = begin // BLOCK * BLOCK
    last = min(-(-stop // BLOCK) * BLOCK, chunk.length)
    count = -(-(stop - begin) // request)
    size = -(-(last - first) // (count * BLOCK)) * BLOCK
    return [_Request(chunk, at, min(size, last - at)) for at in range(first, last, size)]


async def _fetch_all(context: StorageContext, requests: list[_Request], skip: int, size: int) -> Buffer:
    """``size`` bytes of the requests' data, from byte ``skip`` on."""
    if len(requests) == 1:
        data = await _fetch(context, requests[0])
        return data if len(data) == size else memoryview(data)[skip : skip + size]

    # Each piece is written at its offset while others are in flight: nothing is joined at the end or held
    # twice.
    result = BytesIO(bytes(size))
    errors: list[TierlogError | LayoutChanged] = []
    offsets = accumulate((request.size for request in requests), initial=-skip)
    # One iterator for all workers: each takes the next request.
    pending = iter(list(zip(offsets, requests, strict=False)))

    async def work() -> None:
        for offset, request in pending:
            try:
                _copy_into(result, offset, size, await _fetch(context, request))
            except (TierlogError, LayoutChanged) as error:
                # Collected and not raised, so that the caller gets one error and no group of them.
                errors.append(error)
                # One error fails the whole read: what is under way would only keep slots of the storage busy.
                group.cancel_scope.cancel()

    async with create_task_group() as group:
        for _ in range(min(context.options.read_parallelism, len(requests))):
            group.start_soon(work)
    if errors:
        raise errors[0]

    return result.getvalue()


def _copy_into(result: BytesIO, offset: int, size: int, data: bytes) -> None:
    """Copy the part of ``data`` that lies inside the result."""
    result.seek(max(0, offset))
    result.write(memoryview(data)[max(0, -offset) : size - offset])


async def _fetch(context: StorageContext, request: _Request) -> bytes:
    data = await _fetch_unverified(context, request)
    try:
        _verify(request, data)
    except DataCorruption:
        # K2: the storage may hold the right bytes, and what was read was damaged on its way into the cache.
        if not await context.chunks.drop_copy(request.chunk.name):
            raise
        data = await _fetch_unverified(context, request)
        _verify(request, data)
    return data


async def _fetch_unverified(context: StorageContext, request: _Request) -> bytes:
    try:
        return await context.chunks.read(request.chunk.name, request.offset, request.size)
    except ChunkNotFound as missing:
        # A commit may have replaced the chunk and the collector deleted it: the caller finds that out.
        raise LayoutChanged(request.chunk.name, f"a chunk is missing from storage: {missing}") from missing


def _verify(request: _Request, data: bytes) -> None:
    name, view = request.chunk.name, memoryview(data)
    if len(data) != request.size:
        message = f"the chunk is shorter than the {request.chunk.length} bytes that were committed"
        raise DataCorruption(message, file=name, offset=request.offset + len(data))

    crcs = request.chunk.crcs[request.offset // BLOCK :]
    for at in bad_blocks(view, crcs):
        raise DataCorruption(
            "the bytes of a block do not match their checksum", file=name, offset=request.offset + at
        )


async def starts(context: StorageContext, segment: int, start: int, end: int, limit: int) -> list[int]:
    return await on_layout(context, segment, end, lambda layout: _starts(context, layout, start, end, limit))


async def _starts(context: StorageContext, layout: Layout, start: int, end: int, limit: int) -> list[int]:
    found: list[int] = []
    known = len(layout)
    offset, end = max(start, layout.segment.start_offset), min(end, layout.segment.length)
    while offset < end and len(found) < limit:
        chunk_start, chunk = await layout.locate(offset)
        inside = chunk.starts
        found_here = inside[
            bisect_left(inside, offset - chunk_start) : bisect_left(inside, end - chunk_start)
        ]
        found += (chunk_start + each for each in found_here)
        offset = chunk_start + chunk.length
    if len(layout) != known:
        context.layouts.trim()
    return found[:limit]

"""Ranges of whole events: what one task reads, and where a segment can be divided.

A cut must be a boundary, and only the frames themselves show boundaries. The service knows where appends
begin, about one per MiB, and these are boundaries too: a cut is found by walking the frames from the last
known append before it. So a cut costs about a MiB of reading, wherever it lies, and a read that needs no cut
costs nothing.

Everything here depends on a segment's bytes alone, which never change, so a replay gets the same answers. The
known appends only change where a walk starts. If one is not a boundary, because something else than whole
frames was appended, the task that reads there fails."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, Protocol

import attrs

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.codec import DecodeError
from ..storage_backends.base.errors import DataCorruption
from ..storage_backends.base.segments import SegmentInfo
from . import events

WALK_BYTES = 4 << 20
NEAR_BYTES = 2 << 20
"""Within this distance frames are walked without asking where appends begin."""
_SEARCH_BYTES = 16 << 20
_SEARCH_GROWTH = 16
"""How far before a cut appends are searched at first, and how that grows when there are none."""


# --- where bytes come from ----------------------------------------------------------------------


class BytesSource(Protocol):
    def read(self, segment: str, offset: int, size: int) -> bytes:
        """Bytes that existed when the read was planned. Raises ``SegmentTruncated`` or ``SegmentNotFound`` if
        they are gone."""

    def append_starts(self, segment: str, start: int, end: int) -> Sequence[int]:
        """Some of the offsets in ``start .. end`` at which appends begin, ascending; possibly none."""


class ReadClient(Protocol):
    """What is asked of a client."""

    def segment_info(self, name: str) -> SegmentInfo: ...
    def list_segments(self, prefix: str = "") -> list[str]: ...
    def append_starts(self, name: str, start: int, end: int) -> list[int]: ...
    def read(self, name: str, offset: int, size: int) -> bytes: ...


@attrs.frozen
class ServiceBytes:
    client: ReadClient

    def append_starts(self, segment: str, start: int, end: int) -> Sequence[int]:
        return self.client.append_starts(segment, start, end)

    def read(self, segment: str, offset: int, size: int) -> bytes:
        pieces = [self.client.read(segment, offset, size)]
        got = len(pieces[0])
        # The service takes the bytes of one read from one source, so a read may be short.
        while got < size:
            piece = self.client.read(segment, offset + got, size - got)
            if not piece:
                break

            pieces.append(piece)
            got += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


# --- ranges -------------------------------------------------------------------------------------


@attrs.frozen
class Range:
    """Bytes of one segment that begin and end at a boundary."""

    segment: str
    segment_id: int | None
    """The id of the segment that the plan was made for; None if the segment may have been recreated."""
    start: int
    end: int
    history: int | None = None
    """The history that ``end`` is of; None if it is not checked."""

    @property
    def size(self) -> int:
        return self.end - self.start


class Block(NamedTuple):
    """Consecutive whole frames."""

    offset: int
    data: Buffer
    """Valid until the next block is asked for."""
    boundaries: Sequence[int]
    """Boundaries of the frames, as positions in ``data``."""


def blocks(source: BytesSource, segment: str, start: int, end: int, size: int) -> Iterator[Block]:
    """All events between two boundaries, in reads of ``size`` bytes; a larger event is read alone.

    The next block is read while the caller processes one. Closing the generator waits for that read.
    """
    position, wanted = start, size
    coming: Future[bytes] | None = None
    with ThreadPoolExecutor(1, "tierlog-read") as ahead:
        while position < end:
            data = (
                source.read(segment, position, min(wanted, end - position))
                if coming is None
                else coming.result()
            )
            found, coming = boundaries_at(data, segment, position), None
            # No whole frame: the event is larger than a read.
            if found[-1] == 0:
                wanted = _frame_size(data, segment, position, end)
                continue

            after = position + found[-1]
            if after < end:
                coming = ahead.submit(source.read, segment, after, min(size, end - after))
            yield Block(position, data, found)
            position, wanted = after, size


def boundaries_at(data: Buffer, segment: str, offset: int) -> Sequence[int]:
    try:
        return events.scan_boundaries(data)
    except DecodeError as error:
        raise _no_events(segment, offset, str(error)) from error


def _frame_size(data: bytes, segment: str, offset: int, end: int) -> int:
    """The size of the frame at ``offset``; ``data`` is its beginning."""
    try:
        size = events.frame_bytes(data[: events.HEADER_BYTES])
    except DecodeError as error:
        raise _no_events(segment, offset, str(error)) from error

    if size > end - offset:
        raise _no_events(
            segment, offset, f"an event of {size - events.HEADER_BYTES} bytes reaches past the end at {end}"
        )

    return size


def _no_events(segment: str, offset: int, why: str) -> DataCorruption:
    return DataCorruption(
        f"segment {segment!r} has no framed events from byte {offset} on ({why}): something else was "
        "appended, or a given offset, or the truncation offset, is not a frame boundary",
        file=segment,
        offset=offset,
    )


class Around(NamedTuple):
    """The boundaries next to a position."""

    before: int
    """The last one at or before it."""
    after: int
    """The first one at or after it."""


def around(source: BytesSource, segment: str, start: int, end: int, position: int) -> Around:
    """``start`` and ``end`` are boundaries, ``position`` lies between them."""
    begin = start
    while begin < position:
        size = min(WALK_BYTES, position + events.HEADER_BYTES - begin, end - begin)
        data = source.read(segment, begin, size)
        found = boundaries_at(data, segment, begin)
        if begin + found[-1] >= position:
            index = bisect_left(found, position - begin)
            after = begin + found[index]
            return Around(after if after == position else begin + found[index - 1], after)
        before = begin + found[-1]
        begin = before
        if len(data) - found[-1] >= events.HEADER_BYTES or found[-1] == 0:
            # Its header gives the start of the next frame, so the rest of it need not be read.
            begin += _frame_size(data[found[-1] :], segment, before, end)
            if begin > position:
                return Around(before, begin)
    return Around(begin, begin)


def near(source: BytesSource, segment: str, start: int, position: int) -> int:
    """The boundary in ``start .. position`` that is closest to ``position``, among ``start`` and known
    appends."""
    high, back = position + 1, _SEARCH_BYTES
    while high - start > NEAR_BYTES:
        low = max(start, high - back)
        if found := source.append_starts(segment, low, high):
            return found[-1]
        high, back = low, back * _SEARCH_GROWTH
    return start


def first_boundary(source: BytesSource, whole: Range, start: int, position: int) -> int:
    """The first boundary at or after ``position``, which lies in ``whole``; ``start`` is an earlier one."""
    begin = near(source, whole.segment, start, position)
    return around(source, whole.segment, begin, whole.end, position).after


def split(source: BytesSource, whole: Range, size: int) -> Iterator[Range]:
    """Ranges of at least ``size`` bytes each, except the last one."""
    start = whole.start
    while whole.end - start > size:
        cut = first_boundary(source, whole, start, start + size)
        yield attrs.evolve(whole, start=start, end=cut)
        start = cut
    if start < whole.end or not whole.size:
        yield attrs.evolve(whole, start=start)


def plan(source: BytesSource, wholes: Sequence[Range], least: int) -> list[Range]:
    """At least about ``least`` ranges, if there are so many events: one per segment, divided only if these
    are too few."""
    wanted = [whole for whole in wholes if whole.size > 0]
    if len(wanted) >= least or not wanted:
        return wanted

    # Rounded up: otherwise the remainder would be a task of its own.
    size = max(1, -(-sum(whole.size for whole in wanted) // least))
    return [part for whole in wanted for part in split(source, whole, size)]


def admit(source: BytesSource, backlog: Sequence[Range], limit: int) -> Mapping[str, int]:
    """The end for each segment, for ``limit`` bytes in all: each gets its share of the backlog, and at least
    one event."""
    total = sum(whole.size for whole in backlog)
    if total <= limit:
        return {whole.segment: whole.end for whole in backlog}

    return {
        # In integers: a replay must compute the same ends.
        whole.segment: _admitted(source, whole, whole.size * limit // total)
        for whole in backlog
        if whole.size
    }


def _admitted(source: BytesSource, whole: Range, share: int) -> int:
    limit = whole.start + max(share, 1)
    begin = near(source, whole.segment, whole.start, limit)
    found = around(source, whole.segment, begin, whole.end, limit)
    # One event at least, or the stream would stand still.
    return found.after if found.before == whole.start else found.before

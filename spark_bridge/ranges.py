"""Ranges of whole events: what one task reads, and where a segment may be cut into such.

Owns: walking a segment's frames, blocks of whole frames, cuts for tasks and for micro-batches. Does not own:
where bytes come from (``bytes_source.py``), nor what becomes of them (``reader.py``).

A cut must be a border, and only the frames themselves say where one is. The service knows where appends
begin, about one for each MiB, and there frames begin too: from the last one before the place of a cut on the
frames are walked. So a cut costs about a MiB of reading, wherever it lies, and nothing is read where nothing
has to be cut.

Everything here depends on a segment's bytes alone, which never change: the same question has the same answer
in a replay. Which starts the service still knows changes nothing but where a walk begins. Should one be no
border, because something else than whole frames was appended, the task that reads there says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import attrs

from ..storage_backends.base.codec import DecodeError
from ..storage_backends.base.errors import DataCorruption
from . import events
from .bytes_source import BytesSource

WALK_BYTES = 4 << 20
NEAR_BYTES = 2 << 20
"""What is this near is walked to without asking where appends begin."""
_LOOK_BACK = 16 << 20
_LOOK_BACK_GROWS = 16
"""How far before a cut one asks for appends first, and how much further each time that there are none."""


@attrs.frozen
class Range:
    """Bytes of one segment that begin and end at a border."""

    segment: str
    segment_id: int | None
    """The life of the segment that was planned with; None: whichever."""
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Block(NamedTuple):
    """Whole frames, one behind the other."""

    offset: int
    data: bytes
    borders: Sequence[int]
    """In ``data``."""


def blocks(source: BytesSource, segment: str, start: int, end: int, size: int) -> Iterator[Block]:
    """All events between two borders, in reads of ``size`` bytes; a larger event gets a read of its own.

    While the caller has a block, the next one is read. Closing the generator waits for that.
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
            found, coming = borders_at(data, segment, position), None
            if found[-1] == 0:
                wanted = _frame_size(data, segment, position, end)
                continue

            behind = position + found[-1]
            if behind < end:
                coming = ahead.submit(source.read, segment, behind, min(size, end - behind))
            yield Block(position, data, found)
            position, wanted = behind, size


def borders_at(data: bytes, segment: str, offset: int) -> Sequence[int]:
    try:
        return events.borders(data)
    except DecodeError as error:
        raise _no_events(segment, offset, str(error)) from error


def _frame_size(data: bytes, segment: str, offset: int, end: int) -> int:
    """The size of the frame at ``offset``, of which ``data`` is the beginning."""
    try:
        size = events.frame_bytes(data[: events.HEADER_BYTES])
    except DecodeError as error:
        raise _no_events(segment, offset, str(error)) from error

    if size > end - offset:
        raise _no_events(
            segment, offset, f"an event of {size - events.HEADER_BYTES} bytes reaches over the end at {end}"
        )

    return size


def _no_events(segment: str, offset: int, why: str) -> DataCorruption:
    return DataCorruption(
        f"segment {segment!r} has no framed events from byte {offset} on ({why}): something else was "
        f"appended, or an offset that was given "
        "or truncated at is not where an event begins",
        file=segment,
        offset=offset,
    )


def walk(source: BytesSource, segment: str, start: int, end: int, until: int | None = None) -> Iterator[int]:
    """Every border behind ``start``, up to ``end``; or up to the first one that is not before ``until``, and
    perhaps one more."""
    position, until = start, end if until is None else until
    while position < until:
        size = min(WALK_BYTES, until + events.HEADER_BYTES - position, end - position)
        data = source.read(segment, position, size)
        found = borders_at(data, segment, position)
        for border in found[1:]:
            yield position + border
        position += found[-1]
        cut_off = len(data) - found[-1]
        if cut_off >= events.HEADER_BYTES or found[-1] == 0:
            # Its header says where the next begins, so the rest of it need not be read.
            position += _frame_size(data[found[-1] :], segment, position, end)
            yield position


def near(source: BytesSource, segment: str, start: int, position: int) -> int:
    """A border in ``start .. position``, as near to the latter as appends tell; ``start`` is one."""
    high, back = position + 1, _LOOK_BACK
    while high - start > NEAR_BYTES:
        low = max(start, high - back)
        if found := source.append_starts(segment, low, high):
            return found[-1]
        high, back = low, back * _LOOK_BACK_GROWS
    return start


def first_border(source: BytesSource, whole: Range, start: int, position: int) -> int:
    """The first border at or behind ``position``, which lies in ``whole``; ``start`` is one before it."""
    begin = near(source, whole.segment, start, position)
    return next(
        (border for border in walk(source, whole.segment, begin, whole.end, position) if border >= position),
        begin,
    )


def split(source: BytesSource, whole: Range, size: int) -> Iterator[Range]:
    """Ranges of at least ``size`` bytes each, but for the last."""
    start = whole.start
    while whole.end - start > size:
        cut = first_border(source, whole, start, start + size)
        yield attrs.evolve(whole, start=start, end=cut)
        start = cut
    if start < whole.end or not whole.size:
        yield attrs.evolve(whole, start=start)


def plan(source: BytesSource, wholes: Sequence[Range], least: int) -> list[Range]:
    """At least about ``least`` ranges, where there are so many events: one for each segment, cut further only
    if that is not enough."""
    wanted = [whole for whole in wholes if whole.size > 0]
    if len(wanted) >= least or not wanted:
        return wanted

    size = max(1, -(-sum(whole.size for whole in wanted) // least))
    return [part for whole in wanted for part in split(source, whole, size)]


def admit(source: BytesSource, backlog: Sequence[Range], limit: int) -> Mapping[str, int]:
    """How far to read of each segment, so that it is ``limit`` bytes in all: each gets its share of what
    waits, and at least one event."""
    total = sum(whole.size for whole in backlog)
    if total <= limit:
        return {whole.segment: whole.end for whole in backlog}

    return {
        whole.segment: _admitted(source, whole, whole.size * limit // total)
        for whole in backlog
        if whole.size
    }


def _admitted(source: BytesSource, whole: Range, share: int) -> int:
    limit = whole.start + share
    last = near(source, whole.segment, whole.start, limit)
    for border in walk(source, whole.segment, last, whole.end, limit + 1):
        if border > limit:
            return border if last == whole.start else last

        last = border
    return last

"""Where the log holds one segment's unflushed bytes: extents in offset order, pure (rule C10).

Adjacent appends in one window of the log share an extent, which takes 24 bytes, so their number depends on
the log's size and not on the number of appends."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace


class LogExtent(Struct, frozen=True):
    """The segment's bytes ``start .. end`` are in the window of the log that begins with group ``window``."""

    start: int
    end: int
    window: int


class LogExtents:
    __slots__ = ("_ends", "_starts", "_windows")

    def __init__(self) -> None:
        self._starts = array("Q")
        self._ends = array("Q")
        self._windows = array("Q")

    def add(self, start: int, end: int, window: int) -> None:
        """Add bytes behind all others."""
        ends = self._ends
        # Only within a window: a reader loads windows, and truncation keeps whole groups.
        if ends and ends[-1] == start and self._windows[-1] == window:
            ends[-1] = end
            return

        self._starts.append(start)
        ends.append(end)
        self._windows.append(window)

    def move(self, start: int, end: int, window: int) -> int:
        """The bytes ``start .. end`` are in ``window`` now, wherever they were. Returns how many of them are
        new."""
        first = bisect_right(self._ends, start)
        touched = [extent for extent in self._from(first) if extent.start < end]
        moved = [LogExtent(start, end, window)]
        if touched and touched[0].start < start:
            moved.insert(0, replace(touched[0], end=start))
        if touched and touched[-1].end > end:
            moved.append(replace(touched[-1], start=end))
        self._starts[first : first + len(touched)] = array("Q", [extent.start for extent in moved])
        self._ends[first : first + len(touched)] = array("Q", [extent.end for extent in moved])
        self._windows[first : first + len(touched)] = array("Q", [extent.window for extent in moved])
        return end - start - sum(min(end, extent.end) - max(start, extent.start) for extent in touched)

    def drop_below(self, offset: int) -> int:
        """Forget the bytes below ``offset``; returns how many there were."""
        count = bisect_right(self._ends, offset)
        dropped = sum(self._ends[:count]) - sum(self._starts[:count])
        del self._starts[:count]
        del self._ends[:count]
        del self._windows[:count]
        if self._starts and self._starts[0] < offset:
            dropped += offset - self._starts[0]
            self._starts[0] = offset
        return dropped

    def find(self, offset: int) -> LogExtent | None:
        """The extent that holds ``offset``."""
        extent = next(self._from(bisect_right(self._ends, offset)), None)
        return extent if extent is not None and extent.start <= offset else None

    def next_start(self, offset: int) -> int | None:
        """Where the first extent that starts after ``offset`` begins."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges in ``start .. end`` that no extent holds, in order."""
        for extent in self.between(start, end):
            if start < extent.start:
                yield start, extent.start
            start = extent.end
        if start < end:
            yield start, end

    def between(self, start: int, end: int) -> Iterator[LogExtent]:
        """What the extents hold of ``start .. end``, in order."""
        for extent in self._from(bisect_right(self._ends, start)):
            if extent.start >= end:
                break

            yield LogExtent(max(start, extent.start), min(end, extent.end), extent.window)

    @property
    def size(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def _from(self, index: int) -> Iterator[LogExtent]:
        for at in range(index, len(self._ends)):
            yield LogExtent(self._starts[at], self._ends[at], self._windows[at])

    def __iter__(self) -> Iterator[LogExtent]:
        return self._from(0)

    def __len__(self) -> int:
        return len(self._ends)

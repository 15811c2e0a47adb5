"""Where every so-many-th chunk of a segment begins: a bounded index in memory, for segments whose chunks are
small against the block index.

Owns: the marks of one segment and their bound. Does not own: the walk between two marks (``layout.py``).

A chunk never moves inside its segment and its name is never used again, so a mark stays true over every
commit until its chunk leaves the chain; then its record is gone and the walk that meets this drops the mark.
So marks outlive layouts, which each commit forgets. Cancellation and crash: nothing to lose; a walk makes
them anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

MARKS_MAX = 4096
"""Marks of one segment: with more, every second one goes."""
_STRIDE = 16


class Marks:
    def __init__(self, limit: int = MARKS_MAX) -> None:
        self._limit = limit
        self._starts: list[int] = []
        self._names: list[str] = []
        self.stride = _STRIDE
        """A walk sets a mark after so many chunks."""

    def __len__(self) -> int:
        return len(self._starts)

    def below(self, offset: int) -> tuple[int, str] | None:
        """(segment offset, name) of the nearest marked chunk that begins at or before ``offset``."""
        place = bisect_right(self._starts, offset)
        return (self._starts[place - 1], self._names[place - 1]) if place else None

    def put(self, start: int, name: str) -> None:
        place = bisect_left(self._starts, start)
        if place < len(self._starts) and self._starts[place] == start:
            self._names[place] = name
            return

        self._starts.insert(place, start)
        self._names.insert(place, name)
        if len(self._starts) > self._limit:
            del self._starts[1::2], self._names[1::2]
            self.stride *= 2

    def drop(self, start: int) -> None:
        """The chunk that began there is gone."""
        place = bisect_left(self._starts, start)
        if place < len(self._starts) and self._starts[place] == start:
            del self._starts[place], self._names[place]

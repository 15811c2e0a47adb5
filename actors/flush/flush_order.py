"""The order of a flush cycle. Pure; tested exhaustively.

A segment can be flushed as soon as its own sources are, whatever the others do (rules F3, F7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ...storage_backends.base.sharded_dict import ShardedDict


class FlushOrder:
    """What a cycle may flush next. First all segments are added, each after its sources were named; then each
    is taken once and ended once."""

    def __init__(self) -> None:
        self._targets: ShardedDict[int, list[int]] = ShardedDict()
        self._missing: dict[int, int] = {}
        """How many sources of a segment with sources have not ended."""
        self._open: ShardedDict[int, None] = ShardedDict()
        """The segments that have not ended."""
        self._ready: deque[int] = deque()

    def add_source(self, segment: int, source: int) -> None:
        """``source`` is merged into ``segment``. Both are added later, first ``segment``. So merges form no
        circle, and a source knows its targets."""
        targets = self._targets.get(source)
        if targets is None:
            self._targets[source] = [segment]
        else:
            targets.append(segment)
        self._missing[segment] = self._missing.get(segment, 0) + 1

    def add(self, segment: int) -> None:
        self._open[segment] = None
        if segment not in self._missing:
            self._ready.append(segment)

    @property
    def is_done(self) -> bool:
        return not self._open

    def open(self) -> Iterator[int]:
        """The segments that have not ended."""
        return iter(self._open)

    def take(self) -> int | None:
        """A segment that can be flushed now; None if that needs others to end first, or none is left."""
        return self._ready.popleft() if self._ready else None

    def flushed(self, segment: int) -> None:
        if self._missing.get(segment):
            raise RuntimeError(f"segment {segment:016x} was flushed before what is merged into it (rule F3)")

        del self._open[segment]
        for target in self._targets.pop(segment, ()):
            if target not in self._open:
                continue  # given up for another source

            self._missing[target] -= 1
            if not self._missing[target]:
                self._ready.append(target)

    def give_up(self, segment: int) -> list[int]:
        """The segment is not flushed in this cycle, and neither is anything that it is merged into: returns
        those, which have ended too."""
        given_up: dict[int, None] = {}
        stack = [segment]
        while stack:
            # A target without the splice of one source cannot have those behind it: its bytes are in offset
            # order (F3).
            for target in self._targets.get(stack.pop(), ()):
                if target in self._open and target not in given_up:
                    given_up[target] = None
                    stack.append(target)
        for each in (segment, *given_up):
            del self._open[each]
        return list(given_up)

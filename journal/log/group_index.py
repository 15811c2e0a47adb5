"""Where the groups of a log in a service are, by number. A group has a *position*: a slot in a bucket, or a
ledger and an entry. An owner's groups mostly have consecutive positions, so a few numbers are enough however
many groups there are; each group's size takes 4 bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

import attrs


@attrs.define
class _Run:
    number: int
    """Of the first group."""
    position: int
    count: int = 0


class GroupIndex:
    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._sizes = array("I")
        self.retained_bytes = 0

    def add(self, number: int, position: int, size: int) -> None:
        """The next group."""
        last = self._runs[-1] if self._runs else None
        if last is None or position != last.position + last.count:
            last = _Run(number, position)
            self._runs.append(last)
        last.count += 1
        self._sizes.append(size)
        self.retained_bytes += size

    @property
    def count(self) -> int:
        """How many groups are known."""
        return len(self._sizes)

    def position_of(self, number: int) -> int | None:
        """None if the group is not known."""
        at = bisect_right(self._runs, number, key=lambda run: run.number) - 1
        if at < 0 or number >= self._runs[at].number + self._runs[at].count:
            return None
        return self._runs[at].position + number - self._runs[at].number

    def size_of(self, number: int) -> int:
        """Of a group that is known."""
        return self._sizes[number - self._runs[0].number]

    def forget_below(self, number: int) -> list[int]:
        """Forget the groups below this one; returns their positions."""
        positions: list[int] = []
        kept: list[_Run] = []
        for run in self._runs:
            gone = min(max(number - run.number, 0), run.count)
            positions.extend(range(run.position, run.position + gone))
            if gone < run.count:
                kept.append(_Run(run.number + gone, run.position + gone, run.count - gone))
        self._runs = kept
        self.retained_bytes -= sum(self._sizes[: len(positions)])
        del self._sizes[: len(positions)]
        return positions


class Group(Protocol):
    """What is known of a group without its payload."""

    @property
    def number(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def truncate_before(self) -> int: ...
    @property
    def position(self) -> int: ...


def readable(groups: Sequence[Group]) -> Sequence[Group]:
    """Those from the newest truncation address on."""
    address = max((each.truncate_before for each in groups), default=0)
    return [each for each in groups if each.number >= address]

"""Shrinking a failing seed: which steps of its plan does the violation need?

Delta debugging over step numbers. The largest parts are tried first and the latest ones before earlier ones,
since what follows the failure is never needed; then ever smaller ones, until no single step can be left out.
The search is deterministic. When the caller gives up, or interrupts, the steps found until then still fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

_CHANGING = re.compile(r"\([^()]*=.*\)|'[^']*'|\"[^\"]*\"|\b[0-9a-f]{8,}\b|\d+")
"""What differs between two runs that fail for one reason: arguments of a call, names, ids, offsets, times."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_STEPS_MAX = 1_000_000

Steps = tuple[int, ...]


def kind_of(violation: str) -> str:
    """What a violation says in its first line, without names and numbers: with fewer steps it fails at other
    offsets and times."""
    lines = violation.splitlines()
    return _CHANGING.sub("#", lines[0]) if lines else ""


def parse_steps(text: str) -> Steps:
    """The step numbers that ``text`` names, in order. ``ValueError`` says what is wrong."""
    numbers: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} names no steps: write numbers and ranges, such as 3,7,20-31")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last > _STEPS_MAX:
            raise ValueError(
                f"{part!r} is no range of steps: write the smaller number first, and none above {_STEPS_MAX}"
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def format_steps(steps: Iterable[int]) -> str:
    """As ``parse_steps`` reads it, as short as possible."""
    runs: list[list[int]] = []
    for number in sorted(steps):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def shrink(
    steps: Collection[int], still_fails: Callable[[Steps], bool], give_up: Callable[[], bool] = lambda: False
) -> Steps:
    """The fewest of ``steps`` found that still fail; none of them can be left out alone, unless ``give_up``
    ended the search before."""
    return _Search(tuple(sorted(steps)), still_fails, give_up).run()


class _Search:
    def __init__(
        self, steps: Steps, still_fails: Callable[[Steps], bool], give_up: Callable[[], bool]
    ) -> None:
        self._kept = steps
        self._still_fails = still_fails
        self._give_up = give_up
        self._passed: set[Steps] = set()
        """Tried before, without failing: a later round over single steps need not run them again."""

    def run(self) -> Steps:
        size = len(self._kept)
        while size and not self._give_up():
            cut = self._cut_parts(size)
            if size > 1 or not cut:
                size //= 2
            size = min(size, len(self._kept))
        return self._kept

    def _cut_parts(self, size: int) -> bool:
        """Try to do without each part of ``size`` neighbours, from the last to the first; returns whether one
        could be cut."""
        cut = False
        end = len(self._kept)
        while end > 0 and not self._give_up():
            begin = max(0, end - size)
            fewer = self._kept[:begin] + self._kept[end:]
            if self._fails(fewer):
                self._kept, cut = fewer, True
            end = begin
        return cut

    def _fails(self, steps: Steps) -> bool:
        if steps in self._passed:
            return False
        if self._still_fails(steps):
            return True
        self._passed.add(steps)
        return False

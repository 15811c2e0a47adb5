"""Names whose deletion failed repeatedly are tried again together, in rounds that are ever farther apart
(rule G2). Pure.

A round costs a barrier, so the pause doubles as long as every delete fails: a store without clients stays
quiet. One delete that works shows that long-term storage is healthy, and brings the next round near again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...storage_backends.base.sorted_dict import SortedDict
from .rules import Garbage


class RetryLater:
    """At most ``names_max`` names and the time of their next round."""

    def __init__(self, pause: float, pause_max: float, names_max: int) -> None:
        """``pause`` and ``pause_max``: seconds between two rounds, at least and at most."""
        self._pause_min = pause
        self._pause_max = pause_max
        self._names_max = names_max
        self._pause = pause
        self._names: SortedDict[str, Garbage] = SortedDict()
        self.due = float("inf")
        """When the next round is due; infinite without names."""

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def add(self, garbage: Garbage, now: float) -> bool:
        """Keep the name for the next round; False if there is no room."""
        if len(self._names) >= self._names_max:
            return False

        if not self._names:
            self.due = now + self._pause
        self._names[garbage.name] = garbage
        return True

    def take(self, now: float) -> Iterable[Garbage]:
        """All names if their round is due, else none. Those that fail again are added again, and wait twice
        as long."""
        if now < self.due:
            return ()

        found, self._names = self._names.values(), SortedDict()
        self._pause = min(self._pause * 2, self._pause_max)
        self.due = float("inf")
        return found

    def __iter__(self) -> Iterator[Garbage]:
        return iter(self._names.values())

    def make_due(self, now: float) -> None:
        """Their round is due, and the pauses are short again."""
        self._pause = self._pause_min
        if self._names:
            self.due = now

    def clear(self) -> None:
        self._names, self.due = SortedDict(), float("inf")

    def reset_pause(self, now: float) -> None:
        """A delete worked: begin with the shortest pause again."""
        self._pause = self._pause_min
        if self._names:
            self.due = min(self.due, now + self._pause_min)

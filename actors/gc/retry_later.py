"""Names whose deletion failed too often: they are tried again together, in rounds that are ever farther apart
(rule G2). Pure.

Owns: these names, at most so many, and when their next round is. Does not own: the clock, the queue that a
round goes back to, deletes.

A round costs a barrier, so the pause doubles for as long as nothing goes: a store that is idle stays so. One
delete that works shows that long-term storage is well, and brings the next round near again.
"""

from __future__ import annotations

from .rules import Garbage


class RetryLater:
    def __init__(self, first: float, most: float, names_max: int) -> None:
        """``first`` and ``most``: seconds between two rounds, at least and at most."""
        self._first = first
        self._most = most
        self._names_max = names_max
        self._pause = first
        self._names: dict[str, Garbage] = {}
        self.due = float("inf")
        """When the next round is; infinite without names."""

    def __len__(self) -> int:
        return len(self._names)

    def add(self, garbage: Garbage, now: float) -> bool:
        """Keep the name for the next round; False if there is no room."""
        if len(self._names) >= self._names_max:
            return False

        if not self._names:
            self.due = now + self._pause
        self._names[garbage.name] = garbage
        return True

    def take(self, now: float) -> list[Garbage]:
        """All names if their round has come, else none. Those that fail again are added again, and wait twice
        as long."""
        if now < self.due:
            return []

        found = list(self._names.values())
        self._names.clear()
        self._pause = min(self._pause * 2, self._most)
        self.due = float("inf")
        return found

    def storage_is_well(self, now: float) -> None:
        self._pause = self._first
        if self._names:
            self.due = min(self.due, now + self._first)

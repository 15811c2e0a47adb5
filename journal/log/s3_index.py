"""Where the groups of a log in a bucket are. An owner's groups are in consecutive slots, so a few numbers are
enough however many groups there are; each group's size takes 4 bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_right

import attrs

from .s3_slot import SlotHeader


@attrs.define
class _Run:
    number: int
    """Of the first group."""
    slot: int
    count: int = 0


class S3Index:
    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._sizes = array("I")
        self.retained_bytes = 0

    def add(self, header: SlotHeader) -> None:
        """The next group."""
        last = self._runs[-1] if self._runs else None
        if last is None or header.slot != last.slot + last.count:
            last = _Run(header.number, header.slot)
            self._runs.append(last)
        last.count += 1
        self._sizes.append(header.size)
        self.retained_bytes += header.size

    @property
    def count(self) -> int:
        """How many groups are known."""
        return len(self._sizes)

    def slot_of(self, number: int) -> int | None:
        """The slot of the group; None if it is not known."""
        at = bisect_right(self._runs, number, key=lambda run: run.number) - 1
        if at < 0 or number >= self._runs[at].number + self._runs[at].count:
            return None
        return self._runs[at].slot + number - self._runs[at].number

    def forget_below(self, slot: int) -> list[int]:
        """Forget the groups in slots below this one; returns their slots."""
        slots: list[int] = []
        kept: list[_Run] = []
        for run in self._runs:
            gone = min(max(slot - run.slot, 0), run.count)
            slots.extend(range(run.slot, run.slot + gone))
            if gone < run.count:
                kept.append(_Run(run.number + gone, run.slot + gone, run.count - gone))
        self._runs = kept
        self.retained_bytes -= sum(self._sizes[: len(slots)])
        del self._sizes[: len(slots)]
        return slots

"""What to merge: size tiers, as a pure function (rule M7).

A generation is what one cycle or one merge has written. Its tier is the number of digits of its size to the
base of the fan-out. As soon as as many adjacent generations as the fan-out are of one tier, smaller ones
between them included, they become one generation, of the next tier if no row was overwritten. So a row is
written once by its cycle and at most once per tier: five times in all for 10,000 cycles of new rows, and less
where rows are overwritten.

Only adjacent generations are merged, because the cycles of a generation must be an interval.
"""

from __future__ import annotations

import attrs

from .run_entry import RunEntry
from .run_list import RunList

FAN_OUT = 10
"""How many generations of one tier are merged. More means fewer bytes written and more runs to ask."""


@attrs.frozen
class Merge:
    """Merge ``generations``, adjacent ones from new to old."""

    generations: tuple[tuple[RunEntry, ...], ...]
    drop_tombstones_to: int
    """Tombstones up to this version are dropped; 0 if all stay."""

    @property
    def runs(self) -> list[RunEntry]:
        return [run for generation in self.generations for run in generation]


def next_merge(runs: RunList, oldest_reader: int, fan_out: int = FAN_OUT) -> Merge | None:
    """The merge that is due, or None. ``oldest_reader`` is the version from which the slowest reader of
    changes continues, or ``VERSION_MAX``: tombstones above it stay. So do all tombstones of a merge that
    leaves older runs, where they hide rows."""
    generations = runs.generations()
    tiers = [_digits(sum(run.length for run in generation), fan_out) for generation in generations]
    for start, tier in enumerate(tiers):
        end = next((at for at in range(start, len(tiers)) if tiers[at] > tier), len(tiers))
        if end - start >= fan_out:
            merged = tuple(generations[start:end])
            # No tombstone above the merged rows is dropped: the changes after them stay complete.
            greatest = max(run.summary.max_version for generation in merged for run in generation)
            return Merge(merged, min(oldest_reader, greatest) if end == len(tiers) else 0)
    return None


def _digits(number: int, base: int) -> int:
    digits = 0
    while number:
        number //= base
        digits += 1
    return digits

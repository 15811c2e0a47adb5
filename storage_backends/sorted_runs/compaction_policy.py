"""What to merge: size tiers, as a pure function (rule M7).

A generation is what one cycle or one merge has written. Its tier is the number of digits of its size to the
base of the fan-out. As soon as as many adjacent generations as the fan-out are of one tier, smaller ones
between them included, they become one generation, of the next tier if no row was overwritten. So a row is
written once by its cycle and at most once per tier: five times in all for 10,000 cycles of new rows, and less
where rows are overwritten. A run list that is too large, because keys are long, becomes shorter by merges of
two generations, which write rows more often.

Tombstones do not make a generation large, so in tiers alone they would meet the rows that they hide only
after nine more such generations. Where many rows were removed, all generations are merged without that: the
rows that are hidden go. The tombstones stay, so that the changes stay complete, and count no more, because
they are in the oldest generation then. Once they are half of its rows, the next such merge drops them. So
there are about as many tombstones as rows, and those that came since.

The runs of a large generation are larger, so that the run list stays short however many rows there are
(rule M12).

Only adjacent generations are merged, because the cycles of a generation must be an interval.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec import Struct

from .encoder import MERGED_RUN_BYTES_MAX, RUN_BYTES_MAX
from .run_entry import RunEntry
from .run_list import RunList

FAN_OUT = 10
"""How many generations of one tier are merged. More means fewer bytes written and more runs to ask."""

_REMOVED_SHARE = 4
"""All is merged once one row of so many is a tombstone that no such merge has seen."""
_REMOVED_BYTES_MIN = 1 << 20
"""Less is not worth it."""
_REMOVED_BYTES_PER_CYCLE = 4 << 20
"""And not more than so many bytes for each cycle since: where few large rows are beside many small ones that
come and go, tombstones do not tell how many bytes they hide."""

_ENTRY_OVERHEAD = 16
"""Bytes of an entry in a run list besides those of the merged runs': the number in the name, and a length."""


class Merge(Struct, frozen=True):
    """Merge ``generations``, adjacent ones from new to old."""

    generations: tuple[tuple[RunEntry, ...], ...]
    drop_tombstones_to: int
    """Tombstones up to this version are dropped; 0 if all stay."""

    @property
    def runs(self) -> list[RunEntry]:
        return [run for generation in self.generations for run in generation]

    def run_bytes(self, list_bytes: int) -> int:
        """The size at which the merge begins another run: large enough for the entries of its runs to take
        about ``list_bytes`` of the run list, unless one run would be too large to be put."""
        entry = max(len(run.encode()) for run in self.runs) + _ENTRY_OVERHEAD
        size = sum(run.length for run in self.runs) * entry // list_bytes
        return min(max(size, RUN_BYTES_MAX), MERGED_RUN_BYTES_MAX)

    def applied_to(self, runs: RunList, added: Sequence[RunEntry]) -> RunList:
        """``runs`` with ``added`` in place of those merged; as it is if an earlier attempt at this merge
        has replaced them."""
        if not {run.name for run in runs}.issuperset(run.name for run in self.runs):
            return runs

        return runs.replaced(self.runs, added, self.drop_tombstones_to)


def next_merge(
    runs: RunList, fan_out: int = FAN_OUT, list_bytes: int | None = None, left_out: Collection[str] = ()
) -> Merge | None:
    """The merge that is due, or None. In a run list above ``list_bytes`` two generations are enough. Those
    with a run whose name is in ``left_out`` are not merged."""
    generations = runs.generations()
    merge = _find(generations, fan_out, fan_out, left_out) or _of_removed(generations, fan_out, left_out)
    # More rows are written again, but without room in the list no cycle could publish (M12).
    if merge is None and list_bytes is not None and runs.size > list_bytes:
        return _find(generations, fan_out, 2, left_out)

    return merge


def _find(
    generations: Sequence[tuple[RunEntry, ...]], base: int, count: int, left_out: Collection[str]
) -> Merge | None:
    """Merge the newest adjacent generations of one tier that are at least ``count``."""
    tiers = [
        math.inf
        if any(run.name in left_out for run in generation)
        else _digits(sum(run.length for run in generation), base)
        for generation in generations
    ]
    for start, tier in enumerate(tiers):
        end = next((at for at in range(start, len(tiers)) if tiers[at] > tier), len(tiers))
        if tier != math.inf and end - start >= count:
            merged = tuple(generations[start:end])
            # Tombstones hide rows of older runs. None above the merged rows is dropped, so that the run list
            # knows the version from which on it has all changes.
            greatest = max(run.summary.max_version for generation in merged for run in generation)
            return Merge(merged, greatest if end == len(tiers) else 0)
    return None


def _of_removed(
    generations: Sequence[tuple[RunEntry, ...]], fan_out: int, left_out: Collection[str]
) -> Merge | None:
    """Merge all, if so many rows were removed that much of it goes."""
    runs = [run for generation in generations for run in generation]
    if len(generations) < 2 or any(run.name in left_out for run in runs):
        return None

    oldest = generations[-1]
    removed = sum(run.summary.tombstones for run in runs) - sum(run.summary.tombstones for run in oldest)
    size = sum(run.length for run in runs)
    cycles = generations[0][0].last_cycle - oldest[0].last_cycle
    is_due = (
        removed * _REMOVED_SHARE >= sum(run.summary.rows for run in runs)
        and cycles >= fan_out
        and _REMOVED_BYTES_MIN <= size <= cycles * _REMOVED_BYTES_PER_CYCLE
    )
    # Changes stay complete from the last such merge on, at least.
    drops = 2 * sum(run.summary.tombstones for run in oldest) >= sum(run.summary.rows for run in oldest)
    greatest = max(run.summary.max_version for run in oldest)
    return Merge(tuple(generations), greatest if drops else 0) if is_due else None


def _digits(number: int, base: int) -> int:
    digits = 0
    while number:
        number //= base
        digits += 1
    return digits

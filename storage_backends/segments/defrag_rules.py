"""Which adjacent chunks to join, and which first chunk to relocate. Pure functions over lengths.

Tiers, for a segment that grows (``plan_tiers``): a run of adjacent chunks is joined only if the whole is at
least ``growth`` times as long as the longest chunk of the run, and at most the rolling size. So whenever a
byte is copied, its chunk becomes at least ``growth`` times as long: **a byte written into a chunk of n bytes
is copied at most log(rolling size / n) to the base ``growth`` times in the life of its segment**, however the
chunks arrive. Joining every two small neighbours at once would instead copy the first byte of a segment once
per chunk.

Packing, for a segment that does not grow or on request (``plan_packed``): each small chunk is joined with as
many of its followers as fit. A byte is copied at most once in a pass.

Both plans keep the order, never exceed the rolling size, leave chunks above ``small_max`` alone, and are
complete: planning again over the result finds nothing.

Relocation (``relocates``) copies the live end of a chunk of which at least ``relocate_share`` is dead. So it
copies at most ``(1 - relocate_share) / relocate_share`` of what it frees: a quarter, by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import attrs
from msgspec import Struct

from ..base.errors import InvalidArgument
from ..base.values import Value

LENGTH_MAX = 1 << 60
GROWTH_MAX = 64
LOOSE_MAX = 65_536


def _within(least: float, most: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not isfinite(value) or not least <= value <= most:
            raise InvalidArgument(f"{attribute.name} is {value}, it must be {least} to {most}")

    return check


@attrs.frozen(kw_only=True, eq=False, repr=False)
class DefragOptions(Value):
    """When chunks are joined and relocated. Sizes in bytes."""

    small_max: int = attrs.field(default=16 << 20, validator=_within(0, LENGTH_MAX))
    """Larger chunks are left alone: reading them costs no more than reading still larger ones. 0 disables
    joins."""
    native_min: int = attrs.field(default=1 << 20, validator=_within(0, LENGTH_MAX))
    """A run is joined inside the storage if all of its chunks are at least this long, else copied through
    memory. A storage that cannot append joins inside whenever it can."""
    growth: int = attrs.field(default=4, validator=_within(2, GROWTH_MAX))
    """A joined chunk is at least this many times as long as its longest source. Higher values copy less and
    leave more chunks."""
    loose_chunks: int = attrs.field(default=16, validator=_within(0, LOOSE_MAX))
    """Small chunks that a segment gains before a defrag is due. 0: only on request."""
    inline: bool = False
    """Join inside a concat, before it returns, in a bounded number of steps; the rest is done later."""
    relocate_above: int = attrs.field(default=64 << 20, validator=_within(0, LENGTH_MAX))
    """First chunks up to this size are not relocated: they are not worth it."""
    relocate_max: int = attrs.field(default=1 << 30, validator=_within(0, LENGTH_MAX))
    """First chunks above this size are not relocated: it would take too long. 0 disables relocation."""
    relocate_share: float = attrs.field(default=0.8, validator=_within(0.5, 1.0))
    """The share of a first chunk that must be truncated before the rest is relocated, 0.5 to 1."""


class Run(Struct, frozen=True):
    """Chunks ``first .. end`` of a sequence (``end`` excluded) that become one of ``length`` bytes."""

    first: int
    end: int
    length: int

    @property
    def chunks(self) -> int:
        return self.end - self.first


def plan_tiers(lengths: Sequence[int], options: DefragOptions, rolling_size: int) -> list[Run]:
    """The runs to join in a growing segment. After each chunk everything joinable that ends there has been
    joined, so nothing is left at the end."""
    runs: list[Run] = []
    for index, length in enumerate(lengths):
        runs.append(Run(index, index + 1, length))
        # Again after each join: the longer run may fit together with those in front of it.
        while (first := _joinable(runs, options, rolling_size)) is not None:
            runs[first:] = [Run(runs[first].first, index + 1, sum(run.length for run in runs[first:]))]
    return [run for run in runs if run.chunks > 1]


def _joinable(runs: Sequence[Run], options: DefragOptions, rolling_size: int) -> int | None:
    """The index of the first of the most runs up to the last one that may be joined, or None."""
    found, total, longest = None, 0, 0
    for index in range(len(runs) - 1, -1, -1):
        length = runs[index].length
        total, longest = total + length, max(longest, length)
        # Joined runs are adjacent, so nothing in front of one that does not fit can be part of the join.
        if length > options.small_max or total > rolling_size:
            break
        # Searches on: the more runs one join takes, the fewer times a byte is copied.
        if total >= options.growth * longest:
            found = index
    return found


def plan_packed(lengths: Sequence[int], options: DefragOptions, rolling_size: int) -> list[Run]:
    """The runs to join in a segment that does not grow: as few chunks as one pass from the front can make."""
    runs: list[Run] = []
    takes_more = False
    for index, length in enumerate(lengths):
        is_small = length <= options.small_max
        if takes_more and is_small and runs[-1].length + length <= rolling_size:
            runs[-1] = Run(runs[-1].first, index + 1, runs[-1].length + length)
        else:
            runs.append(Run(index, index + 1, length))
            # S9: a large chunk is never copied, so what follows it begins a chunk of its own.
            takes_more = is_small
    return [run for run in runs if run.chunks > 1]


def joined(lengths: Sequence[int], runs: Sequence[Run]) -> Iterator[int]:
    """The lengths after joining ``runs``."""
    done = 0
    for run in runs:
        yield from lengths[done : run.first]
        yield run.length
        done = run.end
    yield from lengths[done:]


def joins_inside(lengths: Sequence[int], options: DefragOptions, *, append: bool, concat: bool) -> bool:
    """Whether the storage joins a run itself (concat, multipart copy) instead of copying its bytes through
    memory."""
    # Without append a copy needs the whole new chunk in memory, so the storage joins whatever it can.
    return concat and (not append or min(lengths) >= options.native_min)


def relocates(length: int, dead: int, options: DefragOptions) -> bool:
    """Whether to copy the live end of a first chunk of ``length`` bytes, ``dead`` of them truncated, to a new
    chunk."""
    return (
        # S10. A chunk that is dead to its end is dropped by the truncation, and needs no copy.
        options.relocate_above < length <= options.relocate_max
        and options.relocate_share * length <= dead < length
    )

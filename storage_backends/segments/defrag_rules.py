"""Which adjacent chunks become one, and which first chunk is worth moving. Pure: lengths in, runs out.

Owns: the thresholds (``DefragOptions``), the two plans and their bounds. Does not own: bytes, records or when
a plan is made (``operations/defrag.py``, ``operations/relocate.py``).

Tiers, for a segment that grows (``plan_tiers``). A run of adjacent chunks is joined only if the whole is at
least ``growth`` times as long as the longest chunk of the run, and at most the rolling size. So whenever a
byte is copied, the chunk that it lies in becomes ``growth`` times as long or longer: **a byte that was
written into a chunk of n bytes is copied at most log(rolling size / n) to the base ``growth`` times in the
life of its segment**, however the chunks arrive. Joining as soon as two small chunks stand side by side would
copy the first byte of a segment once per chunk instead.

Packing, for a segment that does not grow or when an operator asks (``plan_packed``): each small chunk is
joined with as many of its followers as fit. A byte is copied at most once in a pass.

Both plans keep the order, never go beyond the rolling size, leave a chunk above ``small_max`` alone, and are
complete: planning again over the result finds nothing.

Relocation (``relocates``) copies the live end of a chunk of which at least ``relocate_share`` is dead. So it
copies at most ``(1 - relocate_share) / relocate_share`` of what it frees: a quarter, by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import attrs

from ..base.errors import InvalidArgument

LENGTH_MAX = 1 << 60
GROWTH_MAX = 64
LOOSE_MAX = 65_536


def _within(least: float, most: float) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
        if not isfinite(value) or not least <= value <= most:
            raise InvalidArgument(f"{attribute.name} is {value}, it must be {least} to {most}")

    return check


@attrs.frozen(kw_only=True)
class DefragOptions:
    """When chunks are joined and moved. Sizes in bytes."""

    small_max: int = attrs.field(default=16 << 20, validator=_within(0, LENGTH_MAX))
    """A chunk above this is left alone: a read of it costs what a read of a larger one would. 0 joins
    nothing."""
    native_min: int = attrs.field(default=1 << 20, validator=_within(0, LENGTH_MAX))
    """A run of chunks that all have this much is joined inside the storage, a run with a smaller one is
    copied through memory. A storage that cannot append joins inside whenever it can."""
    growth: int = attrs.field(default=4, validator=_within(2, GROWTH_MAX))
    """A joined chunk is at least so many times as long as the longest of its sources. More copies less and
    leaves more chunks."""
    loose_chunks: int = attrs.field(default=16, validator=_within(0, LOOSE_MAX))
    """Small chunks that a segment gains before joining them is due. 0: only when it is asked for."""
    inline: bool = False
    """Join right after a concat, before it returns, instead of later: a bounded number of steps, what is left
    then is due later."""
    relocate_above: int = attrs.field(default=64 << 20, validator=_within(0, LENGTH_MAX))
    """A first chunk of this size or less is not moved: it is not worth it."""
    relocate_max: int = attrs.field(default=1 << 30, validator=_within(0, LENGTH_MAX))
    """A first chunk above this is not moved: it would take too long. 0 moves none."""
    relocate_share: float = attrs.field(default=0.8, validator=_within(0.5, 1.0))
    """The least part of a first chunk that must be truncated before the rest moves."""


@attrs.frozen
class Run:
    """Chunks ``first .. end`` of a sequence (``end`` excluded) that become one of ``length`` bytes. Plans
    begin with runs of one chunk."""

    first: int
    end: int
    length: int

    @property
    def chunks(self) -> int:
        return self.end - self.first


def plan_tiers(lengths: Sequence[int], options: DefragOptions, rolling_size: int) -> list[Run]:
    """The runs of a growing segment. After each chunk nothing that ends there is left to be joined, so
    nothing is left in the end."""
    runs: list[Run] = []
    for place, length in enumerate(lengths):
        runs.append(Run(place, place + 1, length))
        while (first := _joinable(runs, options, rolling_size)) is not None:
            runs[first:] = [Run(runs[first].first, place + 1, sum(run.length for run in runs[first:]))]
    return [run for run in runs if run.chunks > 1]


def _joinable(runs: Sequence[Run], options: DefragOptions, rolling_size: int) -> int | None:
    """Where the longest row of runs begins that ends with the last one and may be joined; None if there is
    none."""
    found, total, longest = None, 0, 0
    for place in range(len(runs) - 1, -1, -1):
        length = runs[place].length
        total, longest = total + length, max(longest, length)
        if length > options.small_max or total > rolling_size:
            break
        if total >= options.growth * longest:
            found = place
    return found


def plan_packed(lengths: Sequence[int], options: DefragOptions, rolling_size: int) -> list[Run]:
    """The runs of a segment that does not grow: as few chunks as one pass from the front can make."""
    runs: list[Run] = []
    takes_more = False
    for place, length in enumerate(lengths):
        is_small = length <= options.small_max
        if takes_more and is_small and runs[-1].length + length <= rolling_size:
            runs[-1] = Run(runs[-1].first, place + 1, runs[-1].length + length)
        else:
            runs.append(Run(place, place + 1, length))
            takes_more = is_small
    return [run for run in runs if run.chunks > 1]


def joined(lengths: Sequence[int], runs: Sequence[Run]) -> Iterator[int]:
    """The lengths after ``runs`` were joined."""
    place = 0
    for run in runs:
        yield from lengths[place : run.first]
        yield run.length
        place = run.end
    yield from lengths[place:]


def joins_inside(lengths: Sequence[int], options: DefragOptions, *, append: bool, concat: bool) -> bool:
    """Whether the storage joins a run itself (concat, multipart copy) rather than that its bytes are copied
    through memory."""
    return concat and (not append or min(lengths) >= options.native_min)


def relocates(length: int, dead: int, options: DefragOptions) -> bool:
    """Whether a first chunk of ``length`` bytes, ``dead`` of them truncated, is worth moving its live end to
    a new chunk."""
    return (
        options.relocate_above < length <= options.relocate_max
        and options.relocate_share * length <= dead < length
    )

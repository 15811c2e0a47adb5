"""The plans of defrag: what they join, what they leave alone, and what they may cost over a segment's
life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.segments.defrag_rules import (
    DefragOptions,
    Run,
    joined,
    joins_inside,
    plan_packed,
    plan_tiers,
    relocates,
)

Plan = Callable[[Sequence[int], DefragOptions, int], list[Run]]
PLANS = pytest.mark.parametrize("plan", [plan_tiers, plan_packed])
LENGTHS = st.lists(st.integers(1, 9) | st.integers(1, 200), max_size=40)
OPTIONS = st.builds(DefragOptions, small_max=st.integers(0, 100), growth=st.integers(2, 6))
ROLLING = st.integers(1, 300)


@PLANS
@given(lengths=LENGTHS, options=OPTIONS, rolling=ROLLING)
def test_s9_runs_are_in_order_fit_the_rolling_size_and_hold_small_chunks_only(
    plan: Plan, lengths: list[int], options: DefragOptions, rolling: int
) -> None:
    place = 0
    for run in plan(lengths, options, rolling):
        taken = lengths[run.first : run.end]
        assert place <= run.first < run.end - 1
        assert sum(taken) == run.length <= rolling
        assert max(taken) <= options.small_max
        place = run.end
    assert place <= len(lengths)


@PLANS
@given(lengths=LENGTHS, options=OPTIONS, rolling=ROLLING)
def test_s9_planning_again_over_the_result_finds_nothing(
    plan: Plan, lengths: list[int], options: DefragOptions, rolling: int
) -> None:
    runs = plan(lengths, options, rolling)
    result = list(joined(lengths, runs))

    assert sum(result) == sum(lengths)
    assert len(result) == len(lengths) - sum(run.chunks - 1 for run in runs)
    assert plan(result, options, rolling) == []


@PLANS
@given(lengths=LENGTHS, options=OPTIONS, rolling=ROLLING)
def test_joining_run_by_run_comes_to_the_same_as_the_whole_plan(
    plan: Plan, lengths: list[int], options: DefragOptions, rolling: int
) -> None:
    """A defrag makes one run per step and plans again."""
    at_once = list(joined(lengths, plan(lengths, options, rolling)))
    while runs := plan(lengths, options, rolling):
        lengths = list(joined(lengths, runs[:1]))
    assert lengths == at_once


@attrs.frozen
class Traced:
    """A chunk, and for each chunk it came from: how long that was, and how often it was copied since."""

    length: int
    origins: tuple[tuple[int, int], ...]


def arrive(length: int) -> Traced:
    return Traced(length, ((length, 0),))


def join(chunks: list[Traced], runs: list[Run]) -> list[Traced]:
    for run in reversed(runs):
        sources = chunks[run.first : run.end]
        origins = tuple((length, copies + 1) for source in sources for length, copies in source.origins)
        chunks[run.first : run.end] = [Traced(run.length, origins)]
    return chunks


@given(
    bursts=st.lists(st.lists(st.integers(1, 9) | st.integers(1, 200), min_size=1, max_size=8), max_size=25),
    options=OPTIONS,
    rolling=ROLLING,
)
def test_s9_a_byte_of_a_growing_segment_is_copied_at_most_a_logarithm_of_times(
    bursts: list[list[int]], options: DefragOptions, rolling: int
) -> None:
    chunks: list[Traced] = []
    for burst in bursts:
        chunks += map(arrive, burst)
        join(chunks, plan_tiers([chunk.length for chunk in chunks], options, rolling))

    for chunk in chunks:
        for length, copies in chunk.origins:
            assert copies == 0 or length * options.growth**copies <= rolling


@pytest.mark.parametrize("growth", [2, 4, 8])
def test_s9_a_thousand_chunks_one_by_one_cost_few_copies_and_leave_few_chunks(growth: int) -> None:
    options, count = DefragOptions(growth=growth, small_max=1 << 30), 1000
    chunks: list[Traced] = []
    copied = 0
    for _ in range(count):
        chunks.append(arrive(1))
        runs = plan_tiers([chunk.length for chunk in chunks], options, 1 << 30)
        copied += sum(run.length for run in runs)
        join(chunks, runs)
        assert len(chunks) <= (growth - 1) * (log(count, growth) + 1)

    assert copied <= count * log(count, growth)


def test_tiers_join_equal_neighbours_and_wait_until_it_is_worth_more() -> None:
    options = DefragOptions(growth=4, small_max=100)
    assert plan_tiers([1, 1, 1], options, 1000) == []
    assert plan_tiers([1, 1, 1, 1], options, 1000) == [Run(0, 4, 4)]
    assert plan_tiers([16, 4, 4, 4, 1, 1, 1], options, 1000) == []
    assert plan_tiers([16, 4, 4, 4, 1, 1, 1, 1], options, 1000) == [Run(1, 8, 16)]
    assert plan_tiers([5, 1, 2, 3, 4], DefragOptions(growth=2, small_max=100), 1000) == [Run(0, 4, 11)]


def test_packing_fills_chunks_up_to_the_rolling_size() -> None:
    options = DefragOptions(small_max=10)
    assert plan_packed([5, 1, 2, 3, 4], options, 1000) == [Run(0, 5, 15)]
    assert plan_packed([5, 1, 2, 3, 4], options, 8) == [Run(0, 3, 8), Run(3, 5, 7)]
    assert plan_packed([5, 11, 2, 3, 11], options, 1000) == [Run(2, 4, 5)]
    assert plan_packed([3, 8, 3], options, 10) == []


def test_nothing_is_joined_when_no_chunk_counts_as_small() -> None:
    options = DefragOptions(small_max=0)
    assert plan_tiers([1] * 100, options, 1000) == plan_packed([1] * 100, options, 1000) == []


@pytest.mark.parametrize(
    ("lengths", "append", "concat", "inside"),
    [
        ([5, 7], True, True, True),
        ([4, 7], True, True, False),
        ([4, 7], False, True, True),
        ([5, 7], True, False, False),
        ([5, 7], False, False, False),
    ],
)
def test_large_sources_are_joined_inside_the_storage_and_small_ones_copied(
    lengths: list[int], append: bool, concat: bool, inside: bool
) -> None:
    assert joins_inside(lengths, DefragOptions(native_min=5), append=append, concat=concat) is inside


@pytest.mark.parametrize(
    ("length", "dead", "due"),
    [
        (101, 81, True),
        (101, 80, False),
        (100, 99, False),
        (200, 160, True),
        (201, 200, False),
        (200, 200, False),
        (200, 159, False),
    ],
)
def test_s10_relocation_has_a_window_of_sizes_and_a_least_share(length: int, dead: int, due: bool) -> None:
    options = DefragOptions(relocate_above=100, relocate_max=200, relocate_share=0.8)
    assert relocates(length, dead, options) is due


@given(length=st.integers(1, 1 << 40), dead=st.integers(0, 1 << 40), share=st.floats(0.5, 1.0))
def test_s10_relocation_copies_at_most_a_share_of_what_it_frees(length: int, dead: int, share: float) -> None:
    options = DefragOptions(relocate_above=0, relocate_max=1 << 41, relocate_share=share)
    if relocates(length, dead, options):
        assert 0 < length - dead <= (1 - share) / share * dead * (1 + 1e-6) + 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"small_max": -1},
        {"native_min": -1},
        {"growth": 1},
        {"growth": 65},
        {"loose_chunks": -1},
        {"relocate_above": -1},
        {"relocate_max": (1 << 60) + 1},
        {"relocate_share": 0.49},
        {"relocate_share": float("nan")},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        DefragOptions(**options)  # type: ignore[arg-type]  # the types are what is tested

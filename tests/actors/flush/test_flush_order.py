"""The order of a flush cycle: exhaustively for small sets, by property for larger ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.flush.flush_order import FlushOrder


def order_of(members: Sequence[int], sources: Mapping[int, Sequence[int]]) -> FlushOrder:
    """Targets are added before what is merged into them, otherwise in the order of ``members``."""
    order, targets = FlushOrder(), inverted(sources)
    missing = {segment: len(targets.get(segment, ())) for segment in members}
    free = deque(segment for segment in members if not missing[segment])
    while free:
        segment = free.popleft()
        merged = sources.get(segment, ())
        for source in merged:
            order.add_source(segment, source)
        order.add(segment)
        for source in merged:
            missing[source] -= 1
            if not missing[source]:
                free.append(source)

    return order


def waves(members: Sequence[int], sources: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """What can be flushed at the same time, if everything that was taken ends before more is taken."""
    order = order_of(members, sources)
    found: list[list[int]] = []
    while not order.is_done:
        wave = list(iter(order.take, None))
        assert wave, "the order never stops before its end"
        for segment in wave:
            order.flushed(segment)
        found.append(wave)

    assert order.take() is None
    return found


def reachable(wanted: Sequence[int], edges: Mapping[int, Sequence[int]]) -> set[int]:
    found = set(wanted)
    while more := {s for segment in found for s in edges.get(segment, ())} - found:
        found |= more

    return found


def check_waves(members: Sequence[int], sources: Mapping[int, Sequence[int]]) -> None:
    found = waves(members, sources)
    wave_of = {segment: number for number, wave in enumerate(found) for segment in wave}

    assert sorted(chain(*found)) == sorted(members)
    for segment in members:
        levels = [wave_of[source] for source in sources.get(segment, ())]
        assert wave_of[segment] == max(levels, default=-1) + 1, "no segment waits longer than it must"


def forests(count: int) -> list[dict[int, list[int]]]:
    """Every way in which ``count`` segments can be merged: each into one other, without a circle."""
    found = []
    for targets in product(range(-1, count), repeat=count):
        sources: dict[int, list[int]] = {}
        for source, target in enumerate(targets):
            if target >= 0:
                sources.setdefault(target, []).append(source)
        if all(segment not in reachable(sources.get(segment, ()), sources) for segment in range(count)):
            found.append(sources)

    return found


def inverted(sources: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    targets: dict[int, list[int]] = {}
    for target, merged in sources.items():
        for source in merged:
            targets.setdefault(source, []).append(target)
    return targets


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_small_forest_of_merges_in_every_order(count: int) -> None:
    """F3, exhaustively: sources before targets, each once, in whatever order they were captured."""
    shapes = forests(count)
    for sources in shapes:
        for members in permutations(range(count)):
            check_waves(members, sources)

    assert len(shapes) == {1: 1, 2: 3, 3: 16, 4: 125}[count]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_f7_a_segment_given_up_takes_along_what_it_is_merged_into_and_nothing_else(count: int) -> None:
    """Exhaustively, whichever of the segments are given up."""
    for sources in forests(count):
        for bad in chain.from_iterable(combinations(range(count), size) for size in range(count + 1)):
            order = order_of(range(count), sources)
            flushed = set()
            while (segment := order.take()) is not None:
                if segment in bad:
                    order.give_up(segment)
                else:
                    flushed.add(segment)
                    order.flushed(segment)

            assert flushed == set(range(count)) - reachable(bad, inverted(sources))
            assert order.is_done
            assert list(order.open()) == []


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_larger_merges_too(edges: list[tuple[int, int]]) -> None:
    """F3."""
    sources: dict[int, list[int]] = {}
    for target, source in edges:
        if source > target and source not in sources.get(target, ()):
            sources.setdefault(target, []).append(source)

    check_waves(range(31), sources)


def test_a_long_chain_of_merges_is_no_recursion() -> None:
    sources = {segment: [segment + 1] for segment in range(10_000)}

    assert waves(range(10_001), sources) == [[n] for n in range(10_000, -1, -1)]
    order = order_of(range(10_001), sources)
    assert order.take() == 10_000
    assert len(order.give_up(10_000)) == 10_000
    assert order.is_done


def test_f3_a_segment_that_ends_before_its_sources_is_a_bug() -> None:
    """The order is checked where it is carried out, too."""
    order = order_of(range(3), {0: [1], 1: [2]})
    assert order.take() == 2
    with pytest.raises(RuntimeError, match="F3"):
        order.flushed(1)
    order.flushed(2)
    order.flushed(1)
    order.flushed(0)
    assert order.is_done


def test_segments_without_merges_can_all_be_flushed_at_once() -> None:
    assert waves([1, 2, 3], {}) == [[1, 2, 3]]

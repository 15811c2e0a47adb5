"""The order of a flush cycle: exhaustively for small sets, by property for larger ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.actors.flush.flush_order import Bucket, bucket_of, close_over_merges, schedule, waves

NAMES = {
    Bucket.USER: "app/events",
    Bucket.SYSTEM: "_system/containers/other",
    Bucket.STORAGE_METADATA: "_system/containers/storage_metadata_3",
    Bucket.CONTAINER_METADATA: "_system/containers/metadata_3",
}


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        *((name, bucket) for bucket, name in NAMES.items()),
        ("_system/containers/storage_metadata_3$index", Bucket.STORAGE_METADATA),
        ("_system/containers/metadata_3$index", Bucket.CONTAINER_METADATA),
        ("_systematic/x", Bucket.USER),
        ("metadata_3", Bucket.USER),
    ],
)
def test_the_name_decides_the_bucket(name: str, bucket: Bucket) -> None:
    assert bucket_of(name) is bucket


def test_buckets_are_in_their_defined_order() -> None:
    assert [bucket.name for bucket in Bucket] == ["USER", "SYSTEM", "STORAGE_METADATA", "CONTAINER_METADATA"]


def reachable(wanted: Sequence[int], sources: Mapping[int, Sequence[int]]) -> set[int]:
    found = set(wanted)
    while more := {s for segment in found for s in sources.get(segment, ())} - found:
        found |= more

    return found


def check_closure(wanted: Sequence[int], sources: Mapping[int, Sequence[int]]) -> list[int]:
    """F3: everything merged into what is wanted, each once, sources first."""
    ordered = close_over_merges(wanted, sources)
    place = {segment: number for number, segment in enumerate(ordered)}

    assert len(place) == len(ordered)
    assert set(ordered) == reachable(wanted, sources)
    assert all(place[source] < place[segment] for segment in ordered for source in sources.get(segment, ()))
    return ordered


def check_waves(ordered: list[int], sources: Mapping[int, Sequence[int]]) -> list[list[int]]:
    found = waves(ordered, sources)
    wave_of = {segment: number for number, wave in enumerate(found) for segment in wave}

    assert sorted(chain(*found)) == sorted(ordered)
    assert all(wave for wave in found)
    for segment in ordered:
        levels = [wave_of[source] for source in sources.get(segment, ())]
        assert wave_of[segment] == max(levels, default=-1) + 1, "no segment waits longer than it must"

    return found


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


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_small_forest_of_merges_in_every_order(count: int) -> None:
    """F3, exhaustively: sources before targets, each once, whatever was wanted in whatever order."""
    shapes = forests(count)
    for sources in shapes:
        for size in range(1, min(count, 3) + 1):
            for wanted in chain.from_iterable(
                permutations(chosen) for chosen in combinations(range(count), size)
            ):
                check_waves(check_closure(wanted, sources), sources)

    assert len(shapes) == {1: 1, 2: 3, 3: 16, 4: 125}[count]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=40),
    st.lists(st.integers(0, 30), max_size=10),
)
def test_larger_merges_too(edges: list[tuple[int, int]], wanted: list[int]) -> None:
    """F3."""
    sources: dict[int, list[int]] = {}
    for target, source in edges:
        if source > target and source not in sources.get(target, ()):
            sources.setdefault(target, []).append(source)

    check_waves(check_closure(wanted, sources), sources)


def test_a_long_chain_of_merges_is_no_recursion() -> None:
    sources = {segment: [segment + 1] for segment in range(10_000)}

    assert close_over_merges([0], sources) == list(range(10_000, -1, -1))


def test_segments_without_merges_share_one_wave() -> None:
    assert schedule({1: "a", 2: "b", 3: "c"}, {}) == [[1, 2, 3]]


@pytest.mark.parametrize("order", list(permutations(NAMES.items())))
def test_buckets_are_barriers(order: tuple[tuple[Bucket, str], ...]) -> None:
    """Whatever order they are wanted in: user data, system segments, storage metadata, container metadata."""
    plan = schedule(dict[int, str](order), {})

    assert plan == [[bucket] for bucket in Bucket]


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from(sorted(NAMES.values())), max_size=15),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=15),
)
def test_a_whole_cycle_flushes_each_segment_once_in_order(
    wanted: dict[int, str], edges: list[tuple[int, int]]
) -> None:
    """F3: merges stay inside a bucket, as they stay inside a container's user segments."""
    sources: dict[int, list[int]] = {}
    for target, source in edges:
        if (
            source > target
            and wanted.get(source) == wanted.get(target)
            and source in wanted
            and source not in sources.get(target, ())
        ):
            sources.setdefault(target, []).append(source)
    plan = schedule(wanted, sources)
    wave_of = {segment: number for number, wave in enumerate(plan) for segment in wave}

    assert sorted(chain(*plan)) == sorted(wanted)
    assert all(wave_of[source] < wave_of[target] for target, some in sources.items() for source in some)
    buckets = [{bucket_of(wanted[segment]) for segment in wave} for wave in plan]
    assert all(len(kinds) == 1 for kinds in buckets)
    assert [next(iter(kinds)) for kinds in buckets] == sorted(next(iter(kinds)) for kinds in buckets)

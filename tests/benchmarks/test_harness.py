"""A figure is only reported for work that was done, and compared with the goal it belongs to."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

import pytest

import tierlog
from tierlog.benchmarks.harness import (
    Benchmark,
    BenchmarkError,
    Pair,
    Setting,
    Written,
    alternate,
    verify,
    verify_length,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _small_heap() -> None:
    """A round collects garbage before each half; in the heap that a whole run of the tests has left by now
    that takes a second."""
    gc.freeze()


async def nothing(setting: Setting) -> Sequence[Pair]:
    return []


def benchmark(*, goal: float, lower_is_better: bool = False, of_value: bool = False) -> Benchmark:
    return Benchmark("b", "", "", "ms", goal, nothing, lower_is_better, "value" if of_value else "ratio")


async def test_the_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """One disturbed round moves neither it nor the figures."""
    result = benchmark(goal=0.5).result([Pair(10, 20), Pair(1, 100), Pair(30, 40)])

    assert (result.value, result.reference, result.ratio) == (10, 40, 0.5)
    assert result.is_met


async def test_a_goal_is_for_the_ratio_or_for_the_value() -> None:
    pairs = [Pair(100, 50)]

    assert not benchmark(goal=1.5, lower_is_better=True).result(pairs).is_met
    assert benchmark(goal=150, lower_is_better=True, of_value=True).result(pairs).is_met
    assert not benchmark(goal=150, of_value=True).result(pairs).is_met


@pytest.mark.parametrize("pairs", [[], [Pair(0, 1)], [Pair(1, 0)]])
async def test_a_benchmark_that_measured_nothing_fails(pairs: list[Pair]) -> None:
    with pytest.raises(BenchmarkError, match="measured nothing"):
        benchmark(goal=1).result(pairs)


async def test_reference_and_store_take_turns_and_the_first_round_warms_up(tmp_path: Path) -> None:
    calls: list[str] = []

    async def value() -> float:
        calls.append("value")
        return float(len(calls))

    async def reference() -> float:
        calls.append("reference")
        return float(len(calls))

    setting = Setting(str(tmp_path), quick=False, backend="", progress=lambda text: None)
    pairs = await alternate(setting, value, reference, 2)

    assert calls == ["reference", "value"] * 3
    assert pairs == [Pair(4, 3), Pair(6, 5)]


async def test_a_quick_run_is_one_round_and_no_warming_up(tmp_path: Path) -> None:
    figures = iter([1.0, 2.0])

    async def figure() -> float:
        return next(figures)

    setting = Setting(str(tmp_path), quick=True, backend="", progress=lambda text: None)

    assert await alternate(setting, figure, figure, 2) == [Pair(2, 1)]


async def test_data_that_is_not_where_it_was_acked_fails_the_benchmark(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path / "data", containers=1) as store:
        await store.create_segment("s")
        await store.append("s", b"there")

        await verify(store, [Written("s", 0, b"there")])
        await verify_length(store, "s", 5)
        for wrong in (Written("s", 0, b"other"), Written("s", 1, b"there"), Written("s", 5, b"x")):
            with pytest.raises(BenchmarkError, match="does not hold what was acked there"):
                await verify(store, [wrong])
        with pytest.raises(BenchmarkError, match="5 bytes long after appends of 6"):
            await verify_length(store, "s", 6)
        with pytest.raises(BenchmarkError, match="no append was acked"):
            await verify(store, [])

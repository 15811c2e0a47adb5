"""Virtual time, the seeded order of tasks, the report of a deadlock, and acts between any two steps."""

from __future__ import annotations

import time
from itertools import pairwise
from random import Random

import anyio
import anyio.lowlevel
import pytest
import trio
from simulation.loop import Busy, Deadlock, Rounds, after_steps, run_virtual
from simulation.trace import Trace
from trio._core import _run as scheduler


def test_an_hour_of_sleeps_costs_nothing() -> None:
    async def body() -> float:
        for _ in range(60):
            await anyio.sleep(60)
        return anyio.current_time()

    before = time.monotonic()
    assert run_virtual(body, 0) == pytest.approx(3600)
    assert time.monotonic() - before < 60


def order_of(seed: int) -> str:
    order: list[str] = []

    async def task(name: str) -> None:
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            order.append(name)

    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            for name in "abcd":
                tasks.start_soon(task, name)

    run_virtual(body, seed)
    return "".join(order)


def test_a_seed_gives_one_order_of_tasks_and_other_seeds_give_others() -> None:
    assert len({order_of(seed) for seed in range(8)}) > 4
    assert order_of(3) == order_of(3)


def test_what_the_body_raises_comes_out_as_it_is() -> None:
    async def body() -> None:
        await anyio.sleep(1)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run_virtual(body, 0)


def test_a_deadlock_names_the_waiting_tasks_and_their_lines() -> None:
    async def patient() -> None:
        await anyio.Event().wait()

    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patient, name="the patient one")

    with pytest.raises(
        Deadlock, match=r"(?s)after 50 virtual seconds.*the patient one: patient \(test_loop\.py:\d+\)"
    ):
        run_virtual(body, 0, limit=50)


def test_a_deadlock_inside_a_shield_ends_too() -> None:
    async def body() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep_forever()

    with pytest.raises(Deadlock):
        run_virtual(body, 0, limit=50)


@pytest.mark.parametrize(
    ("pause", "why"),
    [(0, "200 rounds of the scheduler and no time has passed"), (0.1, "500 rounds of the scheduler;")],
)
def test_a_run_that_is_busy_without_end_ends(pause: float, why: str) -> None:
    async def eager() -> None:
        while True:
            try:
                await anyio.sleep(pause)
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(pause)

    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(eager, name="the eager one")

    with pytest.raises(Busy, match=rf"(?s){why}.*the eager one: eager"):
        run_virtual(body, 0, rounds=Rounds(200, 500))


def test_a_run_that_keeps_within_its_rounds_is_left_alone() -> None:
    async def body() -> int:
        for _ in range(100):
            await anyio.sleep(0)
        await anyio.sleep(1)
        return 7

    assert run_virtual(body, 0, rounds=Rounds(200, 500)) == 7


def test_an_act_strikes_between_any_two_steps() -> None:
    """So a crash can come at any await of any task."""

    def steps_before(count: int) -> int:
        steps: list[int] = []
        struck: list[int] = []

        async def body() -> None:
            after_steps(count, lambda: struck.append(len(steps)))
            for step in range(60):
                steps.append(step)
                await anyio.lowlevel.checkpoint()

        run_virtual(body, 0)
        return struck[0]

    found = [steps_before(count) for count in range(1, 50)]
    assert all(later - earlier in (0, 1) for earlier, later in pairwise(found))
    assert found[-1] - found[0] > 40


def test_an_error_of_an_act_is_not_lost() -> None:
    def fail() -> None:
        raise LookupError("in the act")

    async def body() -> None:
        after_steps(2, fail)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    with pytest.raises(LookupError, match="in the act"):
        run_virtual(body, 0)


def test_a_trace_keeps_a_tail_and_digests_everything() -> None:
    def trace(extra: str) -> Trace:
        made = Trace(keep=2)

        async def body() -> None:
            for number in range(1000):
                made.note("p1", f"line {number}{extra if number == 3 else ''}")
                await anyio.sleep(0.5)

        run_virtual(body, 0)
        return made

    one = trace("")
    assert one.tail() == ["499.000000 p1 line 998", "499.500000 p1 line 999"]
    assert (one.count, one.lines) == (1000, [])
    assert one.digest() == trace("").digest() != trace("!").digest()


def test_trio_has_the_private_names_that_the_loop_uses() -> None:
    """``pyproject.toml`` bounds its version."""
    assert isinstance(scheduler._ALLOW_DETERMINISTIC_SCHEDULING, bool)
    assert isinstance(scheduler._r, Random)

    async def body() -> None:
        task = trio.lowlevel.current_task()
        assert isinstance(task._counter, int)
        with trio.CancelScope(shield=True) as scope:
            status = task._cancel_status
            assert status is not None
            assert status._scope is scope
            assert status._parent is not None

    trio.run(body)

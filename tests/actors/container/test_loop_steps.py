"""How long one step of the event loop takes in a container with very many segments."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import attrs
import pytest

from support.container_world import OPTIONS, ContainerWorld, Owner
from support.loop_steps import LongestSteps
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.flush.writer import WriterOptions

pytestmark = pytest.mark.anyio

FLUSH_LIMIT = 0.015
"""The same for the flush of 100,000 segments, and of 50,000 that are merged into one: a step of it takes 8 to
14 ms now and then. The goal is that of all steps."""
TOGETHER = 50
ON_ORDER = attrs.evolve(
    OPTIONS,
    checkpoint=CheckpointOptions(wal_bytes=1 << 40),
    writer=WriterOptions(flush_age=1e6),
)


async def together(act: Callable[[str], Coroutine[Any, Any, object]], names: list[str]) -> None:
    """Small groups: the step that applies and publishes a group grows with it."""
    for start in range(0, len(names), TOGETHER):
        async with anyio.create_task_group() as tasks:
            for name in names[start : start + TOGETHER]:
                tasks.start_soon(act, name)


async def one_life(world: ContainerWorld, names: list[str], longest: LongestSteps) -> None:
    async with anyio.create_task_group() as tasks:
        with longest.of("open"):
            owner = await world.start(tasks)
        with longest.of("list"):
            found = await owner.store.list_segments()
        # Not in the phase: to sort 100,000 names takes 14 ms.
        assert found == sorted(names)
        with longest.of("list some"):
            assert len(await owner.store.list_segments("s00")) < len(names)

        await together(lambda name: owner.store.append(name, b"x"), names)
        with longest.of("flush"):
            await owner.store.flush()
        with longest.of("flush of few"):
            await owner.store.append(names[0], b"x")
            await owner.store.flush()
        with longest.of("checkpoint"):
            async with anyio.create_task_group() as others:
                others.start_soon(owner.checkpoint)
                for name in names[:: len(names) // 20]:
                    await owner.store.append(name, b"x")
        with longest.of("close"):
            await owner.stop()
        with longest.of("open with a checkpoint"):
            owner = await world.start(tasks)
        with longest.of("end"):
            await owner.crash()


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [10_000, pytest.param(100_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_segments(count: int) -> None:
    """C1: a listing is that of one moment, given in slices. C7: the begin of a checkpoint copies nothing. F1:
    a cycle fixes its cut in one step, and captures in slices."""
    # Not in the order of their creation.
    names = [f"s{number * 7919 % 1_000_003:07d}" for number in range(count)]
    limits = {"flush": FLUSH_LIMIT} if count > 10_000 else {}
    world, longest = ContainerWorld(ON_ORDER), LongestSteps(limits)
    async with world.owner() as owner:
        await together(owner.store.create_segment, names)
        await owner.store.flush()
        await owner.checkpoint()
    for _ in longest.attempts():
        await one_life(world, names, longest)


async def one_merge(owner: Owner, names: list[str], longest: LongestSteps) -> None:
    """Merge segments of these names into one, and flush all."""

    async def seal(name: str) -> None:
        await owner.store.append(name, b"x")
        await owner.store.seal_segment(name)

    target = f"{names[0]}.target"
    await together(owner.store.create_segment, [target, *names])
    await together(seal, names)
    with longest.of("merge"):
        for start in range(0, len(names), TOGETHER):
            await owner.store.merge_segments(target, names[start : start + TOGETHER])
    with longest.of("checkpoint of a merge"):
        await owner.checkpoint()
    with longest.of("flush of a merge"):
        await owner.store.flush()
    assert await owner.store.read(target, 0, len(names)) == b"x" * len(names)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "count",
    [2_000, pytest.param(50_000, marks=[pytest.mark.extended, pytest.mark.timeout(600)])],
)
async def test_no_step_grows_with_the_number_of_segments_that_are_merged_into_one(count: int) -> None:
    """F3: sources are captured, joined and flushed before their target."""
    longest = LongestSteps({"flush of a merge": FLUSH_LIMIT} if count > 2_000 else {})
    async with ContainerWorld(ON_ORDER).owner() as owner:
        for attempt in longest.attempts():
            await one_merge(owner, [f"s{attempt}.{number}" for number in range(count)], longest)

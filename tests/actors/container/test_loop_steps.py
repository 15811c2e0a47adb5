"""How long one step of the event loop takes in a container with very many segments."""

from __future__ import annotations

import anyio
import attrs
import pytest

from support.container_world import OPTIONS, ContainerWorld
from support.loop_steps import recorded_steps
from tierlog import SegmentStore
from tierlog.actors.container.checkpoint import CheckpointOptions

pytestmark = pytest.mark.anyio

LIMIT = 0.005
"""Seconds of the processor."""
TOGETHER = 500
ON_ORDER = attrs.evolve(OPTIONS, checkpoint=CheckpointOptions(wal_bytes=1 << 40))


async def create_many(store: SegmentStore, count: int) -> list[str]:
    """Segments whose names are not in the order of their creation; returns the names."""
    names = [f"s{number * 7919 % 1_000_003:07d}" for number in range(count)]
    for start in range(0, count, TOGETHER):
        async with anyio.create_task_group() as tasks:
            for name in names[start : start + TOGETHER]:
                tasks.start_soon(store.create_segment, name)
    return names


@pytest.mark.parametrize("count", [20_000, pytest.param(100_000, marks=pytest.mark.extended)])
async def test_no_step_grows_with_the_number_of_segments(count: int) -> None:
    """C7: the begin of a checkpoint copies nothing. C1: a listing is that of one moment, given in slices."""
    async with ContainerWorld(ON_ORDER).owner() as owner:
        names = sorted(await create_many(owner.store, count))
        with recorded_steps(LIMIT) as steps:
            listed = await owner.store.list_segments()
            few = await owner.store.list_segments("s00")
        assert not steps.long, "a listing holds up the loop"
        assert listed == names
        assert few == [name for name in names if name.startswith("s00")]

        with recorded_steps(LIMIT) as steps:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(owner.checkpoint)
                for name in names[:: count // 20]:
                    await owner.store.append(name, b"x")
        assert not steps.long, "a checkpoint holds up the loop"

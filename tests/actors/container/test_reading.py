"""What a container shows of segments that are coming into being (rule C1), and when it is fenced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from support.container_world import ContainerWorld, until
from support.patience import scaled
from support.stores import make
from tierlog import SegmentStore
from tierlog.actors.container.transactions import page_of_transactions
from tierlog.actors.kernel.exits import first_leaf
from tierlog.storage_backends.base.errors import NotOwner, Unavailable

pytestmark = pytest.mark.anyio


async def test_c1_a_read_shows_a_new_segment_only_once_it_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes between the read's first check of the segment and its second one."""
    world = ContainerWorld()
    await world.chunks.open()
    async with world.owner() as owner, anyio.create_task_group() as tasks:
        container, settled, durable = owner.container, 0, anyio.Event()
        append, wait_durable = container.log.append, container.wait_durable

        async def held(*args: Any, **options: Any) -> int:
            await durable.wait()
            return await append(*args, **options)

        async def wait_and_create() -> None:
            nonlocal settled
            settled += 1
            if settled == 2:
                durable.set()
            await wait_durable()
            if settled == 1:
                tasks.start_soon(owner.store.create_segment, "a")
                await until(lambda: container.state.segments.find("a") is not None)

        monkeypatch.setattr(container.log, "append", held)
        monkeypatch.setattr(container, "wait_durable", wait_and_create)

        assert await container.read("a", 0, 1) == b""
        assert settled == 2
        assert container.state.segments.find("a").durable_length == 0  # type: ignore[union-attr]


async def test_a_container_that_is_not_open_yet_lists_no_transactions() -> None:
    """Its rows are not known before."""
    container = ContainerWorld().make().container
    with anyio.fail_after(scaled(30)), pytest.raises(Unavailable, match="not open yet"):
        await page_of_transactions(container, "", "", 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.read("s", 0, 3),
        lambda store: store.list_segments(),
        lambda store: store.append_starts("s", 0, 3),
    ],
    ids=["read", "list", "append_starts"],
)
async def test_a_container_that_meets_its_fence_at_a_read_ends_at_once(
    call: Callable[[SegmentStore], Awaitable[object]],
) -> None:
    """It refused everything, and was the active one until its next write."""
    world = ContainerWorld()
    async with world.owner() as first:
        await make(first.store, "s", b"abc")
        async with world.owner():
            with pytest.raises(NotOwner):
                await call(first.store)
            with anyio.fail_after(scaled(20)):
                await first.ended.wait()
    assert isinstance(first_leaf(first.error), NotOwner)

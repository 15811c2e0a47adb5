"""Lists by pages, and the sweeps of a process that lives long: rules A12 and A13."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from random import Random

import anyio
import pytest
from msgspec.structs import replace

from support.storage_stage import DOWN, OPTIONS, stage, virtual_time
from tierlog.actors.chunk_io.actor import StorageActor
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.kernel.exits import ExitKind
from tierlog.storage_backends.base.chunk_storage import ChunkInfo
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = pytest.mark.anyio

# --- lists, by pages -----------------------------------------------------------------------------


async def test_a_long_list_is_requested_in_pages() -> None:
    """A13: no ask is longer for a longer list."""
    async with stage(list_page=3) as play:
        names = [f"a/{number}" for number in range(8)]
        for name in [*names, "b"]:
            await play.chunks.memory.create_with_content(name, [])

        assert [info.name async for info in play.client.list("a/")] == names
        assert play.chunks.count("list") == 3
        assert [info.name async for info in play.client.list("a/", "a/6")] == ["a/7"]
        assert [info async for info in play.client.list("nothing")] == []


async def test_others_run_between_steps_of_a_long_page() -> None:
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await anyio.lowlevel.checkpoint()
            steps += 1

    async with stage(list_page=10_000) as play:
        for number in range(5_000):
            await play.chunks.memory.create_with_content(f"a/{number:04d}", [])
        async with aclosing(play.client.list("")) as infos, anyio.create_task_group() as tasks:
            await anext(infos)
            tasks.start_soon(count)
            async for _ in infos:
                pass
            tasks.cancel_scope.cancel()

    assert steps >= 5


async def test_a_list_abandoned_early_requests_no_further_page() -> None:
    async with stage(list_page=2) as play:
        for number in range(6):
            await play.chunks.memory.create_with_content(f"a/{number}", [])
        async with aclosing(play.client.list("")) as infos:
            assert (await anext(infos)).name == "a/0"

        assert play.chunks.count("list") == 1


async def test_each_page_of_a_list_is_retried_separately() -> None:
    """A12: a failure late in a list does not restart it."""
    async with stage(list_page=2) as play:
        for number in range(4):
            await play.chunks.memory.create_with_content(f"a/{number}", [])
        async with aclosing(play.client.list("")) as infos:
            assert [(await anext(infos)).name for _ in range(2)] == ["a/0", "a/1"]
            play.chunks.plan("list", DOWN, DOWN)
            assert [info.name async for info in infos] == ["a/2", "a/3"]

        assert play.actor.statistics().attempts.retries == 2


class RepeatedList(MemoryChunkStorage):
    """Ignores where a list begins, so that every page is the first one."""

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        async with aclosing(super()._list(prefix, "")) as infos:
            async for info in infos:
                yield info


async def test_a_list_that_repeats_its_first_page_fails() -> None:
    """A13: it was followed without end."""
    chunks = RepeatedList()
    actor = StorageActor(chunks, replace(OPTIONS, list_page=2), Random(1))
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        for number in range(5):
            await chunks.create_with_content(f"a/{number}", [])
        found = []
        with pytest.raises(Unavailable, match="lists a/0 behind a/1"):
            async for info in StorageClient(actor).list(""):
                found.append(info.name)
                assert len(found) < 10
        assert found == ["a/0", "a/1"]
        actor.stop()


class SlowList(MemoryChunkStorage):
    """Each name takes seconds."""

    async def _list(self, prefix: str, after: str) -> AsyncGenerator[ChunkInfo, None]:
        async with aclosing(super()._list(prefix, after)) as infos:
            async for info in infos:
                await anyio.sleep(4)
                yield info


@virtual_time
async def test_a_list_fails_at_its_deadline_only_if_no_name_came() -> None:
    """A13: a page ends with what it has, so a list that takes hours gets to its end."""
    chunks = SlowList()
    actor = StorageActor(chunks, replace(OPTIONS, read_deadline=10), Random(1))
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        names = [f"a/{number:02}" for number in range(20)]
        for name in names:
            await chunks.create_with_content(name, [])
        assert [info.name async for info in StorageClient(actor).list("")] == names
        assert actor.statistics().reads.went_late == 0
        actor.stop()


# --- sweeps -------------------------------------------------------------------------------------


@virtual_time
async def test_leftovers_of_dead_processes_are_swept_while_the_actor_runs() -> None:
    async with stage(sweep_interval=100) as play:
        play.chunks.plan("sweep", DOWN)
        await anyio.sleep(350)
        assert play.chunks.count("sweep") == 3
        assert await play.client.create_with_content("a", [b"x"]) == 1


@virtual_time
async def test_a_hanging_sweep_blocks_no_call_and_ends_with_the_actor() -> None:
    async with stage(sweep_interval=100) as play:
        play.chunks.plan("sweep", Fault(FaultKind.HANG))
        await anyio.sleep(150)
        assert await play.client.create_with_content("a", [b"x"]) == 1
    assert play.ended is not None
    assert play.ended.kind is ExitKind.CLEAN

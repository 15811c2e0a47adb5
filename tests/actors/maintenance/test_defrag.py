"""An operator's defrag of a segment that is in use (rule S12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import ContainerWorld, Owner, create_element, read_all
from support.scripted_chunks import Hang, ScriptedChunks
from support.stores import make
from tierlog.actors.maintenance.defrag import defrag_segment
from tierlog.journal.manifest.chain import element_name
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import StoreMismatch
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every

pytestmark = pytest.mark.anyio

NAME = "app/events"
Act: TypeAlias = Callable[[Owner], Coroutine[Any, Any, None]]


@pytest.fixture
def chunks() -> ScriptedChunks:
    """Long-term storage without append: each flush makes a chunk."""
    return ScriptedChunks(MemoryChunkStorage(append=False))


@pytest.fixture
def world(chunks: ScriptedChunks) -> ContainerWorld:
    world = ContainerWorld()
    world.chunks = chunks
    return world


def is_chunk(name: str) -> bool:
    return name.startswith("containers/")


async def append_and_flush(owner: Owner) -> None:
    await owner.store.append(NAME, b"more")
    await owner.store.flush()


async def defrag(owner: Owner) -> None:
    await defrag_segment(owner.store, NAME)


@pytest.mark.parametrize(
    ("first", "verb", "second"),
    [(append_and_flush, "create_with_content", defrag), (defrag, "concat", append_and_flush)],
    ids=["defrag during a flush", "flush during a defrag"],
)
async def test_s12_an_operators_defrag_and_a_flush_of_one_segment_take_turns(
    chunks: ScriptedChunks,
    world: ContainerWorld,
    first: Act,
    verb: str,
    second: Act,
) -> None:
    async with world.owner() as owner:
        await make(owner.store, NAME)
        for _ in range(3):
            await append_and_flush(owner)
        gate = Hang()
        chunks.plan(verb, gate)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first, owner)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(second, owner)
            await anyio.wait_all_tasks_blocked()
            gate.release.set()

        assert owner.error is None
        assert await read_all(owner.store, NAME) == b"more" * 4
        await defrag(owner)
        sid = (await owner.store.segment_info(NAME)).segment_id
        assert [record.length for _, record in await owner.container.storage.chunks(sid)] == [16]


@asynccontextmanager
async def unclaimed(world: ContainerWorld) -> AsyncIterator[Owner]:
    """An owner of small chunks that found long-term storage down at its opening; it is up again."""
    async with world.owner() as owner:
        await make(owner.store, NAME)
        for _ in range(3):
            await append_and_flush(owner)
    world.chunks.script = every(Fault(FaultKind.BEFORE), "list", "read", "create_with_content")
    async with world.owner() as owner:
        world.chunks.script = None
        world.chunks.calls.clear()
        yield owner


def created(world: ContainerWorld) -> list[str]:
    creating = ("create", "create_with_content", "concat")
    return [call.name for call in world.chunks.calls if call.verb in creating]


async def test_j7_an_owner_claims_long_term_storage_before_a_defrag_writes_there(
    world: ContainerWorld,
) -> None:
    async with unclaimed(world) as owner:
        head = owner.container.state.manifest.newest
        assert head is not None
        await defrag(owner)
        names = created(world)
        assert names.index(element_name(0, head.n + 1)) < names.index(next(filter(is_chunk, names)))


async def test_j7_a_defrag_writes_nothing_where_another_history_goes_on(world: ContainerWorld) -> None:
    """An operator has gone on with a copy of the folder, and works on the original by mistake."""
    async with unclaimed(world) as owner:
        head = owner.container.state.manifest.newest
        assert head is not None
        other = replace(owner.container.ownership.identity, owner=bytes(16))
        await create_element(world, head.n + 1, 9, other)
        with pytest.raises(StoreMismatch):
            await defrag(owner)
        assert list(filter(is_chunk, created(world))) == []


class CountsJoins(ScriptedChunks):
    """Calls ``after_join`` after each concat."""

    joins = 0

    async def after_join(self) -> None: ...

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        self.joins += 1
        length = await super().concat(name, ranges)
        await self.after_join()
        return length


async def test_s12_a_defrag_ends_while_flushes_add_small_chunks() -> None:
    """What is flushed meanwhile begins no step of its own."""
    world = ContainerWorld()
    world.chunks = chunks = CountsJoins(MemoryChunkStorage(append=False))
    async with world.owner() as owner:
        await make(owner.store, NAME)
        for _ in range(3):
            await append_and_flush(owner)

        async def append() -> None:
            await owner.store.append(NAME, bytes(20 << 10))

        async def keep_flushing() -> None:
            while True:
                await owner.store.flush()

        chunks.after_join = append  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_flushing)
            await defrag(owner)
            tasks.cancel_scope.cancel()

        assert 1 <= chunks.joins < 10

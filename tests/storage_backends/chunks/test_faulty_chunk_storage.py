"""The fault wrapper does what its script says, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tierlog.storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, every, nth

pytestmark = pytest.mark.anyio


@pytest.mark.one_loop
class TestWithoutAScript(ChunkStorageConformance):
    @pytest.fixture(autouse=True)
    def state(self) -> Iterator[None]:
        self._state = MemoryChunkState()
        yield
        # pytest keeps the instance to the end of the run.
        del self._state

    def make(self, folder: Path) -> FaultyChunkStorage:
        return FaultyChunkStorage(MemoryChunkStorage(self._state))


@pytest.fixture
async def storage() -> FaultyChunkStorage:
    storage = FaultyChunkStorage(MemoryChunkStorage())
    await storage.open()
    await storage.create_with_content("a", [b"abc"])
    return storage


@pytest.mark.parametrize(
    ("kind", "error", "left"),
    [
        (FaultKind.BEFORE, Unavailable, b"abc"),
        (FaultKind.FULL, StorageFull, b"abc"),
        (FaultKind.LOST, OutcomeUnknown, b"abc"),
        (FaultKind.PARTIAL, OutcomeUnknown, b"abcd"),
        (FaultKind.AFTER, OutcomeUnknown, b"abcde"),
    ],
)
async def test_a_faulty_write(
    storage: FaultyChunkStorage, kind: FaultKind, error: type[Exception], left: bytes
) -> None:
    storage.script = nth(1, Fault(kind, keep=1), "write")
    with pytest.raises(error):
        await storage.write("a", 3, [b"de"])

    assert await storage.read("a", 0, 9) == left


async def test_a_flip_changes_one_bit(storage: FaultyChunkStorage) -> None:
    storage.script = nth(2, Fault(FaultKind.FLIP, bit=9), "read")

    assert [await storage.read("a", 0, 9) for _ in range(3)] == [b"abc", b"a`c", b"abc"]


async def test_a_stale_list_is_the_one_before(storage: FaultyChunkStorage) -> None:
    storage.script = every(Fault(FaultKind.STALE_LIST), "list")
    assert [info.name async for info in storage.list("")] == []
    await storage.create_with_content("b", [])
    assert [info.name async for info in storage.list("")] == ["a"]
    storage.script = None

    assert [info.name async for info in storage.list("")] == ["a", "b"]


async def test_a_hanging_call_ends_only_by_cancellation(storage: FaultyChunkStorage) -> None:
    storage.script = every(Fault(FaultKind.HANG))
    async with anyio.create_task_group() as group:
        group.start_soon(storage.delete, "a")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    storage.script = None

    assert await storage.exists("a")


async def test_a_delayed_call_happens_later(storage: FaultyChunkStorage) -> None:
    storage.script = every(Fault(FaultKind.DELAY, seconds=0.01), "delete")
    began = anyio.current_time()
    await storage.delete("a")

    assert anyio.current_time() - began >= 0.009
    assert not await storage.exists("a")


async def test_every_call_is_recorded_in_order(storage: FaultyChunkStorage) -> None:
    await storage.info("a")
    await storage.used_space()

    assert storage.calls == [
        Call(1, "create_with_content", "a"),
        Call(2, "info", "a"),
        Call(3, "used_space", ""),
    ]

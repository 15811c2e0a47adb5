"""Cancelled calls: the outcome is unknown, whole objects are never torn, and the storage keeps working."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from ...storage_backends.base.chunk_storage import ChunkRange, ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound
from .suite import BLOCK, ChunkSuite, content, listed

STEPS = (0, 1, 2, 5)
"""Scheduler steps before the call is cancelled."""
at_any_step = pytest.mark.parametrize("steps", STEPS)


async def cancelled(call: Callable[[], Coroutine[Any, Any, object]], steps: int) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()


async def read_all(storage: ChunkStorage, name: str) -> bytes | None:
    """One call: a cancelled delete may still take effect at the service between two."""
    try:
        return await storage.read(name, 0, 1 << 30)
    except ChunkNotFound:
        return None


async def still_serves(storage: ChunkStorage) -> None:
    assert await storage.create_with_content("after", [b"abc"]) == 3
    assert await storage.read("after", 1, 1) == b"b"
    assert [info.name for info in await listed(storage, "after")] == ["after"]
    await storage.delete("after")


class CancellationConformance(ChunkSuite):
    @at_any_step
    async def test_a_cancelled_creation_leaves_a_whole_object_or_none(
        self, storage: ChunkStorage, steps: int
    ) -> None:
        data = content(2 * BLOCK)
        await cancelled(lambda: storage.create_with_content("a/b", [data]), steps)

        assert await read_all(storage, "a/b") in (None, data)
        await still_serves(storage)

    @at_any_step
    async def test_a_cancelled_concat_leaves_a_whole_object_or_none_and_its_sources(
        self, storage: ChunkStorage, steps: int
    ) -> None:
        if await self.can_concat(storage):
            data = content(2 * BLOCK)
            await storage.create_with_content("source", [data])
            await cancelled(
                lambda: storage.concat(
                    "joined", [ChunkRange("source", 0, BLOCK), ChunkRange("source", 0, 2 * BLOCK)]
                ),
                steps,
            )
            assert await read_all(storage, "joined") in (None, data[:BLOCK] + data)
            assert await read_all(storage, "source") == data
            await still_serves(storage)

    @at_any_step
    async def test_a_cancelled_write_leaves_a_prefix_of_its_bytes(
        self, storage: ChunkStorage, steps: int
    ) -> None:
        if await self.can_append(storage):
            data = content(2 * BLOCK)
            await storage.create_with_content("a", [b"abc"])
            await cancelled(lambda: storage.write("a", 3, [data]), steps)
            found = await read_all(storage, "a")
            assert found is not None
            assert found.startswith(b"abc")
            assert data.startswith(found[3:])
            await still_serves(storage)

    @at_any_step
    async def test_a_cancelled_read_changes_nothing(self, storage: ChunkStorage, steps: int) -> None:
        data = content(2 * BLOCK)
        await storage.create_with_content("a", [data])
        await cancelled(lambda: storage.read("a", 0, len(data)), steps)

        assert await read_all(storage, "a") == data
        await still_serves(storage)

    @at_any_step
    async def test_a_cancelled_delete_leaves_the_whole_chunk_or_none(
        self, storage: ChunkStorage, steps: int
    ) -> None:
        await storage.create_with_content("a/b", [b"abc"])
        await cancelled(lambda: storage.delete("a/b"), steps)

        assert await read_all(storage, "a/b") in (None, b"abc")
        await still_serves(storage)

    @at_any_step
    async def test_a_cancelled_list_is_begun_again(self, storage: ChunkStorage, steps: int) -> None:
        for name in ("a/1", "a/2", "b"):
            await storage.create_with_content(name, [])
        await cancelled(lambda: listed(storage), steps)

        assert [info.name for info in await listed(storage)] == ["a/1", "a/2", "b"]
        await still_serves(storage)

    async def test_many_cancelled_calls_use_nothing_up(self, storage: ChunkStorage) -> None:
        """More than enough to exhaust a pool that does not get its threads or connections back."""
        await storage.create_with_content("a", [content(BLOCK)])
        for turn in range(60):
            await cancelled(lambda: storage.read("a", 0, BLOCK), turn % 4)

        await still_serves(storage)

"""Closed, reopened and second instances: what one call finished, every later call of every instance sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkRange, ChunkStorage
from ...storage_backends.base.errors import BadChunkOffset, ChunkExists, ChunkNotFound, ClosedError
from .suite import VERBS, ChunkSuite, listed, names_in


class InstanceConformance(ChunkSuite):
    async def test_before_open_every_verb_raises_closed_error(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        for verb in VERBS.values():
            with pytest.raises(ClosedError):
                await verb(storage, "a")

    async def test_after_close_every_verb_raises_closed_error(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        await storage.close()
        for verb in VERBS.values():
            with pytest.raises(ClosedError):
                await verb(storage, "a")

        await storage.open()
        assert await listed(storage) == [ChunkInfo("a", 3)]

    async def test_a_closed_storage_lists_and_measures_nothing(self, storage: ChunkStorage) -> None:
        await storage.close()
        with pytest.raises(ClosedError):
            await listed(storage)
        with pytest.raises(ClosedError):
            await storage.used_space()

    async def test_closing_twice_and_opening_twice_are_allowed(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        for _ in range(2):
            await storage.close()
        for _ in range(2):
            await storage.open()

        assert await storage.read("a", 0, 3) == b"abc"

    async def test_closing_a_storage_that_was_never_open_is_allowed(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        await storage.close()
        await storage.open()
        assert await listed(storage) == []
        await storage.close()

    async def test_a_storage_can_be_opened_and_closed_many_times(self, storage: ChunkStorage) -> None:
        for turn in range(4):
            await storage.create_with_content(f"a/{turn}", [b"x"])
            await storage.close()
            await storage.open()

        assert await names_in(storage) == [f"a/{turn}" for turn in range(4)]

    async def test_closing_one_instance_leaves_the_other_open(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        await storage.create_with_content("a", [b"abc"])
        await other.close()

        assert await storage.read("a", 0, 9) == b"abc"

    async def test_chunks_outlive_the_instance(self, storage: ChunkStorage, tmp_path: Path) -> None:
        await storage.create_with_content("a/b/c", [b"data"])
        await storage.create_with_content("empty", [])
        await storage.close()
        later = self.make(tmp_path)
        await later.open()

        assert await listed(later) == [ChunkInfo("a/b/c", 4), ChunkInfo("empty", 0)]
        assert await later.read("a/b/c", 0, 4) == b"data"
        with pytest.raises(ChunkExists):
            await later.create_with_content("empty", [b"x"])
        await later.close()

    async def test_another_instance_sees_a_creation(self, storage: ChunkStorage, other: ChunkStorage) -> None:
        assert not await other.exists("a")
        await storage.create_with_content("a", [b"abc"])

        assert await other.exists("a")
        assert await other.info("a") == ChunkInfo("a", 3)
        assert await other.read("a", 0, 9) == b"abc"
        with pytest.raises(ChunkExists):
            await other.create_with_content("a", [b"x"])

    async def test_another_instance_sees_a_write(self, storage: ChunkStorage, other: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("a")
            assert await other.info("a") == ChunkInfo("a", 0)
            assert await other.read("a", 0, 9) == b""
            await storage.write("a", 0, [b"abc"])
            assert (await other.info("a")).length == 3
            assert await other.read("a", 0, 9) == b"abc"
            with pytest.raises(BadChunkOffset):
                await other.write("a", 0, [b"x"])
            assert await other.write("a", 3, [b"d"]) == 4
            assert await storage.read("a", 0, 9) == b"abcd"

    async def test_another_instance_sees_a_delete(self, storage: ChunkStorage, other: ChunkStorage) -> None:
        await storage.create_with_content("a/b", [b"x"])
        assert await other.read("a/b", 0, 1) == b"x"
        await storage.delete("a/b")

        assert not await other.exists("a/b")
        with pytest.raises(ChunkNotFound):
            await other.read("a/b", 0, 1)
        # The folder may have gone with its last chunk; it must come back with the next.
        await storage.create_with_content("a/c", [b"y"])
        assert await other.read("a/c", 0, 1) == b"y"

    async def test_another_instance_uses_a_folder_that_this_one_made_and_removed(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        await storage.create_with_content("a/b/1", [b"x"])
        await other.create_with_content("a/b/2", [b"y"])
        await storage.delete("a/b/2")
        await other.delete("a/b/1")
        await storage.create_with_content("a/b/3", [b"z"])

        assert await names_in(other) == ["a/b/3"]

    async def test_another_instances_chunks_can_be_sources(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        if await self.can_concat(storage):
            await other.create_with_content("a", [b"abc"])
            assert await storage.concat("joined", [ChunkRange("a", 1, 2)]) == 2
            assert await other.read("joined", 0, 9) == b"bc"

    async def test_a_chunk_that_another_instance_replaced_is_the_new_one(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        await storage.create_with_content("a", [b"old"])
        assert await storage.info("a") == ChunkInfo("a", 3)
        assert await storage.read("a", 0, 9) == b"old"
        await other.delete("a")
        await other.create_with_content("a", [b"newer"])

        assert await storage.info("a") == ChunkInfo("a", 5)
        assert await storage.read("a", 0, 9) == b"newer"

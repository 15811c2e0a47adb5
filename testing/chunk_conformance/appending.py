"""``create``, ``write`` and ``set_read_only``: chunks that change."""

from __future__ import annotations

import pytest

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from ...storage_backends.base.errors import (
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    InvalidArgument,
)
from .suite import BLOCK, ChunkSuite, content


class AppendConformance(ChunkSuite):
    async def test_create_makes_an_empty_chunk(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("a/b")
            assert await storage.info("a/b") == ChunkInfo("a/b", 0)

    async def test_create_refuses_an_existing_name(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"])
            with pytest.raises(ChunkExists) as caught:
                await storage.create("a")
            assert caught.value.chunk == "a"
            assert (await storage.info("a")).length == 3

    async def test_writes_grow_a_chunk_at_its_end(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("a")
            assert await storage.write("a", 0, [b"he", b"llo"]) == 5
            assert await storage.write("a", 5, [bytearray(b" "), memoryview(b"world")]) == 11
            assert await storage.read("a", 0, 100) == b"hello world"

    async def test_content_given_at_creation_can_grow(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"])
            assert await storage.write("a", 3, [b"d"]) == 4
            assert await storage.read("a", 0, 9) == b"abcd"

    @pytest.mark.parametrize("offset", [0, 3])
    async def test_a_write_of_nothing_changes_nothing(self, storage: ChunkStorage, offset: int) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"[:offset]])
            nothing: list[list[Buffer]] = [[], [b""]]
            for data in nothing:
                assert await storage.write("a", offset, data) == offset
            assert await storage.info("a") == ChunkInfo("a", offset)

    @pytest.mark.parametrize("offset", [0, 2, 4, 1 << 40])
    async def test_a_write_at_another_offset_is_refused(self, storage: ChunkStorage, offset: int) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"])
            with pytest.raises(BadChunkOffset) as caught:
                await storage.write("a", offset, [b"x"])
            assert (caught.value.chunk, caught.value.expected, caught.value.given) == ("a", 3, offset)
            assert await storage.read("a", 0, 9) == b"abc"

    async def test_a_write_of_nothing_at_another_offset_is_refused_too(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"])
            with pytest.raises(BadChunkOffset):
                await storage.write("a", 2, [])

    @pytest.mark.parametrize("offset", [0, 3])
    async def test_a_write_to_a_missing_chunk_makes_none(self, storage: ChunkStorage, offset: int) -> None:
        if await self.can_append(storage):
            with pytest.raises(ChunkNotFound) as caught:
                await storage.write("a/missing", offset, [b"x"])
            assert caught.value.chunk == "a/missing"
            assert not await storage.exists("a/missing")

    @pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1])
    async def test_writes_meet_at_any_boundary(self, storage: ChunkStorage, size: int) -> None:
        if await self.can_append(storage):
            data = content(3 * size)
            await storage.create_with_content("a", [data[:size]])
            for index in (size, 2 * size):
                await storage.write("a", index, [data[index : index + size]])
            assert await storage.read("a", 0, 4 * size) == data

    async def test_many_small_writes_are_kept_in_order(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("a")
            for index in range(50):
                await storage.write("a", index * 3, [b"%03d" % index])
            assert await storage.read("a", 0, 1000) == b"".join(b"%03d" % index for index in range(50))

    async def test_two_chunks_grow_apart(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            for name in ("a", "b"):
                await storage.create(name)
            for index in range(3):
                await storage.write("a", index, [b"a"])
                await storage.write("b", index, [b"b"])
            assert [await storage.read(name, 0, 9) for name in ("a", "b")] == [b"aaa", b"bbb"]

    async def test_a_write_at_a_negative_offset_is_refused(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        with pytest.raises(InvalidArgument):
            await storage.write("a", -1, [b"x"])

        assert await storage.read("a", 0, 9) == b"abc"

    # --- read-only ------------------------------------------------------------------------------------------

    async def test_a_read_only_chunk_refuses_writes_until_it_is_writable_again(
        self, storage: ChunkStorage
    ) -> None:
        if await self.can_append(storage):
            await storage.create_with_content("a", [b"abc"])
            await storage.set_read_only("a", True)
            with pytest.raises(ChunkReadOnly) as caught:
                await storage.write("a", 3, [b"d"])
            assert caught.value.chunk == "a"
            assert await storage.read("a", 0, 9) == b"abc"

            await storage.set_read_only("a", False)
            assert await storage.write("a", 3, [b"d"]) == 4

    async def test_a_read_only_chunk_is_read_and_deleted_like_any_other(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        await storage.set_read_only("a", True)
        assert await storage.read("a", 1, 1) == b"b"
        assert (await storage.info("a")).length == 3

        await storage.delete("a")
        assert not await storage.exists("a")

    @pytest.mark.parametrize("read_only", [True, False])
    async def test_setting_read_only_twice_is_allowed(self, storage: ChunkStorage, read_only: bool) -> None:
        await storage.create_with_content("a", [b"abc"])
        for _ in range(2):
            await storage.set_read_only("a", read_only)

        assert await storage.read("a", 0, 9) == b"abc"

    async def test_a_missing_chunk_cannot_be_made_read_only(self, storage: ChunkStorage) -> None:
        with pytest.raises(ChunkNotFound) as caught:
            await storage.set_read_only("a/missing", True)

        assert caught.value.chunk == "a/missing"
        assert not await storage.exists("a/missing")

    async def test_read_only_applies_to_one_chunk_only(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            for name in ("a", "ab"):
                await storage.create_with_content(name, [b"x"])
            await storage.set_read_only("a", True)
            assert await storage.write("ab", 1, [b"y"]) == 2

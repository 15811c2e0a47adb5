"""Whole objects: ``create_with_content``, ``exists``, ``info``, ``delete``."""

from __future__ import annotations

from typing import Any

import pytest

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from ...storage_backends.base.errors import ChunkExists, ChunkNotFound, InvalidArgument
from .suite import SIZES, ChunkSuite, content, names_in


class WholeObjectConformance(ChunkSuite):
    async def test_content_is_read_back_unchanged(self, storage: ChunkStorage) -> None:
        data: list[Buffer] = [b"one", bytearray(b""), memoryview(b"two three")[:4]]

        assert await storage.create_with_content("a/b", data) == 7
        assert await storage.read("a/b", 0, 100) == b"onetwo "
        assert await storage.info("a/b") == ChunkInfo("a/b", 7)
        assert await storage.exists("a/b")

    @pytest.mark.parametrize("size", SIZES)
    async def test_content_of_any_size_is_whole(self, storage: ChunkStorage, size: int) -> None:
        data = content(size)

        assert await storage.create_with_content("a", [data]) == size
        assert (await storage.info("a")).length == size
        assert await storage.read("a", 0, size + 1) == data

    async def test_no_buffers_make_an_empty_chunk(self, storage: ChunkStorage) -> None:
        assert await storage.create_with_content("empty", []) == 0
        assert await storage.info("empty") == ChunkInfo("empty", 0)
        assert await names_in(storage) == ["empty"]

    async def test_many_small_buffers_are_one_content(self, storage: ChunkStorage) -> None:
        data = content(5000)

        assert (
            await storage.create_with_content("a", [data[index : index + 1] for index in range(5000)]) == 5000
        )
        assert await storage.read("a", 0, 5000) == data

    async def test_large_content_is_written_and_read_at_once(self, storage: ChunkStorage) -> None:
        data = content(self.large)

        assert (
            await storage.create_with_content("large", [data[:1000], memoryview(data)[1000:]]) == self.large
        )
        assert await storage.read("large", 0, self.large) == data

    async def test_any_bytes_can_be_content(self, storage: ChunkStorage) -> None:
        data = b"\r\n\0\x1a\xff\xfe\xef\xbb\xbf" + bytes(range(256)) + b"\n0\r\n\r\n"
        await storage.create_with_content("a", [data])

        assert await storage.read("a", 0, 1000) == data

    async def test_a_buffer_that_changes_later_does_not_change_the_chunk(self, storage: ChunkStorage) -> None:
        buffer = bytearray(b"before")
        await storage.create_with_content("a", [buffer])
        buffer[:] = b"after!"

        assert await storage.read("a", 0, 9) == b"before"

    async def test_an_existing_name_is_refused_and_its_chunk_untouched(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"first"])
        with pytest.raises(ChunkExists) as caught:
            await storage.create_with_content("a", [b"second"])

        assert caught.value.chunk == "a"
        assert await storage.read("a", 0, 100) == b"first"

    async def test_an_existing_name_is_refused_for_the_same_content_too(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"same"])
        with pytest.raises(ChunkExists):
            await storage.create_with_content("a", [b"same"])

    async def test_an_existing_empty_chunk_is_refused_like_any(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [])
        with pytest.raises(ChunkExists):
            await storage.create_with_content("a", [b"more"])

        assert (await storage.info("a")).length == 0

    async def test_content_other_than_a_list_of_plain_buffers_is_refused(self, storage: ChunkStorage) -> None:
        strided, wide = memoryview(b"abcdef")[::2], memoryview(b"abcdefgh").cast("I")
        malformed: list[Any] = [b"bytes", ["text"], [1, 2], [strided], [wide]]
        for buffers in malformed:
            with pytest.raises(InvalidArgument):
                await storage.create_with_content("a", buffers)

        assert not await storage.exists("a")

    # --- exists, info, delete -------------------------------------------------------------------------------

    async def test_a_chunk_that_was_never_created_does_not_exist(self, storage: ChunkStorage) -> None:
        assert not await storage.exists("a/missing")

    async def test_info_of_a_missing_chunk_names_it(self, storage: ChunkStorage) -> None:
        with pytest.raises(ChunkNotFound) as caught:
            await storage.info("a/missing")

        assert caught.value.chunk == "a/missing"

    async def test_a_deleted_chunk_is_gone(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a/b", [b"x"])
        await storage.delete("a/b")

        assert not await storage.exists("a/b")
        assert await names_in(storage) == []
        with pytest.raises(ChunkNotFound):
            await storage.read("a/b", 0, 1)

    async def test_deleting_a_missing_chunk_names_it(self, storage: ChunkStorage) -> None:
        with pytest.raises(ChunkNotFound) as caught:
            await storage.delete("a/missing")

        assert caught.value.chunk == "a/missing"

    async def test_deleting_twice_is_refused_the_second_time(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"x"])
        await storage.delete("a")
        with pytest.raises(ChunkNotFound):
            await storage.delete("a")

    async def test_a_delete_leaves_the_neighbours(self, storage: ChunkStorage) -> None:
        for name in ("a/b", "a/b1", "a/c/d", "a.b"):
            await storage.create_with_content(name, [name.encode()])
        await storage.delete("a/b")

        assert await names_in(storage) == ["a.b", "a/b1", "a/c/d"]
        assert await storage.read("a/b1", 0, 9) == b"a/b1"

    async def test_chunks_deleted_together_are_gone_and_the_missing_ones_named(
        self, storage: ChunkStorage
    ) -> None:
        if not storage.capabilities.delete_many:
            return

        for name in ("a", "b/1", "b/2", "b/c/3", "d/4"):
            await storage.create_with_content(name, [b"x"])
        names = ["b/1", "b/missing", "a", "a/below", "e/missing", "b/c", "b/c/3"]

        assert sorted(await storage.delete_many(names)) == ["a/below", "b/c", "b/missing", "e/missing"]
        assert await names_in(storage) == ["b/2", "d/4"]
        assert storage.statistics().deletes == 3

    async def test_the_folder_of_a_deleted_chunk_can_be_used_again(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a/b/c", [b"x"])
        await storage.delete("a/b/c")
        await storage.create_with_content("a/b/d", [b"y"])

        assert await storage.read("a/b/d", 0, 1) == b"y"

    async def test_a_name_can_be_made_again_after_its_delete(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"first"])
        await storage.set_read_only("a", True)
        await storage.delete("a")
        await storage.create_with_content("a", [b"new"])

        assert await storage.info("a") == ChunkInfo("a", 3)
        assert await storage.read("a", 0, 9) == b"new"

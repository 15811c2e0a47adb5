"""``read``: every range, at every block boundary."""

from __future__ import annotations

import pytest

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, InvalidArgument
from .suite import BLOCK, ChunkSuite, content


class ReadConformance(ChunkSuite):
    async def test_reads_are_short_only_at_the_end(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])

        for offset, size, expected in (
            (0, 3, b"abc"),
            (0, 1, b"a"),
            (1, 1, b"b"),
            (2, 1, b"c"),
            (1, 9, b"bc"),
            (3, 1, b""),
            (4, 1, b""),
            (1 << 40, 1, b""),
        ):
            assert await storage.read("a", offset, size) == expected

    async def test_reading_nothing_gives_nothing(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])

        assert [await storage.read("a", offset, 0) for offset in (0, 1, 3, 9)] == [b""] * 4

    @pytest.mark.parametrize(("offset", "size"), [(0, 1), (0, 0), (5, 1)])
    async def test_reading_a_missing_chunk_names_it(
        self, storage: ChunkStorage, offset: int, size: int
    ) -> None:
        with pytest.raises(ChunkNotFound) as caught:
            await storage.read("a/missing", offset, size)

        assert caught.value.chunk == "a/missing"

    async def test_an_empty_chunk_reads_as_nothing(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [])

        assert [await storage.read("a", *part) for part in ((0, 1), (0, 0), (1, 1))] == [b""] * 3

    async def test_negative_numbers_are_refused(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        for offset, size in ((-1, 1), (0, -1), (-1, -1)):
            with pytest.raises(InvalidArgument):
                await storage.read("a", offset, size)

    @pytest.mark.parametrize("boundary", [BLOCK, 2 * BLOCK])
    async def test_ranges_at_a_block_boundary_are_exact(self, storage: ChunkStorage, boundary: int) -> None:
        data = content(2 * BLOCK + 7)
        await storage.create_with_content("a", [data])
        for offset, size in [
            (boundary - 1, 1),
            (boundary, 1),
            (boundary - 1, 2),
            (boundary - 3, 10),
            (boundary, BLOCK),
            (boundary + 6, 10),
        ]:
            assert await storage.read("a", offset, size) == data[offset : offset + size]

    async def test_a_chunk_is_read_in_pieces_of_any_size(self, storage: ChunkStorage) -> None:
        data = content(100_000)
        await storage.create_with_content("a", [data])
        for size in (7777, 4096, 99_999):
            pieces = [await storage.read("a", offset, size) for offset in range(0, 100_000, size)]
            assert b"".join(pieces) == data

    async def test_a_read_far_beyond_the_end_returns_what_there_is(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])

        assert await storage.read("a", 1, 1 << 30) == b"bc"

    async def test_reading_again_gives_the_same(self, storage: ChunkStorage) -> None:
        data = content(1000)
        await storage.create_with_content("a", [data])

        assert [await storage.read("a", 10, 900) for _ in range(3)] == [data[10:910]] * 3

    async def test_the_result_of_a_read_belongs_to_the_caller(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        first = await storage.read("a", 0, 3)
        await storage.delete("a")

        assert (type(first), first) == (bytes, b"abc")

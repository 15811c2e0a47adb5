"""``concat``: a new chunk from exact ranges, with unchanged sources (rule S4)."""

from __future__ import annotations

import pytest

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkRange, ChunkStorage
from ...storage_backends.base.errors import (
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    TierlogError,
)
from .suite import BLOCK, PART, ChunkSuite, content, names_in

SOURCES = {"a": b"hello", "b/1": b" ", "b/2": b"brave new world", "empty": b""}


async def make_sources(storage: ChunkStorage) -> None:
    for name, data in SOURCES.items():
        await storage.create_with_content(name, [data])


async def contents(storage: ChunkStorage) -> dict[str, bytes]:
    return {name: await storage.read(name, 0, 1 << 26) for name in await names_in(storage)}


class ReplaceConformance(ChunkSuite):
    @pytest.mark.parametrize(
        "ranges",
        [
            pytest.param([("b/2", 0, 15)], id="longer"),
            pytest.param([("b/1", 0, 1)], id="shorter"),
            pytest.param([("empty", 0, 0)], id="nothing"),
            pytest.param([("b/1", 0, 1), ("b/2", 3, 4), ("b/1", 0, 1)], id="several"),
        ],
    )
    async def test_replace_changes_the_bytes_and_nothing_else(
        self, storage: ChunkStorage, ranges: list[tuple[str, int, int]]
    ) -> None:
        if storage.capabilities.replace:
            await make_sources(storage)
            expected = b"".join(SOURCES[name][offset : offset + length] for name, offset, length in ranges)
            assert await storage.replace("a", [ChunkRange(*part) for part in ranges]) == len(expected)
            assert await contents(storage) == {**SOURCES, "a": expected}

    async def test_a_large_chunk_is_replaced_by_one_of_several_parts(self, storage: ChunkStorage) -> None:
        if storage.capabilities.replace:
            data = content(2 * PART + 3)
            await storage.create_with_content("one", [data[: PART + 1]])
            await storage.create_with_content("two", [data[PART + 1 :]])
            await storage.create_with_content("old", [content(PART + 1, seed=1)])
            parts = [ChunkRange("one", 0, PART + 1), ChunkRange("two", 0, PART + 2)]
            assert await storage.replace("old", parts) == len(data)
            assert await storage.read("old", 0, len(data) + 1) == data

    @pytest.mark.parametrize(
        ("name", "ranges", "error"),
        [
            ("missing", [("a", 0, 5)], ChunkNotFound),
            ("a", [("missing", 0, 1)], ChunkNotFound),
            ("a", [("b/1", 0, 2)], BadChunkOffset),
            ("a", [], InvalidArgument),
        ],
    )
    async def test_a_refused_replace_changes_nothing(
        self, storage: ChunkStorage, name: str, ranges: list[tuple[str, int, int]], error: type[TierlogError]
    ) -> None:
        if storage.capabilities.replace:
            await make_sources(storage)
            with pytest.raises(error):
                await storage.replace(name, [ChunkRange(*part) for part in ranges])
            assert await contents(storage) == SOURCES


class ConcatConformance(ChunkSuite):
    @pytest.mark.parametrize(
        "ranges",
        [
            pytest.param([("a", 0, 5)], id="one-whole-chunk"),
            pytest.param([("a", 1, 3)], id="a-part-of-one"),
            pytest.param([("a", 0, 5), ("b/1", 0, 1), ("b/2", 10, 5)], id="parts-of-three"),
            pytest.param([("b/2", 10, 5), ("a", 0, 5)], id="another-order"),
            pytest.param([("a", 0, 5), ("a", 0, 5)], id="the-same-twice"),
            pytest.param([("a", 2, 3), ("b/1", 0, 1), ("a", 0, 3)], id="overlapping-parts-of-one"),
            pytest.param([("a", 0, 0), ("a", 5, 0), ("a", 4, 1)], id="empty-ranges-among-others"),
            pytest.param([("a", 3, 0)], id="nothing-at-all"),
            pytest.param([("empty", 0, 0)], id="an-empty-chunk"),
            pytest.param([("b/2", index, 1) for index in range(15)] * 3, id="many-single-bytes"),
        ],
    )
    async def test_concat_makes_a_new_chunk_and_leaves_its_sources(
        self, storage: ChunkStorage, ranges: list[tuple[str, int, int]]
    ) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            expected = b"".join(SOURCES[name][offset : offset + length] for name, offset, length in ranges)
            assert await storage.concat("c/joined", [ChunkRange(*part) for part in ranges]) == len(expected)
            assert await storage.info("c/joined") == ChunkInfo("c/joined", len(expected))
            assert await contents(storage) == {**SOURCES, "c/joined": expected}

    @pytest.mark.parametrize(
        "parts",
        [
            pytest.param([(0, PART), (0, PART - 1)], id="large-then-small"),
            pytest.param([(1, PART - 1), (5, PART + 1), (7, 1)], id="a-part-too-small-in-the-middle"),
            pytest.param([(BLOCK, 1), (0, PART), (3, 2 * PART)], id="small-first"),
            pytest.param([(0, PART)] * 3, id="parts-of-the-least-size"),
        ],
    )
    async def test_large_ranges_are_joined_exactly(
        self, storage: ChunkStorage, parts: list[tuple[int, int]]
    ) -> None:
        if await self.can_concat(storage):
            data = content(2 * PART + 3)
            await storage.create_with_content("source", [data])
            expected = b"".join(data[offset : offset + length] for offset, length in parts)
            assert await storage.concat("joined", [ChunkRange("source", *part) for part in parts]) == len(
                expected
            )
            assert await storage.read("joined", 0, len(expected) + 1) == expected
            assert await storage.read("source", 0, len(data) + 1) == data

    @pytest.mark.parametrize(
        ("ranges", "error"),
        [
            ([("a", 0, 5), ("missing", 0, 1)], ChunkNotFound),
            ([("missing", 0, 0)], ChunkNotFound),
            ([("a", 0, 6)], BadChunkOffset),
            ([("a", 3, 3)], BadChunkOffset),
            ([("a", 6, 0)], BadChunkOffset),
            ([("b/1", 0, 1), ("empty", 0, 1)], BadChunkOffset),
            ([], InvalidArgument),
            ([("a", -1, 1)], InvalidArgument),
            ([("a", 0, -1)], InvalidArgument),
            ([("../a", 0, 1)], InvalidArgument),
        ],
    )
    async def test_a_refused_concat_leaves_nothing(
        self, storage: ChunkStorage, ranges: list[tuple[str, int, int]], error: type[TierlogError]
    ) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            with pytest.raises(error):
                await storage.concat("joined", [ChunkRange(*part) for part in ranges])
            assert await contents(storage) == SOURCES

    async def test_a_refusal_names_the_source(self, storage: ChunkStorage) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            with pytest.raises(ChunkNotFound) as missing:
                await storage.concat("joined", [ChunkRange("a", 0, 1), ChunkRange("gone", 0, 1)])
            with pytest.raises(BadChunkOffset) as short:
                await storage.concat("joined", [ChunkRange("a", 3, 4)])
            assert missing.value.chunk == "gone"
            assert (short.value.chunk, short.value.expected, short.value.given) == ("a", 5, 7)

    @pytest.mark.parametrize("target", ["a", "b/1", "empty"])
    async def test_an_existing_target_is_refused_and_untouched(
        self, storage: ChunkStorage, target: str
    ) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            with pytest.raises(ChunkExists) as caught:
                await storage.concat(target, [ChunkRange("a", 0, 2), ChunkRange("b/2", 0, 2)])
            assert caught.value.chunk == target
            assert await contents(storage) == SOURCES

    async def test_read_only_chunks_can_be_sources(self, storage: ChunkStorage) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            await storage.set_read_only("a", True)
            assert await storage.concat("joined", [ChunkRange("a", 0, 5)]) == 5

    async def test_a_joined_chunk_outlives_its_sources(self, storage: ChunkStorage) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            await storage.concat("joined", [ChunkRange("a", 0, 5), ChunkRange("b/2", 5, 4)])
            for name in SOURCES:
                await storage.delete(name)
            assert await contents(storage) == {"joined": b"hello new"}

    async def test_a_joined_chunk_can_be_a_source(self, storage: ChunkStorage) -> None:
        if await self.can_concat(storage):
            await make_sources(storage)
            await storage.concat("one", [ChunkRange("a", 0, 5), ChunkRange("b/1", 0, 1)])
            await storage.concat("two", [ChunkRange("one", 0, 6), ChunkRange("b/2", 0, 5)])
            assert await storage.read("two", 0, 99) == b"hello brave"

    async def test_source_and_joined_chunk_grow_apart(self, storage: ChunkStorage) -> None:
        if await self.can_concat(storage) and storage.capabilities.append:
            await make_sources(storage)
            await storage.concat("joined", [ChunkRange("a", 0, 5)])
            await storage.write("a", 5, [b"!"])
            await storage.write("joined", 5, [b"?"])
            assert [await storage.read(name, 0, 9) for name in ("a", "joined")] == [b"hello!", b"hello?"]

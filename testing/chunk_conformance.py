"""``ChunkStorageConformance``: the contract of ``ChunkStorage`` as tests.

Subclass it, give ``make``, and run pytest: each test gets a fresh place. Capabilities decide which behaviour is asked for::

    class TestMyStorage(ChunkStorageConformance):
        def make(self, folder: Path) -> ChunkStorage:
            return MyChunkStorage(str(folder))

``make`` is called again for the same folder to get a second owner of the same storage.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.chunk_storage import ChunkInfo, ChunkRange, ChunkStorage
from ..storage_backends.base.errors import (
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    ClosedError,
    InvalidArgument,
    Unsupported,
)

BAD_NAMES = ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.b", "a b", "a\0b", "é", "a" * 256, "/".join(["a" * 200] * 3)]


class ChunkStorageConformance:
    pytestmark = pytest.mark.anyio

    def make(self, folder: Path) -> ChunkStorage:
        """A storage that keeps its chunks in ``folder`` (or in what stands for it), not open yet."""
        raise NotImplementedError

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[ChunkStorage]:
        storage = self.make(tmp_path)
        await storage.open()
        yield storage
        await storage.close()

    # --- whole objects --------------------------------------------------------------------------------------

    async def test_content_comes_back_as_it_was_given(self, storage: ChunkStorage) -> None:
        data: list[Buffer] = [b"one", bytearray(b""), memoryview(b"two three")[:4]]

        assert await storage.create_with_content("a/b", data) == 7
        assert await storage.read("a/b", 0, 100) == b"onetwo "
        assert await storage.info("a/b") == ChunkInfo("a/b", 7)
        assert await storage.exists("a/b")

    async def test_empty_content_makes_an_empty_chunk(self, storage: ChunkStorage) -> None:
        assert await storage.create_with_content("empty", []) == 0
        assert await storage.info("empty") == ChunkInfo("empty", 0)
        assert await storage.read("empty", 0, 1) == b""

    async def test_an_existing_name_is_refused_and_its_chunk_untouched(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"first"])
        with pytest.raises(ChunkExists) as caught:
            await storage.create_with_content("a", [b"second"])

        assert caught.value.chunk == "a"
        assert await storage.read("a", 0, 100) == b"first"

    async def test_of_several_creators_of_one_name_one_wins(self, storage: ChunkStorage, tmp_path: Path) -> None:
        other = self.make(tmp_path)
        await other.open()
        outcomes: list[bytes | None] = []

        async def create(creator: ChunkStorage, content: bytes) -> None:
            try:
                await creator.create_with_content("race", [content])
                outcomes.append(content)
            except ChunkExists:
                outcomes.append(None)

        async with anyio.create_task_group() as group:
            for place, creator in enumerate([storage, other] * 3):
                group.start_soon(create, creator, b"%d" % place * 1000)
        await other.close()

        winners = [content for content in outcomes if content]
        assert len(outcomes) == 6
        assert winners == [await storage.read("race", 0, 10_000)]

    async def test_chunks_outlive_the_instance(self, storage: ChunkStorage, tmp_path: Path) -> None:
        await storage.create_with_content("a/b/c", [b"data"])
        await storage.close()
        other = self.make(tmp_path)
        await other.open()

        assert await other.read("a/b/c", 0, 4) == b"data"
        await other.close()

    # --- append ---------------------------------------------------------------------------------------------

    async def test_append_grows_a_chunk_at_its_end(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            await storage.create_with_content("a", [b"x"])
            with pytest.raises(Unsupported):
                await storage.write("a", 1, [b"y"])
            with pytest.raises(Unsupported):
                await storage.create("b")
            assert not await storage.exists("b")
            return

        await storage.create("a")
        assert await storage.write("a", 0, [b"he", b"llo"]) == 5
        assert await storage.write("a", 5, []) == 5
        assert await storage.write("a", 5, [b" world"]) == 11
        assert await storage.read("a", 0, 100) == b"hello world"

    async def test_append_at_another_offset_is_refused(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        for offset in (0, 2, 4) if storage.capabilities.append else ():
            with pytest.raises(BadChunkOffset) as caught:
                await storage.write("a", offset, [b"x"])
            assert (caught.value.expected, caught.value.given) == (3, offset)

        assert await storage.read("a", 0, 100) == b"abc"

    async def test_create_makes_an_empty_chunk_once(self, storage: ChunkStorage) -> None:
        if not storage.capabilities.append:
            return

        await storage.create("a")
        assert await storage.info("a") == ChunkInfo("a", 0)
        with pytest.raises(ChunkExists):
            await storage.create("a")

    async def test_a_read_only_chunk_refuses_appends_until_it_is_writable_again(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        await storage.set_read_only("a", True)
        assert await storage.read("a", 0, 3) == b"abc"
        if storage.capabilities.append:
            with pytest.raises(ChunkReadOnly):
                await storage.write("a", 3, [b"d"])
            await storage.set_read_only("a", False)
            assert await storage.write("a", 3, [b"d"]) == 4

        await storage.set_read_only("a", True)
        await storage.delete("a")
        assert not await storage.exists("a")

    # --- read -----------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("offset", "size", "expected"), [(0, 3, b"abc"), (1, 1, b"b"), (1, 9, b"bc"), (3, 1, b""), (9, 1, b""), (0, 0, b"")]
    )
    async def test_reads_are_short_only_at_the_end(self, storage: ChunkStorage, offset: int, size: int, expected: bytes) -> None:
        await storage.create_with_content("a", [b"abc"])

        assert await storage.read("a", offset, size) == expected

    async def test_a_large_chunk_is_read_in_any_pieces(self, storage: ChunkStorage) -> None:
        data = bytes(range(256)) * 8192
        await storage.create_with_content("large", [data[:1000], data[1000:]])

        assert await storage.read("large", 0, len(data) + 1) == data
        assert await storage.read("large", 999, 3) == data[999:1002]
        assert await storage.read("large", len(data) - 5, 100) == data[-5:]

    # --- concat ---------------------------------------------------------------------------------------------

    async def test_hole_06_concat_makes_a_new_chunk_and_leaves_its_sources(self, storage: ChunkStorage) -> None:
        sources = {"a": b"hello", "b": b" ", "c": b"brave new world"}
        for name, data in sources.items():
            await storage.create_with_content(name, [data])
        ranges = [ChunkRange("a", 0, 5), ChunkRange("b", 0, 1), ChunkRange("c", 10, 5), ChunkRange("a", 1, 0)]
        if not storage.capabilities.concat:
            with pytest.raises(Unsupported):
                await storage.concat("joined", ranges)
            return

        assert await storage.concat("joined", ranges) == 11
        assert await storage.read("joined", 0, 100) == b"hello world"
        assert {name: await storage.read(name, 0, 100) for name in sources} == sources

    async def test_a_refused_concat_leaves_nothing(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        if not storage.capabilities.concat:
            return

        with pytest.raises(ChunkNotFound):
            await storage.concat("joined", [ChunkRange("a", 0, 3), ChunkRange("missing", 0, 1)])
        with pytest.raises(BadChunkOffset):
            await storage.concat("joined", [ChunkRange("a", 1, 3)])
        with pytest.raises(InvalidArgument):
            await storage.concat("joined", [])
        with pytest.raises(ChunkExists):
            await storage.concat("a", [ChunkRange("a", 0, 1)])

        assert [info.name async for info in storage.list("")] == ["a"]

    # --- missing, bad, closed -------------------------------------------------------------------------------

    async def test_a_missing_chunk_is_not_found(self, storage: ChunkStorage) -> None:
        assert not await storage.exists("a/missing")
        for call in (storage.info, storage.delete):
            with pytest.raises(ChunkNotFound) as caught:
                await call("a/missing")
            assert caught.value.chunk == "a/missing"
        with pytest.raises(ChunkNotFound):
            await storage.read("a/missing", 0, 1)
        with pytest.raises(ChunkNotFound):
            await storage.set_read_only("a/missing", True)
        if storage.capabilities.append:
            with pytest.raises(ChunkNotFound):
                await storage.write("a/missing", 0, [b"x"])

    async def test_a_deleted_chunk_is_gone_for_every_instance(self, storage: ChunkStorage, tmp_path: Path) -> None:
        other = self.make(tmp_path)
        await other.open()
        await storage.create_with_content("a/b", [b"x"])
        await other.delete("a/b")
        await other.close()

        assert not await storage.exists("a/b")
        with pytest.raises(ChunkNotFound):
            await storage.read("a/b", 0, 1)
        # The folder went with its last chunk; it must come back with the next.
        await storage.create_with_content("a/c", [b"y"])
        assert await storage.read("a/c", 0, 1) == b"y"

    @pytest.mark.parametrize("name", BAD_NAMES)
    async def test_a_name_outside_the_grammar_is_refused_by_every_verb(self, storage: ChunkStorage, name: str) -> None:
        verbs = [
            storage.exists(name),
            storage.info(name),
            storage.create_with_content(name, [b"x"]),
            storage.write(name, 0, [b"x"]),
            storage.read(name, 0, 1),
            storage.delete(name),
            storage.set_read_only(name, True),
            storage.concat(name, [ChunkRange("a", 0, 1)]),
        ]
        for verb in verbs:
            with pytest.raises(InvalidArgument):
                await verb

        assert [info async for info in storage.list("")] == []

    async def test_negative_numbers_are_refused(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        for verb in (storage.read("a", -1, 1), storage.read("a", 0, -1), storage.write("a", -1, [b"x"]), storage.truncate("a", -1)):
            with pytest.raises(InvalidArgument):
                await verb

    async def test_truncate_agrees_with_its_capability(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        if storage.capabilities.truncate:
            await storage.truncate("a", 1)
            assert await storage.read("a", 0, 9) == b"a"
            return

        with pytest.raises(Unsupported):
            await storage.truncate("a", 1)
        assert await storage.read("a", 0, 9) == b"abc"

    async def test_a_closed_storage_says_so_and_can_be_opened_again(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"abc"])
        await storage.close()
        await storage.close()
        for verb in (storage.exists("a"), storage.info("a"), storage.read("a", 0, 1), storage.delete("a"), storage.used_space()):
            with pytest.raises(ClosedError):
                await verb
        with pytest.raises(ClosedError):
            await storage.create_with_content("b", [b"x"])

        await storage.open()
        await storage.open()
        assert await storage.read("a", 0, 3) == b"abc"

    # --- list and counts ------------------------------------------------------------------------------------

    async def test_list_gives_names_in_order_below_a_prefix(self, storage: ChunkStorage) -> None:
        names = ["a/b/c", "a/b-c", "a-b", "a.b", "ab", "b/1", "b/2/3", "z"]
        for place, name in enumerate(names):
            await storage.create_with_content(name, [b"x" * place])

        everything = [info async for info in storage.list("")]
        assert [info.name for info in everything] == sorted(names)
        assert {info.name: info.length for info in everything} == {name: place for place, name in enumerate(names)}
        for prefix in ("a", "a/", "a/b", "b/2/", "b/2/3", "missing/"):
            assert [info.name async for info in storage.list(prefix)] == sorted(name for name in names if name.startswith(prefix))

    async def test_counts_and_used_space_follow_the_calls(self, storage: ChunkStorage) -> None:
        before = await storage.used_space()
        await storage.create_with_content("a", [b"x" * 1000])
        await storage.read("a", 0, 10)
        assert await storage.used_space() >= before + 1000
        await storage.delete("a")

        counted = storage.statistics()
        assert (counted.creates, counted.reads, counted.deletes) == (1, 1, 1)
        assert (counted.bytes_written, counted.bytes_read) == (1000, 10)

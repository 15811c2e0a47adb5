"""``list``, ``sweep``, and the numbers: ``used_space`` and ``statistics``."""

from __future__ import annotations

import itertools
from contextlib import aclosing

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkStorage
from .names import BAD_NAMES
from .suite import ChunkSuite, listed, names_in, refuses

NAMES = ["a-b", "a.b", "a/b-c", "a/b.c", "a/b/c", "a/bc", "ab", "b/1", "b/10", "b/2/3", "b/2/4/5", "b0", "z"]

PREFIXES = [
    *("a", "a/", "a/b", "a/b/", "a/b/c", "a-", "a.", "b/1", "b/2", "b/2/", "b/2/3", "b/2/4/", "z", "zz"),
    *("c", "gone/", "b/2/3/"),
]


async def make_all(storage: ChunkStorage) -> None:
    # Not in their order, so that the order of creation is no help.
    for name in [*NAMES[1::2], *NAMES[::2]]:
        await storage.create_with_content(name, [b"x" * NAMES.index(name)])


class ListConformance(ChunkSuite):
    async def test_an_empty_storage_lists_nothing(self, storage: ChunkStorage) -> None:
        assert await listed(storage) == []

    async def test_list_gives_each_chunk_once_in_order_with_its_length(self, storage: ChunkStorage) -> None:
        await make_all(storage)

        assert await listed(storage) == [ChunkInfo(name, NAMES.index(name)) for name in sorted(NAMES)]

    async def test_a_prefix_is_the_beginning_of_names(self, storage: ChunkStorage) -> None:
        await make_all(storage)

        for prefix in PREFIXES:
            assert await names_in(storage, prefix) == sorted(
                name for name in NAMES if name.startswith(prefix)
            )

    async def test_a_prefix_outside_the_grammar_lists_names_that_begin_with_it(
        self, storage: ChunkStorage
    ) -> None:
        await storage.create_with_content("a/b", [b"x"])

        found = {prefix: await names_in(storage, prefix) for prefix in BAD_NAMES.values()}
        assert found == {prefix: ["a/b"] if "a/b".startswith(prefix) else [] for prefix in found}

    async def test_a_list_after_a_name_is_the_rest_of_the_list(self, storage: ChunkStorage) -> None:
        """A page of a long list begins where the previous one ended, even if that chunk is gone."""
        await make_all(storage)
        missing = ["0", "a", "a/b", "a/b/a", "a/b/c/d", "a/c", "b", "b/2", "b/2/3/4", "b/2/4", "zz"]
        for prefix, after in itertools.product(("", "a", "a/b", "b/2/"), sorted([*NAMES, *missing])):
            rest = [info async for info in storage.list(prefix, after)]
            assert rest == [
                ChunkInfo(name, NAMES.index(name))
                for name in sorted(NAMES)
                if name.startswith(prefix) and name > after
            ]

    async def test_a_list_after_an_invalid_name_is_refused(self, storage: ChunkStorage) -> None:
        async def pages_after(name: str) -> None:
            _ = [info async for info in storage.list("", name)]

        assert [name for name in BAD_NAMES.values() if name and not await refuses(pages_after(name))] == []

    async def test_pages_of_a_list_that_is_deleted_meanwhile_skip_nothing(
        self, storage: ChunkStorage
    ) -> None:
        await make_all(storage)
        seen, after = [], ""
        for _ in NAMES:
            async with aclosing(storage.list("", after)) as infos:
                after = (await anext(infos)).name
            seen.append(after)
            await storage.delete(after)

        assert seen == sorted(NAMES)
        assert [info async for info in storage.list("", after)] == []

    async def test_a_sweep_leaves_all_chunks(self, storage: ChunkStorage) -> None:
        await make_all(storage)
        await storage.sweep()

        assert await listed(storage) == [ChunkInfo(name, NAMES.index(name)) for name in sorted(NAMES)]

    async def test_a_list_of_many_chunks_has_no_gap(self, storage: ChunkStorage) -> None:
        names = [f"many/{index:04d}" for index in range(120)]
        for name in names:
            await storage.create_with_content(name, [])

        assert await names_in(storage) == names
        assert await names_in(storage, "many/005") == names[50:60]
        assert [info.name async for info in storage.list("many/", names[7])] == names[8:]

    async def test_a_list_can_be_left_early(self, storage: ChunkStorage) -> None:
        await make_all(storage)
        async with aclosing(storage.list("")) as infos:
            assert (await anext(infos)).name == "a-b"

        assert len(await listed(storage)) == len(NAMES)

    async def test_two_lists_at_a_time_do_not_mix(self, storage: ChunkStorage) -> None:
        await make_all(storage)
        async with aclosing(storage.list("a")) as first, aclosing(storage.list("b")) as second:
            pairs = [(await anext(first), await anext(second)) for _ in range(5)]

        assert [one.name for one, _ in pairs] == [name for name in sorted(NAMES) if name.startswith("a")][:5]
        assert [two.name for _, two in pairs] == [name for name in sorted(NAMES) if name.startswith("b")][:5]

    async def test_deleting_what_is_listed_while_it_is_listed_skips_nothing(
        self, storage: ChunkStorage
    ) -> None:
        await make_all(storage)
        seen = []
        async with aclosing(storage.list("")) as infos:
            async for info in infos:
                seen.append(info.name)
                await storage.delete(info.name)

        assert seen == sorted(NAMES)
        assert await listed(storage) == []

    async def test_a_list_follows_creations_and_deletes(self, storage: ChunkStorage) -> None:
        for name in ("a", "b", "c"):
            await storage.create_with_content(name, [])
        await storage.delete("b")
        await storage.create_with_content("aa", [b"x"])

        assert await listed(storage) == [ChunkInfo("a", 0), ChunkInfo("aa", 1), ChunkInfo("c", 0)]

    async def test_a_list_shows_the_length_after_a_write(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("grown")
            await storage.write("grown", 0, [b"abc"])
            assert await listed(storage, "grown") == [ChunkInfo("grown", 3)]

    # --- numbers --------------------------------------------------------------------------------------------

    async def test_used_space_follows_the_chunks(self, storage: ChunkStorage) -> None:
        before = await storage.used_space()
        await storage.create_with_content("a", [b"x" * 1000])
        await storage.create_with_content("b/c", [b"x" * 500])
        assert await storage.used_space() >= before + 1500

        await storage.delete("a")
        assert await storage.used_space() >= before + 500

    async def test_counts_follow_the_calls(self, storage: ChunkStorage) -> None:
        await storage.create_with_content("a", [b"x" * 600, b"y" * 400])
        await storage.read("a", 0, 10)
        await storage.read("a", 995, 10)
        await storage.delete("a")

        counted = storage.statistics()
        assert (counted.creates, counted.writes, counted.reads, counted.deletes) == (1, 0, 2, 1)
        assert (counted.bytes_written, counted.bytes_read) == (1000, 15)

    async def test_writes_are_counted_separately(self, storage: ChunkStorage) -> None:
        if await self.can_append(storage):
            await storage.create("a")
            await storage.write("a", 0, [b"abc"])
            counted = storage.statistics()
            assert (counted.creates, counted.writes, counted.bytes_written) == (1, 1, 3)

"""Concurrent calls: several creators of one name, readers during writes, deletes during everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio
import pytest

from ...storage_backends.base.chunk_storage import ChunkRange, ChunkStorage
from ...storage_backends.base.errors import ChunkExists, ChunkNotFound, TierlogError
from .suite import BLOCK, ChunkSuite, content, names_in

CREATORS = 6


async def all_of(*calls: Callable[[], Awaitable[object]]) -> list[object]:
    """The result or error of each call, all started together."""
    outcomes: list[object] = [None] * len(calls)

    async def run(index: int, call: Callable[[], Awaitable[object]]) -> None:
        try:
            outcomes[index] = await call()
        except TierlogError as error:
            outcomes[index] = error

    async with anyio.create_task_group() as group:
        for index, call in enumerate(calls):
            group.start_soon(run, index, call)
    return outcomes


def failures(outcomes: list[object]) -> list[type]:
    return [type(outcome) for outcome in outcomes if isinstance(outcome, TierlogError)]


class ConcurrencyConformance(ChunkSuite):
    @pytest.mark.parametrize("name", ["race", "new/folder/race"])
    async def test_of_several_creators_of_one_name_one_wins(
        self, storage: ChunkStorage, other: ChunkStorage, name: str
    ) -> None:
        contents = [b"%d" % index * 1000 for index in range(CREATORS)]

        def creator(index: int) -> Callable[[], Awaitable[int]]:
            return lambda: [storage, other][index % 2].create_with_content(name, [contents[index]])

        outcomes = await all_of(*map(creator, range(CREATORS)))

        assert failures(outcomes) == [ChunkExists] * (CREATORS - 1)
        winner = next(index for index, outcome in enumerate(outcomes) if outcome == 1000)
        assert await storage.read(name, 0, 10_000) == contents[winner]

    async def test_of_an_empty_creation_and_one_with_content_one_wins(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        if await self.can_append(storage):
            outcomes = await all_of(
                lambda: storage.create("race"), lambda: other.create_with_content("race", [b"abc"])
            )
            assert failures(outcomes) == [ChunkExists]
            assert (await storage.info("race")).length == (0 if outcomes[0] is None else 3)

    async def test_of_a_concat_and_a_creation_one_wins(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        if await self.can_concat(storage):
            await storage.create_with_content("a", [b"source"])
            outcomes = await all_of(
                lambda: storage.concat("race", [ChunkRange("a", 0, 6), ChunkRange("a", 0, 6)]),
                lambda: other.create_with_content("race", [b"abc"]),
            )
            assert failures(outcomes) == [ChunkExists]
            assert await storage.read("race", 0, 99) == (b"sourcesource" if outcomes[0] == 12 else b"abc")
            assert await storage.read("a", 0, 9) == b"source"

    async def test_concurrent_creations_of_different_names_all_succeed(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        names = [f"a/{index % 3}/{index}" for index in range(24)]

        def creator(index: int) -> Callable[[], Awaitable[int]]:
            return lambda: [storage, other][index % 2].create_with_content(
                names[index], [names[index].encode()]
            )

        assert failures(await all_of(*map(creator, range(24)))) == []
        assert await names_in(storage) == sorted(names)
        assert {name: await other.read(name, 0, 99) for name in names} == {
            name: name.encode() for name in names
        }

    async def test_a_reader_sees_a_whole_object_or_none(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        data = content(4 * BLOCK)
        created = anyio.Event()
        seen: list[bytes] = []

        async def create() -> None:
            await storage.create_with_content("whole", [data])
            created.set()

        async def observe() -> None:
            last = False
            while not last:
                last = created.is_set()
                try:
                    seen.append(await other.read("whole", 0, len(data) + 1))
                except ChunkNotFound:
                    seen.append(b"")

        await all_of(create, observe)
        assert seen[-1] == data
        assert all(each in (b"", data) for each in seen)

    async def test_a_reader_during_writes_sees_a_growing_prefix(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        if not await self.can_append(storage):
            return

        data = content(30 * 1000)
        written = anyio.Event()
        seen: list[bytes] = []

        async def write() -> None:
            for index in range(0, len(data), 1000):
                await storage.write("a", index, [data[index : index + 1000]])
            written.set()

        async def observe() -> None:
            while not written.is_set():
                seen.append(await other.read("a", 0, len(data)))

        await storage.create("a")
        assert failures(await all_of(write, observe)) == []
        assert all(data.startswith(each) for each in seen)
        assert sorted(map(len, seen)) == list(map(len, seen))
        assert await other.read("a", 0, len(data)) == data

    async def test_many_reads_of_one_chunk_do_not_mix(self, storage: ChunkStorage) -> None:
        data = content(BLOCK)
        await storage.create_with_content("a", [data])
        ranges = [(index * 31_337, 10_000 + index) for index in range(32)]

        def reader(part: tuple[int, int]) -> Callable[[], Awaitable[bytes]]:
            return lambda: storage.read("a", *part)

        assert await all_of(*map(reader, ranges)) == [data[offset : offset + size] for offset, size in ranges]

    async def test_several_deletes_of_one_chunk_leave_it_gone(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        await storage.create_with_content("a/b", [b"x"])
        await storage.create_with_content("a/c", [b"y"])
        outcomes = await all_of(*[partial(each.delete, "a/b") for each in (storage, other) * 2])

        assert None in outcomes
        assert set(failures(outcomes)) <= {ChunkNotFound}
        assert await names_in(storage) == ["a/c"]

    async def test_a_read_during_a_delete_is_exact_or_not_found(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        data = content(BLOCK)
        await storage.create_with_content("a", [data])
        *reads, deleted = await all_of(*[lambda: other.read("a", 0, BLOCK)] * 4, lambda: storage.delete("a"))

        assert deleted is None
        assert all(each == data or isinstance(each, ChunkNotFound) for each in reads)

    async def test_creations_and_deletes_in_one_folder_do_not_disturb_each_other(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        """A file system may remove a folder with its last chunk while another call is about to use it."""
        for turn in range(8):
            await storage.create_with_content(f"a/b/{turn}", [b"x"])
            outcomes = await all_of(
                partial(other.delete, f"a/b/{turn}"),
                partial(storage.create_with_content, f"a/b/{turn}-new", [b"y"]),
            )
            assert failures(outcomes) == []
            assert await names_in(storage) == [f"a/b/{turn}-new"]
            await other.delete(f"a/b/{turn}-new")

    async def test_a_list_during_changes_has_all_unchanged_chunks(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        stays = [f"a/{index}/stays" for index in range(9)]
        goes = [f"a/{index}/goes" for index in range(9)]
        for name in [*stays, *goes]:
            await storage.create_with_content(name, [])

        async def change() -> None:
            for index, name in enumerate(goes):
                await other.delete(name)
                await other.create_with_content(f"a/{index}/comes", [])

        *lists, changed = await all_of(*[lambda: names_in(storage)] * 3, change)
        assert changed is None
        for found in lists:
            assert isinstance(found, list)
            assert found == sorted(set(found))
            assert [name for name in found if name in stays] == stays
            assert all(name.startswith("a/") for name in found)

    async def test_verbs_on_many_chunks_at_once_all_work(self, storage: ChunkStorage) -> None:
        async def life(index: int) -> None:
            name = f"life/{index}"
            data = content(1000 + index, index)
            await storage.create_with_content(name, [data])
            assert (await storage.info(name)).length == len(data)
            assert await storage.read(name, index, 500) == data[index : index + 500]
            await storage.set_read_only(name, True)
            await storage.delete(name)

        async with anyio.create_task_group() as group:
            for index in range(20):
                group.start_soon(life, index)
        assert await names_in(storage) == []

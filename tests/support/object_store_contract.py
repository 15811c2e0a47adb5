"""``ObjectStoreContract``: what every ``ObjectStore`` keeps, as tests. Inherit from it and implement
``make``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tierlog.storage_backends.base.object_store import ObjectStore, StoredObject


class ObjectStoreContract(ABC):
    pytestmark = pytest.mark.anyio

    @abstractmethod
    def make(self) -> ObjectStore:
        """An empty store, not open yet."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ObjectStore]:
        store = self.make()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    async def test_an_object_is_created_once(self) -> None:
        async with self.opened() as store:
            version = await store.put("a/1", [b"one", b"!"])

            assert version is not None
            assert await store.put("a/1", [b"two"]) is None
            assert await store.get("a/1", 100) == StoredObject(b"one!", 4, version)

    async def test_an_object_is_replaced_while_it_has_the_given_version(self) -> None:
        async with self.opened() as store:
            first = await store.put("r", [b"1"]) or ""
            second = await store.put("r", [b"2"], version=first) or ""

            assert second not in {"", first}
            assert await store.put("r", [b"3"], version=first) is None
            assert await store.get("r", 9) == StoredObject(b"2", 1, second)

    async def test_nothing_is_replaced_where_there_is_nothing(self) -> None:
        async with self.opened() as store:
            version = await store.put("r", [b"1"]) or ""
            await store.delete("r")

            assert await store.put("r", [b"2"], version=version) is None
            assert await store.get("r", 9) is None

    async def test_the_start_of_an_object_comes_with_its_whole_length(self) -> None:
        async with self.opened() as store:
            await store.put("long", [bytes(range(100))])
            found = await store.get("long", 10)

            assert found is not None
            assert (found.data, found.length) == (bytes(range(10)), 100)

    async def test_an_empty_object_is_there_and_can_be_replaced(self) -> None:
        """Nobody puts one, but it may be what is left of another one."""
        async with self.opened() as store:
            version = await store.put("r", [b""]) or ""

            assert await store.get("r", 10) == StoredObject(b"", 0, version)
            assert await store.put("r", [b"1"]) is None
            assert await store.put("r", [b"2"], version=version)

    async def test_a_list_has_every_object_below_its_prefix_with_its_length(self) -> None:
        async with self.opened() as store:
            for number in range(5):
                await store.put(f"g/{number}", [b"x" * number, b"y"])
            await store.put("h/0", [b"z"])
            await store.delete("g/3")
            await store.delete("g/3")

            assert sorted([tuple(each) async for each in store.list("g/")]) == [
                ("g/0", 1),
                ("g/1", 2),
                ("g/2", 3),
                ("g/4", 5),
            ]

    async def test_of_concurrent_puts_on_one_condition_exactly_one_succeeds(self) -> None:
        async with self.opened() as store:
            version = await store.put("r", [b"0"]) or ""
            made: list[str | None] = []

            async def replace(number: int) -> None:
                made.append(await store.put("r", [b"%d" % number], version=version))

            async with anyio.create_task_group() as tasks:
                for number in range(1, 8):
                    tasks.start_soon(replace, number)

            assert len([each for each in made if each is not None]) == 1

"""Object stores keep one contract: the one in S3, and the one in memory that the tests of logs use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest

from support.memory_objects import Bucket, MemoryObjects
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.storage_backends.base.errors import OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.object_store import ObjectStore, StoredObject
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("reused_clients")]


@asynccontextmanager
async def opened(store: ObjectStore) -> AsyncIterator[ObjectStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def on_s3(server: S3Server) -> S3Objects:
    server.page_size = 2
    return S3Objects(S3Location(BUCKET, "store/"), S3Options(endpoint=server.url))


@pytest.fixture(params=["s3", "memory"])
def store(request: pytest.FixtureRequest, server: S3Server) -> ObjectStore:
    return on_s3(server) if request.param == "s3" else MemoryObjects(Bucket())


async def test_an_object_is_created_once(store: ObjectStore) -> None:
    async with opened(store):
        version = await store.put("a/1", [b"one", b"!"])

        assert version is not None
        assert await store.put("a/1", [b"two"]) is None
        assert await store.get("a/1", 100) == StoredObject(b"one!", 4, version)


async def test_an_object_is_replaced_while_it_has_the_given_version(store: ObjectStore) -> None:
    async with opened(store):
        first = await store.put("r", [b"1"]) or ""
        second = await store.put("r", [b"2"], version=first) or ""

        assert second not in {"", first}
        assert await store.put("r", [b"3"], version=first) is None
        assert await store.get("r", 9) == StoredObject(b"2", 1, second)


async def test_nothing_is_replaced_where_there_is_nothing(store: ObjectStore) -> None:
    async with opened(store):
        version = await store.put("r", [b"1"]) or ""
        await store.delete("r")

        assert await store.put("r", [b"2"], version=version) is None
        assert await store.get("r", 9) is None


async def test_the_start_of_an_object_comes_with_its_whole_length(store: ObjectStore) -> None:
    async with opened(store):
        await store.put("long", [bytes(range(100))])
        found = await store.get("long", 10)

        assert found is not None
        assert (found.data, found.length) == (bytes(range(10)), 100)


async def test_a_list_has_every_object_below_its_prefix_with_its_length(store: ObjectStore) -> None:
    async with opened(store):
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


async def test_of_concurrent_puts_on_one_condition_exactly_one_succeeds(store: ObjectStore) -> None:
    async with opened(store):
        version = await store.put("r", [b"0"]) or ""
        made: list[str | None] = []

        async def replace(number: int) -> None:
            made.append(await store.put("r", [b"%d" % number], version=version))

        async with anyio.create_task_group() as tasks:
            for number in range(1, 8):
                tasks.start_soon(replace, number)

        assert len([each for each in made if each is not None]) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("PutObject", drop=True, applied=True), OutcomeUnknown),
        (Fault("PutObject", refuse=(500, "InternalError")), OutcomeUnknown),
        (Fault("PutObject", refuse=(503, "SlowDown")), Unavailable),
        (Fault("PutObject", refuse=(409, "ConditionalRequestConflict")), Unavailable),
    ],
)
async def test_a_put_without_a_verdict_says_whether_it_may_have_taken_effect(
    server: S3Server, fault: Fault, error: type[Exception]
) -> None:
    async with opened(on_s3(server)) as store:
        server.fail(attrs.evolve(fault))
        with pytest.raises(error):
            await store.put("r", [b"1"])


async def test_keys_are_below_the_prefix_and_places_are_urls(server: S3Server) -> None:
    async with opened(on_s3(server)) as store:
        await store.put("g/1", [b"x"])

        assert list(server.objects()) == ["store/g/1"]
        assert store.place("g/1") == f"s3://{BUCKET}/store/g/1"

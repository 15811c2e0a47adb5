"""What is built on S3 keeps its contract on a real service too: objects, chunks, logs and coordination."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from s3_gateway import BUCKET, S3Gateway

from support.object_store_contract import ObjectStoreContract
from support.s3 import numbered_world
from tierlog.journal.coordination.contract import Coordination
from tierlog.journal.coordination.objects import ObjectCoordination, ObjectCoordinationOptions
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.object_store import ObjectStore, StoredObject
from tierlog.storage_backends.chunks.s3 import S3ChunkStorage
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options
from tierlog.testing.chunk_conformance import ChunkStorageConformance
from tierlog.testing.coordination_conformance import CoordinationConformance
from tierlog.testing.log_conformance import DurableDataLogConformance

pytestmark = [pytest.mark.anyio, pytest.mark.extended, pytest.mark.timeout(450)]  # the first may build it

LOG_ID = b"0123456789abcdef"
RACERS = 50
ROUNDS = 10


class OnGateway:
    @pytest.fixture(autouse=True)
    async def _served(self, gateway: S3Gateway, anyio_backend: str) -> AsyncIterator[None]:
        async with AsyncExitStack() as self.stack:
            self.options = S3Options(endpoint=gateway.url)
            self.shared = None
            yield

    def objects(self) -> S3Objects:
        return S3Objects(S3Location(BUCKET, "store/"), self.options)

    async def opened_objects(self) -> S3Objects:
        """One for all of a test."""
        if self.shared is None:
            self.shared = self.objects()
            await self.shared.open()
            self.stack.push_async_callback(self.shared.close)
        return self.shared

    shared: S3Objects | None
    stack: Any
    options: S3Options


class TestObjects(OnGateway, ObjectStoreContract):
    def make(self) -> ObjectStore:
        return self.objects()

    @pytest.mark.parametrize("replaces", [False, True])
    async def test_of_many_racing_puts_exactly_one_succeeds_each_time(self, replaces: bool) -> None:
        objects, version = await self.opened_objects(), ""
        if replaces:
            version = await objects.put("register", [b"first"]) or ""
        for number in range(ROUNDS):
            key = "register" if replaces else f"slot/{number}"
            [(data, made)] = (await race(objects, key, version)).items()
            assert await objects.get(key, 100) == StoredObject(data, len(data), made)
            version = made if replaces else ""


async def race(objects: ObjectStore, key: str, version: str) -> dict[bytes, str]:
    """Of puts with the same condition: the data of those that succeeded, and their versions."""
    won = dict[bytes, str]()

    async def put(data: bytes) -> None:
        made = await objects.put(key, [data], version=version)
        if made is not None:
            won[data] = made

    async with anyio.create_task_group() as tasks:
        for racer in range(RACERS):
            tasks.start_soon(put, b"%d after %s" % (racer, version.encode()))
    return won


class TestChunks(OnGateway, ChunkStorageConformance):
    def make(self, folder: Path) -> ChunkStorage:
        location = S3Location(BUCKET, f"{folder.parent.name}/{folder.name}/")
        return S3ChunkStorage(location, self.options, numbered_world())

    async def test_creations_and_deletes_in_one_folder_do_not_disturb_each_other(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        """The gateway refuses a put into a folder that it is removing. Whoever repeats it, as the storage
        actor does, succeeds."""

        async def create(name: str) -> None:
            for _ in range(100):
                with suppress(Unavailable):
                    await storage.create_with_content(name, [b"y"])
                    return
            raise AssertionError("it is never created")

        for turn in range(30):
            await create(f"a/b/{turn}")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(other.delete, f"a/b/{turn}")
                tasks.start_soon(create, f"a/b/{turn}-new")
            assert [each.name async for each in storage.list("")] == [f"a/b/{turn}-new"]
            await other.delete(f"a/b/{turn}-new")


class TestLog(OnGateway, DurableDataLogConformance):
    appends_max = 1

    async def make_log(self) -> DurableDataLog:
        options = S3LogOptions(
            pace=0.0, appends_max=self.appends_max, first_delay=0.0001, longest_delay=0.001
        )
        return S3Log(await self.opened_objects(), "wal/0000/", LOG_ID, numbered_world(), options)


class TestLogWithSeveralPuts(TestLog):
    appends_max = 4


class TestCoordination(OnGateway, CoordinationConformance):
    async def make_coordination(self) -> Coordination:
        options = ObjectCoordinationOptions(first_delay=0.0001, longest_delay=0.001)
        return ObjectCoordination(await self.opened_objects(), "", numbered_world(), options)

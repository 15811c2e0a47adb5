"""Object stores keep one contract: the one in S3, and the one in memory that the tests of logs use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest

from support.memory_objects import Bucket, MemoryObjects
from support.object_store_contract import ObjectStoreContract
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.storage_backends.base.errors import OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.object_store import ObjectStore
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.chunks.s3_objects import S3Objects
from tierlog.storage_backends.chunks.s3_requests import S3Options

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("reused_clients")]


def on_s3(server: S3Server) -> S3Objects:
    server.page_size = 2
    return S3Objects(S3Location(BUCKET, "store/"), S3Options(endpoint=server.url))


@asynccontextmanager
async def opened(store: ObjectStore) -> AsyncIterator[ObjectStore]:
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class TestS3Objects(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _served(self, server: S3Server) -> None:
        self.server = server

    def make(self) -> ObjectStore:
        return on_s3(self.server)


class TestMemoryObjects(ObjectStoreContract):
    def make(self) -> ObjectStore:
        return MemoryObjects(Bucket())


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

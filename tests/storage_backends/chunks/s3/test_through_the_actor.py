"""S3 below the storage actor, the one layer that tries again: whatever is lost on the way, each verb is done
once (rules A12, S2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import anyio
import attrs
import pytest

from support.s3 import s3_storage
from support.s3_server import Fault, S3Server
from tierlog.actors.chunk_io.actor import StorageActor
from tierlog.actors.chunk_io.client import StorageClient
from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.actors.kernel.backoff import Backoff
from tierlog.storage_backends.base.errors import ChunkNotFound

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("reused_clients")]

DATA = bytes(range(256)) * 8
SLOW_DOWN, CONFLICT, EXISTS = (
    (503, "SlowDown"),
    (409, "ConditionalRequestConflict"),
    (412, "PreconditionFailed"),
)


@pytest.fixture
async def client(server: S3Server) -> AsyncIterator[StorageClient]:
    actor = StorageActor(
        s3_storage(server.url), StorageOptions(attempts=3, backoff=Backoff(first=0, maximum=0)), Random(1)
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        yield StorageClient(actor)
        actor.stop()


CREATIONS = {
    "busy": [Fault("PutObject", refuse=SLOW_DOWN, times=2)],
    "a conflict": [Fault("PutObject", refuse=CONFLICT)],
    "a reply lost after the effect": [Fault("PutObject", applied=True, drop=True)],
    "a reply lost before the effect": [Fault("PutObject", drop=True)],
    "an internal error after the effect": [Fault("PutObject", applied=True, refuse=(500, "InternalError"))],
    "a lost reply, unreadable, then a conflict with itself, then itself": [
        Fault("PutObject", applied=True, drop=True),
        Fault("GetObject", refuse=SLOW_DOWN),
        Fault("PutObject", refuse=CONFLICT),
    ],
    "its own object in the way of the second try": [
        Fault("PutObject", applied=True, drop=True),
        Fault("GetObject", drop=True),
    ],
    "sent twice by something on the way": [Fault("PutObject", applied=True, refuse=EXISTS)],
    "a truncated read-back": [
        Fault("PutObject", applied=True, drop=True),
        Fault("GetObject", body_bytes=100),
    ],
}


@pytest.mark.parametrize("faults", CREATIONS.values(), ids=CREATIONS)
async def test_a_creation_succeeds_after_failures(
    client: StorageClient, server: S3Server, faults: list[Fault]
) -> None:
    server.fail(*map(attrs.evolve, faults))

    assert await client.create_with_content("a/b", [DATA[:100], DATA[100:]]) == len(DATA)
    assert server.objects()["store/a/b"] == DATA


async def test_reads_lists_and_deletes_succeed_after_failures(
    client: StorageClient, server: S3Server
) -> None:
    await client.create_with_content("a/b", [DATA])
    server.fail(
        Fault("GetObject", drop=True),
        Fault("GetObject", body_bytes=7),
        Fault("ListObjectsV2", refuse=SLOW_DOWN, times=2),
    )
    server.fail(Fault("DeleteObject", applied=True, drop=True))

    assert await client.read("a/b", 1, 10) == DATA[1:11]
    assert [info.name async for info in client.list("a/")] == ["a/b"]
    await client.delete("a/b")
    with pytest.raises(ChunkNotFound):
        await client.delete("a/b")

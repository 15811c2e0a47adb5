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
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import ChunkExists, ChunkNotFound, OutcomeUnknown, Unavailable

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


async def test_a_read_back_that_finds_other_bytes_is_no_success(
    client: StorageClient, server: S3Server
) -> None:
    other = s3_storage(server.url)
    await other.open()
    await other.create_with_content("a/b", [b"other"])
    await other.close()
    server.fail(Fault("PutObject", drop=True))
    with pytest.raises(ChunkExists, match="with other content"):
        await client.create_with_content("a/b", [DATA])


async def test_a_lasting_failure_is_raised_after_the_last_attempt(
    client: StorageClient, server: S3Server
) -> None:
    server.fail(Fault("PutObject", refuse=SLOW_DOWN, times=3))
    with pytest.raises(Unavailable, match="slow down"):
        await client.create_with_content("a/b", [DATA])

    assert server.count("PutObject") == 3
    assert "store/a/b" not in server.objects()


async def test_an_unknown_outcome_stays_unknown_until_the_bucket_answers(
    client: StorageClient, server: S3Server
) -> None:
    server.fail(Fault("PutObject", drop=True), Fault("PutObject", refuse=SLOW_DOWN, times=2))
    with pytest.raises(OutcomeUnknown, match="slow down"):
        await client.create_with_content("a/b", [DATA])


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


async def test_pages_of_a_list_are_read_where_the_last_one_ended(server: S3Server) -> None:
    """A13: each is one request of the service, and a failure of one does not restart the list."""
    options = StorageOptions(attempts=3, backoff=Backoff(first=0, maximum=0), list_page=2)
    actor = StorageActor(s3_storage(server.url), options, Random(1))
    async with anyio.create_task_group() as tasks:
        await tasks.start(actor.run)
        client, names = StorageClient(actor), [f"a/{number}" for number in range(5)]
        for name in names:
            await client.create_with_content(name, [b"x"])
        server.page_size = 2
        server.seen.clear()
        server.fail(Fault("ListObjectsV2", refuse=SLOW_DOWN))

        assert [info.name async for info in client.list("a/")] == names
        assert server.count("ListObjectsV2") == 4
        actor.stop()


async def test_a_concat_is_never_repeated_by_itself(client: StorageClient, server: S3Server) -> None:
    await client.create_with_content("a", [DATA])
    server.fail(Fault("PutObject", applied=True, drop=True))
    with pytest.raises(OutcomeUnknown):
        await client.concat("b", [ChunkRange("a", 0, 10)])

    assert server.count("PutObject") == 2

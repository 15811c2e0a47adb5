"""A container on a log in a bucket: it recovers from it, truncates it, and answers only as its owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from support.container_world import ContainerWorld
from support.faulty_objects import FaultyObjects
from support.memory_objects import Bucket, MemoryObjects
from support.stores import make
from tierlog import SegmentStore
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.errors import NotOwner, Unavailable

pytestmark = pytest.mark.anyio

LOG_ID = b"l" * 16


def log_on(world: ContainerWorld, bucket: Bucket, objects: MemoryObjects | None = None) -> S3Log:
    options = S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0)
    return S3Log(objects or MemoryObjects(bucket), "wal/0000/", LOG_ID, world.world, options)


async def test_the_next_owner_has_what_was_acked() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    async with world.owner(log=log_on(world, bucket)) as owner:
        await make(owner.store, "s", b"abc")
        for _ in range(20):
            await owner.store.append("s", b"def")
    async with world.owner(log=log_on(world, bucket)) as owner:
        assert await owner.store.read("s", 0, 100) == b"abc" + 20 * b"def"
        await owner.store.append("s", b"ghi")
    async with world.owner(log=log_on(world, bucket)) as owner:
        assert await owner.store.read("s", 60, 100) == b"defghi"


async def test_a_flush_and_a_checkpoint_truncate_the_log() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    async with world.owner(log=log_on(world, bucket)) as owner:
        await make(owner.store, "s", b"abc")
        for _ in range(50):
            await owner.store.append("s", b"x" * 1000)
        before = sum(len(data) for data, _ in bucket.objects.values())
        await owner.store.flush()
    async with world.owner(log=log_on(world, bucket)) as owner:
        assert await owner.store.read("s", 0, 4) == b"abcx"
    assert sum(len(data) for data, _ in bucket.objects.values()) < before / 2


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.read("s", 0, 3),
        lambda store: store.segment_info("s"),
        lambda store: store.list_segments(),
        lambda store: store.append_starts("s", 0, 3),
        lambda store: store.list_attributes("s"),
    ],
    ids=["read", "info", "list", "append_starts", "attributes"],
)
async def test_w12_an_owner_that_has_not_heard_of_its_successor_answers_nothing(
    call: Callable[[SegmentStore], Awaitable[object]],
) -> None:
    """Its hint knows nothing: it has not appended since."""
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    async with world.owner(log=log_on(world, bucket)) as first:
        await make(first.store, "s", b"abc")
        async with world.owner(log=log_on(world, bucket)) as second:
            await second.store.append("s", b"def")
            first.container.log.check_owner()
            with pytest.raises((NotOwner, Unavailable)):
                await call(first.store)


async def test_w12_reads_that_wait_share_their_confirmations() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    objects = FaultyObjects(bucket)
    async with world.owner(log=log_on(world, bucket, objects)) as owner:
        await make(owner.store, "s", b"abc")
        objects.asked.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(owner.store.read, "s", 0, 3)
        assert set(objects.asked) == {"get"}
        assert len(objects.asked) < 20


async def test_an_idle_container_makes_no_request() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    objects = FaultyObjects(bucket)
    async with world.owner(log=log_on(world, bucket, objects)) as owner:
        await make(owner.store, "s", b"abc")
        objects.asked.clear()
        await anyio.sleep(0.05)
        assert objects.asked == []

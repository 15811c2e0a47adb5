"""A container on a log in a bucket: it recovers from it, truncates it, and answers only as its owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import attrs
import pytest
from anyio.abc import TaskGroup

from support.container_world import ContainerWorld, Owner
from support.faulty_objects import FaultyObjects
from support.memory_objects import Bucket, MemoryObjects
from support.stores import make
from tierlog import SegmentStore
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import NotOwner, OutcomeUnknown, TierlogError, Unavailable

pytestmark = pytest.mark.anyio

LOG_ID = b"l" * 16


def log_on(
    world: ContainerWorld, bucket: Bucket, objects: MemoryObjects | None = None, **options: Any
) -> S3Log:
    given = attrs.evolve(S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0), **options)
    return S3Log(objects or MemoryObjects(bucket), "wal/0000/", LOG_ID, world.world, given)


class HeldObjects(MemoryObjects):
    """After ``hold``, each put of a slot waits in ``puts`` for its event."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self.puts: list[anyio.Event] | None = None

    def hold(self) -> list[anyio.Event]:
        self.puts = []
        return self.puts

    def release(self) -> None:
        held, self.puts = self.puts, None
        for put in held or ():
            put.set()

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        if self.puts is not None and "/g/" in key:
            self.puts.append(anyio.Event())
            await self.puts[-1].wait()
        return await super().put(key, data, version=version)


class Appends:
    """Appends under way, and what became of each, in the order in which they ended."""

    def __init__(self, owner: Owner, tasks: TaskGroup) -> None:
        self._owner = owner
        self._tasks = tasks
        self.ended: list[tuple[bytes, type[BaseException] | int]] = []

    async def begin(self, data: bytes) -> None:
        """Return when nothing moves any more."""
        self._tasks.start_soon(self._append, data)
        await anyio.wait_all_tasks_blocked()

    async def _append(self, data: bytes) -> None:
        try:
            self.ended.append((data, await self._owner.store.append("s", data)))
        except TierlogError as error:
            self.ended.append((data, type(error)))


async def test_c1_groups_that_are_put_at_once_are_acked_in_order() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    objects = HeldObjects(bucket)
    async with world.owner(log=log_on(world, bucket, objects, appends_max=3)) as owner:
        await make(owner.store, "s", b"")
        puts = objects.hold()
        async with anyio.create_task_group() as tasks:
            appends = Appends(owner, tasks)
            for data in (b"a", b"b", b"c", b"d"):
                await appends.begin(data)
            assert len(puts) == 3, "the fourth waits until the log takes another one"

            for put in (puts[2], puts[1]):
                put.set()
                await anyio.wait_all_tasks_blocked()
                assert appends.ended == []
            objects.release()
        assert appends.ended == [(b"a", 0), (b"b", 1), (b"c", 2), (b"d", 3)]
        assert await owner.store.read("s", 0, 9) == b"abcd"


async def test_l2_nothing_is_acked_behind_a_group_that_was_fenced() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    objects = HeldObjects(bucket)
    async with world.owner(log=log_on(world, bucket, objects, appends_max=3)) as first:
        await make(first.store, "s", b"kept")
        puts = objects.hold()
        async with anyio.create_task_group() as tasks:
            appends = Appends(first, tasks)
            for data in (b"a", b"b", b"c"):
                await appends.begin(data)
            async with world.owner(log=log_on(world, bucket)) as second:
                # Its fence is in the slot of the first; the others find theirs free.
                puts[2].set()
                puts[1].set()
                await anyio.wait_all_tasks_blocked()
                assert appends.ended == []
                objects.release()
                while len(appends.ended) < 3:
                    await anyio.wait_all_tasks_blocked()
                assert {outcome for _, outcome in appends.ended} <= {NotOwner, OutcomeUnknown, Unavailable}
                assert await second.store.read("s", 0, 9) == b"kept"


async def test_appends_join_the_group_that_waits_for_the_pace() -> None:
    world, bucket = ContainerWorld(), Bucket()
    await world.chunks.open()
    objects = FaultyObjects(bucket)
    async with world.owner(log=log_on(world, bucket, objects, pace=1.0)) as owner:
        await make(owner.store, "s", b"first")
        objects.asked.clear()
        async with anyio.create_task_group() as tasks:
            appends = Appends(owner, tasks)
            for data in (b"a", b"b", b"c"):
                await appends.begin(data)
            assert (appends.ended, objects.asked) == ([], [])
        assert objects.asked.count("put") == 1


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

"""The log in a bucket, rule by rule; what every log does is in the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio
import attrs
import pytest

from support.call_faults import FaultKind
from support.faulty_objects import FaultyObjects
from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from support.s3 import numbered_world
from tierlog.journal.log import s3_log
from tierlog.journal.log.contract import SLOTS_AHEAD
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_slot import FENCE_BYTES
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    Unsupported,
)
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore

pytestmark = pytest.mark.anyio

LOG_ID = b"0123456789abcdef"
FAST = S3LogOptions(pace=0.0, first_delay=0.0, longest_delay=0.0)
WORLD = numbered_world()


def log_on(objects: ObjectStore, log_id: bytes = LOG_ID, **options: Any) -> S3Log:
    return S3Log(objects, "wal/", log_id, WORLD, attrs.evolve(FAST, **options))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def objects(bucket: Bucket) -> FaultyObjects:
    return FaultyObjects(bucket)


def slots(bucket: Bucket) -> dict[int, int]:
    """The length of each object by slot."""
    return {int(key[-16:], 16): len(data) for key, (data, _) in bucket.objects.items() if "/g/" in key}


def key_of(slot: int) -> str:
    return f"wal/g/{slot:016x}"


async def numbers(log: S3Log) -> list[int]:
    return [number async for number, _ in log.read()]


async def test_l1_slots_without_a_register_are_refused(bucket: Bucket, objects: FaultyObjects) -> None:
    log = log_on(objects)
    await log.open()
    bucket.delete("wal/register")

    for opened in (log_on(objects).open(), log_on(objects).inspect()):
        with pytest.raises(DataCorruption, match="no register") as caught:
            await opened
        assert caught.value.file == "memory:wal/register"
    assert "wal/register" not in bucket.objects


@pytest.mark.parametrize("reopens", [False, True])
async def test_l1_an_older_register_put_back_costs_no_epoch_twice(bucket: Bucket, reopens: bool) -> None:
    """An opening goes above the newest epoch of the log, whatever the register says."""
    registers = []
    for epoch in range(1, 5):
        log = log_on(MemoryObjects(bucket))
        assert (await log.open()).epoch == epoch
        await log.append([b"%d" % epoch])
        registers.append(bucket.objects["wal/register"])
    bucket.objects["wal/register"] = registers[0]

    assert (await log_on(MemoryObjects(bucket)).inspect()).history_epoch == 4
    after = [1] if reopens else None  # as the owner of then, which begins again
    opened = await log_on(MemoryObjects(bucket)).open(after=after)
    assert (opened.epoch, opened.history_epoch) == (5, 4)
    later = log_on(MemoryObjects(bucket))
    assert (await later.open()).epoch == 6
    assert await numbers(later) == [1, 2, 3, 4]


async def test_l1_a_register_from_before_a_truncation_is_named(bucket: Bucket) -> None:
    log = log_on(MemoryObjects(bucket))
    await log.open()
    older = bucket.objects["wal/register"]
    for index in range(1, 4):
        await log.append([b"x"], truncate_before=index)
    await log.truncate()
    newest, bucket.objects["wal/register"] = bucket.objects["wal/register"], older

    for _ in range(3):
        with pytest.raises(DataCorruption, match="memory:wal/register is an older one: put its newest"):
            await log_on(MemoryObjects(bucket)).open()
    bucket.objects["wal/register"] = newest
    assert (await log_on(MemoryObjects(bucket)).open()).epoch == 2


async def test_l2_an_append_is_one_put(objects: FaultyObjects) -> None:
    log = log_on(objects)
    await log.open()
    objects.asked.clear()
    for _ in range(5):
        await log.append([b"group"])

    assert objects.asked == ["put"] * 5


async def test_l3_a_gap_is_closed_by_the_fence_and_what_is_behind_it_is_void(bucket: Bucket) -> None:
    """The owner is killed when the second of three puts has not arrived."""
    first = 1 + SLOTS_AHEAD
    objects = FaultyObjects(bucket)
    log = log_on(objects, appends_max=3)
    await log.open()
    assert await log.append([b"x"]) == 1
    held = objects.faults.hold("put", most=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.append, [b"x"])
        await held.arrived.wait()
        tasks.start_soon(log.append, [b"x"])
        while not {first, first + 2} <= slots(bucket).keys():
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()

    later = log_on(MemoryObjects(bucket))
    opened = await later.open()
    assert await numbers(later) == [1]
    assert opened.next_group == 2
    assert await later.append([b"next"]) == 2
    assert max(slots(bucket)) == first + 1 + SLOTS_AHEAD
    last = log_on(MemoryObjects(bucket))
    await last.open()
    assert [bytes(payload) async for _, payload in last.read()] == [b"x", b"next"]


async def test_l4_an_opener_whose_log_was_truncated_meanwhile_is_no_owner(bucket: Bucket) -> None:
    """It takes the free slots for the end of the log."""
    first = log_on(MemoryObjects(bucket))
    await first.open()
    for index in range(1, 4):
        await first.append([b"x"], truncate_before=index)
    await first.truncate()
    late = FaultyObjects(bucket)
    held = late.faults.hold("list")
    slow = log_on(late)
    async with anyio.create_task_group() as tasks:
        refused: list[NotOwner] = []

        async def open_slowly() -> None:
            try:
                await slow.open()
            except NotOwner as error:
                refused.append(error)

        tasks.start_soon(open_slowly)
        await held.arrived.wait()
        other = log_on(MemoryObjects(bucket))
        await other.open()
        assert await other.append([b"other"], truncate_before=4) == 4
        await other.truncate()
        held.go_on.set()

    assert len(refused) == 1
    assert await other.append([b"still the owner"]) == 5
    last = log_on(MemoryObjects(bucket))
    await last.open()
    assert await numbers(last) == [4, 5]


async def test_l5_an_acked_group_that_is_gone_is_corruption_with_its_key(
    bucket: Bucket, objects: FaultyObjects
) -> None:
    log = log_on(objects)
    await log.open()
    for _ in range(3):
        await log.append([b"x"])
    bucket.delete(key_of(2 + SLOTS_AHEAD))

    for opened in (log_on(objects).inspect(), log_on(objects).open()):
        with pytest.raises(DataCorruption, match="is gone") as caught:
            await opened
        assert caught.value.file == f"memory:{key_of(2 + SLOTS_AHEAD)}"


class ListsAsOfBefore(MemoryObjects):
    """Its listing lacks an object that was put while it was made."""

    lacked = ""

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        async for each in super().list(prefix):
            if each.key != self.lacked:
                yield each


async def test_l5_a_group_that_a_listing_of_several_pages_lacks_is_asked_for(bucket: Bucket) -> None:
    log = log_on(MemoryObjects(bucket))
    await log.open()
    for _ in range(3):
        await log.append([b"x"])
    objects = ListsAsOfBefore(bucket)
    objects.lacked = key_of(2 + SLOTS_AHEAD)
    later = log_on(objects)
    await later.open()

    assert await numbers(later) == [1, 2, 3]


@pytest.mark.parametrize("kind", [FaultKind.REFUSED, FaultKind.UNANSWERED, FaultKind.REPEATED])
async def test_l6_a_put_without_a_verdict_is_repeated_and_recognised(bucket: Bucket, kind: FaultKind) -> None:
    log = log_on(MemoryObjects(bucket))
    await log.open()
    faulty = FaultyObjects(bucket)
    await log.close()
    log = log_on(faulty)
    await log.open()
    faulty.faults.fail_next(kind)

    assert await log.append([b"once"]) == 1
    assert await log.append([b"more"]) == 2


async def test_l7_truncation_deletes_groups_and_keeps_fences(bucket: Bucket) -> None:
    for round_ in range(3):
        log = log_on(MemoryObjects(bucket))
        await log.open()
        number = await log.append([b"checkpoint"], truncate_before=1 + round_)
        assert number == 1 + round_
        await log.truncate()

    fences = [slot for slot, length in slots(bucket).items() if length == FENCE_BYTES]
    assert fences == [1 + round_ * (SLOTS_AHEAD + 1) for round_ in range(3)]
    assert len(slots(bucket)) == 4


async def test_l7_a_late_put_below_the_low_is_not_read_and_is_swept_by_the_next_owner(bucket: Bucket) -> None:
    log = log_on(MemoryObjects(bucket))
    await log.open()
    await log.append([b"one"])
    late = bucket.objects[key_of(1 + SLOTS_AHEAD)][0]
    await log.append([b"two"], truncate_before=2)
    await log.truncate()
    assert bucket.put(key_of(1 + SLOTS_AHEAD), late, "") is not None

    later = log_on(MemoryObjects(bucket))
    await later.open()
    assert await numbers(later) == [2]
    await later.truncate()
    assert key_of(1 + SLOTS_AHEAD) not in bucket.objects


@pytest.mark.parametrize("ignored", ["absent", "match"])
async def test_l8_a_service_that_ignores_a_condition_is_refused(bucket: Bucket, ignored: str) -> None:
    with pytest.raises(Unsupported, match="no conditional puts"):
        await log_on(Careless(bucket, ignored)).open()


class Careless(MemoryObjects):
    """Ignores one of the conditions."""

    def __init__(self, bucket: Bucket, ignored: str) -> None:
        super().__init__(bucket)
        self.ignored = ignored

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        if self.ignored == ("match" if version else "absent"):
            version = self.bucket.objects.get(key, (b"", ""))[1]
        return await super().put(key, data, version=version)


async def test_l9_an_owner_that_appends_notices_a_raise(bucket: Bucket) -> None:
    """Its successor has not put its fence yet."""
    log = log_on(MemoryObjects(bucket), check_after=0.0)
    await log.open()
    await log.append([b"x"])
    objects = FaultyObjects(bucket)
    held = objects.faults.hold("list")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log_on(objects).open)
        await held.arrived.wait()
        with pytest.raises(NotOwner):
            await log.append([b"y"])
        held.go_on.set()


async def test_l9_what_is_durable_does_not_wait_for_a_register_that_cannot_be_read(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_log, "_CHECK_SECONDS", 0.01)
    objects = FaultyObjects(bucket)
    log = log_on(objects, check_after=0.0)
    await log.open()
    objects.faults.hold("get")
    with anyio.fail_after(scaled(5)):
        assert [await log.append([b"x"]) for _ in range(2)] == [1, 2]


async def test_small_groups_are_to_wait_for_the_pace_and_large_ones_are_not(objects: FaultyObjects) -> None:
    log = log_on(objects, pace=1000.0, pace_bytes=1000)
    await log.open()
    assert log.append_delay(1) == 0.0
    assert await log.append([b"first"]) == 1
    assert 900.0 < log.append_delay(999) <= 1000.0
    assert log.append_delay(1000) == 0.0


async def test_requests_are_counted(objects: FaultyObjects) -> None:
    log = log_on(objects)
    await log.open()
    await log.append([b"x"])
    await log.append([b"y"], truncate_before=2)
    await log.truncate()

    counts = log.requests
    assert {
        "put": counts.puts,
        "get": counts.gets,
        "list": counts.lists,
        "delete": counts.deletes,
    } == {name: objects.asked.count(name) for name in ("put", "get", "list", "delete")}
    assert counts.deletes == 1


async def test_a_damaged_payload_is_corruption_when_it_is_read_and_the_log_goes_on(bucket: Bucket) -> None:
    log = log_on(MemoryObjects(bucket), start_bytes=120)
    await log.open()
    await log.append([b"x" * 100])
    key = key_of(1 + SLOTS_AHEAD)
    data, version = bucket.objects[key]
    bucket.objects[key] = (data[:-1] + b"?", version)

    with pytest.raises(DataCorruption, match="payload is damaged"):
        await log.read_window(1)
    assert await log.append([b"more"]) == 2
    later = log_on(MemoryObjects(bucket), start_bytes=120)
    await later.open()
    with pytest.raises(DataCorruption) as caught:
        await numbers(later)
    assert caught.value.file == f"memory:{key}"

"""Leases and records as objects: rules D1 to D5, by the observer's clock and through every fault."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import attrs
import pytest
import trio.testing
from msgspec.structs import replace

from support.call_faults import KINDS_AND_DELAYS, CallFault, CallFaults, FaultKind
from support.faulty_ledgers import FaultyLedgers
from support.faulty_objects import FaultyObjects
from support.memory_ledgers import Cluster, MemoryLedgers
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.journal.coordination.contract import SUPERVISOR, TERM, Coordination, LeaseHeld
from tierlog.journal.coordination.lease_record import LeaseRecord, decode_lease, encode_lease
from tierlog.journal.coordination.objects import (
    OBSERVED,
    ObjectCoordination,
    ObjectCoordinationOptions,
)
from tierlog.journal.coordination.zookeeper import RecordObjects
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StoreMismatch,
    Unavailable,
    Unsupported,
)
from tierlog.storage_backends.base.object_store import ObjectStore, StoredObject

WORLD = numbered_world()
PATIENT = ObjectCoordinationOptions(first_delay=0.0, longest_delay=0.0)
HASTY = attrs.evolve(PATIENT, patience=-1.0)
"""Its first request without a verdict fails."""
GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "lease_v1.hex"
LEASE = LeaseRecord(True, b"lease-lease-leas", b"put-put-put-put-", 10_000, "process 7")


def on(objects: ObjectStore, options: ObjectCoordinationOptions = PATIENT) -> ObjectCoordination:
    return ObjectCoordination(objects, "store/", WORLD, options)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


# --- records --------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_d1_two_that_set_the_same_bytes_have_both_set_them(bucket: Bucket) -> None:
    """As who repeats a put whose answer was lost must have."""
    assert await on(MemoryObjects(bucket)).compare_and_set(TERM, b"x" * 300)

    class Late(MemoryObjects):
        """It looks first before the other puts."""

        looks = 0

        async def get(self, key: str, size: int) -> StoredObject | None:
            self.looks += 1
            return None if self.looks == 1 else await super().get(key, size)

    assert await on(Late(bucket)).compare_and_set(TERM, b"x" * 300)
    assert await on(Late(bucket)).compare_and_set(TERM, b"x" * 299 + b"y") is None


@pytest.mark.anyio
@pytest.mark.parametrize("ignored", ["absence", "version"])
async def test_d2_a_service_that_ignores_a_condition_is_refused(ignored: str) -> None:
    class Careless(Bucket):
        def put(self, key: str, data: bytes, version: str) -> str | None:
            if bool(version) == (ignored == "version"):
                found = self.objects.get(key)
                version = found[1] if found else ""
            return super().put(key, data, version)

    bucket = Careless()
    for _ in range(2):
        with pytest.raises(Unsupported, match="no conditional puts"):
            await on(MemoryObjects(bucket)).compare_and_set(TERM, b"one")
    assert "store/term" not in bucket.objects


@pytest.mark.anyio
async def test_d2_an_existing_record_is_replaced_without_a_trial(bucket: Bucket) -> None:
    version = await on(MemoryObjects(bucket)).compare_and_set(TERM, b"one")
    objects = FaultyObjects(bucket)
    assert version
    assert await on(objects).compare_and_set(TERM, b"two", version)
    assert objects.asked == ["put"]


# --- leases ---------------------------------------------------------------------------------------


def test_d3_a_lease_ends_when_it_was_seen_unchanged_for_its_duration(bucket: Bucket) -> None:
    async def body() -> None:
        first, second = on(MemoryObjects(bucket)), on(MemoryObjects(bucket))
        lease = await first.take_lease(SUPERVISOR, "first", 10.0)
        await trio.sleep(1000.0)
        # Nobody has watched it: its holder may have renewed it just now.
        assert not lease.is_held()
        await refused(second)
        await trio.sleep(10.0 * OBSERVED - 0.1)
        await refused(second)
        await trio.sleep(0.2)
        later = await second.take_lease(SUPERVISOR, "second", 10.0)
        assert later.is_held()
        with pytest.raises(NotOwner, match="second has it"):
            await lease.renew()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_d3_a_damaged_lease_counts_with_the_longer_duration_that_was_seen_before(bucket: Bucket) -> None:
    """Its holder may have renewed it just before, and believe in it."""

    async def body() -> None:
        first, second = on(MemoryObjects(bucket)), on(MemoryObjects(bucket))
        lease = await first.take_lease(SUPERVISOR, "first", 40.0)
        await refused(second)
        bucket.objects["store/leases/supervisor"] = (b"damaged", "v")
        while lease.is_held():
            with pytest.raises(LeaseHeld) as caught:
                await second.take_lease(SUPERVISOR, "second", 10.0)
            assert caught.value.duration == 40.0
            await trio.sleep(1.0)
        await trio.sleep(40.0 * (OBSERVED - 1.0))
        await second.take_lease(SUPERVISOR, "second", 10.0)

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


class Hashed(Bucket):
    """Its versions are of the bytes, as entity tags are."""

    def put(self, key: str, data: bytes, version: str) -> str | None:
        if super().put(key, data, version) is None:
            return None
        made = str(crc32c(data))
        self.objects[key] = (data, made)
        return made


def test_d3_a_lease_that_is_renewed_goes_on() -> None:
    bucket = Hashed()

    async def body() -> None:
        first, second = on(MemoryObjects(bucket)), on(MemoryObjects(bucket))
        lease = await first.take_lease(SUPERVISOR, "first", 10.0)
        for _ in range(20):
            await refused(second)
            await trio.sleep(8.0)
            await lease.renew()
            assert lease.is_held()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_d4_a_holder_counts_from_before_its_put(bucket: Bucket) -> None:
    """A put that takes long may have been seen as soon as it was sent."""

    class Slow(MemoryObjects):
        async def put(self, *args: object, **more: object) -> str | None:
            made = await super().put(*args, **more)  # type: ignore[arg-type]
            await trio.sleep(6.0)
            return made

    async def body() -> None:
        await on(MemoryObjects(bucket)).compare_and_set(
            "leases/supervisor", encode_lease(attrs.evolve(LEASE, held=False))
        )
        lease = await on(Slow(bucket)).take_lease(SUPERVISOR, "slow", 10.0)
        await trio.sleep(3.9)
        assert lease.is_held()
        await trio.sleep(0.2)
        assert not lease.is_held()
        await lease.renew()
        await trio.sleep(4.1)
        assert not lease.is_held()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_d4_a_holder_whose_machine_was_suspended_doubts_its_lease_until_it_has_renewed_it(
    bucket: Bucket,
) -> None:
    """The monotonic clock may have stood still."""
    wall = [1000.0]
    world = replace(WORLD, wall_clock=lambda: wall[0])
    lease = await ObjectCoordination(MemoryObjects(bucket), "", world).take_lease(SUPERVISOR, "first", 60.0)
    wall[0] -= 500.0  # set back: it says nothing
    assert lease.is_held()
    wall[0] += 560.0
    assert not lease.is_held()
    await lease.renew()
    assert lease.is_held()


@pytest.mark.anyio
async def test_d4_a_renewal_without_an_answer_does_not_end_the_lease(bucket: Bucket) -> None:
    lease = await on(MemoryObjects(bucket)).take_lease(SUPERVISOR, "first", 1000.0)
    await lease.release()
    for kind in (FaultKind.LOST, FaultKind.UNANSWERED):
        objects = FaultyObjects(bucket)
        lease = await on(objects, HASTY).take_lease(SUPERVISOR, "first", 1000.0)
        objects.faults.fail_next(kind)
        with pytest.raises(OutcomeUnknown):
            await lease.renew()
        assert lease.is_held()
        await lease.renew()
        await lease.release()


async def refused(coordination: Coordination) -> None:
    with pytest.raises(LeaseHeld, match="held by first") as caught:
        await coordination.take_lease(SUPERVISOR, "second", 10.0)
    assert caught.value.holder == "first"


REQUESTS_MAX = 40
Service: TypeAlias = Callable[[CallFault], tuple[ObjectStore, ObjectStore, CallFaults]]


class Life:
    """Two processes that raise a counter under a lease, and a third that does so without one."""

    def __init__(self, objects: ObjectStore, options: ObjectCoordinationOptions) -> None:
        self.objects = objects
        self.options = options
        self.values: list[int] = []
        self.ids = 0

    async def live(self) -> None:
        for holder in ("first", "second"):
            coordination = on(self.objects, self.options)
            try:
                lease = await coordination.take_lease(SUPERVISOR, holder, 1000.0)
            except (Unavailable, OutcomeUnknown):  # also held by one whose release was lost
                continue
            for _ in range(2):
                await self.raise_value(coordination)
                with suppress(Unavailable, OutcomeUnknown):
                    await lease.renew()
            with suppress(Unavailable, OutcomeUnknown):
                await lease.release()
        await self.raise_value(on(self.objects, self.options))

    async def raise_value(self, coordination: ObjectCoordination) -> None:
        self.ids += 1
        try:
            while True:
                found = await coordination.load(TERM)
                value = 1 + (int(found.data.split()[0]) if found else 0)
                if await coordination.compare_and_set(
                    TERM, b"%d %d" % (value, self.ids), found.version if found else ""
                ):
                    self.values.append(value)
                    return
        except (Unavailable, OutcomeUnknown):
            pass


@pytest.mark.anyio
async def test_a_life_has_as_many_requests_as_are_tried(bucket: Bucket) -> None:
    objects = FaultyObjects(bucket)
    life = Life(objects, PATIENT)
    await life.live()
    assert life.values == [1, 2, 3, 4, 5]
    assert 25 < len(objects.asked) <= REQUESTS_MAX


def in_bucket(fault: CallFault) -> tuple[ObjectStore, ObjectStore, CallFaults]:
    """Objects with the fault and without it."""
    faulty = FaultyObjects(Bucket(), fault)
    return faulty, MemoryObjects(faulty.bucket), faulty.faults


def in_zookeeper(fault: CallFault) -> tuple[ObjectStore, ObjectStore, CallFaults]:
    faulty = FaultyLedgers(Cluster(), fault)
    sound = RecordObjects(MemoryLedgers(faulty.cluster), "/stores/first")
    return RecordObjects(faulty, "/stores/first"), sound, faulty.faults


@pytest.mark.anyio
@pytest.mark.parametrize("options", [PATIENT, HASTY], ids=["repeated", "fatal"])
@pytest.mark.parametrize(("kind", "delay"), KINDS_AND_DELAYS)
@pytest.mark.parametrize("service", [in_bucket, in_zookeeper])
async def test_no_fault_of_one_request_sets_a_value_twice(
    service: Service, kind: FaultKind, delay: int, options: ObjectCoordinationOptions
) -> None:
    for at in range(1, REQUESTS_MAX + 1):
        faulty, sound, faults = service(CallFault(at, kind, delay))
        life = Life(faulty, options)
        await life.live()
        faults.settle()
        assert life.values == sorted(set(life.values))
        found = await on(sound).load(TERM)
        assert int(found.data.split()[0] if found else 0) >= max(life.values, default=0)
        # The lease is one whole record, whose holder or whose end is known.
        lease = await on(sound).load("leases/supervisor")
        if lease is not None:
            assert decode_lease(lease.data, "lease").holder in {"first", "second"}
        if options is PATIENT:
            assert life.values == [1, 2, 3, 4, 5]


# --- the record -----------------------------------------------------------------------------------


def test_a_lease_has_its_golden_bytes() -> None:
    golden = bytes.fromhex(GOLDEN.read_text())
    assert encode_lease(LEASE) == golden
    assert decode_lease(golden, "place") == LEASE


def test_a_damaged_lease_is_refused_with_its_place() -> None:
    data = encode_lease(LEASE)
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]):
            with pytest.raises(DataCorruption) as caught:
                decode_lease(damaged, "s3://b/lease")
            assert caught.value.file == "s3://b/lease"


def test_a_lease_of_a_newer_format_is_no_damage() -> None:
    body = bytearray(encode_lease(LEASE)[:-4]) + b"more"
    struct.pack_into(">H", body, 4, 2)
    with pytest.raises(StoreMismatch, match="use a newer tierlog"):
        decode_lease(bytes(body) + crc32c(bytes(body)).to_bytes(4), "place")


@pytest.mark.anyio
@pytest.mark.parametrize(("holder", "duration"), [("x" * 257, 1.0), ("x", 0.0), ("x", 1e6)])
async def test_a_lease_is_limited(bucket: Bucket, holder: str, duration: float) -> None:
    with pytest.raises(InvalidArgument):
        await on(MemoryObjects(bucket)).take_lease(SUPERVISOR, holder, duration)

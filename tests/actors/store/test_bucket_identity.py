"""The identity of a store in a bucket: there is one, whatever fails while it is made (rules D1, D2)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

import pytest

from support.call_faults import CallFault, FaultKind
from support.faulty_objects import FaultyObjects
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog import DataCorruption, InvalidArgument, StoreConfig, StoreMismatch, Unavailable
from tierlog.actors.folder.identity import StoreIdentity, encode
from tierlog.actors.store import nesting
from tierlog.actors.store.bucket import refuse_others
from tierlog.actors.store.shared import identify_shared
from tierlog.journal.coordination.contract import IDENTITY
from tierlog.journal.coordination.objects import ObjectCoordination, ObjectCoordinationOptions
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore

pytestmark = pytest.mark.anyio

WORLD = numbered_world()
PATIENT = ObjectCoordinationOptions(first_delay=0.0, longest_delay=0.0)
HASTY = ObjectCoordinationOptions(patience=-1.0)
REQUESTS_MAX = 20


async def identify(objects: ObjectStore, options: ObjectCoordinationOptions = PATIENT) -> StoreIdentity:
    coordination = ObjectCoordination(objects, "", WORLD, options)
    begin = partial(refuse_others, objects, coordination, WORLD)
    return await identify_shared(coordination, begin, None, StoreConfig(), WORLD)


async def test_an_opening_has_as_many_requests_as_are_tried() -> None:
    objects = FaultyObjects(Bucket())
    made = await identify(objects)
    assert 8 < len(objects.asked) <= REQUESTS_MAX
    objects.asked.clear()
    assert await identify(objects) == made
    assert objects.asked == ["get"]


@pytest.mark.parametrize("options", [PATIENT, HASTY], ids=["repeated", "fatal"])
@pytest.mark.parametrize(
    ("kind", "delay"),
    [(kind, 0) for kind in FaultKind if kind is not FaultKind.LATE]
    + [(FaultKind.LATE, delay) for delay in (1, 2, 4, 8, 1_000)],
)
async def test_no_fault_of_one_request_makes_two_identities(
    kind: FaultKind, delay: int, options: ObjectCoordinationOptions
) -> None:
    for at in range(1, REQUESTS_MAX + 1):
        objects = FaultyObjects(Bucket(), CallFault(at, kind, delay))
        found = set()
        for _ in range(3):
            try:
                found.add(await identify(objects, options))
            except (Unavailable, OutcomeUnknown):
                assert options is HASTY
        objects.settle()
        found.add(await identify(objects))
        assert len(found) == 1


@pytest.mark.parametrize("key", ["wal/0000/register", "lts/_system/containers/0000/journal/1"])
async def test_a_store_without_its_identity_is_not_made_again(key: str) -> None:
    bucket = Bucket()
    bucket.put(key, b"x", "")
    with pytest.raises(DataCorruption, match="identity is missing"):
        await identify(FaultyObjects(bucket))
    assert list(bucket.objects) == [key]


async def test_chunks_of_a_store_elsewhere_are_refused() -> None:
    bucket = Bucket()
    bucket.put("_system/containers/0000/journal/1", b"x", "")
    with pytest.raises(StoreMismatch, match="logs elsewhere"):
        await identify(FaultyObjects(bucket))


@pytest.mark.parametrize("name", ["term", "control"])
async def test_records_that_only_a_store_has_are_of_one_that_lost_its_identity(name: str) -> None:
    bucket = Bucket()
    bucket.put(name, b"x", "")
    with pytest.raises(DataCorruption, match=f"there is memory:{name}: put the identity back, or, for a new"):
        await identify(FaultyObjects(bucket))
    assert list(bucket.objects) == [name]


IDENTITY_OF_ANOTHER = encode(StoreIdentity(bytes(16), bytes(16), 4, 0))


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("wal/x/store", "wal/x"),
        ("lts/a/b/store", "lts/a/b"),
        ("leases/x/store", "leases/x"),
        ("lts/chunks/_system/store", "lts/chunks"),
        ("q/store", "q"),
        ("a/b/c/store", "a/b/c"),
        ("data/chunks/_system/store", "data/chunks"),
    ],
)
async def test_a_store_is_not_made_around_another_one(key: str, other: str) -> None:
    bucket = Bucket()
    bucket.put(key, IDENTITY_OF_ANOTHER, "")
    with pytest.raises(InvalidArgument, match=f"memory: is around another store, memory:{other}/"):
        await identify(FaultyObjects(bucket))
    assert list(bucket.objects) == [key]


async def test_so_many_other_objects_are_not_all_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    for number in range(3):
        bucket.put(f"lake/{number}", b"x", "")
    bucket.put("lake/q/store", IDENTITY_OF_ANOTHER, "")
    monkeypatch.setattr(nesting, "KEYS_MAX", 3)
    assert (await identify(FaultyObjects(bucket))).containers == StoreConfig().containers


async def test_an_object_of_that_name_is_no_store() -> None:
    bucket = Bucket()
    bucket.put("lts/grocery/store", b"bread", "")
    assert (await identify(FaultyObjects(bucket))).containers == StoreConfig().containers


async def test_other_objects_beside_it_are_no_obstacle() -> None:
    bucket = Bucket()
    bucket.put("readme", b"x", "")
    assert (await identify(FaultyObjects(bucket))).containers == StoreConfig().containers


async def test_who_finds_the_logs_of_a_store_that_another_process_has_just_made_opens_that_one() -> None:
    bucket = Bucket()

    class Overtaken(MemoryObjects):
        async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
            if IDENTITY not in bucket.objects:
                await identify(MemoryObjects(bucket))
                bucket.put("wal/0000/register", b"x", "")
            async for each in super().list(prefix):
                yield each

    assert await identify(Overtaken(bucket)) == await identify(MemoryObjects(bucket))

"""Records and leases in ZooKeeper: what differs from a bucket (rules D1, D2, D7). The rest is in the
suites of ``ObjectCoordination`` and of the contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest
import trio
import trio.testing

from support.memory_ledgers import Cluster, MemoryLedgers
from support.s3 import numbered_world
from tierlog.journal.coordination.contract import IDENTITY, SUPERVISOR, TERM, LeaseHeld
from tierlog.journal.coordination.objects import OBSERVED, ObjectCoordinationOptions
from tierlog.journal.coordination.zookeeper import RecordObjects, ZooKeeperCoordination
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.base.ledger_service import StoredRecord

T = TypeVar("T")
WORLD = numbered_world()
PATIENT = ObjectCoordinationOptions(first_delay=0.0, longest_delay=0.0)


def on(ledgers: MemoryLedgers) -> ZooKeeperCoordination:
    return ZooKeeperCoordination(ledgers, "/stores/first", WORLD, PATIENT)


class Unanswered(MemoryLedgers):
    """Each change takes effect, and its answer is lost the first time."""

    lost = 0

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        answer = await super()._ask(name, effect)
        if name in {"create", "replace"}:
            self.lost += 1
            if self.lost % 2:
                raise OutcomeUnknown("the connection is lost")
        return answer


class Lagging(MemoryLedgers):
    """Its server shows what there was before, until a change of this process has been refused there."""

    behind: StoredRecord | None = None

    async def load(self, path: str) -> StoredRecord | None:
        return self.behind or await super().load(path)

    async def replace(self, path: str, data: bytes, version: int) -> int | None:
        self.behind = None
        return await super().replace(path, data, version)


@pytest.mark.anyio
async def test_d1_a_change_without_an_answer_is_found_to_be_this_processs_own() -> None:
    cluster = Cluster()
    coordination = on(Unanswered(cluster))
    created = await coordination.compare_and_set(TERM, b"one")
    assert created
    replaced = await coordination.compare_and_set(TERM, b"two", created)
    assert replaced
    assert await on(MemoryLedgers(cluster)).load(TERM) == (b"two", replaced)
    assert await on(MemoryLedgers(cluster)).compare_and_set(TERM, b"three", created) is None


@pytest.mark.anyio
async def test_d2_no_condition_is_tried() -> None:
    cluster = Cluster()
    await on(MemoryLedgers(cluster)).compare_and_set(IDENTITY, b"one")
    assert list(cluster.records) == ["/stores/first/store"]


def test_d8_a_lease_that_a_lagging_server_shows_as_not_renewed_is_not_taken() -> None:
    async def body() -> None:
        cluster = Cluster()
        lagging = Lagging(cluster)
        lease = await on(MemoryLedgers(cluster)).take_lease(SUPERVISOR, "first", 10.0)
        observer = on(lagging)
        lagging.behind = cluster.records["/stores/first/leases/supervisor"]
        with pytest.raises(LeaseHeld):
            await observer.take_lease(SUPERVISOR, "second", 10.0)
        for _ in range(3):
            await trio.sleep(8.0)
            await lease.renew()
        assert OBSERVED * 10.0 < 24.0, "it has seen no change for so long"
        with pytest.raises(LeaseHeld):
            await observer.take_lease(SUPERVISOR, "second", 10.0)
        assert lease.is_held()

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


def test_d3_a_lease_that_its_holder_puts_again_after_it_was_removed_has_been_renewed() -> None:
    """Each time it has the version of the first put again."""

    async def body() -> None:
        cluster = Cluster()
        lease = await on(MemoryLedgers(cluster)).take_lease(SUPERVISOR, "first", 10.0)
        observer, versions = on(MemoryLedgers(cluster)), set[int]()
        for _ in range(3):
            versions.add(cluster.records["/stores/first/leases/supervisor"].version)
            with pytest.raises(LeaseHeld):
                await observer.take_lease(SUPERVISOR, "second", 10.0)
            await trio.sleep(8.0)
            del cluster.records["/stores/first/leases/supervisor"]
            await lease.renew(trio.lowlevel.checkpoint)
            assert lease.is_held()
        assert versions == {0}

    trio.run(body, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.anyio
async def test_d8_the_end_of_a_session_ends_no_lease() -> None:
    """It is the sidecar's, whose process may be well; and one that stands still may have a sidecar that is
    well."""
    cluster = Cluster()
    ledgers = MemoryLedgers(cluster)
    lease = await on(ledgers).take_lease(SUPERVISOR, "first", 1000.0)
    ledgers.end_session()
    with pytest.raises(LeaseHeld):
        await on(MemoryLedgers(cluster)).take_lease(SUPERVISOR, "second", 1000.0)
    await lease.renew()
    assert lease.is_held()


@pytest.mark.anyio
async def test_records_are_listed_and_removed_as_objects_are() -> None:
    objects = RecordObjects(MemoryLedgers(Cluster()), "/stores/first")
    for key in ("a/1", "a/2", "b/1"):
        assert await objects.put(key, [b"x" * 10])
    assert sorted([each async for each in objects.list("a/")]) == [("a/1", 10), ("a/2", 10)]
    await objects.delete("a/1")
    await objects.delete("a/1")
    assert [each.key async for each in objects.list("a/")] == ["a/2"]
    assert await objects.get("a/1", 10) is None

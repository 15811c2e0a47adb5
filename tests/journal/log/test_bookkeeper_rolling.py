"""The next ledger of a log where making one takes long (rule B4), and what is left of one that was made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import pytest
from msgspec import structs

from support.container_world import OPTIONS, ContainerWorld
from support.faulty_ledgers import FaultyLedgers
from support.ledger_logs import log_on, record_in, reopened
from support.memory_ledgers import Cluster, MemoryLedgers
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.storage_backends.base.errors import NotOwner

pytestmark = pytest.mark.anyio

T = TypeVar("T")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def listed_in(cluster: Cluster) -> dict[int, int]:
    """The ledgers in the record, and the first group of each."""
    return {ledger.id: ledger.first for ledger in record_in(cluster).ledgers}


class SlowToCreate(MemoryLedgers):
    """Each creation takes longer than an append waits for one. One that is given up is carried out."""

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        answer = await super()._ask(name, effect)
        if name == "create_ledger":
            await anyio.sleep(0.02)
        return answer


async def slow_log(cluster: Cluster) -> BookKeeperLog:
    """A log with group 1 in its first ledger and group 2 behind its end, whose next ledger is made and not
    listed."""
    log = log_on(SlowToCreate(cluster), ledger_bytes=1, roll_seconds=0.001)
    await log.open()
    await log.append([b"1"])
    await log.append([b"2"])
    assert len(cluster.ledgers) == 2, "the first attempt left an orphan"
    await log.truncate()
    assert len(cluster.ledgers) == 3
    assert [*listed_in(cluster).values()] == [1]
    return log


async def test_b4_where_a_ledger_takes_long_to_make_a_truncation_makes_it(cluster: Cluster) -> None:
    log = await slow_log(cluster)
    for number in range(3, 9):
        assert await log.append([b"%d" % number], truncate_before=number) == number
        await log.truncate()

    assert [*listed_in(cluster).values()] == [8]
    assert len(cluster.ledgers) == 1 + 1 + 1, (
        "listed, next, and the orphan of the only attempt that was given up"
    )
    await log.close()
    assert await reopened(cluster) == {8: b"8"}


async def test_b4_appends_go_on_while_a_truncation_makes_the_next_ledger(cluster: Cluster) -> None:
    service = FaultyLedgers(cluster)
    log = log_on(service, ledger_bytes=1, roll_seconds=0.01)
    await log.open()
    await log.append([b"1"])
    service.faults.hold("create_ledger")
    await log.append([b"2"])
    held = service.faults.hold("create_ledger")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.truncate)
        await held.arrived.wait()
        for number in range(3, 6):
            assert await log.append([b"%d" % number]) == number
        held.go_on.set()
    assert await log.append([b"6"]) == 6

    assert [*listed_in(cluster).values()] == [1, 6]
    assert len(await reopened(cluster)) == 6


async def test_b4_a_ledger_that_was_made_and_never_listed_is_an_orphan(cluster: Cluster) -> None:
    """Its owner was killed, or closed the log."""
    await (await slow_log(cluster)).close()

    assert len(await reopened(cluster)) == 2
    assert sorted(cluster.ledgers) == [*listed_in(cluster)]


async def test_b4_a_container_that_closes_cleanly_makes_no_next_ledger(cluster: Cluster) -> None:
    """It would be an orphan at once, and its next owner would wait for it."""
    log = log_on(SlowToCreate(cluster), ledger_bytes=1, roll_seconds=0.001)
    world = ContainerWorld(structs.replace(OPTIONS, checkpoint=CheckpointOptions(wal_bytes=64_000)))
    async with world.owner(log=log) as owner:
        await owner.store.create_segment("s")
        await owner.store.append("s", bytes(2000))
        made = max(cluster.ledgers)
        await owner.stop()

        assert owner.container.statistics().checkpoints.checkpoints == 1
    assert max(cluster.ledgers) == made


async def test_b2_an_owner_that_is_fenced_deletes_the_ledger_that_it_had_made(cluster: Cluster) -> None:
    log = await slow_log(cluster)
    made = max(cluster.ledgers)
    later = log_on(MemoryLedgers(cluster))
    await later.open()
    with pytest.raises(NotOwner):
        await log.append([b"3"])

    assert made not in cluster.ledgers
    assert len(await reopened(cluster)) == 2

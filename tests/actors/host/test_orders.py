"""Orders carried out on real containers: opened, closed, fenced, damaged, and what is reported to the
supervisor of it (rules V1, V3, V8)."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import anyio
import anyio.abc
import pytest
from simulation.file_layer import Fail, Fault, SimulatedDisk, SimulatedFiles

from support.memory_objects import Bucket, MemoryObjects
from support.patience import scaled
from support.runtime_site import Site
from tierlog.actors.host.orders import Orders
from tierlog.actors.store.runtime import ContainerRuntime
from tierlog.actors.supervisor.control.messages import (
    Close,
    Closed,
    Drain,
    Ended,
    Failed,
    Fenced,
    Open,
    Opened,
    Report,
)
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    StoreMismatch,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.base.files import IoCall
from tierlog.storage_backends.base.files import Open as OpenFile
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.chunks.memory import MemoryChunkState

pytestmark = pytest.mark.anyio
NAME = next(name for name in ("s0", "s1", "s2", "s3") if container_of(name, 2) == 0)


class Host:
    def __init__(self, runtime: ContainerRuntime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.drained = ""
        self._said, self.reports = anyio.create_memory_object_stream[Report](100)
        self.orders = Orders(runtime, report=self._said.send_nowait, drain=self.drain, tasks=tasks)

    def drain(self, reason: str) -> None:
        self.drained = reason

    async def obey(self, order: Open | Close) -> Report:
        """Carry out an order and return the next report."""
        self.orders.obey(order)
        return await self.received()

    async def received(self) -> Report:
        with anyio.fail_after(scaled(30)):
            return await self.reports.receive()

    def says_nothing(self) -> bool:
        return self.reports.statistics().current_buffer_used == 0


@asynccontextmanager
async def hosts(site: Site, count: int = 1) -> AsyncIterator[list[Host]]:
    async with anyio.create_task_group() as tasks:
        made = [Host(await tasks.start(_run, site), tasks) for _ in range(count)]
        yield made
        tasks.cancel_scope.cancel()
    for host in made:
        host._said.close()
        host.reports.close()


async def _run(site: Site, *, task_status: anyio.abc.TaskStatus[ContainerRuntime]) -> None:
    async with site.runtime() as runtime:
        task_status.started(runtime)
        await anyio.sleep_forever()


async def test_an_opened_container_answers_until_it_is_closed() -> None:
    async with hosts(Site()) as (host,):
        assert await host.obey(Open(1, 0, 7)) == Opened(0, 7, 1)
        await host.runtime.store.create_segment(NAME)
        assert host.orders.statistics()["containers"]["0"]["segments"] == 1
        assert await host.obey(Close(1, 0, 8)) == Closed(0)
        with pytest.raises(NotOwner):
            await host.runtime.store.segment_info(NAME)


async def test_heartbeats_say_whose_log_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosts(Site()) as (host,):
        for number in (0, 1):
            await host.obey(Open(1, number, 7))
        active = host.runtime.container(1).active
        assert active is not None
        monkeypatch.setattr(active.log, "outage", lambda: "no success for 9 s")
        facts = host.orders.statistics()["containers"]
        assert "log" not in facts["0"]
        assert facts["1"]["log"] == {"state": "unreachable", "cause": "no success for 9 s"}


async def test_an_order_to_open_a_served_container_is_answered_with_its_epoch() -> None:
    async with hosts(Site()) as (host,):
        assert await host.obey(Open(1, 0, 7)) == Opened(0, 7, 1)
        assert await host.obey(Open(1, 0, 8)) == Opened(0, 8, 1)


async def test_an_order_to_close_an_unserved_container_succeeds() -> None:
    async with hosts(Site()) as (host,):
        assert await host.obey(Close(1, 1, 1)) == Closed(1)


async def test_orders_about_one_container_are_carried_out_in_order() -> None:
    async with hosts(Site()) as (host,):
        for order in (Open(1, 0, 1), Close(1, 0, 2), Open(1, 0, 3)):
            host.orders.obey(order)
        assert [await host.received() for _ in range(3)] == [Opened(0, 1, 1), Closed(0), Opened(0, 3, 2)]


async def test_v4_all_containers_can_be_closed_without_an_order_those_that_are_opening_too() -> None:
    async with hosts(Site()) as (host,):
        await host.obey(Open(1, 0, 7))
        host.orders.obey(Open(1, 1, 8))
        await host.orders.close_all()
        assert host.runtime.epochs() == {}
        assert not host.runtime.serves(0)
        assert await host.received() == Opened(1, 8, 1), "it was opened, and closed then"
        assert not host.runtime.serves(1)
        assert await host.obey(Open(1, 0, 9)) == Opened(0, 9, 2), "the next supervisor's order"


async def test_v3_a_fenced_container_is_released_and_reported() -> None:
    async with hosts(Site(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        assert here.says_nothing(), "it cannot know yet"
        here.orders.check_fenced()
        assert await here.received() == Fenced(0, 1, "another owner opened it")
        assert not here.runtime.serves(0)
        here.orders.check_fenced()
        there.orders.check_fenced()
        await anyio.wait_all_tasks_blocked()
        assert here.says_nothing()
        assert there.says_nothing()


async def test_v3_newer_orders_open_a_fenced_container_again() -> None:
    async with hosts(Site(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        assert await here.obey(Open(1, 0, 3)) == Opened(0, 3, 3)


async def test_v3_a_fence_met_by_an_append_is_reported_once() -> None:
    async with hosts(Site(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await here.runtime.store.create_segment(NAME)
        await there.obey(Open(1, 0, 2))
        with pytest.raises(TierlogError):
            await here.runtime.store.append(NAME, b"too late")
        reported = await here.received()
        assert isinstance(reported, Fenced)
        assert (reported.index, reported.epoch) == (0, 1)
        await anyio.wait_all_tasks_blocked()
        assert here.says_nothing()


@pytest.mark.parametrize(
    "error, kind",
    [
        (DataCorruption("acked bytes are missing", file="wal/0", offset=7), "corrupt"),
        (StoreMismatch("a copy"), "mismatch"),
        (Unavailable("the disk is gone"), "failed"),
    ],
)
async def test_v8_a_failed_opening_gives_its_reason_and_can_be_retried(
    error: TierlogError, kind: str
) -> None:
    site = Site()
    site.errors[0] = error
    async with hosts(site) as (host,):
        reported = await host.obey(Open(1, 0, 1))
        assert isinstance(reported, Failed)
        assert (reported.request, reported.kind) == (1, kind)
        assert str(error) in reported.reason
        assert await host.obey(Open(1, 1, 2)) == Opened(1, 2, 1), "the others go on"
        site.errors.clear()
        assert await host.obey(Open(1, 0, 3)) == Opened(0, 3, 1)


class DiskSite(Site):
    """A site whose logs are files. Its host process may run out of descriptors."""

    def __init__(self, disk: SimulatedDisk, chunks: MemoryChunkState, owner: bytes) -> None:
        super().__init__()
        self.chunks = chunks
        self.has_descriptors = True
        self._owner = owner
        self._files = SimulatedFiles(disk, self._refuse)

    def _refuse(self, index: int, call: IoCall) -> Fault | None:
        is_refused = isinstance(call, OpenFile) and not self.has_descriptors
        return Fail(OSError(errno.EMFILE, "Too many open files")) if is_refused else None

    def log(self, index: int) -> DurableDataLog:
        options = LocalLogOptions(file_size=2000, low_water=0)
        return LocalLog(self._files, f"/wal/{index}", bytes(16), options, owner=self._owner)


async def test_v8_a_container_of_a_host_without_descriptors_fails_there_and_is_opened_elsewhere() -> None:
    """EMFILE when its log begins the next file, and at each recovery after that. The supervisor
    orders another host to open it (``test_v8_a_container_that_fails_on_a_host_is_opened_on_another_one``)."""
    disk, chunks = SimulatedDisk(Random(1)), MemoryChunkState()
    scarce = DiskSite(disk, chunks, b"a" * 16)
    async with hosts(scarce) as (here,), hosts(DiskSite(disk, chunks, b"b" * 16)) as (there,):
        assert await here.obey(Open(1, 0, 1)) == Opened(0, 1, 1)
        await here.runtime.store.create_segment(NAME)
        await here.runtime.store.append(NAME, bytes(3000))
        scarce.has_descriptors = False
        with pytest.raises(TierlogError):
            await here.runtime.store.append(NAME, b"more")
        reported = await here.received()
        assert isinstance(reported, Ended)
        assert (reported.index, reported.kind) == (0, "failed")
        assert "Too many open files" in reported.reason
        assert not here.runtime.serves(0)
        assert isinstance(await here.obey(Open(1, 0, 2)), Failed), "nor is it opened here"

        assert isinstance(await there.obey(Open(1, 0, 3)), Opened)
        found = await there.runtime.store.read(NAME, 0, 10_000)
        assert found in (bytes(3000), bytes(3000) + b"more")
        scarce.has_descriptors = True
        assert isinstance(await here.obey(Open(1, 0, 4)), Opened)
        assert await here.runtime.store.read(NAME, 0, 10_000) == found


class BucketSite(Site):
    """A site whose logs are in a bucket: an owner that asks nobody does not hear that it was fenced."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket = Bucket()

    def log(self, index: int) -> DurableDataLog:
        objects, options = MemoryObjects(self._bucket), S3LogOptions(pace=0.0)
        return S3Log(objects, f"{index}/", bytes(16), self.world, options, self.world.id_bytes())


async def test_v3_a_fence_in_a_bucket_is_found_when_the_log_is_asked() -> None:
    async with hosts(BucketSite(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        here.orders.check_fenced()
        await anyio.wait_all_tasks_blocked()
        assert here.says_nothing(), "it has heard of nothing"
        assert here.runtime.epochs() == {0: 1}

        await here.orders.find_fenced()
        assert here.runtime.epochs() == {}, "what a hello would report"
        reported = await here.received()
        assert isinstance(reported, Fenced)
        assert (reported.index, reported.epoch) == (0, 1)
        await there.orders.find_fenced()
        await anyio.wait_all_tasks_blocked()
        assert there.says_nothing()


async def test_v3_a_newer_order_opens_a_container_that_was_fenced_in_a_bucket_again() -> None:
    async with hosts(BucketSite(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        assert await here.obey(Open(1, 0, 3)) == Opened(0, 3, 3)


async def test_v3_the_end_of_a_container_that_was_opened_again_is_reported_once() -> None:
    async with hosts(BucketSite(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await here.runtime.store.create_segment(NAME)
        await there.obey(Open(1, 0, 2))
        assert await here.obey(Open(1, 0, 3)) == Opened(0, 3, 3)
        await there.obey(Open(1, 0, 4))
        with pytest.raises(TierlogError):
            await here.runtime.store.append(NAME, b"too late")
        reported = await here.received()
        assert isinstance(reported, Fenced)
        assert (reported.index, reported.epoch) == (0, 3)
        await anyio.wait_all_tasks_blocked()
        assert here.says_nothing()


async def test_v3_logs_that_could_not_be_asked_in_time_are_to_be_asked_again() -> None:
    async with hosts(BucketSite(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        with anyio.CancelScope() as scope:
            scope.cancel()
            await here.orders.find_fenced()
        assert here.orders.is_unconfirmed
        here.orders.confirm()
        assert isinstance(await here.received(), Fenced)
        assert not here.orders.is_unconfirmed


async def test_v3_after_a_pause_the_logs_are_asked_once_at_a_time() -> None:
    async with hosts(BucketSite(), 2) as (here, there):
        await here.obey(Open(1, 0, 1))
        await there.obey(Open(1, 0, 2))
        for _ in range(3):
            here.orders.confirm()
        assert isinstance(await here.received(), Fenced)
        await anyio.wait_all_tasks_blocked()
        assert here.says_nothing()


async def test_v2_an_opening_that_an_earlier_supervisor_ordered_is_reported_and_answers_no_order() -> None:
    async with hosts(Site()) as (host,):
        for order in (Open(1, 0, 1), Open(2, 1, 1)):
            host.orders.obey(order)
        reports = [await host.received(), await host.received()]
        assert sorted(reports, key=str) == [Opened(0, 0, 1), Opened(1, 1, 1)]
        host.orders.obey(Close(2, 0, 2))
        host.orders.obey(Open(3, 1, 1))
        reports = [await host.received()]
        await anyio.wait_all_tasks_blocked()
        assert reports == [Opened(1, 1, 1)]
        assert host.says_nothing(), "the next hello shows what was closed"


async def test_an_order_to_drain_begins_the_end() -> None:
    async with hosts(Site()) as (host,):
        host.orders.obey(Drain(1))
        assert host.drained == "the supervisor's order"

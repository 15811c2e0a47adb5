"""What a store in a bucket costs while nobody uses it: an hour of virtual time. The supervisors, their lease,
the containers and their logs are real; the connections between supervisor and hosts are simulated."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from random import Random

import anyio
import anyio.abc
import pytest
import trio
from msgspec.structs import replace
from simulation.fleets import world as fleets
from simulation.fleets.world import FleetWorld, Size

from support.container_world import fresh_ids
from support.live_service import name_in
from support.memory_objects import Bucket, MemoryObjects
from support.runtime_site import Site
from support.virtual import run_virtual
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.host.orders import Orders
from tierlog.actors.settings.configuration import ServerConfig, StoreConfig
from tierlog.actors.store.opening import runtime_options
from tierlog.actors.store.runtime import ContainerRuntime, RuntimeParts
from tierlog.actors.supervisor.control.messages import Open, Opened, Report
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.object_store import ListedKey, StoredObject
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

CONTAINERS, HOSTS = 100, 2
HOUR = 3600


class CountedBucket(Bucket):
    def __init__(self) -> None:
        super().__init__()
        self.requests = Counter[str]()

    def put(self, key: str, data: bytes, version: str) -> str | None:
        self.requests["put"] += 1
        return super().put(key, data, version)

    def get(self, key: str, size: int) -> StoredObject | None:
        self.requests["get"] += 1
        return super().get(key, size)

    def list(self, prefix: str) -> list[ListedKey]:
        self.requests["list"] += 1
        return super().list(prefix)

    def delete(self, key: str) -> None:
        self.requests["delete"] += 1
        super().delete(key)


class BucketSite(Site):
    """Logs in the bucket, and chunks whose calls are counted: each is one request at least."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__()
        self.bucket = bucket
        self.world = World(lambda: 1e9 + trio.current_time(), Random(1), fresh_ids())
        self.storage = FaultyChunkStorage(MemoryChunkStorage(self.chunks))

    def log(self, index: int) -> DurableDataLog:
        return S3Log(
            MemoryObjects(self.bucket),
            f"wal/{index:04d}/",
            bytes(12) + index.to_bytes(4, "big"),
            self.world,
            owner=self.world.id_bytes(),
        )

    def parts(self) -> RuntimeParts:
        return replace(
            super().parts(),
            identity=StoreIdentity(bytes(15) + b"s", bytes(16), CONTAINERS, 0),
            chunks=self.storage,
            options=runtime_options(StoreConfig(), adopt=False),
        )


class IdleHost:
    """A host process but for its sockets."""

    def __init__(self, runtime: ContainerRuntime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.opened: set[int] = set()
        self.orders = Orders(runtime, report=self._report, drain=self._drain, tasks=tasks)

    def _report(self, report: Report) -> None:
        assert isinstance(report, Opened)
        self.opened.add(report.index)

    def _drain(self, reason: str) -> None:
        raise AssertionError(reason)

    async def fill(self, indices: range) -> None:
        for index in indices:
            self.orders.obey(Open(1, index, 1 + index))
        while self.opened != set(indices):
            await anyio.sleep(0.1)
        for index in indices:
            name = name_in(index, CONTAINERS)
            await self.runtime.store.create_segment(name)
            await self.runtime.store.append(name, bytes(1000))
        await self.runtime.store.flush()


async def _requests_of_an_hour() -> Counter[str]:
    bucket = CountedBucket()
    site = BucketSite(bucket)
    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        fleet = FleetWorld(1, Size(hosts=HOSTS, containers=CONTAINERS, heartbeat=5.0), tasks)
        fleet.bucket = bucket
        fleet.start_supervisor()
        for rack in range(HOSTS):
            fleet.start_host(rack)
        await fleet.wait_balanced()
        fleet.start_supervisor()  # stands by

        hosts = [IdleHost(await stack.enter_async_context(site.runtime()), tasks) for _ in range(HOSTS)]
        for number, host in enumerate(hosts):
            await host.fill(range(number, CONTAINERS, HOSTS))
        # What is due after a flush, such as deletions, has been done.
        await anyio.sleep(600)

        bucket.requests.clear()
        site.storage.calls.clear()
        for _ in range(HOUR):
            await anyio.sleep(1)
            for host in hosts:
                host.orders.check_fenced()
        assert all(len(host.runtime.epochs()) == CONTAINERS / HOSTS for host in hosts)
        assert fleet.is_owned
        tasks.cancel_scope.cancel()
    return bucket.requests + Counter(call.verb for call in site.storage.calls)


@pytest.mark.extended
def test_a_hundred_idle_containers_make_less_than_one_request_a_second_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With their hosts, the supervisor and another one that stands by."""
    lease = ServerConfig().lease
    monkeypatch.setattr(fleets, "LEASE_SECONDS", lease)

    requests = run_virtual(_requests_of_an_hour, 1)
    # In its duration the lease is renewed and the term read three times, the record `control` is read once,
    # and the standby looks eight times.
    lease_requests = (2 * 3 + 1 + 8) * HOUR / lease
    assert requests["put"] <= 3 * HOUR / lease + 1, "nothing but the lease is put"
    # Besides, each container looks through its long-term storage once after its opening, for orphans (G5).
    assert requests.total() <= lease_requests + 6 * CONTAINERS
    assert requests.total() < HOUR

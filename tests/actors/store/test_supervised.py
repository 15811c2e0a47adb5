"""Openings and recoveries beside a service, which only its supervisor's lease shows (rule V14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import trio.testing

from support.memory_objects import Bucket, MemoryObjects
from support.remote_stores import NAME, PLACE, BucketMachine, fill, refused
from support.s3 import numbered_world
from support.s3_server import BUCKET, S3Server
from tierlog import NotOwner, open_store
from tierlog.actors.folder.identity import StoreIdentity, encode
from tierlog.actors.folder.paths import check_path
from tierlog.actors.settings.configuration import ServerConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.recover import RecoveredStore, recover_store
from tierlog.actors.store.supervised import refuse_supervised
from tierlog.actors.supervisor.served_store import StoreAsked, open_served
from tierlog.actors.supervisor.term import nobody_serves
from tierlog.journal.coordination.contract import IDENTITY as RECORD
from tierlog.journal.coordination.contract import SUPERVISOR
from tierlog.journal.coordination.objects import OBSERVED, ObjectCoordination
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.chunks.s3_location import S3Location
from tierlog.storage_backends.files.local import LocalFiles

DURATION = 10.0
SHORT = ServerConfig(lease=1.0)
IDENTITY = StoreIdentity(b"store-store-stor", b"log-log-log-log-", 1, 0)


def on(bucket: Bucket) -> ObjectCoordination:
    return ObjectCoordination(MemoryObjects(bucket), "", numbered_world())


class SlowObjects(MemoryObjects):
    """Others see what is put before its answer comes."""

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        made = await super().put(key, data, version=version)
        await anyio.sleep(DURATION / 5)
        return made


async def look(bucket: Bucket, objects: MemoryObjects | None = None) -> float:
    """How long it took until the store may be opened."""
    begun = anyio.current_time()
    coordination = ObjectCoordination(objects or MemoryObjects(bucket), "", numbered_world())
    await refuse_supervised(coordination, DURATION, "the store", "stop it")
    return anyio.current_time() - begun


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))


def test_v14_a_lease_that_is_renewed_refuses_an_opening() -> None:
    async def main() -> None:
        bucket = Bucket()
        bucket.put(RECORD, encode(IDENTITY), "")
        async with nobody_serves(on(bucket), IDENTITY, b"owner-owner-owne", DURATION):
            begun = anyio.current_time()
            with pytest.raises(
                NotOwner, match="the store is in a service, which process .* supervises: stop"
            ):
                await look(bucket)
            # As soon as it was renewed.
            assert anyio.current_time() - begun < DURATION / 2
        # It was released.
        assert await look(bucket) == 0

    in_virtual_time(main)


def test_v14_a_lease_that_nobody_renews_is_waited_for_once() -> None:
    async def main() -> None:
        bucket = Bucket()
        await on(bucket).take_lease(SUPERVISOR, "one that crashed", DURATION)
        assert OBSERVED * DURATION <= await look(bucket) <= (OBSERVED + 0.25) * DURATION
        assert await look(bucket) == 0

    in_virtual_time(main)


def test_v14_several_that_wait_for_a_lease_do_not_take_each_other_for_a_service() -> None:
    async def main() -> None:
        bucket = Bucket()
        await on(bucket).take_lease(SUPERVISOR, "one that crashed", DURATION)
        async with anyio.create_task_group() as tasks:
            for delay in (0.0, DURATION / 2):
                await anyio.sleep(delay)
                tasks.start_soon(look, bucket, SlowObjects(bucket))

    in_virtual_time(main)


def test_v14_a_damaged_lease_is_waited_for() -> None:
    async def main() -> None:
        bucket = Bucket()
        bucket.put("leases/supervisor", b"damaged", "")
        assert OBSERVED * DURATION <= await look(bucket) <= (OBSERVED + 0.25) * DURATION
        assert await look(bucket) == 0

    in_virtual_time(main)


def test_v14_a_store_that_never_had_a_supervisor_costs_one_get() -> None:
    async def main() -> None:
        coordination = on(Bucket())
        await refuse_supervised(coordination, DURATION, "the store", "stop it")
        assert (coordination.requests.gets, coordination.requests.puts) == (1, 0)

    in_virtual_time(main)


@asynccontextmanager
async def in_service(machine: BucketMachine) -> AsyncIterator[None]:
    """A supervisor of the machine's store, without hosts."""
    asked = StoreAsked(
        place=S3Location(BUCKET, "stores/first/"),
        config=machine.settings(server=SHORT),
        containers=1,
        take_over=False,
    )
    async with (
        open_served(asked, LocalFiles(), system_world()) as served,
        nobody_serves(served.coordination, served.identity, b"owner-owner-owne", served.term.lease),
    ):
        yield


@pytest.fixture
def here(server: S3Server, tmp_path: Path) -> BucketMachine:
    return BucketMachine(tmp_path / "here", server)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_v14_the_chunks_of_a_store_in_a_service_are_not_recovered(
    here: BucketMachine, tmp_path: Path
) -> None:
    async def recover(name: str, *, take_over: bool = False) -> RecoveredStore:
        settings = here.settings(chunks=f"{PLACE}/lts", server=SHORT)
        folder = check_path(tmp_path / name)
        return await recover_store(folder, settings, LocalFiles(), system_world(), take_over=take_over)

    async with here.open() as store:
        await fill(store)
        await store.flush()
    async with in_service(here):
        before = here.server.objects()
        with pytest.raises(NotOwner, match=f"{PLACE}/ is in a service, .*: stop it first"):
            await recover("first")
        changed = {key for key, data in here.server.objects().items() if data != before.get(key)}
        assert changed <= {"stores/first/leases/supervisor"}
        assert not (tmp_path / "first").exists() or list((tmp_path / "first").iterdir()) == []
        assert (await recover("second", take_over=True)).segments == 1
    assert (await recover("third")).segments == 1
    async with open_store(tmp_path / "third", config=here.settings()) as store:
        assert (await store.segment_info(NAME)).length == 200_000


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_v14_a_store_in_a_service_is_not_opened_beside_it(here: BucketMachine) -> None:
    async with in_service(here):
        with pytest.raises(NotOwner, match=f"{PLACE}/? is in a service, .*: use tierlog.connect, stop"):
            await refused(here.open(settings={"server": SHORT}))
        async with here.open(take_over=True) as store:
            await fill(store)
    async with here.open() as store:
        assert (await store.segment_info(NAME)).length == 200_000

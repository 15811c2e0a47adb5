"""The log in ledgers against the one contract, on a real BookKeeper."""

from __future__ import annotations

import itertools
from random import Random

import anyio
import pytest

from local_bookkeeper import LocalBookKeeper
from support.bookkeeper import sidecar
from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.storage_backends.ledgers.sidecar import SidecarService
from tierlog.testing.log_conformance import DurableDataLogConformance

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

LOG_ID = b"0123456789abcdef"
MiB = 1 << 20
LOGS = itertools.count()


class TestBookKeeperLogOnBookKeeper(DurableDataLogConformance):
    options = BookKeeperLogOptions()

    @pytest.fixture(autouse=True)
    def _log(self, service: SidecarService) -> None:
        self.service = service
        self.world = numbered_world()
        self.path = f"/conformance/{next(LOGS)}"

    async def make_log(self) -> DurableDataLog:
        return BookKeeperLog(self.service, self.path, LOG_ID, self.world, self.options)

    async def test_another_ledger_follows_each_group_and_truncation_deletes_them(self) -> None:
        self.options = BookKeeperLogOptions(ledger_bytes=1)
        log, _ = await self.opened()
        for number in range(1, 6):
            await log.append([b"x" * 100], truncate_before=number - 1)
        assert log.statistics().files == 5
        await log.truncate()
        assert log.statistics().files == 2
        await log.close()
        assert sorted(await self.reopened()) == [4, 5]

    async def test_a_group_of_many_parts_is_read_back(self) -> None:
        log, _ = await self.opened()
        large = bytes(range(256)) * (20 << 12)
        await log.append([b"before"])
        await log.append([large[:7], memoryview(large)[7:]])
        assert bytes(dict(await log.read_window(2))[2]) == large
        await log.close(clean=False)

        assert await self.reopened() == {1: b"before", 2: large}


@pytest.mark.one_loop
async def test_b12_logs_larger_than_the_heap_open_at_once(
    bookkeeper: LocalBookKeeper, anyio_backend: str
) -> None:
    """Four, of 80 MiB each, in the heap of 128 MiB that a sidecar has by default."""
    world, payload = numbered_world(), Random(1).randbytes(MiB)

    def make_log(service: SidecarService, number: int) -> BookKeeperLog:
        return BookKeeperLog(service, f"/large/{anyio_backend}/{number}", LOG_ID, world)

    async with sidecar(bookkeeper.servers) as service:
        for number in range(4):
            log = make_log(service, number)
            await log.open()
            for _ in range(20):
                await log.append([payload] * 4)
            await log.close(clean=False)

    async def open_(number: int) -> None:
        log = make_log(service, number)
        await log.open()
        sizes = [len(data) async for _, data in log.read()]
        assert sizes == [4 * MiB] * 20
        await log.close()

    async with sidecar(bookkeeper.servers) as service, anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(open_, number)

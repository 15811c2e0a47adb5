"""The log in ledgers against the one contract, on a real BookKeeper."""

from __future__ import annotations

import itertools

import pytest

from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.storage_backends.ledgers.sidecar import SidecarService
from tierlog.testing.log_conformance import DurableDataLogConformance

pytestmark = [pytest.mark.anyio, pytest.mark.extended]

LOG_ID = b"0123456789abcdef"
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

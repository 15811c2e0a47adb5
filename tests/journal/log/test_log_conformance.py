"""Every log against the one contract."""

from __future__ import annotations

from pathlib import Path
from random import Random

import attrs
import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

from support.memory_ledgers import Cluster, MemoryLedgers
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.log_conformance import DurableDataLogConformance

LOG_ID = b"0123456789abcdef"
FAST = S3LogOptions(pace=0.0, first_delay=0.0001, longest_delay=0.001)
FAST_LEDGERS = BookKeeperLogOptions(first_delay=0.0001, longest_delay=0.001)


class TestMemoryLog(DurableDataLogConformance):
    @pytest.fixture(autouse=True)
    def _service(self) -> None:
        self.service = MemoryLogService()

    async def make_log(self) -> DurableDataLog:
        return self.service.log("wal/0000")


class TestLocalLogOnRealFiles(DurableDataLogConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = str(tmp_path / "wal" / "0000")

    async def make_log(self) -> DurableDataLog:
        return LocalLog(
            LocalFiles(),
            self.folder,
            LOG_ID,
            LocalLogOptions(reserve=4096, allocation_step=4096, low_water=0),
        )

    async def test_w4_the_last_group_is_logged_again_under_the_new_epoch(self) -> None:
        log, first = await self.opened()
        await log.append([b"x"], tag=3)
        await log.append([b"y"], tag=4)
        await log.close()

        log, second = await self.opened()
        assert [(group.epoch, group.tag) for group in second.groups] == [(first.epoch, 3), (second.epoch, 4)]
        await log.close()


class TestLocalLogWithTinyFiles(TestLocalLogOnRealFiles):
    """A new file for nearly every group."""

    async def make_log(self) -> DurableDataLog:
        return LocalLog(
            LocalFiles(),
            self.folder,
            LOG_ID,
            LocalLogOptions(file_size=1, reserve=0, allocation_step=1, length_step=0, low_water=0),
        )


class TestLocalLogOnASimulatedDisk(DurableDataLogConformance):
    @pytest.fixture(autouse=True)
    def _disk(self) -> None:
        self.disk = SimulatedDisk(Random(1))

    async def make_log(self) -> DurableDataLog:
        return LocalLog(SimulatedFiles(self.disk), "/data/wal/0000", LOG_ID, LocalLogOptions(file_size=600))


class TestS3LogInMemory(DurableDataLogConformance):
    appends_max = 1

    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.bucket = Bucket()
        self.world = numbered_world()

    async def make_log(self) -> DurableDataLog:
        options = attrs.evolve(FAST, appends_max=self.appends_max)
        return S3Log(MemoryObjects(self.bucket), "wal/0000/", LOG_ID, self.world, options)


class TestS3LogWithSeveralPutsUnderWay(TestS3LogInMemory):
    appends_max = 7


class TestBookKeeperLogInMemory(DurableDataLogConformance):
    options = FAST_LEDGERS

    @pytest.fixture(autouse=True)
    def _cluster(self) -> None:
        self.cluster = Cluster()
        self.world = numbered_world()

    async def make_log(self) -> DurableDataLog:
        return BookKeeperLog(MemoryLedgers(self.cluster), "/store/log", LOG_ID, self.world, self.options)


class TestBookKeeperLogWithTinyLedgers(TestBookKeeperLogInMemory):
    """Another ledger for nearly every group, and nothing kept of what an opening reads."""

    options = attrs.evolve(FAST_LEDGERS, ledger_bytes=1, kept_bytes=0)

"""Every coordination against the one contract."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from simulation.file_layer import SimulatedDisk, SimulatedFiles

from support.memory_ledgers import Cluster, MemoryLedgers
from support.memory_objects import Bucket, MemoryObjects
from support.s3 import numbered_world
from tierlog.actors.folder.local_coordination import LocalCoordination
from tierlog.actors.folder.paths import StoreFolder
from tierlog.journal.coordination.contract import Coordination
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.journal.coordination.zookeeper import ZooKeeperCoordination
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.coordination_conformance import CoordinationConformance

WORLD = numbered_world()


class TestCoordinationInObjects(CoordinationConformance):
    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.bucket = Bucket()

    async def make_coordination(self) -> Coordination:
        return ObjectCoordination(MemoryObjects(self.bucket), "store/", WORLD)


class TestCoordinationInZooKeeper(CoordinationConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self) -> None:
        self.cluster = Cluster()

    async def make_coordination(self) -> Coordination:
        return ZooKeeperCoordination(MemoryLedgers(self.cluster), "/store", WORLD)


class TestLocalCoordinationOnRealFiles(CoordinationConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = StoreFolder(str(tmp_path))

    async def make_coordination(self) -> Coordination:
        return LocalCoordination(LocalFiles(), self.folder, WORLD.new_id)


class TestLocalCoordinationOnASimulatedDisk(CoordinationConformance):
    @pytest.fixture(autouse=True)
    def _disk(self) -> None:
        self.disk = SimulatedDisk(Random(1))

    async def make_coordination(self) -> Coordination:
        return LocalCoordination(SimulatedFiles(self.disk), StoreFolder("/data"), WORLD.new_id)

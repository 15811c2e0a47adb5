"""Records and leases in a real ZooKeeper, through the sidecar."""

from __future__ import annotations

import itertools
import os

import pytest

from local_bookkeeper import LocalBookKeeper
from support.s3 import numbered_world
from tierlog.journal.coordination.contract import SUPERVISOR, Coordination, LeaseHeld
from tierlog.journal.coordination.zookeeper import ZooKeeperCoordination
from tierlog.storage_backends.ledgers.sidecar import SidecarService
from tierlog.testing.coordination_conformance import CoordinationConformance

pytestmark = pytest.mark.extended

WORLD = numbered_world()
_numbers = itertools.count()


@pytest.mark.extended
class TestCoordinationInZooKeeper(CoordinationConformance):
    @pytest.fixture(autouse=True)
    def _path(self, service: SidecarService) -> None:
        self.service = service
        self.path = f"/coordination/of-{os.getpid()}/{next(_numbers)}"

    async def make_coordination(self) -> Coordination:
        return ZooKeeperCoordination(self.service, self.path, WORLD)

    async def test_d8_the_end_of_a_session_ends_no_lease(self, bookkeeper: LocalBookKeeper) -> None:
        coordination = await self.make_coordination()
        lease = await coordination.take_lease(SUPERVISOR, "first", 1000.0)
        before = await self.service.session()
        bookkeeper.expire(before.id)
        with pytest.raises(LeaseHeld):
            await (await self.make_coordination()).take_lease(SUPERVISOR, "second", 1000.0)
        await lease.renew()
        assert lease.is_held()
        assert (await self.service.session()).id != before.id
        await lease.release()

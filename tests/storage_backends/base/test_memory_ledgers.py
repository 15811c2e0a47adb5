"""The tests' service of ledgers in memory keeps the contract."""

from __future__ import annotations

import pytest

from support.ledger_contract import LedgerServiceContract
from support.memory_ledgers import Cluster, MemoryLedgers
from tierlog.storage_backends.base.ledger_service import LedgerService

pytestmark = pytest.mark.anyio


class TestMemoryLedgers(LedgerServiceContract):
    @pytest.fixture(autouse=True)
    def _cluster(self) -> None:
        self.service = MemoryLedgers(Cluster())

    def make_service(self) -> LedgerService:
        return self.service


async def test_a_silent_process_loses_its_ephemeral_records() -> None:
    cluster = Cluster()
    silent, other = MemoryLedgers(cluster), MemoryLedgers(cluster)
    before = await silent.session()
    await silent.create("/host", b"", ephemeral=True)
    silent.end_session()

    assert await other.load("/host") is None
    assert (await silent.session()).id != before.id

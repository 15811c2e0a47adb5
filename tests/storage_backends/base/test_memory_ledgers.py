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

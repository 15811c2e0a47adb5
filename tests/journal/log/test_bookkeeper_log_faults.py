"""Each call of a log's life in ledgers fails once, in each way: three owners that roll and truncate, and a
zombie (rules B1 to B8)."""

from __future__ import annotations

import pytest

from support.call_faults import KINDS_AND_DELAYS, CallFault, FaultKind
from support.faulty_ledgers import FaultyLedgers
from support.log_life import LogLife
from support.memory_ledgers import Cluster, MemoryLedgers
from support.s3 import numbered_world
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.storage_backends.base.ledger_service import LedgerService

pytestmark = pytest.mark.anyio

LOG_ID = b"0123456789abcdef"
CALLS_MAX = 60


class LedgerLife(LogLife):
    """Of owners whose first call without a verdict ends them, as a kill would, unless they are patient."""

    def __init__(self, service: LedgerService, patience: float) -> None:
        super().__init__()
        self.service = service
        self.world = numbered_world()
        self.options = BookKeeperLogOptions(
            first_delay=0.0, longest_delay=0.0, ledger_bytes=2, patience=patience
        )

    def log(self) -> DurableDataLog:
        return BookKeeperLog(self.service, "/store/log", LOG_ID, self.world, self.options)


async def calls_of_a_life() -> int:
    service = FaultyLedgers(Cluster())
    await LedgerLife(service, 30.0).live()
    return len(service.faults.asked)


async def test_a_life_has_as_many_calls_as_are_tried() -> None:
    assert 40 < await calls_of_a_life() <= CALLS_MAX


@pytest.mark.one_loop
@pytest.mark.parametrize("patience", [30.0, -1.0], ids=["repeated", "fatal"])
@pytest.mark.parametrize(("kind", "delay"), KINDS_AND_DELAYS)
async def test_no_fault_of_one_call_loses_or_repeats_a_group(
    kind: FaultKind, delay: int, patience: float
) -> None:
    for at in range(1, CALLS_MAX + 1):
        cluster = Cluster()
        service = FaultyLedgers(cluster, CallFault(at, kind, delay))
        life = LedgerLife(service, patience)
        await life.live()
        service.faults.settle()
        life.service = MemoryLedgers(cluster)
        await life.check_all()
        # B8: whatever was left behind is gone after the next truncations.
        for _ in range(2):
            log = await life.opened()
            number = await log.append([b"checkpoint"], truncate_before=log.next_group)
            await log.append([b"rolls"], truncate_before=number)
            await log.truncate()
            await log.close()
        assert len(cluster.ledgers) <= 3

"""Each call of a log's life in a service fails once, in each way: three owners that truncate, in ledgers also
roll, and a zombie (rules L1 to L8, B1 to B8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.call_faults import KINDS_AND_DELAYS, CallFault, FaultKind
from support.log_life import LogLife
from support.remote_logs import SERVICES, LedgersService, LogService
from tierlog.journal.log.remote_log import RemoteLog

pytestmark = pytest.mark.anyio

CALLS_MAX = 60


class RemoteLife(LogLife):
    """Of owners whose first call without a verdict ends them, as a kill would, unless they are patient."""

    def __init__(self, service: LogService, patience: float) -> None:
        super().__init__()
        self.service = service
        self.patience = patience

    def log(self) -> RemoteLog:
        return self.service.log(is_busy=True, patience=self.patience)


@pytest.mark.parametrize("make", SERVICES)
async def test_a_life_has_as_many_calls_as_are_tried(make: Callable[[], LogService]) -> None:
    service = make()
    await RemoteLife(service, 30.0).live()
    assert 40 < len(service.faults.asked) <= CALLS_MAX


@pytest.mark.one_loop
@pytest.mark.parametrize("make", SERVICES)
@pytest.mark.parametrize("patience", [30.0, -1.0], ids=["repeated", "fatal"])
@pytest.mark.parametrize(("kind", "delay"), KINDS_AND_DELAYS)
async def test_no_fault_of_one_call_loses_or_repeats_a_group(
    make: Callable[[CallFault], LogService], kind: FaultKind, delay: int, patience: float
) -> None:
    for at in range(1, CALLS_MAX + 1):
        service = make(CallFault(at, kind, delay))
        life = RemoteLife(service, patience)
        await life.live()
        service.faults.settle()
        service.make_reliable()
        await life.check_all()
        if isinstance(service, LedgersService):
            await check_that_orphans_go(life, service)


async def check_that_orphans_go(life: RemoteLife, service: LedgersService) -> None:
    """B8: whatever was left behind is gone after the next truncations."""
    for _ in range(2):
        log = await life.opened()
        number = await log.append([b"checkpoint"], truncate_before=log.next_group)
        await log.append([b"rolls"], truncate_before=number)
        await log.truncate()
        await log.close()
    assert len(service.cluster.ledgers) <= 3

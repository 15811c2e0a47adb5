"""What every log in a service does, over a bucket and over ledgers, besides the conformance suite."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from support.call_faults import FaultKind
from support.remote_logs import SERVICES, LogService
from tierlog.journal.log.remote_log import RemoteLog
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    StoreMismatch,
    TierlogError,
    Unavailable,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest) -> LogService:
    made: LogService = request.param()
    return made


async def opened(service: LogService, **options: Any) -> RemoteLog:
    log = service.log(**options)
    await log.open()
    return log


async def reopened(service: LogService) -> dict[int, bytes]:
    log = await opened(service)
    return {number: bytes(payload) async for number, payload in log.read()}


async def test_l1_b1_an_owner_that_opens_again_makes_no_new_log(service: LogService) -> None:
    first = await opened(service)
    await first.close()
    service.lose_owner()
    service.faults.asked.clear()

    with pytest.raises(DataCorruption, match="is gone, although this owner has had it"):
        await service.log().open(after=first.own_epochs)
    assert not {"put", "create"} & set(service.faults.asked)


async def test_l1_b1_another_logs_record_is_refused(service: LogService) -> None:
    await opened(service)

    with pytest.raises(StoreMismatch):
        await service.log(b"f" * 16).open()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_l2_b3_appends_are_acked_in_order_and_none_behind_one_that_failed(
    service: LogService, is_cancelled: bool
) -> None:
    """The first one waits for its answer, those behind it have theirs."""
    log = await opened(service, appends_max=4)
    acked: list[int] = []

    async def append() -> None:
        acked.append(await log.append([b"x"]))

    service.faults.asked.clear()
    held = service.faults.hold(service.append_call, most=1)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await held.arrived.wait()
            for _ in range(3):
                tasks.start_soon(append)
            while len(service.faults.asked) < 4:
                await anyio.lowlevel.checkpoint()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert acked == []
            if is_cancelled:
                scope.cancel()
            held.go_on.set()

    assert acked == ([] if is_cancelled else [1, 2, 3, 4])
    if is_cancelled:
        with pytest.raises(Unavailable):
            await log.append([b"later"])


async def test_l10_b10_callers_that_wait_share_one_call_that_began_after_they_asked(
    service: LogService,
) -> None:
    log = await opened(service)
    service.faults.asked.clear()
    held = service.faults.hold(service.confirm_call)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(log.confirm_owner)
        await held.arrived.wait()
        for _ in range(50):
            tasks.start_soon(log.confirm_owner)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert len(service.faults.asked) == 1
        held.go_on.set()

    assert service.faults.asked == [service.confirm_call] * 2


async def test_l10_b10_a_cancelled_callers_call_is_made_by_the_next(service: LogService) -> None:
    log = await opened(service)
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await log.confirm_owner()
        tasks.start_soon(log.confirm_owner)
    assert await log.append([b"x"]) == 1


async def test_l10_b10_an_owner_that_gets_no_answer_goes_on(service: LogService) -> None:
    log = await opened(service, patience=-1.0)
    service.faults.fail_next(FaultKind.REFUSED)
    with pytest.raises(Unavailable):
        await log.confirm_owner()

    await log.confirm_owner()
    assert await log.append([b"x"]) == 1


async def test_l7_b7_a_truncation_without_an_answer_is_left_to_the_next_one(service: LogService) -> None:
    log = await opened(service, patience=-1.0)
    service.faults.fail_next(FaultKind.REFUSED)
    await log.truncate()
    assert await log.append([b"x"]) == 1
    await log.truncate()


async def test_an_idle_log_makes_no_call(service: LogService) -> None:
    log = await opened(service)
    service.faults.asked.clear()
    await log.check_space()
    log.check_owner()
    log.statistics()

    assert service.faults.asked == []


async def test_a_damaged_payload_is_corruption_when_it_is_read_and_the_log_goes_on(
    service: LogService,
) -> None:
    log = await opened(service)
    await log.append([b"x" * 100])
    place = service.damage_first_group()

    with pytest.raises(DataCorruption, match="payload is damaged") as caught:
        await log.read_window(1)
    assert caught.value.file == place
    assert await log.append([b"more"]) == 2


async def test_a_fenced_owner_that_reads_a_truncated_window_is_fenced(service: LogService) -> None:
    old = await opened(service)
    await old.append([b"x"])
    new = await opened(service)
    await new.append([b"y"], truncate_before=2)
    await new.truncate()

    with pytest.raises(NotOwner):
        await old.read_window(1)


async def test_an_inspection_of_a_log_that_has_changed_since_says_so(service: LogService) -> None:
    await (await opened(service)).append([b"x"])
    view = service.log(kept_bytes=0)
    await view.inspect()
    new = await opened(service)
    await new.append([b"y"], truncate_before=2)
    await new.truncate()

    with pytest.raises(Unavailable, match="changed since it was inspected"):
        await view.read_window(1)


@pytest.mark.parametrize("at", range(1, 7))
async def test_a_cancelled_opening_leaves_a_log_that_can_be_opened(service: LogService, at: int) -> None:
    first = await opened(service)
    await first.append([b"acked"])
    held = service.faults.hold("", skip=at - 1, most=1)
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.log().open)
            await held.arrived.wait()
            scope.cancel()

    assert await reopened(service) == {1: b"acked"}
    with pytest.raises(TierlogError):
        await first.append([b"zombie"])

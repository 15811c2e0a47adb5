"""Maintenance: debts are paid inside flush cycles, boundedly, whatever fails (rule F6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import attrs
import pytest

from support.container_parts import NAME, append
from support.container_world import virtual_time
from support.flushing import FlushWorld
from tierlog.actors.flush.writer import StorageWriter, WriterOptions
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.storage_backends.base.errors import NotOwner, StoreMismatch, TierlogError, Unavailable
from tierlog.storage_backends.segments.records import DeferredWorkKind, DeferredWorkRecord

pytestmark = [pytest.mark.anyio, virtual_time]

OPTIONS = WriterOptions(flush_age=30.0, error_pause=5.0, maintenance_steps=4, maintenance_pause=1.0)


@attrs.define
class ScriptedDebts:
    """Debts by segment id, with the number of steps that each takes."""

    left: dict[int, int] = attrs.field(factory=dict)
    errors: dict[int, TierlogError] = attrs.field(factory=dict)
    paid: list[int] = attrs.field(factory=list)
    attempts: int = 0
    newer: frozenset[str] = frozenset()

    def newer_debts(self) -> frozenset[str]:
        return self.newer

    async def debts(self) -> Sequence[DeferredWorkRecord]:
        return [DeferredWorkRecord(DeferredWorkKind.TRUNCATE, sid) for sid in sorted(self.left)]

    async def pay(self, debt: DeferredWorkRecord) -> bool:
        self.attempts += 1
        await anyio.lowlevel.checkpoint()
        if debt.segment in self.errors:
            raise self.errors[debt.segment]

        self.paid.append(debt.segment)
        self.left[debt.segment] -= 1
        if not self.left[debt.segment]:
            del self.left[debt.segment]
        return debt.segment in self.left


@asynccontextmanager
async def running(
    debts: ScriptedDebts, world: FlushWorld | None = None
) -> AsyncIterator[tuple[FlushWorld, StorageWriter]]:
    world = await (world or FlushWorld()).open()
    writer = StorageWriter(world, world.flusher, debts, world, world.claim, OPTIONS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, world.sequence)
        await anyio.wait_all_tasks_blocked()
        yield world, writer
        tasks.cancel_scope.cancel()


def completed(world: FlushWorld) -> int:
    return sum(isinstance(op, CycleComplete) for op in world.logged)


async def test_f6_what_an_earlier_owner_left_is_paid_on_an_idle_store() -> None:
    """A bounded number of steps in a cycle, a pause, the next cycle; then the store is quiet (F5)."""
    debts = ScriptedDebts({1: 9})
    async with running(debts) as (world, writer):
        await anyio.sleep(0.9)
        assert debts.paid == []
        await anyio.sleep(0.2)
        assert len(debts.paid) == 4
        assert (writer.statistics().debts, writer.statistics().maintenance_steps) == (1, 4)
        await anyio.sleep(10)
        assert len(debts.paid) == 9
        assert completed(world) == 3
        logged, cycles = len(world.logged), writer.statistics().cycles
        await anyio.sleep(1000)

        assert (len(world.logged), writer.statistics().cycles) == (logged, cycles)


async def test_f2_the_steps_of_a_cycle_come_before_its_end_record() -> None:
    debts = ScriptedDebts({1: 1})
    async with running(debts) as (world, _):
        await anyio.sleep(1.1)

        assert world.cycles == [("begins", 1), ("completed", 1)]
        assert world.claims == 1, "W8: a step may write to long-term storage"
        assert debts.paid == [1]


async def test_f6_who_waits_for_a_flush_waits_for_one_step() -> None:
    debts = ScriptedDebts({1: 50})
    async with running(debts) as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()

        assert world.parts.segment(NAME).is_flushed
        assert len(debts.paid) == 1


async def test_f6_one_debt_that_fails_does_not_hold_up_the_others() -> None:
    debts = ScriptedDebts({1: 1, 2: 3}, {1: Unavailable("scripted: down")})
    async with running(debts) as (_, writer):
        await anyio.sleep(7)
        assert debts.paid == [2, 2, 2]
        del debts.errors[1]
        await anyio.sleep(60)

        assert debts.paid == [2, 2, 2, 1]
        assert writer.statistics().debts == 0


async def test_f6_while_storage_is_down_attempts_become_rare_and_say_nothing() -> None:
    """S7: one attempt for each pause, the pauses grow, and the log is not fed."""
    debts = ScriptedDebts({1: 1}, {1: Unavailable("scripted: down")})
    async with running(debts) as (world, _):
        await anyio.sleep(1000)

        assert 15 < debts.attempts < 25
        assert completed(world) == 0


async def test_f6_a_failing_step_does_not_keep_a_flush_from_its_end() -> None:
    debts = ScriptedDebts({1: 1}, {1: Unavailable("scripted: down")})
    async with running(debts) as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()

        assert world.parts.segment(NAME).is_flushed


async def test_f6_a_claim_that_cannot_be_made_now_is_a_failed_attempt() -> None:
    debts = ScriptedDebts({1: 1})
    async with running(debts, FlushWorld(claim_error=Unavailable("down"))) as (world, _):
        await anyio.sleep(2)
        assert debts.attempts == 0
        world.claim_error = None
        await anyio.sleep(10)

        assert debts.paid == [1]


@pytest.mark.parametrize("error", [NotOwner("fenced"), StoreMismatch("a clone")], ids=repr)
async def test_f6_a_claim_that_is_refused_ends_the_writer(error: TierlogError) -> None:
    """W8: an owner that may not write to long-term storage stops."""
    world = await FlushWorld(claim_error=error).open()
    writer = StorageWriter(world, world.flusher, ScriptedDebts({1: 1}), world, world.claim, OPTIONS)
    with pytest.raises(type(error)):
        await writer.cycle(full=False)


async def test_f6_an_owner_that_is_fenced_stops_at_a_step() -> None:
    world = await FlushWorld().open()
    debts = ScriptedDebts({1: 1}, {1: NotOwner("fenced")})
    with pytest.raises(NotOwner):
        await StorageWriter(world, world.flusher, debts, world, world.claim, OPTIONS).cycle(full=False)


async def test_f6_debts_of_a_newer_version_are_said_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    debts = ScriptedDebts({1: 9}, newer=frozenset({"d:2:rewrite", "d:3:rewrite"}))
    async with running(debts) as (_, writer):
        await anyio.sleep(10)
        assert len(debts.paid) == 9
        assert writer.statistics().newer_debts == 2
        assert caplog.text.count("debts_of_a_newer_version") == 1

"""Deferred work runs inside flush cycles, boundedly, whatever fails (rule F6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

import anyio
import attrs
import pytest

from support.container_parts import NAME, append
from support.container_world import virtual_time
from support.flushing import FlushWorld, run_cycle
from tierlog.actors.flush.writer import StorageWriter, WriterOptions
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.storage_backends.base.errors import NotOwner, StoreMismatch, TierlogError, Unavailable
from tierlog.storage_backends.segments.records import DeferredWorkKind, DeferredWorkRecord

pytestmark = [pytest.mark.anyio, virtual_time]

OPTIONS = WriterOptions(flush_age=30.0, error_pause=5.0, deferred_steps=4, deferred_pause=1.0)


@attrs.define
class ScriptedWork:
    """Deferred work by segment id, with the number of steps that each takes."""

    left: dict[int, int] = attrs.field(factory=dict)
    errors: dict[int, TierlogError] = attrs.field(factory=dict)
    steps: list[int] = attrs.field(factory=list)
    gone: list[str] = attrs.field(factory=list)
    attempts: int = 0
    is_given: bool = False
    newer: frozenset[str] = frozenset()

    def has_deferred_changes(self) -> bool:
        return True

    def newer_deferred_work(self) -> frozenset[str]:
        return self.newer

    def retry_in(self) -> float:
        return 0.0

    def notifying(self, notify: Callable[[], None]) -> AbstractContextManager[None]:
        return nullcontext()

    async def deferred_changes(self) -> Mapping[str, DeferredWorkRecord | None]:
        """All of it, every other time."""
        self.is_given = not self.is_given
        if not self.is_given:
            return {}

        everything = {sid: DeferredWorkRecord(DeferredWorkKind.TRUNCATE, sid) for sid in self.left}
        return {work.key: work for work in everything.values()} | dict.fromkeys(self.gone)

    async def run_deferred(self, work: DeferredWorkRecord) -> bool:
        self.attempts += 1
        await anyio.lowlevel.checkpoint()
        if work.segment in self.errors:
            raise self.errors[work.segment]

        self.steps.append(work.segment)
        self.left[work.segment] -= 1
        if not self.left[work.segment]:
            del self.left[work.segment]
            self.gone.append(work.key)
        return work.segment in self.left


@asynccontextmanager
async def running(
    pending: ScriptedWork, world: FlushWorld | None = None
) -> AsyncIterator[tuple[FlushWorld, StorageWriter]]:
    world = await (world or FlushWorld()).open()
    writer = StorageWriter(world, world.flusher, pending, world.claim, world.publish, OPTIONS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, world.sequence)
        await anyio.wait_all_tasks_blocked()
        yield world, writer
        tasks.cancel_scope.cancel()


def completed(world: FlushWorld) -> int:
    return sum(isinstance(op, CycleComplete) for op in world.logged)


async def test_f6_deferred_work_of_an_earlier_owner_runs_on_an_idle_store() -> None:
    """A bounded number of steps in a cycle, a pause, the next cycle; then the store is quiet (F5)."""
    pending = ScriptedWork({1: 9})
    async with running(pending) as (world, writer):
        await anyio.sleep(0.9)
        assert pending.steps == []
        await anyio.sleep(0.2)
        assert len(pending.steps) == 4
        assert (writer.statistics().deferred_work, writer.statistics().deferred_steps) == (1, 4)
        await anyio.sleep(10)
        assert len(pending.steps) == 9
        assert completed(world) == 3
        logged, cycles = len(world.logged), writer.statistics().cycles
        await anyio.sleep(1000)

        assert (len(world.logged), writer.statistics().cycles) == (logged, cycles)


async def test_f6_the_steps_of_a_cycle_come_before_its_end_record() -> None:
    pending = ScriptedWork({1: 1})
    async with running(pending) as (world, _):
        await anyio.sleep(1.1)

        assert [op.cycle for op in world.logged if isinstance(op, CycleComplete)] == [1]
        assert world.claims == 1, "W8: a step may write to long-term storage"
        assert pending.steps == [1]


async def test_f6_a_flush_waits_for_at_most_one_step() -> None:
    pending = ScriptedWork({1: 50})
    async with running(pending) as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()

        assert world.parts.segment(NAME).is_flushed
        assert len(pending.steps) == 1


async def test_f6_one_item_that_fails_does_not_hold_up_the_others() -> None:
    pending = ScriptedWork({1: 1, 2: 3}, {1: Unavailable("scripted: down")})
    async with running(pending) as (_, writer):
        await anyio.sleep(7)
        assert pending.steps == [2, 2, 2]
        del pending.errors[1]
        await anyio.sleep(60)

        assert pending.steps == [2, 2, 2, 1]
        assert writer.statistics().deferred_work == 0


async def test_f6_while_storage_is_down_attempts_become_rare_and_log_nothing() -> None:
    """S7: one attempt for each pause, the pauses grow, and the log is not fed."""
    pending = ScriptedWork({1: 1}, {1: Unavailable("scripted: down")})
    async with running(pending) as (world, _):
        await anyio.sleep(1000)

        assert 15 < pending.attempts < 25
        assert completed(world) == 0


async def test_f6_a_failing_step_does_not_keep_a_flush_from_its_end() -> None:
    pending = ScriptedWork({1: 1}, {1: Unavailable("scripted: down")})
    async with running(pending) as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()

        assert world.parts.segment(NAME).is_flushed


async def test_f6_a_claim_that_cannot_be_made_now_is_a_failed_attempt() -> None:
    pending = ScriptedWork({1: 1})
    async with running(pending, FlushWorld(claim_error=Unavailable("down"))) as (world, _):
        await anyio.sleep(2)
        assert pending.attempts == 0
        world.claim_error = None
        await anyio.sleep(10)

        assert pending.steps == [1]


@pytest.mark.parametrize("error", [NotOwner("fenced"), StoreMismatch("a clone")], ids=repr)
async def test_f6_a_claim_that_is_refused_ends_the_writer(error: TierlogError) -> None:
    """W8: an owner that may not write to long-term storage stops."""
    world = await FlushWorld(claim_error=error).open()
    writer = StorageWriter(world, world.flusher, ScriptedWork({1: 1}), world.claim, world.publish, OPTIONS)
    with pytest.raises(type(error)):
        await run_cycle(writer, full=False)


async def test_f6_an_owner_that_is_fenced_stops_at_a_step() -> None:
    world = await FlushWorld().open()
    pending = ScriptedWork({1: 1}, {1: NotOwner("fenced")})
    with pytest.raises(NotOwner):
        await run_cycle(
            StorageWriter(world, world.flusher, pending, world.claim, world.publish, OPTIONS),
            full=False,
        )


async def test_f6_deferred_work_of_a_newer_version_is_logged_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pending = ScriptedWork({1: 9}, newer=frozenset({"d:2:rewrite", "d:3:rewrite"}))
    async with running(pending) as (_, writer):
        await anyio.sleep(10)
        assert len(pending.steps) == 9
        assert writer.statistics().newer_deferred_work == 2
        assert caplog.text.count("deferred_work_unsupported") == 1

"""Segments whose flush takes longer than the cycle waits for them (rule F7)."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_parts import append
from support.container_world import virtual_time
from support.flushing import FLUSHING, FlushWorld, hangs, running
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.flush.aggregation import FlushableSegment
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.storage_backends.base.errors import (
    OutcomeUnknown,
)
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind

pytestmark = [pytest.mark.anyio, virtual_time]


async def test_f7_a_call_that_hangs_holds_up_its_own_segment_only() -> None:
    """At a flush age of 0.3 s the other segment was flushed after 19.7 s once."""
    options = replace(FLUSHING, flush_age=0.3)
    async with running(options=options) as (world, writer):
        world.parts.create("hangs", "other", "later")
        world.parts.do(append("hangs", b"x"), append("other", b"y"))
        writer.operations_logged()
        back = hangs(world, "hangs")
        await anyio.sleep(0.31)
        assert world.parts.segment("other").is_flushed
        world.parts.do(append("later", b"z"))
        writer.segment_due(world.parts.segment("later").sid)
        await anyio.sleep(1.1)
        assert world.parts.segment("later").is_flushed, "the cycle waited for the deadline, and no longer"
        assert writer.statistics().late_segments == 1

        back.set()
        await anyio.sleep(12)
        assert writer.statistics().late_segments == 0
        assert world.parts.segment("hangs").is_flushed


async def test_f7_eight_segments_that_hang_leave_room_for_the_ninth() -> None:
    async with running() as (world, writer):
        names = [f"s{number}" for number in range(9)]
        world.parts.create(*names)
        ids = {f"{world.parts.segment(name).sid:016x}" for name in names[:8]}

        def script(call: Call) -> Fault | None:
            return Fault(FaultKind.HANG) if call.name.split("/")[2] in ids else None

        world.chunks.script = script
        world.parts.do(*(append(name, b"x") for name in names))
        writer.request_cycle()
        await anyio.sleep(1.1)

        assert world.parts.segment("s8").is_flushed
        assert writer.statistics().late_segments == 8


async def test_f7_a_requested_flush_waits_for_the_late_segment_and_gets_its_error() -> None:
    async with running() as (world, writer):
        world.parts.create("hangs", "other")
        world.parts.do(append("hangs", b"x"), append("other", b"y"))
        back = hangs(world, "hangs")
        errors: list[Exception] = []

        async def flush() -> None:
            with pytest.raises(OutcomeUnknown) as caught:
                await writer.flush()
            errors.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush)
            await anyio.sleep(30)
            assert not errors
            back.set()
            await anyio.sleep(0.1)
            assert len(errors) == 1
        await writer.flush()
        assert world.parts.segment("hangs").is_flushed


def write_times(world: FlushWorld, seconds: dict[str, float]) -> None:
    """Writes of these segments take so many seconds."""
    delays = {f"{world.parts.segment(name).sid:016x}": delay for name, delay in seconds.items()}

    def script(call: Call) -> Fault | None:
        delay = delays.get(call.name.split("/")[2]) if call.verb == "create_with_content" else None
        return None if delay is None else Fault(FaultKind.DELAY, seconds=delay)

    world.chunks.script = script


async def test_f7_a_requested_flush_returns_once_the_late_segment_is_flushed() -> None:
    async with running() as (world, writer):
        world.parts.create("slow")
        world.parts.do(append("slow", b"x"))
        write_times(world, {"slow": 20.0})
        began = anyio.current_time()
        await writer.flush()

        assert anyio.current_time() - began == pytest.approx(20, abs=0.5)
        assert world.parts.segment("slow").is_flushed
        assert [op.full for op in world.logged if isinstance(op, CycleComplete)] == [True]


async def test_f5_fewer_segments_held_back_are_news() -> None:
    """The late segment is flushed while the element that holds it back is still being published."""
    async with running() as (world, writer):
        world.parts.create("slow", "other")
        world.parts.do(append("slow", b"x"), append("other", b"y"))
        write_times(world, {"slow": 20.0})
        world.publish_pause = 40.0
        writer.request_cycle()
        await anyio.sleep(45)
        assert list(world.held) == [world.parts.segment("slow").sid]

        await anyio.sleep(300)
        assert list(world.held) == []
        assert len(world.published_cuts) == 2


@attrs.define(eq=False)
class LogHangs(FlushWorld):
    """What is logged is applied, and not durable before the event is set."""

    durable: anyio.Event = attrs.field(factory=anyio.Event)
    cuts: int = 0

    async def forget(self, sid: int) -> None:
        await super().forget(sid)
        await self.durable.wait()

    def dirty_segments(self) -> Iterator[FlushableSegment]:
        self.cuts += 1
        assert self.cuts < 50, "cycles follow each other although nothing has changed"
        return super().dirty_segments()


async def test_f7_a_requested_flush_waits_for_a_deletion_that_is_applied_and_not_durable() -> None:
    """One full cycle followed the other, without a pause, until the log answered."""
    world = LogHangs()
    async with running(world=world) as (_, writer):
        world.parts.create("gone")
        world.parts.do(append("gone", b"x"))
        await writer.flush()
        world.parts.do(DeleteRequest("gone"))
        answered = anyio.Event()

        async def flush() -> None:
            await writer.flush()
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush)
            await anyio.sleep(100)
            assert not answered.is_set()
            world.durable.set()
            await answered.wait()
        assert writer.statistics().late_segments == 0
        assert [op.full for op in world.logged if isinstance(op, CycleComplete)][-1]


async def test_f7_what_is_merged_with_a_late_segment_waits_for_it() -> None:
    """F3: sources first, however late."""
    async with running() as (world, writer):
        target = world.parts.create("t")
        world.parts.create("s", "other")
        world.parts.do(append("t", b"t"), append("s", b"s"), append("other", b"o"), SealRequest("s"))
        write_times(world, {"s": 20.0})
        world.parts.do(MergeRequest("t", ["s"], []))
        writer.request_cycle()
        await anyio.sleep(2)
        assert world.parts.segment("other").is_flushed
        assert not target.has_record

        await anyio.sleep(40)
        assert target.is_flushed
        assert await world.stored(target) == b"ts"


async def test_f7_a_flush_waits_for_a_merge_whose_source_is_late_for_a_part_of_the_cycle() -> None:
    """The source's flush ends while the cycle still waits for a segment that began later."""
    async with running(options=replace(FLUSHING, concurrent_segments=1)) as (world, writer):
        target = world.parts.create("t")
        world.parts.create("s", "slow")
        world.parts.do(append("t", b"t"), append("s", b"s"), append("slow", b"x"), SealRequest("s"))
        write_times(world, {"s": 1.5, "slow": 0.9})
        world.parts.do(MergeRequest("t", ["s"], []))
        began = anyio.current_time()
        await writer.flush()

        assert await world.stored(target) == b"ts"
        assert anyio.current_time() - began < 3


async def test_f7_a_merge_waits_for_its_own_late_source_only() -> None:
    """Another segment that hangs keeps it from nothing, also if its source ends within the cycle."""
    async with running(options=replace(FLUSHING, concurrent_segments=2)) as (world, writer):
        target = world.parts.create("t")
        world.parts.create("hangs", "s", "slow")
        world.parts.do(*(append(name, name.encode()) for name in ("hangs", "s", "slow", "t")))
        write_times(world, {"hangs": 1e6, "s": 1.5, "slow": 0.9})
        world.parts.do(SealRequest("s"), MergeRequest("t", ["s"], []))
        writer.request_cycle()
        await anyio.sleep(4)

        assert target.is_flushed
        assert writer.statistics().late_segments == 1


async def test_f7_a_flush_during_a_late_flush_returns_soon_after_its_end() -> None:
    """What the late flush captured was everything: no other flush of the segment follows."""
    async with running() as (world, writer):
        world.parts.create("slow", "other")
        world.parts.do(append("slow", b"x"))
        write_times(world, {"slow": 20.0})
        writer.segment_due(world.parts.segment("slow").sid)
        await anyio.sleep(2)
        world.parts.do(append("other", b"x"))
        began = anyio.current_time()
        await writer.flush()

        assert world.parts.segment("slow").is_flushed
        assert anyio.current_time() - began == pytest.approx(18, abs=0.5)


async def test_f7_what_a_late_flush_commits_belongs_to_the_next_cycle() -> None:
    async with running() as (world, writer):
        world.parts.create("slow", "other")
        world.parts.do(append("slow", b"x"), append("other", b"y"))
        write_times(world, {"slow": 20.0})
        writer.request_cycle()
        await anyio.sleep(2)
        assert [op.cycle for op in world.logged if isinstance(op, CycleComplete)] == [1]

        await anyio.sleep(60)
        cycles = [(op.cycle, op.full) for op in world.logged if isinstance(op, CycleComplete)]
        assert cycles == [(1, False), (2, True)]

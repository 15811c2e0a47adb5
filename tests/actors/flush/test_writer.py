"""Flush cycles: cut, order, end record, failures, and the answers to waiters (rules F1 to F5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_parts import NAME, append
from support.container_world import virtual_time
from support.flushing import FLUSHING, FlushWorld, completed, hangs, run_cycle, running
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.requests import Request
from tierlog.actors.flush.aggregation import FlushableSegment, SegmentFlush
from tierlog.actors.flush.writer import StorageWriter
from tierlog.actors.kernel.slices import SLICE
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.storage_backends.base.errors import (
    MetadataConflict,
    OutcomeUnknown,
    Unavailable,
)
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, every

pytestmark = [pytest.mark.anyio, virtual_time]

DOWN = every(Fault(FaultKind.BEFORE), "create", "write", "create_with_content")


def writer_of(world: FlushWorld) -> StorageWriter:
    return StorageWriter(world, world.flusher, world.storage, world.claim, world.publish, FLUSHING)


def only_fails(world: FlushWorld, *names: str) -> None:
    """Writes of these segments fail."""
    ids = {f"{world.parts.segment(name).sid:016x}" for name in names}

    def script(call: Call) -> Fault | None:
        writes = call.verb in ("create", "write", "create_with_content")
        return Fault(FaultKind.BEFORE) if writes and call.name.split("/")[2] in ids else None

    world.chunks.script = script


# --- one cycle ----------------------------------------------------------------------------------


async def test_the_cut_is_durable_before_anything_is_written() -> None:
    world = await FlushWorld().open()
    world.parts.create()
    order: list[str] = []
    world.claim_error = None

    async def claim(age: float) -> None:
        order.append(f"claim after {world.settled} settled")

    def script(call: Call) -> None:
        order.append("write") if call.verb in ("create", "write", "create_with_content") else None

    world.parts.do(append(NAME, b"abc"))
    world.chunks.script = script
    await run_cycle(
        StorageWriter(world, world.flusher, world.storage, claim, world.publish, FLUSHING), full=True
    )

    assert order[0] == "claim after 1 settled", "W8: claimed before the first write"
    assert "write" in order[1:]


async def test_a_merge_brings_its_sources_along() -> None:
    """F3: target and sources are due together, whichever was wanted."""
    world = await FlushWorld().open()
    target = world.parts.create("t")
    world.parts.create("s", "r")
    world.parts.do(append("r", b"r"), append("s", b"ss"), append("t", b"t"), SealRequest("r"))
    world.parts.do(MergeRequest("s", ["r"], []), SealRequest("s"), MergeRequest("t", ["s"], []))
    writer = writer_of(world)
    writer.segment_due(target.sid)
    await run_cycle(writer, full=False)

    assert target.is_flushed
    assert await world.stored(target) == b"tssr"


@attrs.define
class Interrupted(FlushWorld):
    """Something happens between the slices in which a cycle captures segments."""

    between: list[Request] = attrs.field(factory=list)

    def dirty_segments(self) -> Iterator[FlushableSegment]:
        for number, segment in enumerate(super().dirty_segments()):
            if number == SLICE and self.between:
                self.parts.do(*self.between)
                self.between.clear()
            yield segment


@pytest.mark.parametrize(("first", "last"), [("t", "s"), ("s", "t"), ("", "s")])
async def test_f1_a_segment_that_is_merged_between_the_cut_and_its_capture_is_flushed(
    first: str, last: str
) -> None:
    """Whichever of target and source is captured before the merge, and if the target was clean."""
    world = Interrupted()
    await world.open()
    fillers = [f"filler{number}" for number in range(SLICE)]
    # A cycle captures segments that are this new in the order of their creation.
    world.parts.create(first or "t", *fillers, last)
    source, target = world.parts.segment("s"), world.parts.segment("t")
    await run_cycle(writer_of(world), full=True)
    world.parts.do(*(append(name, b"x" if name == "s" else b"o") for name in (first, *fillers, last) if name))
    world.parts.do(SealRequest("s"))
    world.between = [MergeRequest("t", ["s"], [])]
    await run_cycle(writer_of(world), full=True)

    assert not world.between, "the merge came between two slices"
    assert target.merges, "it is flushed as of the cut"
    assert (source.flushed, source.flushed_sealed) == (1, True)
    await run_cycle(writer_of(world), full=True)
    assert (await world.stored(target)).endswith(b"x")


async def test_a_segment_deleted_during_its_flush_is_no_failure() -> None:
    world = await FlushWorld().open()
    world.parts.create()
    world.parts.do(append(NAME, b"abc"))

    async def claim(age: float) -> None:
        world.parts.do(DeleteRequest(NAME))

    writer = StorageWriter(world, world.flusher, world.storage, claim, world.publish, FLUSHING)
    await run_cycle(writer, full=True)

    assert len(completed(world)) == 1
    assert writer.statistics().failing_segments == 0
    assert writer.statistics().due_segments == 1, "the delete is looked at in the next cycle"


@pytest.mark.parametrize("fault", [None, Fault(FaultKind.BEFORE)])
async def test_f4_a_flush_returns_if_a_merge_is_deleted_while_its_source_is_flushed(
    fault: Fault | None,
) -> None:
    """The source is deleted with its target: neither its error nor that it is not sealed reaches a caller."""
    async with running() as (world, writer):
        world.parts.create("t", "s")
        world.parts.do(append("s", b"x"))
        await writer.flush()
        source = f"{world.parts.segment('s').sid:016x}"
        world.parts.do(append("s", b"y"), SealRequest("s"), MergeRequest("t", ["s"], []))
        deletes = [DeleteRequest("t")]

        def script(call: Call) -> Fault | None:
            if call.verb not in ("create", "write", "create_with_content") or source not in call.name:
                return None

            world.parts.do(deletes.pop())
            return fault

        world.chunks.script = script
        await writer.flush()
        assert not deletes, "the source was being flushed"
        assert writer.statistics().failing_segments == 0
        await writer.flush()
        assert list(world.dirty_segments()) == [], "what was left of both is removed"


# --- failures -----------------------------------------------------------------------------------


async def test_a_segment_that_fails_does_not_stop_the_cycle() -> None:
    """F4: the metadata keeps stating flushed lengths, so the cycle completes without it."""
    world = await FlushWorld().open()
    bad, good = world.parts.create("bad"), world.parts.create("good")
    world.parts.do(append("bad", b"x"), append("good", b"y"))
    only_fails(world, "bad")
    writer = writer_of(world)
    await run_cycle(writer, full=True)

    assert good.is_flushed
    assert not bad.has_record
    assert bad.sid in writer.failures.errors
    assert completed(world) == [CycleComplete(1, 1, 4, False)], "not full: something is missing"
    world.chunks.script = None
    await run_cycle(writer, full=True)
    assert bad.is_flushed
    assert not writer.failures.has_errors


async def test_a_cycle_without_progress_is_not_logged() -> None:
    """A failing long-term storage must not fill the log (S7)."""
    world = await FlushWorld().open()
    world.parts.create()
    world.parts.do(append(NAME, b"x"))
    world.chunks.script = DOWN
    await run_cycle(writer_of(world), full=True)

    assert completed(world) == []


async def test_a_claim_that_cannot_be_made_now_fails_the_cycle_only() -> None:
    world = await FlushWorld(claim_error=Unavailable("down")).open()
    segment = world.parts.create()
    writer = writer_of(world)
    await run_cycle(writer, full=True)
    assert not segment.has_record

    world.claim_error = None
    await run_cycle(writer, full=True)
    assert segment.is_flushed


async def test_j5_a_flush_is_answered_once_long_term_storage_records_it() -> None:
    """A cycle that is logged and not published is published later, without another record."""
    world = FlushWorld(publish_error=Unavailable("down"))
    world.parts.create()
    async with running(world=world) as (_, writer):
        with pytest.raises(Unavailable, match="down"):
            await writer.flush()
        logged = list(world.logged)
        assert [type(op) for op in logged][-1] is CycleComplete
        await anyio.sleep(100)
        assert world.logged == logged

        world.publish_error = None
        await anyio.sleep(10)
        assert len(world.published_cuts) == 1
        await writer.flush()
        assert len(world.published_cuts) == 1  # it says already that all is flushed
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()
        assert len(world.published_cuts) == 2


# --- when ---------------------------------------------------------------------------------------


async def test_opening_a_flushed_store_flushes_nothing() -> None:
    """F5: the cut of the last full cycle covers all that clients did."""
    world = FlushWorld()
    world.parts.create()
    async with running(last_cut=world.sequence, world=world):
        await anyio.sleep(1000)

        assert world.logged == []


async def test_a_store_opened_with_unflushed_bytes_flushes_them_at_their_age() -> None:
    world = FlushWorld()
    world.parts.create()
    async with running(world=world):
        await anyio.sleep(31)

        assert len(completed(world)) == 1


async def test_after_a_failure_there_is_a_pause_then_a_full_cycle() -> None:
    async with running() as (world, writer):
        segment = world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        world.chunks.script = DOWN
        writer.segment_due(segment.sid)
        await anyio.sleep(4.9)
        assert writer.statistics().cycles == 1
        world.chunks.script = None
        await anyio.sleep(0.2)

        assert segment.is_flushed
        assert completed(world) == [CycleComplete(1, 2, 2, True)]


async def test_f5_cycles_by_size_do_not_follow_each_other_at_once() -> None:
    """What comes in the interval after one is flushed together, at its end. A request waits for nothing."""
    options = replace(FLUSHING, size_interval=1.0)
    async with running(options=options) as (world, writer):
        segment = world.parts.create()
        flushed = []
        for wait in (0.1, 0.3, 0.5, 0.2, 0.1):
            world.parts.do(append(NAME, b"x"))
            writer.segment_due(segment.sid)
            await anyio.sleep(wait)
            flushed.append(segment.flushed)
        assert flushed == [1, 1, 1, 4, 4]
        assert len(completed(world)) == 2

        await writer.flush()
        assert segment.flushed == 5
        assert len(completed(world)) == 3


async def test_while_storage_is_down_there_is_one_attempt_per_pause() -> None:
    async with running() as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        world.chunks.script = DOWN
        writer.request_cycle()
        await anyio.sleep(22)

        assert writer.statistics().cycles == 5
        assert world.logged == []


# --- flush() ------------------------------------------------------------------------------------


async def test_flush_of_a_flushed_store_completes_an_empty_cycle() -> None:
    async with running() as (world, writer):
        await writer.flush()

        assert completed(world) == [CycleComplete(1, 1, 0, True)]
        assert world.claims == 0, "nothing to write needs no claim"


async def test_a_flush_that_is_called_during_a_failing_cycle_gets_the_result_of_the_next_one() -> None:
    """Its error may be of before the call: storage can be back by then."""
    async with running() as (world, writer):
        segment = world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        back = hangs(world, NAME)
        returned: list[float] = []

        async def flush_later() -> None:
            await anyio.sleep(0.2)
            await writer.flush()
            returned.append(anyio.current_time())

        async def fail() -> None:
            await anyio.sleep(0.5)
            back.set()

        begin = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush_later)
            tasks.start_soon(fail)
            with pytest.raises(OutcomeUnknown):
                await writer.flush()
        assert segment.is_flushed
        assert returned == [pytest.approx(begin + 0.5 + FLUSHING.error_pause)]


async def test_a_flush_that_is_called_while_an_element_fails_gets_the_result_of_the_next_one() -> None:
    async with running() as (world, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        world.publish_error = Unavailable("down")
        world.publish_pause = 0.5
        returned: list[float] = []

        async def flush_later() -> None:
            await anyio.sleep(0.2)
            world.publish_error = None
            await writer.flush()
            returned.append(anyio.current_time())

        begin = anyio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flush_later)
            with pytest.raises(Unavailable, match="down"):
                await writer.flush()
        assert returned == [pytest.approx(begin + 0.5 + FLUSHING.error_pause + 0.5)]


async def test_waiters_get_an_error_when_the_container_stops() -> None:
    async with running() as (world, writer):
        world.parts.create()
        world.chunks.script = every(Fault(FaultKind.HANG))
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                await anyio.sleep(1)
                writer.stop(Unavailable("stopped"))

            world.parts.do(append(NAME, b"abc"))
            tasks.start_soon(stop)
            with pytest.raises(Unavailable, match="stopped"):
                await writer.flush()


async def test_progress_is_reported_after_each_cycle() -> None:
    world = await FlushWorld().open()
    writer = writer_of(world)
    waited_for = writer.progress
    await run_cycle(writer, full=True)

    assert waited_for.is_set()
    assert not writer.progress.is_set()


async def test_f4_a_flush_fails_if_the_commit_of_a_live_segment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as (world, writer):
        segment = world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        flush, refusals = world.flusher.flush, [MetadataConflict("scripted")]

        async def refused(plan: SegmentFlush) -> int:
            if refusals:
                raise refusals.pop()
            return await flush(plan)

        monkeypatch.setattr(world.flusher, "flush", refused)
        with pytest.raises(MetadataConflict):
            await writer.flush()
        assert not segment.is_flushed
        await anyio.sleep(6)
        assert segment.is_flushed
        assert [op.full for op in world.logged if isinstance(op, CycleComplete)] == [True]


async def test_f4_a_flush_fails_if_the_commit_of_a_source_merged_meanwhile_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its bytes are not in long-term storage before its target's flush: the cycle counted them as flushed."""
    async with running() as (world, writer):
        world.parts.create("t", "s")
        world.parts.do(append("t", b"t"), append("s", b"s"), SealRequest("s"))
        source, target = world.parts.segment("s"), world.parts.segment("t")
        flush, refusals = world.flusher.flush, [MetadataConflict("scripted")]

        async def refused(plan: SegmentFlush) -> int:
            if plan.sid == source.sid and refusals:
                world.parts.do(MergeRequest("t", ["s"], []))
                raise refusals.pop()
            return await flush(plan)

        monkeypatch.setattr(world.flusher, "flush", refused)
        with pytest.raises(MetadataConflict):
            await writer.flush()
        await writer.flush()
        assert await world.stored(target) == b"ts"


async def test_f4_a_deletion_whose_commit_is_refused_again_and_again_is_tried_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cycles followed each other without one, and took all of the event loop's time."""
    async with running() as (world, writer):
        segment = world.parts.create()
        world.parts.do(append(NAME, b"abc"))
        await writer.flush()
        world.parts.do(DeleteRequest(NAME))
        flush, tried = world.flusher.flush, list[float]()

        async def refused(plan: SegmentFlush) -> int:
            tried.append(anyio.current_time())
            if len(tried) < 5:
                raise MetadataConflict("scripted")
            return await flush(plan)

        monkeypatch.setattr(world.flusher, "flush", refused)
        await writer.flush()
        await anyio.sleep(10 * FLUSHING.error_pause)
        assert len(tried) == 5
        assert all(later - earlier >= FLUSHING.error_pause for earlier, later in pairwise(tried))
        assert world.parts.state.segments.by_id.get(segment.sid) is None


# --- outages ------------------------------------------------------------------------------------


async def test_s7_while_storage_refuses_calls_a_cycle_tries_nothing_and_the_log_has_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 dirty segments were tried and logged in every cycle once: 10,000 warnings in 15 s."""
    caplog.set_level("INFO")
    async with running() as (world, writer):
        names = [f"s{number}" for number in range(1_000)]
        world.parts.create(*names)
        world.parts.do(*(append(name, b"x") for name in names))
        refused_for = 60.0
        monkeypatch.setattr(world.chunks, "retry_in", lambda: refused_for)
        writer.request_cycle()
        await anyio.sleep(200)
        assert caplog.text.count("flush_failed") == 1
        assert "count=1000" in caplog.text
        assert writer.statistics().cycles <= 5
        assert (world.chunks.calls, world.logged) == ([], [])

        refused_for = 0.0
        await anyio.sleep(61)
        assert all(world.parts.segment(name).is_flushed for name in names)
        assert caplog.text.count("flush_recovered") == 1


async def test_s7_a_flush_fails_while_storage_refuses_to_publish_what_has_no_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was answered once, because no segment was left to flush; and nothing published the rest later."""
    async with running() as (world, writer):
        await writer.flush()
        world.parts.create()
        refused_for = 60.0
        monkeypatch.setattr(world.chunks, "retry_in", lambda: refused_for)
        with pytest.raises(Unavailable, match="nothing is published for 60.0 s"):
            await writer.flush()
        assert world.published_cuts == [0]

        refused_for = 0.0
        await anyio.sleep(61)
        first, second = world.published_cuts
        assert first == 0
        assert second >= world.client_sequence


async def test_s7_an_outage_costs_one_call_per_cycle_once_nothing_could_be_flushed() -> None:
    async with running() as (world, writer):
        names = [f"s{number}" for number in range(100)]
        world.parts.create(*names)
        world.parts.do(*(append(name, b"x") for name in names))
        refused_for = 0.0

        def script(call: Call) -> Fault:
            nonlocal refused_for
            refused_for = 5.0
            return Fault(FaultKind.BEFORE)

        world.chunks.script = script
        world.chunks.retry_in = lambda: refused_for  # type: ignore[method-assign]
        calls = []
        for _ in range(3):
            refused_for, before = 0.0, len(world.chunks.calls)
            writer.request_cycle()
            await anyio.sleep(6)
            calls.append(len(world.chunks.calls) - before)

        assert calls[1:] == [1, 1]


class Refusing:
    """What a storage with a breaker says of itself: it refuses changes, and notifies once it does not."""

    def __init__(self, world: FlushWorld) -> None:
        self.refused_for = 0.0
        self._notified: list[Callable[[], None]] = []
        world.chunks.retry_in = lambda: self.refused_for  # type: ignore[method-assign]
        world.chunks.notifying = self._notifying  # type: ignore[method-assign]

    @contextmanager
    def _notifying(self, notify: Callable[[], None]) -> Iterator[None]:
        self._notified.append(notify)
        yield

    def accept(self) -> None:
        self.refused_for = 0.0
        for notify in self._notified:
            notify()


async def test_s7_nobody_waits_for_the_rest_of_a_pause_once_a_change_succeeded() -> None:
    world = FlushWorld(publish_error=Unavailable("down"))
    storage = Refusing(world)
    segment = world.parts.create()
    async with running(world=world) as (_, writer):
        world.parts.do(append(NAME, b"x"))
        storage.refused_for = 1_000.0
        writer.request_cycle()
        await anyio.sleep(10)
        assert not segment.is_flushed
        storage.accept()
        await anyio.wait_all_tasks_blocked()
        assert segment.is_flushed

        # Of the publisher too, which has failed meanwhile.
        storage.refused_for, world.publish_error = 1_000.0, None
        await anyio.sleep(FLUSHING.error_pause + 1)
        assert len(world.published_cuts) == 1


async def test_s7_each_outage_ends_its_own_pause() -> None:
    """What was flushed between two of them tells them apart from deletions beside flushes that fail."""
    world = FlushWorld()
    storage = Refusing(world)
    segment = world.parts.create()
    async with running(world=world) as (_, writer):
        for _ in range(3):
            world.parts.do(append(NAME, b"x"))
            storage.refused_for = 1_000.0
            writer.request_cycle()
            await anyio.sleep(10)
            assert not segment.is_flushed
            storage.accept()
            await anyio.wait_all_tasks_blocked()
            assert segment.is_flushed


async def test_s7_a_failure_from_before_a_change_succeeded_in_the_same_cycle_makes_no_pause() -> None:
    world = FlushWorld()
    storage = Refusing(world)
    segment = world.parts.create()
    async with running(world=world) as (_, writer):
        world.parts.do(append(NAME, b"x"))

        def script(call: Call) -> Fault:
            world.chunks.script = None
            storage.accept()
            return Fault(FaultKind.BEFORE)

        world.chunks.script = script
        writer.request_cycle()
        await anyio.wait_all_tasks_blocked()
        assert segment.is_flushed


async def test_s7_the_pause_of_a_publication_that_failed_ends_once_a_change_succeeded() -> None:
    world = FlushWorld(publish_error=Unavailable("down"), publish_pause=1.0)
    storage = Refusing(world)
    world.parts.create()
    async with running(world=world) as (_, writer):
        world.parts.do(append(NAME, b"x"))
        writer.request_cycle()
        await anyio.wait_all_tasks_blocked()
        storage.refused_for, world.publish_error = 1_000.0, None
        await anyio.sleep(10)
        assert not world.published_cuts
        storage.accept()
        await anyio.sleep(2)
        assert len(world.published_cuts) == 1


async def test_s7_changes_that_succeed_while_every_flush_fails_make_no_cycles_due() -> None:
    """Where deletions are allowed and writes are not."""
    world = FlushWorld()
    storage = Refusing(world)
    async with running(world=world) as (_, writer):
        world.parts.create()
        world.parts.do(append(NAME, b"x"))

        def script(call: Call) -> Fault:
            storage.refused_for = 60.0
            return Fault(FaultKind.BEFORE)

        world.chunks.script = script
        writer.request_cycle()
        await anyio.sleep(1)
        before = writer.statistics().cycles
        for _ in range(20):
            storage.accept()
            await anyio.sleep(1)
        assert writer.statistics().cycles == before + 1


async def test_s7_after_a_claim_that_failed_one_flush_goes_first() -> None:
    """All went at once, and all but the probe were refused and waited for another pause."""
    back = anyio.Event()
    world = FlushWorld(
        claim_error=Unavailable("down"),
        chunks=FaultyChunkStorage(MemoryChunkStorage(), every(Fault(FaultKind.HANG)), hang=back.wait),
    )
    names = [f"s{number}" for number in range(8)]
    world.parts.create(*names)
    storage = Refusing(world)
    async with running(world=world) as (_, writer):
        world.parts.do(*(append(name, b"x") for name in names))
        writer.request_cycle()
        await anyio.wait_all_tasks_blocked()
        world.claim_error = None
        await anyio.sleep(FLUSHING.error_pause)
        await anyio.wait_all_tasks_blocked()
        assert len(world.chunks.calls) == 1
        # The others do not wait for the end of its flush.
        storage.accept()
        await anyio.wait_all_tasks_blocked()
        assert len(world.chunks.calls) == 8
        back.set()


async def test_s7_failures_are_logged_when_they_begin_and_when_they_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running() as (world, writer):
        world.parts.create("a", "b", "c")
        world.parts.do(*(append(name, b"x") for name in "abc"))
        only_fails(world, "a")
        writer.request_cycle()
        await anyio.sleep(60)
        assert caplog.text.count("flush_failed") == 1
        only_fails(world, "a", "b")
        world.parts.do(append("b", b"x"))
        writer.request_cycle()
        await anyio.sleep(60)
        assert caplog.text.count("flush_failed") == 2
        world.chunks.script = None
        await anyio.sleep(60)
        assert caplog.text.count("flush_recovered") == 1

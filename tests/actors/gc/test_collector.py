"""The collector: delay, barrier, elements, retries, orphans and released files, on virtual time (rules G1,
G2, G3, G6)."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from msgspec.structs import replace

from support.collecting import (
    EPOCH,
    OPTIONS,
    CollectorWorld,
    Referenced,
    Released,
    chunk,
    collecting,
    deletes,
)
from support.container_world import virtual_time
from support.loop_steps import CallCounter, LongestSteps
from tierlog.actors.gc.garbage_total import GarbageTotal
from tierlog.actors.gc.tasks import TaskState
from tierlog.storage_backends.base.errors import StorageFull, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, every

pytestmark = [pytest.mark.anyio, virtual_time]


async def test_a_barrier_is_durable_before_the_first_delete() -> None:
    """G1: one barrier for a batch, after the decision."""
    async with collecting(*map(chunk, range(6))) as (world, collector):
        collector.release([chunk(number) for number in range(6)])
        deletes: list[int] = []

        def script(call: Call) -> None:
            if call.verb == "delete":
                deletes.append(len(world.barriers))

        world.chunks.script = script
        await anyio.sleep(61)

        assert deletes == [1, 1, 1, 1, 2, 2]
        assert len(world.barriers) == 2


async def test_g1_nothing_is_deleted_before_long_term_storage_is_claimed() -> None:
    """G1, J9: it was down when the container opened; whose it is nobody knows yet."""
    async with collecting(chunk(1), proof_error=Unavailable("down")) as (world, collector):
        collector.release([chunk(1)])
        await anyio.sleep(61)
        assert await world.left() == [chunk(1)]
        assert world.barriers == []

        world.proof_error = None
        await anyio.sleep(3600)
        assert await world.left() == []


async def test_a_referenced_chunk_is_never_deleted() -> None:
    async with collecting(chunk(1), referenced={chunk(1)}) as (world, collector):
        collector.release([chunk(1)])
        await anyio.sleep(1000)

        assert await world.left() == [chunk(1)]
        assert world.barriers == []


async def test_a_name_in_a_transaction_is_left_alone_until_it_ends() -> None:
    """G1: the transaction that could add a record must be over."""
    async with collecting(chunk(1), chunk(2)) as (world, collector):
        await collector.track([chunk(1), chunk(2)])
        collector.release([chunk(1)])
        collector.keep([chunk(2)])
        await anyio.sleep(61)
        assert await world.left() == [chunk(2)]


async def test_a_name_in_doubt_is_left_to_the_next_owner() -> None:
    async with collecting(chunk(1)) as (world, collector):
        await collector.track([chunk(1)])
        collector.doubt([chunk(1)])
        await anyio.sleep(1000)

        assert await world.left() == [chunk(1)]
        assert collector.statistics().queued == 0


async def test_a_failing_delete_is_retried_with_growing_pauses() -> None:
    """G2: growing pauses, and then rounds that are ever farther apart."""
    async with collecting(chunk(1)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1)])
        await anyio.sleep(60.5)
        assert (collector.statistics().retried, collector.statistics().retry_later) == (1, 0)
        await anyio.sleep(60)
        assert (collector.statistics().retried, collector.statistics().retry_later) == (2, 0)
        await anyio.sleep(119)
        assert collector.statistics().retry_later == 0
        await anyio.sleep(2)
        assert (collector.statistics().retried, collector.statistics().retry_later) == (3, 1)
        assert collector.statistics().queued == 0
        assert [call.verb for call in world.chunks.calls].count("delete") == 3


async def test_an_outage_of_some_minutes_during_deletes_leaks_nothing() -> None:
    """G2: failed deletions are tried again without a new opening."""
    names = [chunk(number) for number in range(6)]
    async with collecting(*names) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release(names)
        await anyio.sleep(250)
        assert collector.statistics().retry_later == 6

        world.chunks.script = None
        await anyio.sleep(300)
        assert await world.left() == []
        assert (
            collector.statistics().retry_later,
            collector.statistics().queued,
            collector.statistics().deleted,
        ) == (0, 0, 6)


async def test_a_chunk_that_cannot_be_deleted_keeps_an_idle_store_idle() -> None:
    """G2, F5: a barrier an hour at the very most, however long it lasts."""
    async with collecting(*map(chunk, range(4))) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(number) for number in range(4)])
        await anyio.sleep(10_000)
        before = len(world.barriers)
        await anyio.sleep(10 * 3600)

        assert 9 <= len(world.barriers) - before <= 10
        assert collector.statistics().retry_later == 4


async def test_j9_a_name_that_was_proven_needs_only_a_listing_later() -> None:
    async with collecting(chunk(1)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1)])
        world.checks = 0  # one was for the listing of the begin
        await anyio.sleep(61)
        assert (world.proofs, world.checks) == (1, 0)
        await anyio.sleep(86_400)
        assert world.proofs == 1
        assert world.checks > 20

        world.check_error = Unavailable("down")
        world.chunks.script = None
        await anyio.sleep(86_400)
        assert await world.left() == [chunk(1)]
        world.check_error = None
        await anyio.sleep(86_400)
        assert await world.left() == []
        assert world.proofs == 1


async def test_j9_without_room_for_an_element_deletions_wait_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """However long that takes, no attempt is used up; then they go on by themselves."""
    full = StorageFull("no room")
    async with collecting(chunk(1), proof_error=full) as (world, collector):
        collector.release([chunk(1)])
        await anyio.sleep(86_400)
        assert await world.left() == [chunk(1)]
        assert world.barriers == []
        assert [r.getMessage() for r in caplog.records if "gc_waits_for_room" in r.getMessage()] == [
            "event='gc_waits_for_room' prefix='containers/0003/' error='no room'"
        ]
        assert collector.statistics().retry_later == 0
        world.proof_error = None
        await anyio.sleep(61)
        assert await world.left() == []


async def test_one_delete_that_works_makes_the_next_round_due_soon() -> None:
    async with collecting(chunk(1), chunk(2)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1)])
        await anyio.sleep(10_000)
        world.chunks.script = None
        collector.release([chunk(2)])
        await anyio.sleep(61)
        assert await world.left() == [chunk(1)]

        await anyio.sleep(300)
        assert await world.left() == []


async def test_names_beyond_the_limit_are_left_to_the_next_opening() -> None:
    """G2: memory is bounded. The next owner lists them."""
    options = replace(OPTIONS, names_max=2)
    async with collecting(*map(chunk, range(4)), options=options) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        for names in ([chunk(0), chunk(1)], [chunk(2), chunk(3)]):
            collector.release(names)
            await anyio.sleep(250)
        assert (collector.statistics().retry_later, collector.statistics().given_up) == (2, 2)

        world.chunks.script = None
        await anyio.sleep(300)
        assert await world.left() == [chunk(2), chunk(3)]
        assert deletes(world) == 14


async def collect_all(world: CollectorWorld) -> None:
    for _ in range(11):
        await anyio.sleep(61)
        world.publish()


async def test_g2_the_queue_is_bounded_and_a_listing_finds_what_had_no_room() -> None:
    """An unconfirmed container releases names for months."""
    names, used, added = [chunk(number) for number in range(10)], chunk(10), chunk(11)
    options, confirmed = replace(OPTIONS, names_max=4), anyio.Event()
    fields = {"options": options, "confirmed": confirmed, "referenced": {used}}
    async with collecting(*names, used, added, **fields) as (world, collector):
        await collector.track([added])
        collector.release(names)
        assert collector.statistics().queued == 4
        assert (await collector.count_garbage()).chunks == 10

        confirmed.set()
        collector.release([chunk(0)])
        await collect_all(world)
        assert await world.left() == [used, added]


async def test_g2_more_than_the_queue_holds_of_dead_owners_is_found_bit_by_bit() -> None:
    """All of it is compared with the log before anything is deleted (G4)."""
    names = [chunk(number, 1) for number in range(10)]
    async with collecting(*names, options=replace(OPTIONS, names_max=4)) as (world, collector):
        assert world.compared == [*names, ""]
        assert collector.statistics().queued == 4
        await collect_all(world)
        assert await world.left() == []


async def test_g2_more_released_files_than_the_queue_holds_are_found_by_their_records() -> None:
    files = [f"app/old$offset.{number}" for number in range(10)]
    options, released = replace(OPTIONS, names_max=4), Released(dict.fromkeys(files))
    async with collecting(*files, options=options, released=released) as (world, _):
        await collect_all(world)
        assert await world.left() == []
        assert not released.recorded


async def test_g2_released_files_that_found_no_room_are_found_after_the_container_was_unconfirmed() -> None:
    """The listing that looks for them shows that the log is older than long-term storage (G4)."""
    files = [f"app/old$offset.{number}" for number in range(10)]
    options, released = replace(OPTIONS, names_max=4), Released(dict.fromkeys(files))
    async with collecting(*files, options=options, released=released) as (world, _):
        listed: list[str] = []

        def script(call: Call) -> None:
            if call.verb == "list" and not listed:
                listed.append(call.name)
                world.confirmed = anyio.Event()

        world.chunks.script = script
        await anyio.sleep(200)
        assert listed
        assert len(released.recorded) == 6

        world.confirmed.set()
        await collect_all(world)
        assert not released.recorded


async def test_p4_what_backups_keep_takes_no_room_in_the_queue() -> None:
    """Else it would be examined every minute, and other names would find no room. At the end of a backup a
    listing finds what only that one kept; it is tried again each minute until long-term storage answers."""
    names, kept = [chunk(number) for number in range(4)], chunk(4)
    fields = {"referenced": {*names, kept}, "pinned": {*names, kept}}
    options = replace(OPTIONS, names_max=4)
    async with collecting(*names, kept, chunk(5), options=options, **fields) as (world, collector):
        collector.release(names)
        await anyio.sleep(61)
        assert collector.statistics().queued == 0
        collector.release([chunk(5)])
        await anyio.sleep(61)
        assert await world.left() == [*names, kept]

        for known in (world.referenced, world.pinned):
            known.difference_update(names)
        world.check_error = Unavailable("down")
        collector.list_own()
        await anyio.sleep(61)
        assert collector.statistics().queued == 0
        world.check_error = None
        await anyio.sleep(121)
        assert await world.left() == [kept]


async def test_a_name_of_which_is_unknown_whether_a_backup_keeps_it_stays_queued() -> None:
    async with collecting(chunk(1), referenced={chunk(1)}, pinned={chunk(1)}) as (world, collector):
        world.pinned.error = Unavailable("down")
        collector.release([chunk(1)])
        await anyio.sleep(61)
        assert collector.statistics().queued == 1
        world.pinned.error = None
        await anyio.sleep(61)
        assert collector.statistics().queued == 0


async def test_what_an_operator_purged_is_found_by_a_later_listing() -> None:
    """Names of this owner too. A sweep shows them, and deletes them once it is confirmed."""
    async with collecting(chunk(1)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1)])
        await anyio.sleep(500)
        assert collector.purge_failed() == 1
        world.chunks.script = None
        assert (await collector.count_garbage()).chunks == 1
        await anyio.sleep(200)
        assert await world.left() == [chunk(1)], "a purge alone begins no listing"
        collector.list_soon()
        await anyio.sleep(61)
        assert await world.left() == []


async def test_g5_a_listing_after_a_failed_check_is_repeated() -> None:
    """Long-term storage may not be mounted: what it lists is neither garbage nor a check of the history."""
    async with collecting(chunk(1, 1), check_error=Unavailable("empty")) as (world, collector):
        await anyio.sleep(61)
        assert not world.compared
        assert not collector.statistics().orphans_found

        world.check_error = None
        await collect_all(world)
        assert world.compared[:2] == [chunk(1, 1), ""]
        assert not await world.left()


async def test_g2_a_slow_or_failing_deletion_does_not_delay_the_others() -> None:
    """G2."""
    async with collecting(*map(chunk, range(4))) as (world, collector):

        def script(call: Call) -> Fault | None:
            slow = Fault(FaultKind.DELAY, seconds=1000.0) if call.name == chunk(0) else None
            return Fault(FaultKind.BEFORE) if call.name == chunk(1) and call.verb == "delete" else slow

        world.chunks.script = script
        collector.release([chunk(number) for number in range(4)])
        await anyio.sleep(61)

        assert await world.left() == [chunk(0), chunk(1)]


async def test_g2_one_failing_deletion_of_several_in_one_call_does_not_fail_the_others() -> None:
    """G2: where the storage takes several names in one call."""
    chunks = FaultyChunkStorage(MemoryChunkStorage(delete_many=True))
    names = [*map(chunk, range(4))]
    async with collecting(*names[:3], chunks=chunks) as (world, collector):
        calls = world.chunks.calls
        world.chunks.script = lambda call: Fault(FaultKind.BEFORE) if call.name == names[1] else None
        collector.release(names)
        await anyio.sleep(61)

        assert await world.left() == [names[1]]
        found = collector.statistics()
        # The call for all ends at the second name; the first one is gone when it is tried by itself.
        assert (found.deleted, found.already_gone, found.retried) == (1, 2, 1)
        assert [call.name for call in calls if call.verb == "delete"] == [*names[:2], *names]


# --- what dead owners left ----------------------------------------------------------------------


async def test_leftovers_of_dead_owners_are_found_by_listing() -> None:
    """Chunks without a record: of dead epochs only, and not what names of another form are."""
    foreign = ["containers/0003/readme", "containers/0003/1", "containers/0004/x/1-1-1"]
    kept = [chunk(2, EPOCH - 1), chunk(3, EPOCH), chunk(4, EPOCH + 1), *foreign]
    garbage = [chunk(1, EPOCH - 1), chunk(1, 1)]
    async with collecting(*kept, *garbage, referenced={chunk(2, EPOCH - 1)}) as (world, collector):
        assert collector.statistics().orphans_found == 2
        await anyio.sleep(61)

        assert await world.left() == sorted(kept)


async def test_g6_what_no_element_shows_as_removed_waits_for_one() -> None:
    """Long-term storage alone still names it. One element is asked for, not one for each."""
    names = [chunk(1, 1), chunk(2, 1), chunk(3)]
    async with collecting(*names, unpublished=set(names)) as (world, collector):
        collector.release([chunk(3)])
        await anyio.sleep(59)
        assert world.requested == 0, "nothing else is due before the delay is over"
        await anyio.sleep(2)
        assert (world.requested, collector.statistics().unpublished) == (1, 3)
        assert await world.left() == names

        world.unpublished.discard(chunk(1, 1))
        collector.published()
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == names[1:]
        world.publish()
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == []
        assert collector.statistics().unpublished == 0


async def test_g6_an_element_that_counts_frees_very_many_names_in_short_steps() -> None:
    names = [chunk(number) for number in range(5_000)]
    async with collecting(*names, unpublished=set(names)) as (world, collector):
        collector.release(names)
        await anyio.sleep(OPTIONS.delay + 1)
        assert collector.statistics().unpublished == len(names)
        with CallCounter() as calls:
            world.publish()
            assert calls() < len(names)
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == []


async def test_g6_an_element_is_asked_for_again_if_none_comes() -> None:
    """It had no room for the rows, or long-term storage was down: once a minute, whatever waits."""
    names = [chunk(1), chunk(2)]
    async with collecting(*names, unpublished=set(names)) as (world, collector):
        collector.release(names)
        await anyio.sleep(10 * 60 + 1)
        assert world.requested == 10
        assert world.barriers == []
        world.publish()
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == []
        await anyio.sleep(600)
        assert world.requested == 10


async def test_g2_runs_of_dead_owners_go_at_once() -> None:
    """Many brief owners would leave all that they merged. A reader of a run that is missing reads the log
    again (M3)."""
    run, named = (f"_system/containers/0003/runs/{1:016x}-{cycle:016x}-id" for cycle in (1, 2))
    async with collecting(run, named, chunk(1, 1), referenced={named}) as (world, _):
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == sorted([named, chunk(1, 1)])


async def test_without_orphans_no_element_is_asked_for() -> None:
    """F5: opening a store that is in order writes nothing."""
    async with collecting(chunk(1)) as (world, _):
        await anyio.sleep(1000)
        assert world.requested == 0


# --- released files, which no listing finds -----------------------------------------------------

FILE = "app/old$offset.0"


@pytest.mark.parametrize("file", [FILE, "app/runs/1$offset.0"])
async def test_g3_the_delay_of_this_ownership_holds_for_released_files_too(file: str) -> None:
    async with collecting(file, released=Released({file: None})) as (world, _):
        await anyio.sleep(59)
        assert await world.left() == [file]
        await anyio.sleep(2)
        assert await world.left() == []


async def test_g3_one_commit_removes_the_records_of_a_batch_of_deleted_files() -> None:
    names = [FILE, "app/old$offset.9"]
    async with collecting(*names, chunk(1)) as (world, collector):
        world.released.recorded = dict.fromkeys(names)
        collector.release([*names, chunk(1)])
        await anyio.sleep(61)

        assert await world.left() == []
        assert world.released.forgotten == [tuple(names)]


async def test_g3_a_released_file_that_a_segment_refers_to_stays() -> None:
    """Code that does not know these records may have imported it again."""
    async with collecting(FILE, referenced={FILE}, released=Released({FILE: None})) as (world, _):
        await anyio.sleep(1000)

        assert await world.left() == [FILE]
        assert list(world.released.recorded) == [FILE]


async def test_g4_garbage_is_counted_as_it_is_deleted_after_the_confirmation() -> None:
    kept = [chunk(1, 1), chunk(2), "containers/0003/other", "app/used"]
    deleted = [chunk(3, 1), chunk(4), FILE]
    async with collecting(
        *kept,
        *deleted,
        referenced={kept[0], kept[3]},
        released=Released(dict.fromkeys([FILE, "app/gone", kept[3]])),
        confirmed=anyio.Event(),
    ) as (world, collector):
        await collector.track([kept[1]])
        collector.release([deleted[1]])
        assert await collector.count_garbage() == GarbageTotal(len(deleted), len(deleted))

        world.confirmed.set()
        await anyio.wait_all_tasks_blocked()
        await anyio.sleep(1000)
        assert sorted(await world.left()) == sorted(kept)


async def test_s7_deletions_that_fail_for_the_last_time_are_one_log_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [chunk(number) for number in range(4)]
    async with collecting(*names) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release(names)
        await anyio.sleep(600)

        assert caplog.text.count("gc_retry_later") == 1
        assert "count=4" in caplog.text


async def test_a_large_batch_is_deleted_in_short_steps() -> None:
    """G2: however many names are ready at once, the event loop runs others in between."""
    names = [chunk(number) for number in range(10_000)]
    longest = LongestSteps()
    for _ in longest.attempts():
        async with collecting(*names, options=replace(OPTIONS, batch=len(names))) as (world, collector):
            collector.release(names)
            with longest.of("a batch"):
                await anyio.sleep(OPTIONS.delay + 1)
            assert await world.left() == []


async def test_g1_a_chunk_whose_transaction_commits_during_the_lookup_is_no_garbage() -> None:
    """The view that is read is older than its record, and the transaction has ended when it answers."""
    name = chunk(1)

    class CommittedMeanwhile(Referenced):
        async def among(self, names: Sequence[str]) -> set[str]:
            found = await super().among(names)
            self.add(name)
            world.collector.keep([name])
            return found

    world = CollectorWorld()
    object.__setattr__(world, "referenced", CommittedMeanwhile())
    world.collector._lists_own = True
    await world.collector.track([name])
    assert await world.collector._garbage_among([name]) == []


async def test_g3_records_that_cannot_be_read_after_the_deletions_stay_and_end_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The next owner removes them."""

    class Unreadable(Released):
        async def among(self, names: Sequence[str]) -> list[str]:
            raise Unavailable("scripted")

    async with collecting(FILE, released=Unreadable({FILE: None})) as (world, collector):
        await anyio.sleep(200)
        assert await world.left() == []
        assert collector.statistics().deleted == 1
        assert list(world.released.recorded) == [FILE]
    assert sum("gc_records_unreadable" in record.getMessage() for record in caplog.records) == 1


# --- operators ----------------------------------------------------------------------------------


async def test_a_paused_collector_deletes_and_lists_nothing_until_it_goes_on() -> None:
    async with collecting(chunk(1), chunk(2)) as (world, collector):
        collector.pause()
        collector.release([chunk(1), chunk(2)])
        await anyio.sleep(100_000)
        assert (await world.left(), world.barriers) == ([chunk(1), chunk(2)], [])
        assert collector.statistics().paused == 1
        collector.resume()
        await anyio.wait_all_tasks_blocked()
        assert (await world.left(), collector.statistics().paused) == ([], 0)


async def test_what_failed_is_listed_with_its_error_and_tried_again_on_request() -> None:
    async with collecting(chunk(1)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1)])
        await anyio.sleep(10_000)
        [task] = collector.failed_tasks(10)
        assert (task.kind, task.name, task.state) == ("delete chunk", chunk(1), TaskState.FAILED)
        assert "scripted" in task.error

        world.chunks.script = None
        assert collector.retry_failed() == 1
        await anyio.wait_all_tasks_blocked()
        assert await world.left() == []
        assert collector.failed_tasks(10) == []


async def test_what_failed_is_forgotten_on_request_and_found_by_a_sweep() -> None:
    async with collecting(chunk(1, 1)) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        await anyio.sleep(10_000)
        assert collector.purge_failed() == 1
        assert collector.statistics().retry_later == 0
        world.chunks.script = None
        await anyio.sleep(10_000)
        assert await world.left() == [chunk(1, 1)]
        collector.list_soon()
        await anyio.sleep(61)
        assert await world.left() == []


async def test_tasks_say_what_they_wait_for() -> None:
    async with collecting(chunk(1), chunk(2), unpublished={chunk(1)}) as (_, collector):
        collector.release([chunk(1)])
        await anyio.sleep(61)
        collector.release([chunk(2)])
        waiting, delayed = collector.tasks(10)
        assert (waiting.name, waiting.state, waiting.seconds) == (chunk(1), TaskState.ELEMENT, 0.0)
        assert (delayed.name, delayed.state, delayed.seconds) == (chunk(2), TaskState.DELAY, 60.0)


async def test_attempts_postponements_and_the_time_to_complete_are_counted() -> None:
    async with collecting(chunk(1), chunk(2), referenced={chunk(2)}) as (world, collector):
        world.chunks.script = every(Fault(FaultKind.BEFORE), "delete")
        collector.release([chunk(1), chunk(2)])
        await anyio.sleep(61)
        world.chunks.script = None
        await anyio.sleep(60)
        found = collector.statistics()
        assert (found.released, found.deleted, found.attempts, found.postponed) == (2, 1, 2, 2)
        assert found.seconds == pytest.approx(120, abs=1)

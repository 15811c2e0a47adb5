"""The planted bugs, by protocol. Each breaks one rule in its behaviour. Bugs that another rule makes harmless
are left out, because no run could tell the difference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any

import anyio
from msgspec.structs import replace

from tierlog.actors.container import cold_segments
from tierlog.actors.container.checkpoint import Checkpointer
from tierlog.actors.container.confirmation import Confirmation
from tierlog.actors.container.leases import Leases
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.actors.container.operations import append, import_segment, transactions
from tierlog.actors.container.ownership import StorageOwnership
from tierlog.actors.container.pipeline import Pipeline
from tierlog.actors.container.requests import LogRequest
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.snapshot import Snapshot
from tierlog.actors.container.sources import ContainerCollectorSource, UnpublishedNames
from tierlog.actors.container.state import ContainerState
from tierlog.actors.container.tombstones import Tombstones
from tierlog.actors.container.truncated_chunks import TruncatedChunks
from tierlog.actors.flush import cycle_capture
from tierlog.actors.flush.aggregation import capture
from tierlog.actors.flush.flush_tasks import FlushTasks
from tierlog.actors.flush.segment_flusher import SegmentFlusher
from tierlog.actors.gc import rules as gc_rules
from tierlog.actors.gc.collector import Collector
from tierlog.actors.kernel import exits
from tierlog.actors.kernel.exits import ExitKind
from tierlog.actors.store.graceful_end import GracefulEnd
from tierlog.journal.log import local_open
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_history import HistoryReader, WalFile
from tierlog.journal.log.local_writer import trim_sealed
from tierlog.journal.operations.checkpoint import CheckpointPart
from tierlog.journal.registers import local as registers
from tierlog.storage_backends.base.files import IoCall, Sync, SyncFolder
from tierlog.storage_backends.base.ids import segment_id
from tierlog.storage_backends.base.lock_table import LockTable
from tierlog.storage_backends.base.sorted_dict import FrozenView
from tierlog.storage_backends.base.transactions import StagedPart
from tierlog.storage_backends.chunks import filesystem_programs
from tierlog.storage_backends.segments.operations import deferred_work, join_chunks
from tierlog.storage_backends.segments.operations import read as reading
from tierlog.storage_backends.segments.operations.join_chunks import Source
from tierlog.storage_backends.segments.records.imported import imported_key
from tierlog.storage_backends.segments.segment_transaction import SegmentTransaction

from ..copies import FIRST
from . import (
    buckets,
    caches,
    chain,
    copied_backups,
    ledgers,
    pins,
    readers,
    sessions,
    supervisors,
    tables,
    user_tables,
)
from .planting import CATALOGUE, Planter, mutant
from .programs import trying_twice, without

__all__ = [
    "CATALOGUE",
    "buckets",
    "caches",
    "chain",
    "copied_backups",
    "ledgers",
    "pins",
    "readers",
    "sessions",
    "supervisors",
    "tables",
    "user_tables",
]

_Program = Generator[IoCall, Any, Any]


# --- the write-ahead log --------------------------------------------------------------------------


@mutant("W2")
def ack_before_sync(plant: Planter) -> None:
    """An append is acked while its bytes are in the page cache only, and a power loss takes them."""
    plant(LocalLog._append, lambda append, self, *group: without(append(self, *group), Sync))


@mutant("W1")
def fenced_owner_acks(plant: Planter) -> None:
    """A frozen owner wakes up and acks appends that its successor has never seen."""

    def confirm(original: Callable[..., Any], *arguments: Any) -> _Program:
        yield from ()

    plant(registers.confirm_epoch, confirm)


@mutant("W4")
def seals_are_not_obeyed(plant: Planter) -> None:
    """What a zombie wrote to its file after the take-over comes to life in the next recovery."""

    def read(self: HistoryReader, content: Any) -> _Program:
        return (yield from self._scan(content, content.header, content.window.size))[0]

    def read_part(original: Any, self: HistoryReader, seal: Any, successor: WalFile) -> _Program:
        found = yield from self._visit(seal.file, lambda content: read(self, content))
        return found or (yield from original(self, seal, successor))

    plant(HistoryReader._read_part, read_part)


@mutant("W5")
def log_is_truncated_before_the_checkpoint_is_durable(plant: Planter) -> None:
    """The log is truncated at the begin of a checkpoint: a crash before its end leaves neither of them."""

    async def write_parts(original: Any, self: Checkpointer, number: int, snapshot: Snapshot) -> Any:
        needed = await self._oldest_unflushed(self._log.next_group)
        await self._ask(LogRequest(CheckpointPart(number, (), ()), truncate_before=needed), 0)
        await self._log.truncate()
        return await original(self, number, snapshot)

    plant(Checkpointer._write_parts, write_parts)


@mutant("W9")
def files_are_trimmed_before_the_seal_is_durable(plant: Planter) -> None:
    """An opener cuts the last group off the old file while its own copy of it is not durable yet."""

    def take_over(original: Any, context: Any, register: Any, epoch: int, history: Any, names: Any) -> Any:
        yield from trim_sealed(context.layout, [part.seal for part in history.sealed_parts()])
        return (yield from original(context, register, epoch, history, names))

    plant(local_open.take_over, take_over)


@mutant("W6")
def failed_sync_is_retried(plant: Planter) -> None:
    """The second sync finds clean pages and succeeds, and what was acked never reached the disk."""
    plant(LocalLog._append, lambda append, self, *group: trying_twice(append(self, *group), Sync))


# --- the container --------------------------------------------------------------------------------


@mutant("C1")
def append_is_answered_before_the_log(plant: Planter) -> None:
    """An append is acked before it is handed to the log, and a crash takes it."""

    async def append(original: Any, self: Pipeline, group: Any) -> int:
        for _ in group.answer(self._log.next_group):
            pass
        number: int = await original(self, group)
        return number

    plant(Pipeline._append, append)


@mutant("C1")
def zombie_answers_reads(plant: Planter) -> None:
    """An owner that was succeeded answers reads and questions from its old state."""
    plant(LocalLog.check_owner, lambda original, self: None)


@mutant("C1")
def tails_are_not_woken(plant: Planter) -> None:
    """A reader at the end of a segment waits forever, though bytes came or the segment was sealed."""
    plant(SegmentState.wake, lambda original, self: None)


@mutant("C2")
def segment_ids_are_used_again(plant: Planter) -> None:
    """Two owners give one id to different segments."""
    plant(ContainerState.next_segment_id, lambda original, self: segment_id(1, original(self) & 0xFFFF_FFFF))


@mutant("C3")
def repeats_are_applied(plant: Planter) -> None:
    """A retry of an acked event is in the segment twice."""
    plant(
        append._is_repeat,
        lambda original, state, segment, request, known: original(state, segment, request, known) and False,
    )


@mutant("C6")
def pipeline_waits_for_memory(plant: Planter) -> None:
    """The pipeline waits for memory that only a flush frees, whose commit waits behind it."""

    async def append(original: Any, self: Pipeline, group: Any) -> Any:
        while self._publisher.cache.pinned_bytes > 2 * self._publisher.due_bytes:
            await anyio.sleep(1.0)
        return await original(self, group)

    plant(Pipeline._append, append)


@mutant("C7")
def checkpoint_is_not_fixed_at_its_begin(plant: Planter) -> None:
    """A checkpoint shows a segment as it is when it is encoded, and recovery applies an operation twice."""
    plant(FrozenView.before_change, lambda original, self, key: None)


@mutant("C10")
def log_is_truncated_under_spilled_bytes(plant: Planter) -> None:
    """A reference to the log is of a later group than the bytes that it keeps there."""
    plant(
        SegmentState.add_log_reference,
        lambda original, self, end, group: original(self, end, group + 30),
    )


@mutant("A9")
def fenced_owner_opens_again(plant: Planter) -> None:
    """A fenced owner takes its container back by itself, and two processes fence each other forever."""

    def exit_kind(original: Any, error: BaseException) -> ExitKind:
        kind: ExitKind = original(error)
        return ExitKind.FAILED if kind is ExitKind.FENCED else kind

    plant(exits.exit_kind_of, exit_kind)
    plant(StorageOwnership.open_log, lambda original, self, previous_epochs: original(self, None))


# --- chunked segments -----------------------------------------------------------------------------


@mutant("S2")
def chunk_is_not_synced(plant: Planter) -> None:
    """A chunk counts as stored, the log is truncated, and a power loss empties the chunk."""
    plant(
        filesystem_programs.publish,
        lambda publish, *arguments: without(publish(*arguments), Sync, SyncFolder),
    )


@mutant("S3")
def chunk_of_another_owner_is_appended_to(plant: Planter) -> None:
    """A new owner appends to a chunk that the owner before it may still write to."""

    def room(original: Any, self: SegmentTransaction, segment: Any, chunk: Any) -> int:
        able = self.context.chunks.capabilities.append
        return max(0, segment.rolling_size - chunk.length) if able else 0

    plant(SegmentTransaction.room, room)


@mutant("S4, F2")
def chunks_are_deleted_before_the_commit(plant: Planter) -> None:
    """A crash before the commit of a truncation or a join leaves a segment with a hole."""

    async def drop(original: Any, self: SegmentTransaction, record: Any) -> None:
        await original(self, record)
        await self.context.chunks.delete(record.name)

    plant(SegmentTransaction.drop_chunk, drop)


@mutant("S5")
def checksums_are_not_verified(plant: Planter) -> None:
    """Damage in long-term storage is handed to readers as data."""
    plant(reading._verify, lambda original, request, data: None)


@mutant("S6")
def commit_is_logged_in_two_halves(plant: Planter) -> None:
    """A crash between the halves of a metadata commit leaves records that contradict each other."""

    async def commit(original: Any, self: LoggedMetadataStore, expected: Any, writes: Any) -> int:
        half = dict(list(writes.items())[: len(writes) // 2])
        if half:
            await original(self, {key: expected[key] for key in half}, half)
        rest = {key: version for key, version in expected.items() if key not in half}
        version: int = await original(self, rest, {key: writes[key] for key in writes if key not in half})
        return version

    plant(LoggedMetadataStore.commit, commit)


@mutant("S8")
def chunks_are_joined_in_the_wrong_order(plant: Planter) -> None:
    """The bytes of a joined chunk are those of its sources, the last one first."""
    plant(join_chunks._make_chunk, lambda original, txn, start, sources: original(txn, start, sources[::-1]))


@mutant("S9")
def defrag_begins_anew_at_its_end(plant: Planter) -> None:
    """The defrag of a segment is due again as soon as it is done: an idle store never rests."""

    async def step(original: Any, txn: SegmentTransaction, work: Any, limit: int, may_copy: bool) -> Any:
        left = await original(txn, work, limit, may_copy)
        if left is not None or await txn.load(txn.id) is None:
            return left

        await anyio.sleep(1.0)  # or the run would be nothing but these steps
        return replace(work, position=0)

    plant(deferred_work._defrag_step, step)


@mutant("S10")
def relocation_moves_the_dead_part(plant: Planter) -> None:
    """What was truncated is moved to the new chunk in the place of what was not."""

    def replace(original: Any, txn: Any, segment: Any, before: Any, start: int, sources: Any) -> Any:
        moved = [Source(s.record, s.record.length - s.skip) if s.skip else s for s in sources]
        return original(txn, segment, before, start, moved)

    plant(join_chunks.replace, replace)


@mutant("S11")
def deferred_work_is_forgotten(plant: Planter) -> None:
    """What a delete, a truncation or a merge left to be done is never done, and chunks stay forever."""
    plant(deferred_work._record, lambda original, txn, stored, left: original(txn, stored, None))


@mutant("S12")
def second_transaction_on_a_segment_is_refused(plant: Planter) -> None:
    """An operator's defrag beside a flush fails, or fails the flush."""

    async def acquire(original: Any, self: LockTable[Any], key: Any) -> None:
        # Other tables of this kind have names as keys.
        if isinstance(key, int) and key in self:
            raise RuntimeError(f"segment {key} has an open transaction")
        await original(self, key)

    plant(LockTable.acquire, acquire)


@mutant("S14")
def name_is_imported_twice(plant: Planter) -> None:
    """A segment of the legacy layout that was imported and deleted comes back at the next access."""
    plant(
        import_segment.decide_import, lambda original, state, request: _without_mark(original(state, request))
    )


def _without_mark(decision: Any) -> Any:
    op, answer = decision
    if op is None:
        return decision

    kept = tuple(record for record in op.records if not record[0].startswith(imported_key("")))
    return op._replace(records=kept), answer


@mutant("S19, G3")
def released_file_gets_no_record(plant: Planter) -> None:
    """An imported file that no segment needs stays forever if its owner dies before it deletes it."""

    async def drop(original: Any, self: SegmentTransaction, record: Any) -> None:
        await original(self, record)
        released = await self.metadata.released(record.name)
        if released is not None:
            self.metadata.drop(released)

    plant(SegmentTransaction.drop_chunk, drop)


@mutant("S22")
def reserve_is_never_used(plant: Planter) -> None:
    """On a full disk nothing can be deleted, because that takes an element."""

    def release(original: Any, root: str) -> _Program:
        yield from ()

    plant(filesystem_programs.release_reserve, release)


# --- flush cycles ---------------------------------------------------------------------------------


@mutant("F1")
def seals_and_truncations_are_not_flushed(plant: Planter) -> None:
    """Truncated chunks are never freed, and no sealed segment can be merged in long-term storage."""

    async def finish(original: Any, self: SegmentFlusher, txn: Any, plan: Any) -> None:
        pass

    plant(SegmentFlusher._finish, finish)


@mutant("F3")
def merge_sources_are_not_flushed_with_their_target(plant: Planter) -> None:
    """The target of a merge can never be flushed, because its sources are not."""

    async def capture_alone(original: Any, sid: int, cut: int, segment_of: Any, is_under_way: Any) -> Any:
        segment = segment_of(sid)
        return None if is_under_way(sid) or segment is None else {sid: capture(segment, cut)}

    plant(cycle_capture._capture_closure, capture_alone)


@mutant("F4")
def failed_flush_is_reported_as_done(plant: Planter) -> None:
    """Flush returns although a segment could not be flushed."""

    def take(original: Any, self: FlushTasks) -> Any:
        original(self)
        return {}

    plant(FlushTasks.take_errors, take)


@mutant("F7")
def cycle_waits_for_a_call_that_hangs(plant: Planter) -> None:
    """A flush that takes long keeps all other segments of its container from being flushed."""

    async def run(original: Any, self: FlushTasks, tasks: Any, plans: Any) -> Any:
        self._deadline = float("inf")
        return await original(self, tasks, plans)

    plant(FlushTasks.run, run)


@mutant("F9")
def end_says_that_everything_was_flushed(plant: Planter) -> None:
    """An operator removes a host whose log has the only copy of what was acked."""
    plant(GracefulEnd._left, lambda original, self, index: None)


@mutant("F5")
def internal_operations_make_a_cycle_due(plant: Planter) -> None:
    """What a flush cycle logs makes the next cycle due: an idle store never rests."""

    def apply(original: Any, self: ContainerState, op: Any) -> None:
        original(self, op)
        self.client_sequence = self.sequence

    plant(ContainerState.apply, apply)


# --- garbage --------------------------------------------------------------------------------------


@mutant("G1")
def references_are_ignored(plant: Planter) -> None:
    """A new owner deletes chunks of earlier owners that segments are made of."""
    plant(
        gc_rules.orphans,
        lambda original, listed, *, epoch, referenced: original(listed, epoch=epoch, referenced=()),
    )
    plant(
        gc_rules.is_ready, lambda original, garbage, **known: original(garbage, **{**known, "referenced": ()})
    )


@mutant("G6")
def chunks_go_before_an_element_shows_it(plant: Planter) -> None:
    """If the log is lost then, long-term storage alone has segments whose chunks are missing."""

    async def among(original: Any, self: UnpublishedNames, names: Sequence[str]) -> set[str]:
        return set()

    plant(UnpublishedNames.among, among)


@mutant("G6")
def full_storage_lets_go_of_what_joins_replaced(plant: Planter) -> None:
    """All chunks that left a segment go if its data does not fit, although long-term storage alone needs
    those whose bytes nobody has truncated."""

    async def among(original: Any, self: TruncatedChunks, segment: int, names: Collection[str]) -> set[str]:
        return set(names)

    plant(TruncatedChunks.among, among)


@mutant("G2")
def paused_collector_goes_on(plant: Planter) -> None:
    """An operator who looks for the cause of a loss has the evidence deleted."""
    plant(Collector.pause, lambda original, self: None)


@mutant("G2")
def purged_garbage_stays(plant: Planter) -> None:
    """No sweep finds what was purged and is of this owner."""

    def purge(original: Any, self: Collector) -> int:
        lists_own = self._lists_own
        count: int = original(self)
        self._lists_own = lists_own
        return count

    plant(Collector.purge_failed, purge)


@mutant("G4", worlds_from=FIRST)
def unconfirmed_container_collects(plant: Planter) -> None:
    """An adopted folder deletes every chunk that it does not know."""

    async def wait(original: Any, self: Confirmation) -> None:
        pass

    plant(Confirmation.wait_confirmed, wait)
    plant(
        vars(ContainerCollectorSource)["is_confirmed"].fget,
        lambda original, self: True,
    )


@mutant("G5", worlds_from=FIRST)
def late_puts_are_not_looked_for(plant: Planter) -> None:
    """A chunk that a dead owner's put creates late stays for the whole ownership."""

    def is_due(original: Any, self: Collector) -> bool:
        del self._listings[1:]
        return bool(original(self))

    plant(Collector._is_listing_due, is_due)


# --- transactions ---------------------------------------------------------------------------------


@mutant("T1")
def staged_segments_are_listed(plant: Planter) -> None:
    """A listing shows segments that nobody may use, and that vanish."""
    plant(cold_segments.is_listed, lambda original, name, prefix: True)


@mutant("T2")
def parts_are_committed_in_the_wrong_order(plant: Planter) -> None:
    """The bytes of a transaction are in another order than its driver asked for."""
    plant(
        transactions._commit,
        lambda original, state, target, record, parts, token: original(
            state, target, record, list(parts)[::-1], token
        ),
    )


@mutant("T3")
def part_lengths_are_not_checked(plant: Planter) -> None:
    """Bytes that a second attempt appended after its task had reported are committed with it."""

    def commit(original: Any, state: Any, target: Any, record: Any, parts: Any, token: Any) -> Any:
        staged = state.transactions.staged(record)
        actual = [
            StagedPart(part.name, state.segments.by_id[staged[part.name]].length)
            if part.name in staged
            else part
            for part in parts
        ]
        return original(state, target, record, actual, token)

    plant(transactions._commit, commit)


@mutant("T4")
def committed_epochs_are_not_remembered(plant: Planter) -> None:
    """A replay of a committed batch under another transaction id is not recognized."""
    plant(transactions._is_reached, lambda original, state, target, token: False)


@mutant("T5")
def tombstone_is_forgotten_at_once(plant: Planter) -> None:
    """A zombie's begin after the commit opens a new transaction."""

    def note(original: Any, self: Tombstones, version: int, now: float) -> None:
        seconds, self._seconds = self._seconds, 0.0
        original(self, version, now)
        self._seconds = seconds

    plant(Tombstones.note, note)


@mutant("T6")
def abort_before_begin_is_not_remembered(plant: Planter) -> None:
    """An abort that overtook its begin does nothing, and the transaction stays open."""

    def abort(original: Any, state: Any, request: Any) -> Any:
        known = transactions._find(state, request)[1]
        op, answer = original(state, request)
        return (None if known is None else op), answer

    plant(transactions._decide_abort, abort)


@mutant("T7")
def lease_ends_early(plant: Planter) -> None:
    """A transaction is aborted before the time that its driver was granted."""

    def watch(original: Any, self: Leases, key: Any, now: float) -> None:
        original(self, key, now)
        if key in self._open:
            self._open[key].deadline -= self._open[key].record.lease / 2000

    plant(Leases._watch, watch)


@mutant("T8")
def sealed_segment_grows_by_a_commit(plant: Planter) -> None:
    """A segment that was sealed forever grows by a commit."""

    def commit(original: Any, state: Any, request: Any) -> Any:
        target = state.segments.find(request.target)
        if target is None:
            return original(state, request)
        sealed, target.sealed = target.sealed, False
        try:
            return original(state, request)
        finally:
            target.sealed = sealed

    plant(transactions._decide_commit, commit)


@mutant("T9")
def leases_never_end(plant: Planter) -> None:
    """What a driver that died had staged is kept forever."""
    plant(Leases._schedule_check, lambda original, self, watch, now: None)

"""The segment container: one ownership of one container, from opening its log to its exit.

Owns: the parts (log, state, cache, pipeline, writer, collector, checkpointer), their start and stop order,
and the verbs that clients call. Does not own: restarts (``host.py``), rules (``operations/``), placement of
names (the store).

Start: open the log (fences every earlier owner), judge and place the claim in long-term storage (rule W8),
recover, then start the pipeline, the writer, the collector and the checkpointer, then answer. Long-term
storage may be down at the start: the claim is then placed before the first write there. Stop: refuse new
requests, let the pipeline finish what it has, stop the others, close the log with its footer. ``close`` does
not flush.

Any failure ends the ownership; recovery is the only way back (crash-only). After a torn sync step nothing
more is written, no footer either (rule C5). Every waiter is answered whatever happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, TypeVar

import anyio
import attrs

from ...journal.log.contract import DurableDataLog, OpenedLog
from ...journal.operations.barrier import Barrier
from ...journal.operations.operation import Operation
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ClosedError,
    OutcomeUnknown,
    SegmentNotFound,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.transactions import TransactionInfo
from ...storage_backends.base.world import World
from ...storage_backends.segments.core import ChunkedOptions
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ..flush.segment_flusher import SegmentFlusher
from ..flush.writer import StorageWriter, WriterOptions
from ..gc.collector import Collector, CollectorOptions
from ..kernel.mailbox import Lane, Mailbox, MailboxOptions
from ..kernel.one_shot import Answer, EventSource
from ..kernel.reply import Reply, fail_all
from ..kernel.task_groups import finish_within
from ..legacy_rolling.header_updates import HeaderKeeper
from ..legacy_rolling.legacy_segments import LegacySegments
from ..read.append_starts import AppendStarts
from ..read.read_ahead import ReadAhead, ReadAheadOptions
from ..read.read_ahead_budget import ReadAheadBudget
from ..read.reader import Reader
from ..read.tail_cache import TailCache
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from ..telemetry.tracing import SpanHook
from .admission import Admission, AdmissionOptions
from .checkpoint import Checkpointer, CheckpointOptions
from .claims import Identity, claim_late, claim_prefix, judge, place, survey
from .leases import Leases
from .metadata_store import LoggedMetadataStore
from .operations.append import AppendRequest
from .operations.queries import WaitDurableRequest
from .operations.transactions import ListTransactionsRequest, TransactionRequest
from .pipeline import Pipeline, PipelineHooks, PipelineOptions, Protect, unprotected
from .publish import Listeners, Publisher
from .recovery import Recovery, RecoveryReport
from .requests import LogRequest, Request
from .segments import SegmentState
from .state import ContainerState
from .statistics import ContainerStatistics
from .views import ContainerSource, ReferencedChunks, ReleasedRecords

_log = get_logger("container")

T = TypeVar("T")


@attrs.frozen
class ContainerOptions:
    cache_bytes: int
    flush_bytes: int
    """A segment with this many unflushed bytes is flushed before its age makes it due."""
    admission: AdmissionOptions
    active_segments_max: int = 25_000
    """Segments kept in full; idle ones above it are kept as their images only."""
    mailbox: MailboxOptions = MailboxOptions()
    pipeline: PipelineOptions = PipelineOptions()
    writer: WriterOptions = WriterOptions()
    collector: CollectorOptions = CollectorOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    tombstone: float = 86_400.0
    """Seconds for which an ended transaction is remembered (rule T5)."""
    read_ahead: ReadAheadOptions = ReadAheadOptions()
    read_ahead_budget: ReadAheadBudget = attrs.field(factory=ReadAheadBudget)
    """Shared by all containers that have these options."""
    close_timeout: float = 10.0
    events: Callable[[], EventSource] = EventSource
    """Makes what replies wait on: the running loop's cheapest way."""
    protect: Protect = unprotected
    """Keeps Ctrl-C out of the container's tasks (rule C5)."""
    span: SpanHook | None = None
    """Called around each group's append to the log, where an append in it is traced."""
    layout: LayoutMode = LayoutMode.INSTALL_NEW
    chunked: ChunkedOptions = ChunkedOptions()
    adopt: bool = False
    """Go on although long-term storage was claimed by another log's owner (a restored or copied folder, on
    purpose)."""


@attrs.frozen
class _Parts:
    """What an ownership consists of once its epoch is known."""

    pipeline: Pipeline
    publisher: Publisher
    collector: Collector
    storage: ChunkedSegmentStorage
    reader: Reader
    starts: AppendStarts
    read_ahead: ReadAhead
    checkpointer: Checkpointer
    writer: StorageWriter
    admission: Admission
    leases: Leases
    headers: HeaderKeeper


class Container:
    """One ownership. Made for one ``run``; a restart is a new object with a new log."""

    def __init__(
        self,
        index: int,
        log: DurableDataLog,
        chunks: ChunkStorage,
        identity: Identity,
        world: World,
        options: ContainerOptions,
    ) -> None:
        self.index = index
        self.log = log
        self.options = options
        self._chunks = chunks
        self._identity = identity
        self._world = world
        self._claimed = False
        self.follows: Collection[int] | None = None
        """The epochs of this host's own attempts before: only from these it may take over by itself. None: it
        opens on order."""
        self._stop = anyio.Event()
        self._logged = anyio.Event()
        self._look_at = 0
        self._look_every = options.checkpoint.wal_bytes // 64
        """Payload bytes between two looks at whether a checkpoint is due: asking after every group would cost
        more than the answer."""
        self._built: _Parts | None = None
        self._recovery = RecoveryReport(0, 0, 0)
        self.mailbox: Mailbox[Request] = Mailbox(options.mailbox, events=options.events())
        events = self.mailbox.events
        self._make_answer: Callable[[], Answer] = events.make_answer or partial(Reply, events)
        self.cache = TailCache(options.cache_bytes)
        self.state = ContainerState(index, on_load=self.cache.open_segment)
        self.legacy = LegacySegments(
            chunks, self.state, self.ask_internal, self._claim_late, lambda: self._parts, options
        )

    @property
    def is_poisoned(self) -> bool:
        """A sync step was torn: memory is not to be trusted (rule C5)."""
        return self._built is not None and self._built.pipeline.poisoned

    @property
    def epochs_so_far(self) -> Collection[int] | None:
        """What the next ownership of this host ``follows``."""
        return frozenset((*(self.follows or ()), *self.log.own_epochs)) or None

    @property
    def _parts(self) -> _Parts:
        if self._built is None:
            raise Unavailable(f"container {self.index} is not open yet")

        return self._built

    # --- life ------------------------------------------------------------------------------------

    async def run(self, started: Callable[[], None], ending: Callable[[], None]) -> None:
        """Own the container until ``stop`` is called (returns) or something fails (raises).

        ``started()`` is called when it can answer, ``ending()`` before the first request is refused because
        of the end.
        """
        clean = False
        try:
            opened = await self._open()
            parts = self._built = self._build()
            self._recovery = await Recovery(self.log, opened, self.state, parts.publisher, self.cache).run()
            parts.leases.begin()
            _log.info("recovered", container=self.index, **attrs.asdict(self._recovery))
            await self._serve(parts, started, ending)
            clean = True
        finally:
            ending()
            self._answer_everybody(clean)
            if not await finish_within(
                self.options.close_timeout, lambda: self.log.close(clean=clean and not self.is_poisoned)
            ):
                _log.error("log_close_timed_out", container=self.index)

    def stop(self) -> None:
        """Ask for a clean end."""
        self._stop.set()

    async def _open(self) -> OpenedLog:
        claims = None
        try:
            claims = await survey(self._chunks, self.index)
        except Unavailable as error:
            _log.warning("claims_unreadable", container=self.index, error=str(error))

        ours = [c.epoch for c in claims or () if c.identity.store == self._identity.store]
        opened = await self.log.open(above=max(ours, default=0), after=self.follows)
        epoch = opened.epoch
        if claims is not None:
            if not self.options.adopt:
                judge(claims, opened.history_epoch, self._identity)
            epoch = await self._place_claim(epoch)
        self.state.epoch = epoch
        _log.info("log_opened", container=self.index, epoch=epoch, groups=len(opened.groups))
        return opened

    async def _place_claim(self, epoch: int) -> int:
        """Claim long-term storage with ``epoch``, or with the first free one above it (rule W8)."""
        try:
            while not await place(self._chunks, self.index, epoch, self._identity):
                epoch = await self.log.raise_epoch(epoch)
        except (Unavailable, OutcomeUnknown, StorageFull) as error:
            # Without room too: what is read and deleted meanwhile is what makes room. And where the answer
            # was lost: the late claim finds its own, or makes it.
            _log.warning("claim_postponed", container=self.index, error=str(error))
            return epoch

        self._claimed = True
        return epoch

    async def _claim_late(self) -> None:
        """Before the first write to long-term storage, if it was down at the start."""
        if not self._claimed:
            adopt = self.options.adopt
            await claim_late(
                self._chunks, self.index, self.state.epoch, self._identity, self.log.check_owner, adopt=adopt
            )
            self._claimed = True

    def _build(self) -> _Parts:
        options, state = self.options, self.state
        metadata = LoggedMetadataStore(state, self.ask_internal)
        collector = Collector(
            self._chunks,
            container=self.index,
            epoch=state.epoch,
            claims_prefix=claim_prefix(self.index),
            referenced=ReferencedChunks(state),
            released=ReleasedRecords(state, metadata),
            claim=self._claim_late,
            barrier=lambda: self.log_operation(Barrier()),
            request_cycle=lambda: writer.request_cycle(),  # noqa: PLW0108 - the writer is made below
            options=options.collector,
        )
        storage = ChunkedSegmentStorage(
            self._chunks,
            metadata,
            container=self.index,
            epoch=state.epoch,
            world=self._world,
            garbage=collector,
            options=options.chunked,
        )
        ahead = ReadAhead(storage.read, options.read_ahead, options.read_ahead_budget)
        source = ContainerSource(self)
        flusher = SegmentFlusher(storage, self.cache, source.segment_of, source.forget)
        writer = StorageWriter(source, flusher, storage, collector, self._claim_late, options.writer)
        leases = Leases(state, self.ask_internal, tombstone=options.tombstone)
        headers = HeaderKeeper(
            state, self.legacy, storage, self._chunks, active=options.layout.writes_headers
        )
        listeners = Listeners(
            segment_due=writer.segment_due,
            transaction_changed=leases.note,
            record_changed=headers.record_changed,
            cycle_completed=headers.cycle_completed,
        )
        publisher = Publisher(state, self.cache, due_bytes=options.flush_bytes, listeners=listeners)
        hooks = PipelineHooks(self._group_published, options.protect, options.span)
        return _Parts(
            Pipeline(state, self.log, self.mailbox, publisher, options.pipeline, hooks),
            publisher,
            collector,
            storage,
            Reader(self.cache, ahead, state.segments.get),
            AppendStarts(storage, state.segments.get),
            ahead,
            Checkpointer(state, self.cache, self.log, self.ask_internal, options.checkpoint),
            writer,
            Admission(state, self.cache, self.log, writer, options.admission),
            leases,
            headers,
        )

    async def _serve(self, parts: _Parts, started: Callable[[], None], ending: Callable[[], None]) -> None:
        last_full_cut = self.state.cycle.cut if self.state.cycle.full else 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_pipeline, parts.pipeline, ending)
            async with anyio.create_task_group() as helpers:
                protect = self.options.protect
                helpers.start_soon(protect(parts.writer.run), last_full_cut)
                helpers.start_soon(protect(parts.collector.run))
                helpers.start_soon(parts.read_ahead.run)
                helpers.start_soon(protect(parts.checkpointer.run), lambda: self._logged)
                helpers.start_soon(protect(parts.leases.run))
                helpers.start_soon(protect(parts.headers.run))
                started()
                await self._stop.wait()
                helpers.cancel_scope.cancel()

            # What was taken in before the stop is finished; then the mailbox refuses, and the pipeline ends.
            await self.wait_durable()
            self._fail_requests(self.mailbox.close(ClosedError("the store is closed")))

    async def _run_pipeline(self, pipeline: Pipeline, ending: Callable[[], None]) -> None:
        try:
            await pipeline.run()
        finally:
            ending()  # in the step in which it failed its waiters: they find this ownership gone and ask the next one

    def _answer_everybody(self, clean: bool) -> None:
        error = (
            ClosedError("the store is closed")
            if clean
            else Unavailable(f"container {self.index} stopped; it is being recovered")
        )
        self._fail_requests(self.mailbox.close(error))
        if self._built is not None:
            self._built.writer.stop(
                Unavailable(f"container {self.index} stopped before the flush was complete: flush again")
            )
        for segment in self.state.segments.by_id.values():
            segment.wake()

    def _fail_requests(self, requests: list[Request]) -> None:
        error = Unavailable(f"container {self.index} stopped before it came to this: nothing was applied")
        fail_all((request.reply for request in requests), error)

    def _group_published(self) -> None:
        parts = self._parts
        parts.writer.operations_logged()
        parts.publisher.evict_idle(self.options.active_segments_max)
        if parts.pipeline.payload_bytes >= self._look_at or not self.log.has_room(0):
            self._look_at = parts.pipeline.payload_bytes + self._look_every
            if parts.checkpointer.is_due():
                self._logged.set()
                self._logged = anyio.Event()

    # --- asking ----------------------------------------------------------------------------------

    async def ask(self, request: Request, size: int = 0) -> Any:
        """Put a client's request into the pipeline and wait for its answer. Cancelled: the outcome is
        unknown."""
        return await (
            self.legacy.ask(self._ask, request, size) if self.legacy.looks else self._ask(request, size)
        )

    async def _ask(self, request: Request, size: int) -> Any:
        request.reply = reply = self._make_answer()
        await self.mailbox.put(request, size)
        return await reply.wait()

    async def ask_transaction(self, request: TransactionRequest) -> TransactionInfo:
        """``ask`` for what is known of a transaction, with the time that is left (rules T5 and T7)."""
        return self._parts.leases.with_time(await self.ask(request, 256))

    async def list_transactions(self, prefix: str) -> list[TransactionInfo]:
        leases = self._parts.leases
        return [leases.with_time(info) for info in await self.ask(ListTransactionsRequest(prefix))]

    async def ask_internal(self, request: Request, size: int) -> Any:
        """The same in the internal lane, which has room of its own (rule C6)."""
        request.reply = reply = self._make_answer()
        await self.mailbox.put(request, size, Lane.INTERNAL)
        return await reply.wait()

    def offer(self, request: AppendRequest) -> bool:
        """Take an append in at once if every gate is open and the mailbox has room; its answer comes in
        ``request.reply``."""
        parts = self._built  # not ``_parts``: every append comes here, and a property is one call more
        if (
            parts is None
            or not parts.admission.is_open(request.size)
            or (self.legacy.looks and self.legacy.may_know(request.name))
        ):
            return False

        request.reply = self._make_answer()
        return self.mailbox.offer(request, request.size)

    async def append(self, request: AppendRequest) -> int | None:
        """Admit an append, then ask."""
        await self.take_in(request)
        offset: int | None = await request.reply.wait()
        return offset

    async def take_in(self, request: AppendRequest) -> None:
        """Return when the append is admitted and in the mailbox; its answer comes in ``request.reply``."""
        await self.legacy.bring(request.name)
        await self._parts.admission.admit(request.name, request.size)
        request.reply = self._make_answer()
        await self.mailbox.put(request, request.size)

    async def flush(self) -> None:
        """Return when a flush cycle with everything acked so far is complete."""
        await self._parts.writer.flush()
        await self._parts.headers.settle()

    async def log_operation(self, op: Operation) -> Any:
        return await self.ask_internal(LogRequest(op), 64)

    @property
    def storage(self) -> ChunkedSegmentStorage:
        return self._parts.storage

    async def cycle_ended(self) -> None:
        """Return when the next flush cycle is complete."""
        await self._parts.writer.progress.wait()

    async def wait_durable(self) -> None:
        """Return once everything that was given a sequence so far is durable."""
        await self.ask_internal(WaitDurableRequest(), 0)

    # --- reading ---------------------------------------------------------------------------------

    async def find_durable(self, name: str) -> SegmentState:
        """The segment of that name, once its existence is durable; a "not found" is as durable (rule C1)."""
        segment = self.state.segments.find(name)
        # Again for one that came into being after what was settled.
        while segment is None or segment.durable_length < 0:
            await self.legacy.bring(name)
            await self.wait_durable()
            segment = self.state.segments.find(name)
            if segment is None:
                raise SegmentNotFound(f"no segment {name!r}", segment=name)

        return segment

    async def read(self, name: str, offset: int, size: int) -> Buffer:
        """Durable bytes, perhaps a view of more of them; ``b""`` at the tail."""
        segment = await self.find_durable(name)
        if offset < segment.start_offset:
            await self.wait_durable()  # the truncation may not be durable yet
        return await self._as_owner(self._parts.reader.read(segment, offset, size))

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        """Where durable appends begin in ``start .. end`` (rule S5). As ``read``."""
        segment = await self.find_durable(name)
        return await self._as_owner(self._parts.starts.find(segment, start, end))

    async def _as_owner(self, look: Awaitable[T]) -> T:
        """What ``look`` finds. The owner looks at the register before it answers.

        Refusals too: to one who was fenced, a chunk that the newer owner has collected looks like a damaged
        store.
        """
        try:
            found = await look
        except TierlogError:
            self.log.check_owner()
            raise

        self.log.check_owner()
        return found

    async def wait_beyond(self, name: str, offset: int) -> bool:
        """Return True when the segment has bytes past ``offset``, False when it is sealed at or before it and
        has none.

        ``SegmentNotFound`` if it is deleted meanwhile; ``Unavailable`` if the container stops.
        """
        segment: SegmentState | None = await self.find_durable(name)
        assert segment is not None
        sid = segment.sid
        while True:
            if segment.durable_length > offset:
                return True

            if self.mailbox.closed:
                raise Unavailable(f"container {self.index} stopped")

            if segment.sealed:
                await self.wait_durable()
                return segment.durable_length > offset

            if segment.waiter is None:
                segment.waiter = anyio.Event()
            await segment.waiter.wait()
            segment = self.state.segments.find(
                name
            )  # a fresh look: an idle segment may have been evicted and come back
            if segment is None or segment.sid != sid:
                await self.wait_durable()  # its end may not be durable yet
                raise SegmentNotFound(f"segment {name!r} is gone", segment=name)

    def statistics(self) -> ContainerStatistics:
        parts = self._parts
        return ContainerStatistics(
            self.index,
            self.state.epoch,
            len(self.state.segments),
            len(self.state.segments.by_id),
            self._recovery,
            self.log.statistics(),
            self.mailbox.statistics(),
            parts.pipeline.statistics(),
            self.cache.statistics(),
            parts.admission.statistics(),
            parts.writer.statistics(),
            parts.checkpointer.statistics(),
            parts.collector.statistics(),
            parts.leases.statistics(),
            parts.storage.statistics(),
            parts.read_ahead.statistics(),
        )

"""The segment container: one ownership of one container, from opening its log to its exit.

Owns: the parts (log, state, cache, pipeline, writer, collector, checkpointer), their start and stop order, and the verbs that clients call.
Does not own: restarts (``host.py``), rules (``decisions.py``), placement of names (the store).

Start: open the log (fences every earlier owner), judge and place the claim in long-term storage (rule W8), recover, then start the pipeline,
the writer, the collector and the checkpointer, then answer. Long-term storage may be down at the start: the claim is then placed before the
first write there. Stop: refuse new requests, let the pipeline finish what it has, stop the others, close the log with its footer.
``close`` does not flush.

Any failure ends the ownership; recovery is the only way back (crash-only). After a torn sync step nothing more is written, no footer either
(rule C5). Every waiter is answered whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio
import attrs
import structlog

from ...journal.operations.barrier import Barrier
from ...journal.operations.forget_segment import ForgetSegment
from ...journal.operations.vocabulary import Operation
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.data_log import DurableDataLog, LogStatistics, OpenedLog
from ...storage_backends.base.errors import ClosedError, OutcomeUnknown, SegmentNotFound, TierlogError, Unavailable
from ...storage_backends.base.world import World
from ...storage_backends.chunked.core import ChunkedStatistics
from ...storage_backends.chunked.storage import ChunkedSegmentStorage
from ..core.mailbox import Lane, Mailbox, MailboxOptions, MailboxStatistics
from ..core.reply import Reply
from ..core.shutdown import finish_within
from ..gc.collector import Collector, CollectorOptions, CollectorStatistics
from ..reading.reader import Reader
from ..reading.tail_cache import TailCache, TailCacheStatistics
from ..writer.aggregation import FlushableSegment
from ..writer.segment_flusher import SegmentFlusher
from ..writer.writer import StorageWriter, WriterOptions, WriterStatistics
from .admission import Admission, AdmissionOptions, AdmissionStatistics
from .checkpointer import Checkpointer, CheckpointOptions, CheckpointStatistics
from .claim import Identity, judge, place, survey
from .metadata_store import LoggedMetadataStore
from .pipeline import Pipeline, PipelineOptions, PipelineStatistics
from .publish import Publisher
from .recovery import Recovery, RecoveryReport
from .requests import LogRequest, Request, SettleRequest
from .segments import SegmentState
from .state import ContainerState

_log = structlog.stdlib.get_logger("tierlog.container")


@attrs.frozen
class ContainerOptions:
    cache_bytes: int
    flush_bytes: int
    """A segment with this many unflushed bytes is flushed before its age makes it due."""
    admission: AdmissionOptions
    mailbox: MailboxOptions = MailboxOptions()
    pipeline: PipelineOptions = PipelineOptions()
    writer: WriterOptions = WriterOptions()
    collector: CollectorOptions = CollectorOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    close_timeout: float = 10.0
    adopt: bool = False
    """Go on although long-term storage was claimed by another log's owner (a restored or copied folder, on purpose)."""


@attrs.frozen
class ContainerStatistics:
    container: int
    epoch: int
    segments: int
    recovery: RecoveryReport
    log: LogStatistics
    mailbox: MailboxStatistics
    pipeline: PipelineStatistics
    cache: TailCacheStatistics
    admission: AdmissionStatistics
    writer: WriterStatistics
    checkpoints: CheckpointStatistics
    collector: CollectorStatistics
    chunked: ChunkedStatistics


class Container:
    """One ownership. Made for one ``run``; a restart is a new object with a new log."""

    def __init__(
        self, index: int, log: DurableDataLog, chunks: ChunkStorage, identity: Identity, world: World, options: ContainerOptions
    ) -> None:
        self.index = index
        self.log = log
        self.options = options
        self._chunks = chunks
        self._identity = identity
        self._world = world
        self._claimed = False
        self._stop = anyio.Event()
        self._logged = anyio.Event()
        self.mailbox: Mailbox[Request] = Mailbox(options.mailbox)
        self.state = ContainerState()
        self.cache = TailCache(options.cache_bytes)

    # --- life -------------------------------------------------------------------------------------------------

    async def run(self, started: Callable[[], None]) -> None:
        """Own the container until ``stop`` is called (returns) or something fails (raises). ``started()`` is called when it can answer."""
        clean = False
        try:
            opened = await self._open()
            self._build(opened)
            await self._recover(opened)
            await self._serve(started)
            clean = True
        finally:
            self._answer_everybody(clean)
            poisoned = hasattr(self, "pipeline") and self.pipeline.poisoned
            if not await finish_within(self.options.close_timeout, lambda: self.log.close(clean=clean and not poisoned)):
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
        opened = await self.log.open(above=max(ours, default=0))
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
        except Unavailable as error:
            _log.warning("claim_postponed", container=self.index, error=str(error))
            return epoch

        self._claimed = True
        return epoch

    async def _claim_late(self) -> None:
        """Before the first write to long-term storage, if it was down at the start."""
        if self._claimed:
            return

        if not self.options.adopt:
            judge(await survey(self._chunks, self.index), self.state.epoch, self._identity)
        if not await place(self._chunks, self.index, self.state.epoch, self._identity):
            raise TierlogError(f"epoch {self.state.epoch} of container {self.index} is claimed already: a new opening takes a higher one")

        self._claimed = True

    def _build(self, opened: OpenedLog) -> None:
        options = self.options
        self.publisher = Publisher(self.state, self.cache, due_bytes=options.flush_bytes, on_due=self._segment_due)
        self.pipeline = Pipeline(self.state, self.log, self.mailbox, self.publisher, self.index, options.pipeline, self._group_published)
        self.collector = Collector(
            self._chunks,
            container=self.index,
            epoch=self.state.epoch,
            referenced=_ReferencedChunks(self.state),
            barrier=lambda: self.log_operation(Barrier()),
            request_cycle=lambda: self.writer.request_cycle(),
            options=options.collector,
        )
        self.storage = ChunkedSegmentStorage(
            self._chunks,
            LoggedMetadataStore(self.state, self.ask_internal),
            container=self.index,
            epoch=self.state.epoch,
            world=self._world,
            garbage=self.collector,
        )
        self.reader = Reader(self.cache, self.storage, self.state.segments.by_id.get)
        self.checkpointer = Checkpointer(self.state, self.cache, self.log, self.ask_internal, options.checkpoint)

    async def _recover(self, opened: OpenedLog) -> None:
        self.writer: StorageWriter
        self._due_at_recovery: dict[int, None] = {}
        self.recovery = await Recovery(self.log, opened, self.state, self.publisher, self.cache).run()
        source = _Source(self)
        flusher = SegmentFlusher(self.storage, self.cache, source.segment_of, source.forget)
        self.writer = StorageWriter(
            source, flusher, self.collector, self._claim_late, self.options.writer, last_cut=self.state.cycle.cut if self.state.cycle.full else 0
        )
        self.admission = Admission(self.state, self.cache, self.log, self.writer, self.options.admission)
        for sid in self._due_at_recovery:
            self.writer.segment_due(sid)
        _log.info("recovered", container=self.index, **attrs.asdict(self.recovery))

    async def _serve(self, started: Callable[[], None]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.pipeline.run)
            async with anyio.create_task_group() as helpers:
                helpers.start_soon(self.writer.run)
                helpers.start_soon(self.collector.run)
                helpers.start_soon(self.checkpointer.run, lambda: self._logged)
                started()
                await self._stop.wait()
                self.writer.stop(ClosedError("the store is closing"))
                helpers.cancel_scope.cancel()

            # The mailbox refuses new requests; what is inside is finished before the pipeline ends.
            await self.ask_internal(SettleRequest(), 0)
            self._fail_requests(self.mailbox.close(ClosedError("the store is closing")))

    def _answer_everybody(self, clean: bool) -> None:
        error = ClosedError("the store is closed") if clean else Unavailable(f"container {self.index} stopped; it is being recovered")
        self._fail_requests(self.mailbox.close(error))
        if hasattr(self, "writer"):
            self.writer.stop(OutcomeUnknown(f"container {self.index} stopped before the flush was complete"))
        for segment in self.state.segments.by_id.values():
            segment.wake()

    def _fail_requests(self, requests: list[Request]) -> None:
        error = Unavailable(f"container {self.index} stopped before it came to this: nothing was applied")
        for request in requests:
            request.reply.fail(error)

    def _segment_due(self, sid: int) -> None:
        if hasattr(self, "writer"):
            self.writer.segment_due(sid)
        else:
            self._due_at_recovery[sid] = None

    def _group_published(self) -> None:
        self.writer.operations_logged()
        if not self._logged.is_set() and self.checkpointer.is_due():
            self._logged.set()
            self._logged = anyio.Event()

    # --- asking -----------------------------------------------------------------------------------------------

    async def ask(self, request: Request, size: int = 0) -> Any:
        """Put a client's request into the pipeline and wait for its answer. Cancelled: the outcome is unknown."""
        request.reply = Reply(self.mailbox.events)
        await self.mailbox.put(request, size)
        return await request.reply.wait()

    async def ask_internal(self, request: Request, size: int) -> Any:
        """The same in the internal lane, which has room of its own (rule C6)."""
        request.reply = Reply(self.mailbox.events)
        await self.mailbox.put(request, size, Lane.INTERNAL)
        return await request.reply.wait()

    async def log_operation(self, op: Operation) -> Any:
        return await self.ask_internal(LogRequest(op), 64)

    async def settle(self) -> None:
        """Return once everything that was given a sequence so far is durable."""
        await self.ask_internal(SettleRequest(), 0)

    # --- reading ----------------------------------------------------------------------------------------------

    async def find_durable(self, name: str) -> SegmentState:
        """The segment of that name, once its existence is durable; a "not found" is as durable (rule C1)."""
        segment = self.state.segments.find(name)
        if segment is None or segment.durable_length < 0:
            await self.settle()
            segment = self.state.segments.find(name)
            if segment is None:
                raise SegmentNotFound(f"no segment {name!r}", segment=name)

        return segment

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Durable bytes; ``b""`` at the tail. The owner looks at the register before it answers (hole 16)."""
        segment = await self.find_durable(name)
        if offset < segment.start_offset:
            await self.settle()  # the truncation may not be durable yet
        data = await self.reader.read(segment, offset, size)
        self.log.check_owner()
        return data

    async def wait_beyond(self, name: str, offset: int) -> bool:
        """Return True when the segment has bytes past ``offset``, False when it is sealed at or before it and has none.

        ``SegmentNotFound`` if it is deleted meanwhile; ``Unavailable`` if the container stops.
        """
        segment = await self.find_durable(name)
        while True:
            if segment.durable_length > offset:
                return True

            if self.state.segments.find(name) is not segment:
                raise SegmentNotFound(f"segment {name!r} is gone", segment=name)

            if self.mailbox.closed:
                raise Unavailable(f"container {self.index} stopped")

            if segment.sealed:
                await self.settle()
                return segment.durable_length > offset

            if segment.waiter is None:
                segment.waiter = anyio.Event()
            await segment.waiter.wait()

    def statistics(self) -> ContainerStatistics:
        return ContainerStatistics(
            self.index,
            self.state.epoch,
            len(self.state.segments),
            self.recovery,
            self.log.statistics(),
            self.mailbox.statistics(),
            self.pipeline.statistics(),
            self.cache.statistics(),
            self.admission.statistics(),
            self.writer.statistics(),
            self.checkpointer.statistics(),
            self.collector.statistics(),
            self.storage.statistics(),
        )


class _ReferencedChunks:
    """The chunk names that metadata knows."""

    def __init__(self, state: ContainerState) -> None:
        self._metadata = state.metadata

    def __contains__(self, name: object) -> bool:
        return f"c:{name}" in self._metadata


class _Source:
    """The container as the storage writer sees it (``FlushSource``)."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state

    @property
    def epoch(self) -> int:
        return self._state.epoch

    @property
    def sequence(self) -> int:
        return self._state.sequence

    @property
    def caused_sequence(self) -> int:
        return self._state.caused_sequence

    def all_segments(self) -> Iterable[FlushableSegment]:
        return self._state.segments.by_id.values()

    def segment_of(self, sid: int) -> FlushableSegment | None:
        return self._state.segments.by_id.get(sid)

    async def settle(self) -> None:
        await self._container.settle()

    async def log(self, op: Operation) -> object:
        return await self._container.log_operation(op)

    async def forget(self, sid: int) -> object:
        return await self._container.log_operation(ForgetSegment(sid))


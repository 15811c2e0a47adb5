"""The segment container: one ownership of one container, from opening its log to its end.

Owns: the start and stop order of its components (``components.py``), and the verbs that the store calls.
Does not own: restarts (``local_container.py``), decisions (``operations/``), the mapping of names to
containers (the store).

Start: open the log (fences every earlier owner), recover, start the pipeline, check the chain in long-term
storage and add this owner's element (rule J7), start the writer, the collector and the checkpointer, then
answer. Long-term storage may be down at the start; it is then claimed before the first write there. Stop:
refuse new requests, let the pipeline finish what it has, stop the others, close the log with its footer. The
end of a container does not flush.

Any failure ends the ownership; recovery is the only way back (crash-only). After an interrupted sync step
nothing more is written, not even a footer (rule C5). Every waiter gets an answer in any case.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel
import attrs

from ...journal.manifest.chain import StoredElement
from ...journal.manifest.element import Kind
from ...journal.operations.operation import Operation
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ClosedError,
    NotOwner,
    SegmentNotFound,
    StorageFull,
    Throttled,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.list_pages import Part
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.base.transactions import is_staged
from ...storage_backends.base.world import World
from ...storage_backends.segments.storage import ChunkedSegmentStorage
from ...storage_backends.sorted_runs.local_copies import LocalCopies
from ...storage_backends.sorted_runs.lookup import find_cached
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ..gc.collector import Collector
from ..gc.garbage_total import GarbageTotal
from ..kernel.mailbox import Lane, Mailbox
from ..kernel.reply import answers_of, fail_all
from ..kernel.task_groups import finish_within
from ..read.tail_cache import TailCache
from ..telemetry.logging import get_logger
from .attributes import shorten_images
from .checkpoint import Checkpointer
from .cold_segments import ColdSegments
from .components import ContainerComponents, build_components
from .confirmation import Confirmation
from .history import RecoveredHistory
from .imports import SegmentImporter
from .leases import Leases
from .local_disk import LocalDisk
from .lost_histories import check_position
from .metadata_store import LoggedMetadataStore
from .operations.append import AppendRequest
from .operations.cold import unload
from .operations.create import CreateRequest
from .operations.queries import InfoRequest, WaitDurableRequest
from .operations.table import UpdateTableRequest
from .operations.writers import LastEventRequest
from .options import ContainerOptions
from .owner import Identity
from .ownership import StorageOwnership
from .pending_group import Unconfirmed
from .pins import Pins
from .pipeline import Pipeline
from .publish import Publisher
from .recovery import Recovery, RecoveryReport
from .requests import WORK_CHARGE, LogRequest, Request
from .segments import NotLoaded, SegmentState, SegmentTable
from .shared_store_record import SharedStoreRecord
from .sources import ContainerManifestSource
from .state import ContainerState
from .table_runs import TableRuns
from .tables import Tables
from .waiters import SegmentWaiters

if TYPE_CHECKING:
    from .legacy_hook import LegacyHook
    from .statistics import ContainerStatistics

_log = get_logger("container")

T = TypeVar("T")


class Container:
    """One ownership, for one ``run``; a restart is a new object with a new log."""

    def __init__(
        self,
        index: int,
        disk: LocalDisk,
        chunks: ChunkStorage,
        identity: Identity,
        world: World,
        options: ContainerOptions,
        legacy: LegacyHook | None = None,
    ) -> None:
        self.index = index
        self.disk = disk
        self.log = log = disk.log
        self.chunks = chunks
        self.world = world
        self.options = options
        self.legacy = legacy
        self.cache = TailCache(options.cache_bytes, log.window_of)
        self.state = ContainerState(index, on_load=self._segment_loaded)
        self.state.image_entries = options.image_entries
        self.mailbox: Mailbox[Request] = Mailbox(options.mailbox, events=options.events())
        events = self.mailbox.events
        self._make_answer = answers_of(events)
        self.copies = LocalCopies(
            disk.runs.files, disk.runs.path, StoredRuns(chunks), 2 * disk.runs.low_water
        )
        self.runs = RunReader(self.copies, options.table_cache)
        self.state.find_cached = lambda runs, key: find_cached(runs, self.runs, key)
        self.cold = ColdSegments(self.state, self.runs)
        self.metadata = LoggedMetadataStore(self.state, self._commit_records, self.runs)
        self.history = RecoveredHistory(self.state, self.cold)
        self.confirmation = Confirmation(self.state, self.metadata, self.log_operation)
        source = ContainerManifestSource(self)
        record = options.store_record or SharedStoreRecord(identity.store, identity.containers)
        self.ownership = StorageOwnership(
            chunks,
            identity,
            log,
            source,
            self.confirmation,
            record,
            adopt=options.adopt,
            is_built=options.is_built,
            migrates=options.migrates,
        )
        self._stop = anyio.Event()
        self._ends_flushed = False
        """Whether everything was flushed for a graceful end."""
        self._checkpoint_due = anyio.Event()
        self._unloading_due = anyio.Event()
        self._check_interval = options.checkpoint.wal_bytes // 64
        """Payload bytes between two checks whether a checkpoint is due: one per group would cost too much."""
        self._next_check = 0
        self.waiters = SegmentWaiters(self)
        self._built: ContainerComponents | None = None
        self._recovery = RecoveryReport(0, 0, 0)
        self.had_migrated = False
        """Whether it was opened although it had been ended for a move (rule E3)."""

    @property
    def is_poisoned(self) -> bool:
        """A sync step was interrupted: memory is not to be trusted (rule C5)."""
        return self._built is not None and self._built.pipeline.poisoned

    @property
    def _components(self) -> ContainerComponents:
        if self._built is None:
            raise Unavailable(f"container {self.index} is not open yet")

        return self._built

    @property
    def table_runs(self) -> TableRuns:
        return self._components.table_runs

    def is_short_of_room(self, sid: int) -> bool:
        """Whether data of the segment, or of one beside which alone it can be published, did not fit into
        long-term storage."""
        writer = self._components.writer
        is_held = writer.failures.lacks_room and sid in writer.held_back
        return is_held or isinstance(writer.failures.errors.get(sid), StorageFull)

    @property
    def segments(self) -> SegmentTable:
        return self.state.segments

    @property
    def storage(self) -> ChunkedSegmentStorage:
        return self._components.storage

    @property
    def pins(self) -> Pins:
        return self._components.pins

    @property
    def imports(self) -> SegmentImporter:
        return self._components.imports

    @property
    def rolling_size(self) -> int:
        """Bytes at which chunks of an imported segment roll if its header gives no size."""
        return self.options.chunked.rolling_size

    # --- life ------------------------------------------------------------------------------------

    async def run(
        self,
        started: Callable[[], None],
        ending: Callable[[], None],
        previous_epochs: Collection[int] | None = None,
    ) -> None:
        """Own the container until ``stop`` is called (returns) or something fails (raises).

        ``started()`` is called when it can answer, ``ending()`` before the first request is refused because
        of the end. ``previous_epochs``: those of this process's earlier ownerships of the container, the only
        ones from which it may take over by itself; None if it opens on order."""
        clean = False
        try:
            opened = await self.ownership.open_log(previous_epochs)
            self.log.when_lost(self._end_ownership)
            self.state.epoch = opened.epoch
            components = self._built = build_components(self)
            recovery = Recovery(self.log, opened, self.state, components.publisher, self.cache)
            self._recovery = await recovery.run()
            last = self.state.manifest.recorded_last
            self.had_migrated = last is not None and last.kind is Kind.MIGRATED
            if not self.options.migrates:
                self.ownership.refuse_migrated()
            await components.table_runs.open()
            await self.history.note_lengths()
            await components.checkpointer.compact(components.publisher.publish)
            await components.leases.begin()
            _log.info("recovered", container=self.index, **attrs.asdict(self._recovery))
            await self._serve(components, started, ending)
            clean = True
        finally:
            # Before any waiter is answered: a call that is refused is tried again only if this ownership is
            # not the active one any more.
            ending()
            # Waiters first: closing the log may take up to ``close_timeout``.
            self._answer_waiters(clean)
            if not await finish_within(
                self.options.close_timeout, lambda: self.log.close(clean=clean and not self.is_poisoned)
            ):
                _log.error("log_close_timed_out", container=self.index)

    def stop(self) -> None:
        """Ask for a clean end."""
        self._stop.set()

    @property
    def is_fenced(self) -> bool:
        """Whether another owner has opened the container since, also if nothing has noticed it yet. Then it
        ends now."""
        try:
            self._check_owner()
        except NotOwner:
            return True
        except TierlogError:
            return False  # It is ending for another reason, which it reports itself.
        return False

    async def find_fenced(self) -> bool:
        """``is_fenced``, for what another owner had done when this was called (W12)."""
        try:
            await self.log.confirm_owner()
        except NotOwner:
            self._end_ownership()
            return True
        except TierlogError:
            return False  # As above, or it cannot be found out now.
        return False

    def _check_owner(self) -> None:
        """Raises ``NotOwner`` if another owner is known to have opened the container since, and
        ``Unavailable`` if that cannot be read. The ownership ends then."""
        try:
            self.log.check_owner()
        except TierlogError:
            self._end_ownership()
            raise

    async def _confirm_owner(self) -> None:
        """As ``_check_owner``, for what another owner had done when this was called (W12). Without an answer
        the ownership goes on, and the caller gets ``Unavailable`` (L10, B10)."""
        try:
            await self.log.confirm_owner()
        except Unavailable:
            self._check_owner()  # the log may have ended
            raise
        except TierlogError:
            self._end_ownership()
            raise

    def _end_ownership(self) -> None:
        """The pipeline meets the same error, which ends the ownership: its next write may be far."""
        request = WaitDurableRequest()
        request.reply = self._make_answer()
        with suppress(TierlogError):  # it is ending already
            self.mailbox.offer(request, 0, Lane.INTERNAL)

    def _segment_loaded(self, segment: SegmentState) -> None:
        self.history.note_loaded(segment)

    async def _serve(
        self, components: ContainerComponents, started: Callable[[], None], ending: Callable[[], None]
    ) -> None:
        last_full_cut = self.state.cycle.cut if self.state.cycle.full else 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_pipeline, components.pipeline, ending)
            # The pipeline runs already, because the intent of the element is logged through it (J3). The
            # helpers do not: what they do needs the claim.
            await self.ownership.begin()
            async with anyio.create_task_group() as helpers:
                protect = self.options.protect
                # In a group of their own, which ends before the pipeline: what the helpers log goes through
                # it.
                helpers.start_soon(protect(components.writer.run), last_full_cut)
                helpers.start_soon(protect(components.collector.run), components.writer.request_element)
                helpers.start_soon(components.read_ahead.run)
                helpers.start_soon(protect(components.checkpointer.run), lambda: self._checkpoint_due)
                helpers.start_soon(protect(components.leases.run))
                helpers.start_soon(protect(components.leases.tombstones.run))
                helpers.start_soon(protect(self._unload_idle), components.publisher)
                pipeline = components.pipeline
                helpers.start_soon(protect(components.loader.run), pipeline.resume, pipeline.wait_for_room)
                helpers.start_soon(protect(components.table_runs.run))
                helpers.start_soon(protect(components.row_removal.run))
                helpers.start_soon(protect(components.pins.run))
                helpers.start_soon(protect(shorten_images), self.state, self.ask_internal)
                if (cached := self.options.chunk_cache) is not None:
                    from .cached_chunks import reconcile  # a store without a cache loads nothing of it

                    helpers.start_soon(reconcile, cached, self.metadata, self.index, self.state.epoch)
                if self.legacy is not None:
                    helpers.start_soon(protect(self.legacy.run), self)
                started()
                await self._stop.wait()
                helpers.cancel_scope.cancel()

            # Finish what was accepted before the stop; then the mailbox refuses, and the pipeline ends.
            await protect(self._checkpoint_before_close)(components.checkpointer)
            await self.wait_published()
            self._fail_requests(self.mailbox.close(ClosedError("the store is closed")))

    async def _unload_idle(self, publisher: Publisher) -> None:
        """Unload idle segments in steps, between which others run (rule M5)."""
        while True:
            await self._unloading_due.wait()
            self._unloading_due = anyio.Event()
            while (idle := publisher.find_idle(self.options.active_segments_max)) is not None:
                await unload(self.ask_internal, idle)
                await anyio.lowlevel.checkpoint()

    async def _checkpoint_before_close(self, checkpointer: Checkpointer) -> None:
        """Write a last checkpoint if it saves the next opening enough. An unfinished one is harmless (C7)."""
        if not self._ends_flushed and not checkpointer.is_due(closing=True):
            return

        # One that ended with its task may have begun all the same.
        await self.wait_published()
        self.state.end_snapshot()
        with anyio.move_on_after(self.options.close_timeout):
            if await checkpointer.has_room():
                await checkpointer.checkpoint(closing=True, all_cold=self._ends_flushed)

    async def _run_pipeline(self, pipeline: Pipeline, ending: Callable[[], None]) -> None:
        try:
            await pipeline.run()
        finally:
            # In the step in which the pipeline failed its waiters: they go on to the next ownership. Requests
            # that it did not take get their answer too: a task that waits for one shielded would never end.
            ending()
            self._answer_waiters(clean=False)

    def _answer_waiters(self, clean: bool) -> None:
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
        self.waiters.wake_all()

    def _fail_requests(self, requests: list[Request]) -> None:
        error = Unavailable(
            f"container {self.index} stopped before it started this call: nothing was applied"
        )
        fail_all((request.reply for request in requests), error)

    def group_published(self) -> None:
        """The pipeline calls this after each durable group that logged something."""
        components = self._built
        assert components is not None
        # In the step of the publishing: the age of what is not flushed begins with it (F5).
        components.writer.operations_logged()
        if components.tables.is_cycle_due(self.options.admission.row_cycle_bytes):
            components.writer.request_cycle()
        if components.publisher.has_too_many(self.options.active_segments_max):
            self._unloading_due.set()
        # On a full disk after every group: a checkpoint lets log files go.
        if components.pipeline.payload_bytes >= self._next_check or not self.log.has_room(0):
            self._next_check = components.pipeline.payload_bytes + self._check_interval
            if components.checkpointer.is_due():
                # An event is replaced, because it cannot be cleared. The checkpointer takes the new one
                # before it asks whether a checkpoint is due, so it misses none.
                self._checkpoint_due.set()
                self._checkpoint_due = anyio.Event()

    # --- requests --------------------------------------------------------------------------------

    async def ask(self, request: Request, size: int = 0) -> Any:
        """Put a client's request of ``size`` bytes into the pipeline and return its answer. Cancelled: the
        outcome is unknown."""
        try:
            await self._admit(request, size)
        except (StorageFull, Throttled):
            # A segment that exists takes no room, cold or not: the answer is that it exists.
            if not isinstance(request, CreateRequest) or not await self._has_segment(request.name):
                raise
        return await (self._ask(request, size) if self.legacy is None else self._ask_or_import(request, size))

    async def _admit(self, request: Request, size: int) -> None:
        admission = self._components.admission
        if request.takes_room(self.state):
            await admission.require_room(size)
        if admission.is_crowded:
            await admission.admit_segments(request.needed(), deletes=request.deletes)

    async def _ask(self, request: Request, size: int) -> Any:
        request.reply = reply = self._make_answer()
        await self.mailbox.put(request, max(size, WORK_CHARGE * request.work))
        return await reply.wait()

    async def _ask_or_import(self, request: Request, size: int) -> Any:
        """The same, after an import of the segment if the answer depends on one."""
        # A create must not succeed if the legacy layout has a segment of that name.
        if isinstance(request, CreateRequest):
            await self._import_missing(request.name)
        while True:
            try:
                return await self._ask(request, size)
            except SegmentNotFound as missing:
                if not await self._import_missing(missing.segment):
                    await self.wait_durable()
                    raise

    def _is_missing(self, name: str) -> bool:
        """Whether ``name`` is unknown here and may be a segment of the legacy layout."""
        return self.legacy is not None and self.segments.sid_of(name) is None and not is_staged(name)

    async def _has_segment(self, name: str) -> bool:
        return await self.cold.sid_of(name) is not None

    async def _import_missing(self, name: str) -> bool:
        """Import the segment if it has a legacy layout. Returns whether the container has the segment now."""
        if self.legacy is None or is_staged(name):
            return False

        if self._is_missing(name) and not await self._has_segment(name):
            await self.legacy.import_missing(self, name)
        return await self._has_segment(name)

    async def info(self, name: str) -> SegmentInfo:
        """What is known of a segment."""
        while True:
            try:
                info: SegmentInfo = await self.ask(InfoRequest(name), 256)
                return info
            except NotLoaded:
                segment = await self.find_durable(name)
            if segment.sid not in self.segments:  # it stays cold (rule M4)
                await self.wait_durable()
                return segment.info(self.index, self.state.history)

    async def last_event(self, name: str, writer: bytes) -> int | None:
        """The writer's last event number in a segment."""
        try:
            number: int | None = await self.ask(LastEventRequest(name, writer), 256)
        except NotLoaded:
            segment = await self.find_durable(name)
            number = await self.as_owner(self.cold.last_event(segment, writer))
            await self.wait_durable()
        return number

    async def page_of_segments(self, prefix: str, start: str, limit: int) -> Part[str]:
        """As ``ColdSegments.page``."""
        # After the view: what it shows is durable then.
        page = await self.as_owner(self.cold.page(prefix, start, limit))
        await self.wait_durable()
        return page

    @property
    def leases(self) -> Leases:
        return self._components.leases

    async def ask_internal(self, request: Request, size: int) -> Any:
        """``ask`` in the internal lane, which has room of its own: what frees space and memory must not wait
        behind the appends that need them (rule C6). Asks again while the ownership cannot be confirmed."""
        while True:
            with suppress(Unconfirmed):
                return await self._ask_internal(request, size)

    async def _ask_internal(self, request: Request, size: int) -> Any:
        request.reply = reply = self._make_answer()
        await self.mailbox.put(request, size, Lane.INTERNAL)
        return await reply.wait()

    async def _commit_records(self, request: Request, size: int) -> Any:
        """``ask_internal`` for records of long-term storage."""
        # J7: what they refer to was written in this data folder, and not in one that has its path now.
        self.log.check_folder()
        return await self.ask_internal(request, size)

    def offer(self, request: AppendRequest) -> bool:
        """Accept an append at once if every gate is open and the mailbox has room; its answer comes in
        ``request.reply``."""
        components = self._built  # not ``_components``: a property would be one more call per append
        if (
            components is None
            or not components.admission.is_open(request.size)
            or (self.legacy is not None and self._is_missing(request.name))
        ):
            return False

        request.reply = self._make_answer()
        return self.mailbox.offer(request, request.size)

    def offer_all(self, requests: list[AppendRequest]) -> bool:
        """``offer`` of appends in order: all of them, or none if one of them may have to wait."""
        components, sizes = self._built, [request.size for request in requests]
        if components is None or self.legacy is not None or not components.admission.is_open(sum(sizes)):
            return False

        for request in requests:
            request.reply = self._make_answer()
        return self.mailbox.offer_all(requests, sizes)

    async def append(self, request: AppendRequest) -> int | None:
        """Admit an append and return its answer."""
        await self.accept(request)
        offset: int | None = await request.reply.wait()
        return offset

    async def accept(self, request: AppendRequest) -> None:
        """Return when the append is admitted and in the mailbox; its answer comes in ``request.reply``."""
        await self._import_missing(request.name)
        await self._components.admission.admit(request.name, request.size)
        request.reply = self._make_answer()
        await self.mailbox.put(request, request.size)

    @property
    def tables(self) -> Tables:
        return self._components.tables

    async def ask_update(self, request: UpdateTableRequest) -> Any:
        """Admit an update of a table, and return its answer."""
        await self._components.admission.admit(request.name, request.size)
        return await self._ask(request, request.size)

    async def wait_progress(self) -> None:
        """Return after the next flush cycle, or another step that freed memory."""
        await self._components.writer.progress.wait()

    async def log_operation(self, op: Operation) -> Any:
        """Log an internal operation; returns its answer once it is durable."""
        return await self.ask_internal(LogRequest(op), 64)

    async def wait_durable(self) -> None:
        """Return once everything that has a sequence number is durable, and the ownership is confirmed: for
        an answer. Raises ``Unavailable`` if it cannot be confirmed."""
        await self._ask_internal(WaitDurableRequest(), 0)

    async def wait_published(self) -> None:
        """``wait_durable`` for the container itself, which answers nobody with it."""
        with suppress(Unconfirmed):
            await self.wait_durable()

    # --- long-term storage -----------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when a flush cycle with everything acked so far is complete."""
        await self._components.writer.flush()
        if self.legacy is not None:
            await self.legacy.flush(self)

    async def flush_before_end(self) -> None:
        """``flush``, after which ``stop`` leaves nothing to do again to the next owner (rule F9), as long as
        no client asks for more."""
        await self.flush()
        self._ends_flushed = True

    async def migrate(self, place: str) -> StoredElement:
        """Flush everything, and end the container here: it goes on at ``place`` (rule E1)."""
        await self.pins.publish_all()
        return await self.ownership.migrate(place)

    def unflushed(self) -> tuple[int, int]:
        """The segments that long-term storage lacks something of, and the bytes."""
        return sum(1 for _ in self.segments.dirty_segments()), self.cache.unflushed_bytes

    async def claim_storage(self) -> None:
        """Return once this owner may write to long-term storage (rule J7). Raises ``StoreMismatch``,
        ``NotOwner``."""
        await self.ownership.ensure()

    @property
    def collector(self) -> Collector:
        return self._components.collector

    async def count_garbage(self) -> GarbageTotal:
        """What confirming the container lets it delete (rule G4)."""
        return await self.as_owner(self.collector.count_garbage())

    async def confirm(self) -> None:
        """Let the container delete what it does not know (rule G4). First it puts the runs that long-term
        storage lacks (rule M6), if that is possible now: the operator may have opened it for this only."""
        await self._components.table_runs.put_missing()
        await self.confirmation.confirm()
        self.collector.list_soon()

    # --- reading ---------------------------------------------------------------------------------

    async def find_durable(self, name: str, sid: int = 0) -> SegmentState:
        """The segment of that name, once its existence is durable, or ``SegmentNotFound``, once that is
        durable (rule C1). With ``sid`` a later segment of the same name is not found."""
        segment = await self._find(name)
        # A loop, because a segment may come into being after the sequence that was waited for.
        while segment is None or segment.durable_length < 0:
            await self._import_missing(name)
            await self.wait_durable()
            segment = await self._find(name)
            if segment is None:
                raise SegmentNotFound(f"no segment {name!r}", segment=name)

        # A reader that goes on must not continue in another segment of the same name.
        if sid and segment.sid != sid:
            raise SegmentNotFound.replaced(name)
        return segment

    async def find_kind(self, name: str, sid: int = 0, *, is_table: bool = False) -> SegmentState:
        """``find_durable`` of a segment with bytes, or of a table (rule M14)."""
        segment = await self.find_durable(name, sid)
        if segment.is_table != is_table:
            await self.wait_durable()
        return segment.of_kind(is_table=is_table)

    async def _find(self, name: str) -> SegmentState | None:
        segment = self.segments.in_memory(name)
        return await self.as_owner(self.cold.find(name)) if segment is None else segment

    async def read(
        self, name: str, offset: int, size: int, sid: int = 0, history: int | None = None
    ) -> Buffer:
        """Durable bytes, possibly a view of more of them; ``b""`` at the tail."""
        segment = await self.find_kind(name, sid)
        self.check_position(segment, offset, history)
        if offset < segment.start_offset:
            await self.wait_durable()  # the truncation may not be durable yet
        return await self.as_owner(self._components.reader.read(segment, offset, size))

    def check_position(self, segment: SegmentState, offset: int, history: int | None) -> None:
        """Rule R10, for a reader."""
        check_position(self.state.histories, segment, offset, segment.durable_length, history)

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        """The offsets in ``start .. end`` at which durable appends begin (rule S5)."""
        segment = await self.find_kind(name)
        return await self.as_owner(self._components.append_starts.find(segment, start, end))

    async def as_owner(self, answer: Awaitable[T]) -> T:
        """The answer, given only while this is the owner. Errors too: to a fenced owner, a chunk that its
        successor has collected looks like corruption, and so does one in a folder that was moved."""
        try:
            found = await answer
        except TierlogError:
            await self._confirm_owner()
            self.log.check_folder()
            raise

        await self._confirm_owner()
        return found

    def statistics(self) -> ContainerStatistics:
        from .statistics import statistics_of

        return statistics_of(self, self._components, self._recovery)

"""``SegmentStore``: the embedded store's public verbs.

It checks arguments and passes the calls to the containers, which ``containers.py`` finds. The verbs'
documentation is in ``storage_backends/base/verbs.py``."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeVar, overload

import anyio
from msgspec import Struct

from ...storage_backends.base.arguments import (
    ROLLING_SIZE_MIN,
    JoinedAppend,
    WriterId,
    check_attribute_page,
    check_history,
    check_many,
    check_offset,
    check_range,
    check_rolling_size,
    check_size,
    checked_parts,
    checked_reason,
    checked_sources,
    checked_token,
    checked_updates,
    checked_writers,
    required_writer,
)
from ...storage_backends.base.backups import (
    Backup,
    BackupStep,
    StepAnswer,
    check_backup_name,
    make_backup,
    remove_backup,
    take_steps,
)
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import (
    ClosedError,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    TierlogError,
    Unavailable,
    WrongSegmentKind,
)
from ...storage_backends.base.list_pages import SEGMENTS, TRANSACTIONS, PageAsked, all_pages, text_of
from ...storage_backends.base.names import check_segment_name, placement_key
from ...storage_backends.base.segments import (
    ATTRIBUTE_PAGE,
    SEGMENTS_PAGE_MAX,
    AttributeName,
    AttributePage,
    AttributeUpdate,
    SegmentInfo,
    SegmentPage,
)
from ...storage_backends.base.transactions import (
    LEASE_DEFAULT,
    LEASE_MAX,
    STAGED_MAX,
    TRANSACTIONS_PAGE_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionPage,
    TransactionToken,
    check_lease,
    is_staged,
    staged_name,
)
from ...storage_backends.base.verbs import SegmentVerbs
from ..container.attributes import list_attributes
from ..container.batch_append import Outcome
from ..container.container import Container
from ..container.local_container import LocalContainer
from ..container.operations.append import AppendRequest
from ..container.operations.attributes import AttributesRequest
from ..container.operations.create import CreateRequest
from ..container.operations.delete import DeleteRequest
from ..container.operations.merge import MergeRequest
from ..container.operations.seal import SealRequest
from ..container.operations.transactions import (
    AbortTransactionRequest,
    BeginTransactionRequest,
    CommitTransactionRequest,
    StageSegmentRequest,
    TransactionInfoRequest,
)
from ..container.operations.truncate import TruncateRequest
from ..container.operations.writers import ExpireWritersRequest
from ..container.pins import list_backups
from ..container.transactions import ask_transaction, page_of_transactions
from ..container.waiters import Watch
from ..kernel.contexts import Closable
from ..kernel.slices import in_slices
from ..kernel.use_guard import GuardedGenerator
from ..telemetry.tracing import SpanHook
from .append_batches import AppendBatches
from .append_requests import append_many_request, append_request
from .containers import AnyContainer, StoreContainers
from .tables import StoreTables

if TYPE_CHECKING:
    from ...storage_backends.base.segment_layout import SegmentLayout
    from ...storage_backends.base.table import Table
    from ..container.statistics import LocalContainerStatistics
    from .graceful_end import EndReport
    from .statistics import StoreStatistics

T = TypeVar("T")
_EXPIRED_AT_ONCE = 1024
"""Writers that one step of a container expires."""


class RollingSizes(Struct, frozen=True):
    """Bytes at which a segment's chunks roll."""

    default: int
    """Bytes at which chunks roll unless the segment's creation gives another size."""
    smallest: int = ROLLING_SIZE_MIN
    """That a creation may give."""


class SegmentStore(Closable, SegmentVerbs):
    """An open store, made by ``open_store``. The end of the ``async with`` body closes it, or ``aclose``.

    All verbs may be called from many tasks of the event loop that opened the store.
    """

    end_report: EndReport | None = None
    """What the end of the ``async with`` body left unflushed; None before, and without a budget for that (the
    configuration's ``shutdown.embedded_budget``)."""

    def __init__(
        self,
        containers: Sequence[AnyContainer],
        *,
        append_bytes_max: int,
        rolling_sizes: RollingSizes,
        lease_max: float = LEASE_MAX,
        staged_max: int = STAGED_MAX,
        statistics: Callable[[tuple[LocalContainerStatistics, ...]], StoreStatistics],
        store_id: str = "",
        span: SpanHook | None = None,
    ) -> None:
        """``statistics`` adds what the process knows to the containers' own."""
        self._containers = found = StoreContainers(containers, span)
        self._call, self._ask = found.call, found.ask
        self.append_bytes_max = append_bytes_max
        """The largest single append, in bytes (the configuration's)."""
        self.store_id = store_id
        """The store's id, in hexadecimal."""
        self._rolling_sizes = rolling_sizes
        self._lease_max = lease_max
        self._staged_max = staged_max
        self._statistics = statistics
        self.tables = StoreTables(self._containers, append_bytes_max)
        """What ``Table`` and the server ask of the store."""

    def __repr__(self) -> str:
        closed = ", closed" if self._containers.is_closed else ""
        return f"<SegmentStore {len(self._containers)} containers{closed}>"

    # --- changing --------------------------------------------------------------------------------

    async def create_segment(
        self, name: str, *, rolling_size: int | None = None, exist_ok: bool = False
    ) -> None:
        size = (
            self._rolling_sizes.default
            if rolling_size is None
            else check_rolling_size(rolling_size, self._rolling_sizes.smallest)
        )
        await self._create("create_segment", CreateRequest(name, size), exist_ok)

    async def create_table(self, name: str, *, exist_ok: bool = False) -> None:
        request = CreateRequest(name, self._rolling_sizes.default, is_table=True)
        await self._create("create_table", request, exist_ok)

    def table(self, name: str) -> Table:
        from ...storage_backends.base.table import Table

        check_segment_name(name)
        return Table(self.tables, name)

    @overload
    async def append(
        self, name: str, data: Buffer, *, expected_offset: int | None = None, history: int | None = None
    ) -> int: ...
    @overload
    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None: ...
    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        request = append_request(
            name,
            data,
            self.append_bytes_max,
            writer_id,
            event_number,
            previous_event_number,
            expected_offset,
            history,
        )
        container = self._containers.find(name)
        owner = container.active
        if owner is not None and self._containers.span is None:
            # The hot path: while every admission gate is open, the reply is the only thing awaited, without
            # another coroutine around it.
            try:
                if owner.offer(request):
                    offset: int | None = await request.reply.wait()
                    return offset
            except (Unavailable, ClosedError):
                if container.active is owner:
                    raise
            except TierlogError:
                # The traceback has this frame: only the garbage collector would free the request, with the
                # bytes, and its answer, which is the error.
                del request
                raise

        return await self._append(container, request)

    @overload
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int: ...
    @overload
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None: ...
    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
        history: int | None = None,
    ) -> int | None:
        request = append_many_request(
            name,
            events,
            self.append_bytes_max,
            writer_id,
            first_event_number,
            previous_event_number,
            expected_offset,
            history,
        )
        return await self._append(self._containers.find(name), request)

    async def append_each(self, appends: Sequence[JoinedAppend]) -> list[Outcome]:
        appends = tuple(check_many("appends", appends))
        batches = await AppendBatches.of(appends, self._containers, self.append_bytes_max)
        if self._containers.span is None:
            await batches.append()
        else:
            size = sum(len(append.data) for append in appends)
            with self._containers.span("tierlog.append_each", {"count": len(appends), "bytes": size}) as span:
                batches.trace(span)
                await batches.append()

        return batches.outcomes

    async def seal_segment(self, name: str) -> int:
        length: int = await self._ask("seal_segment", name, SealRequest(name))
        return length

    async def truncate_segment(self, name: str, offset: int, *, history: int | None = None) -> None:
        request = TruncateRequest(name, check_offset(offset), check_history(history))
        await self._ask("truncate_segment", name, request)

    async def delete_segment(self, name: str) -> None:
        await self._ask("delete_segment", name, DeleteRequest(name))

    async def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        check_segment_name(target)
        names, updates = checked_sources(sources), checked_updates(attribute_updates)
        home = self._containers.index_of(target)
        for source in names:
            if self._containers.index_of(source) != home:
                if isinstance(self._containers.find(source), LocalContainer):
                    await self.segment_info(source)  # a name without a segment is the likelier mistake
                raise InvalidArgument(
                    f"{source!r} belongs to another container than {target!r}: name it "
                    f"{placement_key(target)}#something"
                )

        offset: int = await self._ask("merge_segments", target, MergeRequest(target, names, updates))
        return offset

    async def update_attributes(
        self, name: str, updates: Sequence[AttributeUpdate]
    ) -> dict[AttributeName, int]:
        request = AttributesRequest(name, checked_updates(updates, is_verb=True))
        values: dict[AttributeName, int] = await self._ask("update_attributes", name, request)
        return values

    async def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        known = 0
        for some in in_slices(checked_writers(writer_ids), _EXPIRED_AT_ONCE):
            known += await self._ask("expire_writers", name, ExpireWritersRequest(name, some))
        return known

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, name: str, offset: int, size: int, *, history: int | None = None) -> bytes:
        found = await self.read_view(name, offset, size, history=history)
        return found if type(found) is bytes else bytes(found)

    async def read_view(self, name: str, offset: int, size: int, *, history: int | None = None) -> Buffer:
        """As ``read``, for a server, which passes the bytes on at once: perhaps a view of more memory, which
        it keeps alive."""
        check_offset(offset)
        check_size(size)
        return await self._read(name, offset, size, history=check_history(history))

    async def _read(
        self, name: str, offset: int, size: int, sid: int = 0, history: int | None = None
    ) -> Buffer:
        about = {"offset": offset, "bytes": size}
        return await self._call(
            "read", name, lambda owner: owner.read(name, offset, size, sid, history), **about
        )

    def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20, history: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        return GuardedGenerator(self._containers.guard, self._tail(name, offset, block_size, history))

    async def _tail(
        self, name: str, offset: int, block_size: int, history: int | None
    ) -> AsyncGenerator[bytes, None]:
        check_offset(offset)
        check_size(block_size, "block_size")
        container = self._containers.find(name)
        position, sid = offset, 0
        begun_in = check_history(history)

        async def wait(owner: Container) -> int:
            return await owner.waiters.wait_beyond(name, position, sid, begun_in)

        # The first step finds the segment; a later one of the same name ends the tail.
        while sid := await container.call(wait):
            block = bytes(await self._read(name, position, block_size, sid))
            begun_in = None  # an open store has one history
            position += len(block)
            yield block
            del block  # the caller's, who may drop it: the next one may be long in coming

    async def read_or_watch(
        self, name: str, segment_id: int, offset: int, size: int, wake: Callable[[], None]
    ) -> Buffer | Watch | None:
        """One step of a tail, for a server with many of them, which wait without a task each. Returns and
        raises as ``SegmentWaiters.read_or_watch``."""

        async def step(owner: Container) -> Buffer | Watch | None:
            return await owner.waiters.read_or_watch(name, segment_id, offset, size, wake)

        return await self._containers.find(name).call(step)

    async def segment_info(self, name: str) -> SegmentInfo:
        return await self._call("segment_info", name, lambda owner: owner.info(name))

    async def list_attributes(
        self,
        name: str,
        prefix: AttributeName = "",
        *,
        after: AttributeName | None = None,
        limit: int = ATTRIBUTE_PAGE,
    ) -> AttributePage:
        check_attribute_page(prefix, after, limit)
        return await self._call(
            "list_attributes", name, lambda owner: list_attributes(owner, name, prefix, after, limit)
        )

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        check_range(start, end)
        return await self._call("append_starts", name, lambda owner: owner.append_starts(name, start, end))

    async def segment_layout(self, name: str, start: int, end: int) -> SegmentLayout:
        from ..container.segment_layout import segment_layout

        check_range(start, end)
        return await self._call("segment_layout", name, lambda owner: segment_layout(owner, name, start, end))

    async def list_segments(self, prefix: str = "") -> list[str]:
        async with aclosing(all_pages(self.page_of_segments, prefix)) as pages:
            return [name async for page in pages for name in page.names]

    async def page_of_segments(
        self, prefix: str = "", *, token: str | None = None, limit: int = SEGMENTS_PAGE_MAX
    ) -> SegmentPage:
        asked = PageAsked.of(SEGMENTS, prefix, token, limit)
        share = asked.share(len(self.local_containers))
        parts = await self._containers.call_each(
            lambda owner: owner.page_of_segments(asked.prefix, asked.start, share)
        )
        return SegmentPage(*asked.page(parts, str))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        writer = required_writer(writer_id, "last_event_number")
        return await self._call("last_event_number", name, lambda owner: owner.last_event(name, writer))

    # --- transactions ----------------------------------------------------------------------------

    async def begin_transaction(
        self,
        target: str,
        transaction_id: str,
        token: TransactionToken | None = None,
        lease: float = LEASE_DEFAULT,
    ) -> TransactionInfo:
        _check_target(target, transaction_id)
        milliseconds = math.ceil(min(check_lease(lease), self._lease_max) * 1000)
        request = BeginTransactionRequest(target, transaction_id, checked_token(token), milliseconds)
        return await self._call("begin_transaction", target, lambda owner: ask_transaction(owner, request))

    async def stage_segment(self, target: str, transaction_id: str, part: str) -> str:
        _check_target(target, transaction_id)
        name = staged_name(target, transaction_id, part)
        check_segment_name(name)
        request = StageSegmentRequest(
            target, transaction_id, name, self._rolling_sizes.default, self._staged_max
        )
        return await self._call("stage_segment", target, lambda owner: owner.ask(request, 256))

    async def commit_transaction(
        self,
        target: str,
        transaction_id: str,
        parts: Sequence[StagedPart],
        token: TransactionToken | None = None,
    ) -> CommitResult:
        _check_target(target, transaction_id)
        chosen = checked_parts(parts)
        request = CommitTransactionRequest(target, transaction_id, chosen, checked_token(token))
        size = 256 * (1 + len(chosen))
        return await self._call("commit_transaction", target, lambda owner: owner.ask(request, size))

    async def abort_transaction(self, target: str, transaction_id: str, reason: str = "") -> TransactionInfo:
        _check_target(target, transaction_id)
        request = AbortTransactionRequest(target, transaction_id, checked_reason(reason))
        return await self._call("abort_transaction", target, lambda owner: ask_transaction(owner, request))

    async def transaction_info(self, target: str, transaction_id: str) -> TransactionInfo:
        _check_target(target, transaction_id)
        request = TransactionInfoRequest(target, transaction_id)
        return await self._call("transaction_info", target, lambda owner: ask_transaction(owner, request))

    async def list_transactions(self, prefix: str = "") -> list[TransactionInfo]:
        async with aclosing(all_pages(self.page_of_transactions, prefix)) as pages:
            return [info async for page in pages for info in page.transactions]

    async def page_of_transactions(
        self, prefix: str = "", *, token: str | None = None, limit: int = TRANSACTIONS_PAGE_MAX
    ) -> TransactionPage:
        asked = PageAsked.of(TRANSACTIONS, prefix, token, limit)
        share = asked.share(len(self.local_containers))
        parts = await self._containers.call_each(
            lambda owner: page_of_transactions(owner, asked.prefix, asked.start, share)
        )
        return TransactionPage(*asked.page(parts, text_of))

    # --- the whole store -------------------------------------------------------------------------

    async def flush(self) -> None:
        self._containers.check()
        errors: list[Exception] = []

        async def flush(container: LocalContainer) -> None:
            try:
                await container.call(lambda owner: owner.flush())
            except Exception as error:  # noqa: BLE001 - raised below, once the other containers are done
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for container in self.local_containers:
                tasks.start_soon(flush, container)

        if errors:
            raise errors[0]

    async def backup(self, name: str) -> None:
        check_backup_name(name)
        await self.flush()  # all containers at once
        token = await self.on_container(0, _new_id)
        await take_steps(make_backup(name, token, self.containers), self.take_backup_step)

    async def backups(self) -> list[Backup]:
        return await self.on_container(0, list_backups)

    async def remove_backup(self, name: str) -> None:
        steps = remove_backup(check_backup_name(name), self.containers)
        await take_steps(steps, self.take_backup_step)

    async def take_backup_step(self, step: BackupStep) -> StepAnswer:
        """For the server: one step of a caller's backup."""
        return await self.on_container(step.container, lambda owner: owner.pins.act(step))

    def statistics(self) -> StoreStatistics:
        """A frozen snapshot of every container."""
        return self._statistics(tuple(container.statistics() for container in self.local_containers))

    def metrics(self) -> bytes:
        """All statistics in Prometheus' text format."""
        from ..telemetry.metrics import render_metrics

        return render_metrics(lambda: (self.statistics(),))

    def container_of(self, name: str) -> int:
        check_segment_name(name)
        return self._containers.index_of(name)

    @property
    def containers(self) -> int:
        """How many containers the store has."""
        return len(self._containers)

    @property
    def local_containers(self) -> list[LocalContainer]:
        """The containers that this process serves, by index."""
        return self._containers.local

    async def on_container(self, index: int, act: Callable[[Container], Awaitable[T]]) -> T:
        """For tools of this package: runs ``act`` on the active ownership of container ``index``, waiting for
        a recovering one as every verb does."""
        return await self._containers.call_at(index, act)

    def mark_closed(self) -> None:
        """Refuse further calls; called when the ``async with`` body ends."""
        self._containers.close()

    # --- inside ----------------------------------------------------------------------------------

    async def _create(self, verb: str, request: CreateRequest, exist_ok: bool) -> None:
        while True:
            try:
                await self._ask(verb, request.name, request)
                return
            except SegmentExists:
                if not exist_ok:
                    raise

            with suppress(SegmentNotFound):  # deleted meanwhile: then it is created
                is_table = (await self.segment_info(request.name)).is_table
                if is_table != request.is_table:
                    raise WrongSegmentKind.of(request.name, is_table=is_table)
                return

    async def _append(self, container: AnyContainer, request: AppendRequest) -> int | None:
        """Append, and wait where necessary: at a gate, for room, for the next ownership."""
        if self._containers.span is None:
            return await container.call(lambda owner: owner.append(request))

        about = {
            "container": container.index,
            "segment": request.name,
            "bytes": request.size,
            "count": request.event_count or 1,
        }
        with self._containers.span("tierlog.append", about) as span:
            request.span = span
            return await container.call(lambda owner: owner.append(request))


async def _new_id(container: Container) -> str:
    return container.world.new_id()


def _check_target(target: str, transaction_id: str) -> None:
    """The target must be a user's segment, with a name that leaves room for those of staged segments."""
    check_segment_name(target)
    if is_staged(target):
        raise InvalidArgument(f"{target!r} is a staged segment, not a transaction's target")

    check_segment_name(staged_name(target, transaction_id, "p"))

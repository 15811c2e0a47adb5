"""``SegmentStore``: the embedded store's public verbs.

Owns: argument checks (every call raises the one error that says what to do), placement of names on
containers, and the refusal of forked children. Does not own: rules, durability or restarts
(containers do), nor wiring (``node.py``).

All verbs are safe to call from many tasks of the event loop that opened the store. Cancelling one that
changes something leaves its outcome unknown; an append with a writer id and event number can simply be sent
again.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import attrs

from ...storage_backends.base.arguments import (
    JoinedAppend,
    WriterId,
    check_data,
    check_int,
    check_joined,
    check_many,
    check_offset,
    check_size,
    checked_updates,
    event_identity,
    joined_events,
    previous_event,
    required_writer,
)
from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import ClosedError, InvalidArgument, TierlogError, Unavailable
from ...storage_backends.base.names import check_segment_name, container_of, placement_key
from ...storage_backends.base.segments import AttributeUpdate, SegmentInfo
from ...storage_backends.base.transactions import LEASE_MAX, STAGED_MAX
from ..chunk_io.actor import StorageActor, StorageActorStatistics
from ..container.batch_append import Outcome, append_each
from ..container.container import Container
from ..container.local import LocalContainer, LocalContainerStatistics, RemoteContainer
from ..container.requests import (
    AppendRequest,
    AttributesRequest,
    CreateRequest,
    DeleteRequest,
    ExpireWritersRequest,
    InfoRequest,
    ListRequest,
    MergeRequest,
    Request,
    SealRequest,
    TracedAppendRequest,
    TruncateRequest,
    WriterRequest,
)
from ..kernel.fork_guard import forks
from ..telemetry.tracing import SpanHook
from .transactions import TransactionVerbs

T = TypeVar("T")
SOURCES_MAX = 0xFFFF
"""The most sources of one merge."""
_PLACES_MAX = 65_536
"""Names whose check and placement are remembered; forgotten all at once above it."""


@attrs.frozen
class StoreStatistics:
    containers: tuple[LocalContainerStatistics, ...]
    storage: StorageActorStatistics | None
    """Calls to long-term storage, of all containers."""


class SegmentStore(TransactionVerbs):
    """Made by ``open_store``; usable inside its ``async with`` body."""

    def __init__(
        self,
        hosts: Sequence[LocalContainer | RemoteContainer],
        *,
        append_bytes_max: int,
        rolling_size: int,
        lease_max: float = LEASE_MAX,
        staged_max: int = STAGED_MAX,
        span: SpanHook | None = None,
        storage: StorageActor | None = None,
    ) -> None:
        self._hosts = hosts
        self.append_bytes_max = append_bytes_max
        """The largest single append, in bytes (the configuration's)."""
        self._rolling_size = rolling_size
        self._lease_max = lease_max
        self._staged_max = staged_max
        self._storage = storage
        self._span = span
        self._places: dict[str, int] = {}
        self._forks = forks.count
        self._closed = False

    def __repr__(self) -> str:
        return f"<SegmentStore {len(self._hosts)} containers{', closed' if self._closed else ''}>"

    # --- changing --------------------------------------------------------------------------------

    async def create_segment(self, name: str, *, rolling_size: int | None = None) -> None:
        """Make an empty segment. ``rolling_size``: bytes after which its chunks roll (default: the
        configuration's). ``SegmentExists``."""
        size = (
            self._rolling_size
            if rolling_size is None
            else check_int("rolling_size", rolling_size, 1, 1 << 40)
        )
        await self._ask("create_segment", name, CreateRequest(name, size))

    async def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None:
        """Append ``data``; returns the offset at which it starts, once it is durable.

        With ``writer_id`` and ``event_number`` the append is idempotent (rule C3): a repeat of an applied
        number changes nothing and returns the original's offset if it is the writer's latest, else None. A
        writer's first number is its own choice; then numbers are contiguous, unless ``previous_event_number``
        names the one before. With ``expected_offset`` it is applied only at that offset.

        Raises ``SegmentNotFound``, ``SegmentSealed``, ``BadOffset``, ``OutOfOrder`` (retry when the
        predecessor is acked), ``UnknownWriter``, ``Throttled``, ``StorageFull``, ``Unavailable``,
        ``NotOwner``, ``OutcomeUnknown``, ``InvalidArgument``.
        """
        size = len(data) if type(data) is bytes else check_data(data)
        if size > self.append_bytes_max:
            raise self._too_large(size)

        if type(data) is not bytes:
            data = bytes(data)  # the caller may reuse its buffer
        expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
        if writer_id is None and event_number is None and previous_event_number is None:
            request = AppendRequest(name, data, size, b"", 0, 0, None, expected)
        else:
            writer, first = event_identity(writer_id, event_number, "event_number")
            request = AppendRequest(
                name, data, size, writer, first, 1, previous_event(previous_event_number, first), expected
            )

        host = self._host(name)
        container = host.active
        if container is not None and self._span is None:
            # The hot path: while no gate is closed, nothing is awaited but the answer, and not through one
            # coroutine more.
            try:
                if container.offer(request):
                    offset: int | None = await request.reply.wait()
                    return offset
            except (Unavailable, ClosedError):
                if host.active is container:
                    raise

        return await self._append(host, request)

    async def append_many(
        self,
        name: str,
        events: Iterable[Buffer],
        *,
        writer_id: WriterId | None = None,
        first_event_number: int | None = None,
        previous_event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None:
        """Append many events one behind the other, all or nothing, durable when it returns; returns the first
        one's offset.

        With ``writer_id`` the events take the numbers from ``first_event_number`` on; the batch is wholly new
        or wholly old (rule C3). At least one event; the sum of their sizes is bounded like one append's.
        Errors as ``append``.
        """
        data, events_given = joined_events(events)
        size = len(data)
        if size > self.append_bytes_max:
            raise self._too_large(size)

        writer, first, count = b"", 0, 0
        if writer_id is not None or first_event_number is not None or previous_event_number is not None:
            count = events_given
            writer, first = event_identity(writer_id, first_event_number, "first_event_number", count)
        previous = previous_event(previous_event_number, first)
        expected = None if expected_offset is None else check_offset(expected_offset, "expected_offset")
        return await self._append(
            self._host(name), AppendRequest(name, data, size, writer, first, count, previous, expected)
        )

    async def append_each(self, appends: Sequence[JoinedAppend]) -> list[Outcome]:
        """Many appends to many segments at once, those to one segment in order; returns each one's own
        outcome, in order.

        An outcome is what ``append`` would have returned, or the error that it would have raised: one that is
        refused does not stop those behind it. Durable when it returns. Nothing is copied: the bytes must not
        change meanwhile.
        """
        outcomes: list[Outcome] = [None] * len(appends)
        places: dict[int, tuple[list[int], list[AppendRequest]]] = {}
        for index, append in enumerate(appends):
            try:
                host, request = self._joined(append)
            except TierlogError as error:
                outcomes[index] = error
                continue

            indexes, requests = places.setdefault(host.index, ([], []))
            indexes.append(index)
            requests.append(request)

        if self._span is None:
            await self._append_places(places, outcomes)
        else:
            size = sum(len(append.data) for append in appends)
            with self._span("tierlog.append_each", {"count": len(appends), "bytes": size}) as span:
                traced = {
                    place: (indexes, [_traced(each, span) for each in requests])
                    for place, (indexes, requests) in places.items()
                }
                await self._append_places(traced, outcomes)

        return outcomes

    async def seal_segment(self, name: str) -> int:
        """Refuse appends from now on; returns the final length. Sealing a sealed segment is fine."""
        length: int = await self._ask("seal_segment", name, SealRequest(name))
        return length

    async def truncate_segment(self, name: str, offset: int) -> None:
        """Drop the bytes before ``offset``: they can no longer be read, and their chunks are collected.
        ``BadOffset`` past the length."""
        await self._ask("truncate_segment", name, TruncateRequest(name, check_offset(offset)))

    async def delete_segment(self, name: str) -> None:
        """Remove the segment; its name can be used again at once."""
        await self._ask("delete_segment", name, DeleteRequest(name))

    async def merge_segments(
        self, target: str, sources: Sequence[str], *, attribute_updates: Sequence[AttributeUpdate] = ()
    ) -> int:
        """Move the bytes of sealed ``sources``, in order, to the target's tail, all or nothing; returns where
        the first one begins.

        The sources are gone afterwards. ``attribute_updates`` change the target's attributes in the same
        step, and their conditions guard it. Sources must live in the target's container: give them the
        target's name and a suffix, such as ``app/events#part-1``.
        """
        check_segment_name(target)
        names, updates = tuple(check_many("sources", sources)), checked_updates(attribute_updates)
        home = self._index(target)
        for source in names:
            check_segment_name(source)
            if self._index(source) != home:
                raise InvalidArgument(
                    f"{source!r} lives in another container than {target!r}: name it "
                    f"{placement_key(target)}#something"
                )

        if not 0 < len(names) <= SOURCES_MAX or len(set(names)) != len(names):
            raise InvalidArgument(
                f"merge_segments takes 1 to {SOURCES_MAX} different source names, not {sources!r}"
            )

        offset: int = await self._ask("merge_segments", target, MergeRequest(target, names, updates))
        return offset

    async def update_attributes(self, name: str, updates: Sequence[AttributeUpdate]) -> dict[str, int]:
        """Change attributes, all or nothing; returns the new values of the named ones. ``AttributeConflict``
        if a condition does not hold."""
        wanted = checked_updates(updates)
        if not wanted:
            raise InvalidArgument("update_attributes takes at least one AttributeUpdate")

        values: dict[str, int] = await self._ask("update_attributes", name, AttributesRequest(name, wanted))
        return values

    async def expire_writers(self, name: str, writer_ids: Iterable[WriterId]) -> int:
        """Forget these writers' event numbers on purpose; returns how many were known. Their next append
        raises ``UnknownWriter``."""
        writers = tuple(
            required_writer(writer, "expire_writers") for writer in check_many("writer_ids", writer_ids)
        )
        if not writers:
            raise InvalidArgument("expire_writers takes at least one writer id")

        known: int = await self._ask("expire_writers", name, ExpireWritersRequest(name, writers))
        return known

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, possibly fewer; ``b""`` at or past the tail, of a sealed
        segment too.

        Raises ``SegmentNotFound``, ``SegmentTruncated`` (before the start), ``DataCorruption``,
        ``Unavailable``.
        """
        found = await self.read_view(name, offset, size)
        return found if type(found) is bytes else bytes(found)

    async def read_view(self, name: str, offset: int, size: int) -> Buffer:
        """As ``read``, for a server, which passes the bytes on at once: perhaps a view of more memory, which
        it keeps alive."""
        check_offset(offset)
        check_size(size)
        host = self._host(name)
        if self._span is None:
            return await host.call(lambda container: container.read(name, offset, size))

        with self._span(
            "tierlog.read", {"container": host.index, "segment": name, "offset": offset, "bytes": size}
        ):
            return await host.call(lambda container: container.read(name, offset, size))

    async def tail(
        self, name: str, offset: int = 0, *, block_size: int = 1 << 20
    ) -> AsyncGenerator[bytes, None]:
        """Blocks of at most ``block_size`` bytes from ``offset`` on, waiting at the tail; ends when the
        segment is sealed and read through.

        A recovery of the container in between is not noticed. Raises as ``read``; ``SegmentNotFound`` if the
        segment is deleted meanwhile.
        """
        check_offset(offset)
        check_size(block_size, "block_size")
        host = self._host(name)
        position = offset

        async def wait(container: Container) -> bool:
            return await container.wait_beyond(name, position)

        while await host.call(wait):
            block = await self.read(name, position, block_size)
            position += len(block)
            yield block

    async def segment_info(self, name: str) -> SegmentInfo:
        """Length, start, seal, attributes and more, at one moment; all of it durable."""
        info: SegmentInfo = await self._ask("segment_info", name, InfoRequest(name))
        return info

    async def append_starts(self, name: str, start: int, end: int) -> list[int]:
        """Offsets from ``start`` on, below ``end``, at which appends begin, ascending: where the segment can
        be divided among readers.

        About one for each MiB is kept, so this is a choice of them, and not always the same one. At most
        4,096: if there are so many, ask for those behind the last. No data is read. ``SegmentNotFound``.
        """
        check_offset(start, "start")
        check_offset(end, "end")
        return await self._call(
            "append_starts", name, lambda container: container.append_starts(name, start, end)
        )

    async def list_segments(self, prefix: str = "") -> list[str]:
        """The names that begin with ``prefix``, sorted; staged ones (rule T1) only if ``prefix`` has their
        mark, ``#txn.``."""
        if not isinstance(prefix, str):
            raise InvalidArgument(f"prefix is a str, not {type(prefix).__name__}")

        names: list[list[str]] = await self._call_each(lambda container: container.ask(ListRequest(prefix)))
        return sorted(itertools.chain.from_iterable(names))

    async def last_event_number(self, name: str, writer_id: WriterId) -> int | None:
        """The number of the writer's latest event in the segment, or None: where a restarted writer goes
        on."""
        writer = required_writer(writer_id, "last_event_number")
        number: int | None = await self._ask("last_event_number", name, WriterRequest(name, writer))
        return number

    # --- the whole store -------------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when everything acked so far is in long-term storage, in a complete flush cycle of every
        container."""
        hosts = _present(self._checked_hosts())
        errors: list[Exception] = []

        async def flush(host: LocalContainer) -> None:
            try:
                await host.call(lambda container: container.flush())
            except Exception as error:  # noqa: BLE001 - reported below; the other containers' cycles go on
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            for host in hosts:
                tasks.start_soon(flush, host)

        if errors:
            raise errors[0]

    def statistics(self) -> StoreStatistics:
        """A frozen snapshot of every container."""
        return StoreStatistics(
            tuple(host.statistics() for host in _present(self._hosts)),
            None if self._storage is None else self._storage.statistics(),
        )

    def metrics(self) -> bytes:
        """All statistics in Prometheus' text format."""
        from ..telemetry.metrics import render_metrics

        return render_metrics(lambda: (self.statistics(),))

    def container_of(self, name: str) -> int:
        """The index of the container that hosts ``name``."""
        check_segment_name(name)
        return self._index(name)

    @property
    def containers(self) -> int:
        """How many containers the store has."""
        return len(self._hosts)

    async def on_container(self, index: int, act: Callable[[Container], Awaitable[T]]) -> T:
        """For tools of this package: what ``act`` gives on the ownership of the container ``index``, as a
        verb's way is."""
        return await self._checked_hosts()[index].call(act)

    def mark_closed(self) -> None:
        """Refuse further calls; called when the ``async with`` body ends."""
        self._closed = True

    # --- inside ----------------------------------------------------------------------------------

    def _index(self, name: str) -> int:
        return container_of(name, len(self._hosts))

    def _checked_hosts(self) -> Sequence[LocalContainer | RemoteContainer]:
        if self._closed:
            raise ClosedError("the store is closed: use it inside its `async with` body")

        if self._forks != forks.count:
            raise ClosedError(
                "this store was opened by the parent of this forked process: open one here, after the fork"
            )

        return self._hosts

    def _host(self, name: str) -> LocalContainer | RemoteContainer:
        index = self._places.get(name) if type(name) is str else None
        if index is None or self._closed or self._forks != forks.count:
            index = self._place(name)
        return self._hosts[index]

    def _place(self, name: str) -> int:
        self._checked_hosts()
        check_segment_name(name)
        if len(self._places) >= _PLACES_MAX:
            self._places.clear()
        index = self._places[name] = self._index(name)
        return index

    async def _ask(self, verb: str, name: str, request: Request) -> Any:
        return await self._call(verb, name, lambda container: container.ask(request, 256))

    async def _call(self, verb: str, name: str, act: Callable[[Container], Awaitable[T]]) -> T:
        host = self._host(name)
        if self._span is None:
            return await host.call(act)

        with self._span(f"tierlog.{verb}", {"container": host.index, "segment": name}):
            return await host.call(act)

    async def _call_each(self, act: Callable[[Container], Awaitable[T]]) -> list[T]:
        return [await host.call(act) for host in _present(self._checked_hosts())]

    async def _append(self, host: LocalContainer | RemoteContainer, request: AppendRequest) -> int | None:
        """The way that can wait: at a gate, for room, for the next ownership."""
        if self._span is None:
            return await host.call(lambda active: active.append(request))

        about = {
            "container": host.index,
            "segment": request.name,
            "bytes": request.size,
            "count": request.event_count or 1,
        }
        with self._span("tierlog.append", about) as span:
            traced = _traced(request, span)
            return await host.call(lambda active: active.append(traced))

    async def _append_places(
        self, places: Mapping[int, tuple[list[int], list[AppendRequest]]], outcomes: list[Outcome]
    ) -> None:
        async def run(place: int, indexes: list[int], requests: list[AppendRequest]) -> None:
            for index, outcome in zip(indexes, await append_each(self._hosts[place], requests), strict=True):
                outcomes[index] = outcome

        if len(places) == 1:
            [(place, (indexes, requests))] = places.items()
            await run(place, indexes, requests)
        else:
            async with anyio.create_task_group() as tasks:
                for place, (indexes, requests) in places.items():
                    tasks.start_soon(run, place, indexes, requests)

    def _joined(self, append: JoinedAppend) -> tuple[LocalContainer | RemoteContainer, AppendRequest]:
        data, writer, first, count = append.data, append.writer, append.first_event, append.count
        size = len(data)
        if size > self.append_bytes_max:
            raise self._too_large(size)

        previous, expected = check_joined(append)
        return self._host(append.name), AppendRequest(
            append.name, data, size, writer, first, count, previous, expected
        )

    def _too_large(self, size: int) -> InvalidArgument:
        return InvalidArgument(
            f"an append holds at most {self.append_bytes_max} bytes, not {size}: split it, or raise "
            f"append_bytes_max"
        )


def _traced(request: AppendRequest, span: object) -> AppendRequest:
    """Its group's span will name ``span``, if the hook gave one."""
    return request if span is None else TracedAppendRequest(request, span)


def _present(hosts: Sequence[LocalContainer | RemoteContainer]) -> list[LocalContainer]:
    """Those that are served here."""
    return [host for host in hosts if not isinstance(host, RemoteContainer)]

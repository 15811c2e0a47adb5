"""One process's parts of one store: its containers, the actor for long-term storage, and the ``SegmentStore``
that calls them, started and stopped in order.

The caller gives the log and the chunk storage: ``opening.py`` real ones, tests simulated ones.

Start: the storage actor, then every container, until each answers; if one never will, the start fails with
its reason. Stop, also on cancellation and Ctrl-C: refuse new calls, stop the containers (each finishes what
it accepted), stop the storage actor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from msgspec import Struct
from msgspec.structs import replace

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ClosedError, TierlogError
from ...storage_backends.base.segment_layout import StoragePlace
from ...storage_backends.base.transactions import LEASE_MAX, STAGED_MAX
from ...storage_backends.base.world import World
from ..chunk_io.actor import StorageActor
from ..chunk_io.client import StorageClient
from ..chunk_io.health import StorageHealthStatistics
from ..chunk_io.options import StorageOptions
from ..container.container import Container
from ..container.local_container import LocalContainer, RemoteContainer
from ..container.local_disk import LocalDisk
from ..container.options import ContainerOptions
from ..container.owner import Identity
from ..container.shared_store_record import SharedStoreRecord
from ..folder.fingerprint import Fingerprint
from ..folder.identity import StoreIdentity
from ..kernel.loop_lag import LoopLag
from ..kernel.supervision import RestartPolicy
from ..kernel.task_groups import body_group
from ..settings.layout_mode import LayoutMode
from ..telemetry.tracing import SpanHook
from .store import RollingSizes, SegmentStore

if TYPE_CHECKING:
    from ...journal.coordination.contract import Coordination
    from ...storage_backends.chunks.chunk_cache import ChunkCache
    from ...storage_backends.chunks.s3_request_counts import S3RequestCounts, S3RequestStatistics
    from ..container.legacy_hook import LegacyHook
    from ..container.statistics import LocalContainerStatistics
    from .graceful_end import EndReport, GracefulEnd
    from .statistics import StoreStatistics

_FENCE_CHECK_SECONDS = 1.0


class RuntimeOptions(Struct, frozen=True, eq=False):
    container: ContainerOptions
    storage: StorageOptions
    restart: RestartPolicy
    unavailable_wait: float
    """Seconds that a call waits for a container that is recovering."""
    append_bytes_max: int
    rolling_sizes: RollingSizes
    lease_max: float = LEASE_MAX
    """Seconds; a transaction gets no longer lease."""
    staged_max: int = STAGED_MAX
    """Staged segments; an open transaction gets no more."""
    layout: LayoutMode = LayoutMode.INSTALL_NEW
    flush_budget: float = 0.0
    """Seconds for which the end of ``running()`` flushes first (rule F9)."""


class RuntimeParts(Struct, frozen=True, eq=False, kw_only=True):
    """The parts with which a process serves a store."""

    identity: StoreIdentity
    owner_id: str
    chunks: ChunkStorage
    chunk_cache: ChunkCache | None = None
    """In front of ``chunks``, if it is used."""
    folder: Fingerprint = Fingerprint()
    place: StoragePlace = StoragePlace()
    """Where ``chunks`` are, as far as other processes can reach them."""
    make_disk: Callable[[int], LocalDisk]
    """Returns a new, unopened log of the container with that index, and where its runs are; called once per
    ownership."""
    options: RuntimeOptions
    world: World
    span: SpanHook | None = None
    withdraw: Callable[[], Awaitable[None]] | None = None
    """Called once another owner has fenced all containers: this process has the folder open no longer. None
    for a host, whose supervisor decides that, and in simulated time, where nobody is asked."""
    requests: S3RequestCounts | None = None
    """Counts those to the bucket, if there is one."""
    coordination: Coordination | None = None
    """What the store's processes agree on, if it is in a bucket as a whole."""
    loop_lag: LoopLag | None = None
    """Measures the lag of the event loop; None in simulated time, which has none."""


class ContainerRuntime:
    """The containers of one store that this process serves. Each is opened and closed on order; the end of
    ``running()`` closes all of them.

    ``store`` has the verbs. Those on a container that is not served here raise ``NotOwner``.
    """

    def __init__(self, parts: RuntimeParts) -> None:
        options = parts.options
        self.containers = parts.identity.containers
        """How many the store has, served here or not."""
        self.store_id = parts.identity.store_id.hex()
        self._parts = parts
        record = SharedStoreRecord(parts.identity.store_id, parts.identity.containers)
        cache = parts.chunk_cache
        self._container_options = replace(
            options.container,
            span=parts.span,
            chunk_cache=cache,
            store_record=record,
            place=replace(parts.place, store=self.store_id),
        )
        chunks = parts.chunks
        if cache is not None:
            # Imported for the stores that have one, as S3 is.
            from ...storage_backends.chunks.cached import CachedChunkStorage

            chunks = CachedChunkStorage(chunks, cache)
        self._actor = StorageActor(chunks, options.storage, parts.world.random)
        self._containers: list[LocalContainer | RemoteContainer] = [
            RemoteContainer(index) for index in range(self.containers)
        ]
        self._ended: dict[int, anyio.Event] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._supervising, self._stopping = anyio.Event(), anyio.Event()
        self._storage_opened, self._storage_ended = False, anyio.Event()
        self._not_opened: TierlogError | None = None
        self.store = SegmentStore(
            self._containers,
            append_bytes_max=options.append_bytes_max,
            rolling_sizes=options.rolling_sizes,
            lease_max=options.lease_max,
            staged_max=options.staged_max,
            store_id=self.store_id,
            span=parts.span,
            statistics=self._statistics,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ContainerRuntime]:
        """Serve inside the body; at its end, however it ends, every container is closed before the storage
        actor stops."""
        end: GracefulEnd | None = None
        try:
            async with background(self._run_storage, self._actor.stop):
                await self._wait_storage()
                async with background(self._supervise, self._stop):
                    await self._supervising.wait()
                    try:
                        yield self
                    finally:
                        # Before the containers stop: later calls get ``ClosedError``, not the error of a
                        # container that ends.
                        self.store.mark_closed()
                        if self._parts.options.flush_budget:
                            end = self._end()
                            await end.flush()
        finally:
            if end is not None:
                self.store.end_report = end.report()

    def begin(self, index: int) -> LocalContainer:
        """Begin to serve the container ``index``, which fences every other owner. ``wait_started`` of the
        result returns once it answers, or raises why it never will."""
        if self._tasks is None or self._stopping.is_set() or index in self._ended:
            raise RuntimeError(f"container {index} is served here already, or the runtime is stopping")

        container = self._containers[index] = self._local_container(index)
        # Set when the task has ended: `close` waits for that, not for the stop alone.
        self._ended[index] = anyio.Event()
        self._tasks.start_soon(self._run, container)
        return container

    async def flush_before_end(self) -> EndReport:
        """Flush what is served here, within the budget; calls of clients go on meanwhile."""
        end = self._end()
        await end.flush(serves=True)
        return end.report()

    def _end(self) -> GracefulEnd:
        from .graceful_end import GracefulEnd

        served = [container for container in self._containers if isinstance(container, LocalContainer)]
        return GracefulEnd(served, self._actor, self._parts.options.flush_budget)

    async def open(self, index: int) -> None:
        """``begin``, and return once the container answers. If it never will, raises the reason and does not
        serve it."""
        container = self.begin(index)
        try:
            await container.wait_started()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close(index)
            raise

    async def close(self, index: int) -> None:
        """Stop serving the container: it finishes what it accepted, and its log gets its footer. Does nothing
        if it is not served."""
        container, ended = self._containers[index], self._ended.get(index)
        if isinstance(container, RemoteContainer) or ended is None:
            return

        container.stop()
        await ended.wait()

    def serves(self, index: int) -> bool:
        """Whether the container was begun here and has not ended."""
        return index in self._ended

    @property
    def storage_health(self) -> StorageHealthStatistics:
        """The health of long-term storage, as this process sees it."""
        return self._actor.health

    @property
    def requests(self) -> S3RequestStatistics | None:
        """Those to the bucket, if the store has one."""
        counts = self._parts.requests
        return None if counts is None else counts.statistics()

    @property
    def coordination(self) -> Coordination | None:
        """What the store's processes agree on, if it is in a bucket as a whole."""
        return self._parts.coordination

    def container(self, index: int) -> LocalContainer | RemoteContainer:
        return self._containers[index]

    def forget(self, index: int) -> None:
        """Treat a container that ended by itself as one that is not served here: callers get ``NotOwner``
        instead of the reason why it ended."""
        # One that runs keeps its place in the list until it has ended.
        if index not in self._ended:
            self._containers[index] = RemoteContainer(index)

    def epochs(self) -> dict[int, int]:
        """The epoch of each container that answers here and is not fenced according to its log."""
        active = (self._containers[index].active for index in sorted(self._ended))
        return {owner.index: owner.state.epoch for owner in active if owner is not None and _is_owner(owner)}

    # --- inside ----------------------------------------------------------------------------------

    async def _run_storage(self) -> None:
        try:
            await self._actor.run()
        except TierlogError as error:
            # Later failures are those of a running actor, which end the store.
            if self._storage_opened:
                raise
            # Raised by `_wait_storage` instead.
            self._not_opened = error
        finally:
            self._storage_ended.set()

    async def _wait_storage(self) -> None:
        """Raises the reason if long-term storage cannot be opened: from its own task it would be in an
        exception group."""
        try:
            await self._actor.wait_active()
        except ClosedError:
            await self._storage_ended.wait()
            if self._not_opened is None:
                raise
            # With its own cause: otherwise the message would show the ``ClosedError`` that it explains.
            raise self._not_opened from self._not_opened.__cause__
        self._storage_opened = True

    def _local_container(self, index: int) -> LocalContainer:
        parts, options = self._parts, self._parts.options

        def make() -> Container:
            identity = Identity(
                parts.identity.store_id,
                parts.identity.container_log_id(index),
                bytes.fromhex(parts.owner_id),
                parts.folder,
                parts.identity.containers,
            )
            return Container(
                index,
                parts.make_disk(index),
                StorageClient(self._actor),
                identity,
                parts.world,
                self._container_options,
                make_hook(options.layout),
            )

        return LocalContainer(index, make, options.restart, parts.world.random, options.unavailable_wait)

    async def _supervise(self) -> None:
        async with anyio.create_task_group() as self._tasks, anyio.create_task_group() as helpers:
            # In a group of its own: the measurement ends when the containers begin to stop.
            if (lag := self._parts.loop_lag) is not None:
                helpers.start_soon(self._container_options.protect(lag.watch))
            if (withdraw := self._parts.withdraw) is not None:
                helpers.start_soon(self._container_options.protect(self._watch_fences), withdraw)
            self._supervising.set()
            await self._stopping.wait()
            helpers.cancel_scope.cancel()

    async def _watch_fences(self, withdraw: Callable[[], Awaitable[None]]) -> None:
        """An idle process would never notice that another one took the folder over."""
        fenced = False
        while not fenced:
            await anyio.sleep(_FENCE_CHECK_SECONDS)
            fenced = all([await container.ends_fenced() for container in self._containers])
        await withdraw()

    def _statistics(self, containers: tuple[LocalContainerStatistics, ...]) -> StoreStatistics:
        from .statistics import StoreStatistics

        lag = self._parts.loop_lag
        return StoreStatistics(
            containers, self._actor.statistics(), None if lag is None else lag.statistics(), self.requests
        )

    def _stop(self) -> None:
        self._stopping.set()
        # All of them before any is awaited: they finish their work at the same time.
        for container in self._containers:
            container.stop()

    async def _run(self, container: LocalContainer) -> None:
        try:
            await container.run()
        finally:
            if container.is_closing and not self._stopping.is_set():
                # Closed on order. A fenced or failed container stays, so that callers get the reason.
                self._containers[container.index] = RemoteContainer(container.index)
            self._ended.pop(container.index).set()


def _is_owner(container: Container) -> bool:
    try:
        container.log.check_owner()
    except TierlogError:
        return False  # fenced, or ending for another reason
    return True


@asynccontextmanager
async def serve(parts: RuntimeParts) -> AsyncIterator[SegmentStore]:
    """Serve all containers of the store to the body."""
    runtime = ContainerRuntime(parts)
    async with runtime.running():
        if parts.options.container.migrates:
            # E3: whoever gets the first one gets the others.
            for index in range(runtime.containers):
                await runtime.open(index)
        else:
            for container in [runtime.begin(index) for index in range(runtime.containers)]:
                await container.wait_started()
        yield runtime.store


def make_hook(mode: LayoutMode) -> LegacyHook | None:
    """The hook for a store in that mode; None if it neither imports at first access nor writes headers."""
    if not mode.imports_legacy:
        return None

    # Imported for the stores that need it, as S3 is.
    from ..legacy_rolling.hook import RollingLayout

    return RollingLayout(writes_headers=mode.writes_headers)


@asynccontextmanager
async def background(run: Callable[[], Awaitable[Any]], stop: Callable[[], None]) -> AsyncIterator[None]:
    """Run ``run`` alongside the body. At the body's end, however it ends, ask it to stop and wait for it,
    shielded from cancellation."""
    async with body_group() as tasks:
        done = anyio.Event()

        async def shielded() -> None:
            # The parts end in their own order (drain, footer), not at the point where the app was cancelled.
            with anyio.CancelScope(shield=True):
                try:
                    await run()
                finally:
                    done.set()

        tasks.start_soon(shielded)
        try:
            yield
        finally:
            stop()
            with anyio.CancelScope(shield=True):
                await done.wait()

"""The only place that names implementations and wires them: files, logs, chunk storage, the storage actor, containers, the store.

Owns: ``open_store``, the start and stop order of a process's parts, and what comes from the outside world (clock, randomness, ids,
process id). Does not own: anything that the parts do.

Start: read or make the store's identity, announce the opening, start the storage actor, start every container and wait until each
answers; if one never will, the opening fails with its reason. Stop, also on cancellation and Ctrl-C: refuse new calls, stop the
containers (each finishes what it took in), stop the storage actor, withdraw the announcement. ``close`` does not flush: what is acked is
in the log.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio

from ..storage_backends.base.chunk_storage import ChunkStorage
from ..storage_backends.base.errors import InvalidArgument, StoreMismatch
from ..storage_backends.base.files import Files
from ..storage_backends.base.world import World
from ..storage_backends.chunks.filesystem import FileSystemChunkStorage
from ..storage_backends.files.local import LocalFiles
from ..storage_backends.logs.local import LocalLog
from ..storage_backends.logs.local_layout import LocalLogOptions, log_folder
from . import presence
from .config import StoreConfig
from .container.admission import AdmissionOptions
from .container.checkpointer import CheckpointOptions
from .container.claim import Identity
from .container.container import Container, ContainerOptions
from .container.host import ContainerHost
from .container.pipeline import PipelineOptions, Protect, unprotected
from .core.backoff import Backoff
from .core.events import EventSource
from .core.log import get_logger
from .core.mailbox import LaneBounds, MailboxOptions
from .core.supervision import RestartPolicy
from .folder import StoreFolder, check_path, run_program
from .gc.collector import CollectorOptions
from .identity import StoreIdentity, create_identity, read_identity
from .storage.actor import StorageActor
from .storage.client import StorageClient
from .storage.options import StorageOptions
from .store import SegmentStore, SpanHook
from .writer.writer import WriterOptions

_log = get_logger("node")


def system_world() -> World:
    """The real clock, real randomness, real ids."""
    return World(time.time, Random(), lambda: uuid.uuid4().hex)


async def identify(files: Files, wal: str, containers: int | None, config: StoreConfig, world: World) -> StoreIdentity:
    """The folder's identity, made if it is new. ``StoreMismatch`` if it was made with another number of containers."""
    found = await run_program(files, read_identity(wal), wal)
    if found is None:
        count = config.containers if containers is None else containers
        fresh = StoreIdentity(bytes.fromhex(world.new_id()), bytes.fromhex(world.new_id()), count, int(world.wall_clock() * 1000))
        found = await run_program(files, create_identity(wal, fresh, f".store-{world.new_id()}"), wal)
    if containers is not None and found.containers != containers:
        raise StoreMismatch(
            f"{wal} was made with {found.containers} containers, not {containers}: the number is fixed when a folder is made"
        )

    return found


def log_options(config: StoreConfig) -> LocalLogOptions:
    wal = config.wal
    # Blocks are allocated ahead in steps, and a file never needs more of them than it may grow.
    step = min(LocalLogOptions().allocation_step, wal.file_size)
    return LocalLogOptions(file_size=wal.file_size, reserve=wal.reserve, low_water=wal.low_water, allocation_step=step)


def storage_options(config: StoreConfig) -> StorageOptions:
    storage = config.storage
    return StorageOptions(
        reads_max=storage.concurrent_calls,
        writes_max=storage.concurrent_calls,
        attempts=storage.attempts,
        backoff=Backoff(first=storage.backoff, maximum=storage.backoff_max),
        read_deadline=storage.read_deadline,
        write_deadline=storage.write_deadline,
        safe_size_bytes=storage.safe_size,
        safe_size_interval=storage.safe_size_interval,
        breaker_interval=storage.probe_interval,
    )


def container_options(config: StoreConfig, *, adopt: bool) -> ContainerOptions:
    cache = config.cache
    return ContainerOptions(
        cache_bytes=cache.bytes,
        flush_bytes=config.writer.flush_bytes,
        admission=AdmissionOptions(
            soft_bytes=int(cache.bytes * cache.soft), hard_bytes=int(cache.bytes * cache.hard), segment_bytes=cache.bytes // 4
        ),
        active_segments_max=config.segments.active_max,
        mailbox=MailboxOptions(normal=LaneBounds(count=config.mailbox.count, size_bytes=config.mailbox.bytes)),
        pipeline=PipelineOptions(config.group.bytes, config.group.count),
        writer=WriterOptions(config.writer.flush_age, config.writer.concurrent_segments, config.writer.error_pause),
        collector=CollectorOptions(config.gc.delay, config.gc.attempts, config.gc.concurrent_deletes),
        checkpoint=CheckpointOptions(config.checkpoint.wal_bytes, 4 * config.checkpoint.wal_bytes),
        close_timeout=config.timeouts.close,
        events=event_source,
        protect=_protection(),
        adopt=adopt,
    )


def restart_policy(config: StoreConfig) -> RestartPolicy:
    supervision = config.supervision
    return RestartPolicy(
        backoff=Backoff(first=supervision.backoff, maximum=supervision.backoff_max),
        restarts_max=supervision.restarts,
        window=supervision.period,
    )


class _FutureEvent:
    """A bare asyncio future as an event: about a quarter of the cost of an ``asyncio.Event`` in anyio's wrapping."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self._future = future

    def set(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    def wait(self) -> asyncio.Future[None]:
        return self._future


def event_source() -> EventSource:
    """Events of the loop that is running."""
    trio = _running_trio()
    if trio is not None:
        return EventSource(trio.Event)

    create_future = asyncio.get_running_loop().create_future
    return EventSource(lambda: _FutureEvent(create_future()))


def _running_trio() -> Any:
    """The trio module if trio runs this task, else None. Never imports it."""
    trio = sys.modules.get("trio")
    return trio if trio is not None and trio.lowlevel.in_trio_run() else None


def _protection() -> Protect:
    """On trio, keep Ctrl-C out of the containers' tasks (rule C5, hole 42): it reaches the app's own tasks instead."""
    trio = _running_trio()
    if trio is None:
        return unprotected

    protect: Protect = trio.lowlevel.enable_ki_protection
    return protect


@asynccontextmanager
async def open_store(
    path: str | os.PathLike[str],
    *,
    containers: int | None = None,
    config: StoreConfig | None = None,
    storage: ChunkStorage | None = None,
    adopt: bool = False,
    span: SpanHook | None = None,
    world: World | None = None,
    files: Files | None = None,
) -> AsyncIterator[SegmentStore]:
    """Open the store in the folder ``path``, made if it is missing: ``async with open_store("data", containers=4) as store``.

    ``containers`` is fixed when the folder is made. ``storage`` replaces the folder's own ``lts/`` as long-term storage. ``adopt`` opens a
    copied or restored folder although long-term storage knows a newer owner. ``span`` is called around every append. ``world`` and
    ``files`` are for simulations.

    Opening fences every earlier owner: an app that has the folder open gets ``NotOwner``. Raises ``StoreMismatch``, ``DataCorruption``
    (file, offset), ``StorageFull``, ``Unavailable``, ``InvalidArgument``.
    """
    folder = check_path(path)
    config = config or StoreConfig()
    if containers is not None and (type(containers) is not int or not 1 <= containers <= 1024):
        raise InvalidArgument(f"containers is an int from 1 to 1024, not {containers!r}")

    node = Node(folder, config, storage, adopt, span, world or system_world(), files or LocalFiles())
    async with node.running(containers) as store:
        yield store


class Node:
    """One process's parts of one store."""

    def __init__(
        self,
        folder: StoreFolder,
        config: StoreConfig,
        storage: ChunkStorage | None,
        adopt: bool,
        span: SpanHook | None,
        world: World,
        files: Files,
    ) -> None:
        self._span = span
        self._folder = folder
        self._config = config
        self._adopt = adopt
        self._world = world
        self._files = files
        self._chunks = storage or FileSystemChunkStorage(files, folder.chunks, world)

    @asynccontextmanager
    async def running(self, containers: int | None) -> AsyncIterator[SegmentStore]:
        identity = await identify(self._files, self._folder.wal, containers, self._config, self._world)
        owner = presence.Owner(self._world.new_id(), os.getpid(), socket.gethostname(), int(self._world.wall_clock() * 1000))
        owners = self._folder.owners
        announced = await run_program(self._files, presence.announce(owners, owner), owners)
        try:
            async with self._serving(identity, owner.owner_id) as store:
                yield store
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self._files.run(presence.withdraw(owners, owner, announced))
                except OSError as error:
                    # Only information: the next opening sweeps the file, because nobody holds its lock.
                    _log.warning("owner_file_left", folder=owners, error=str(error))

    @asynccontextmanager
    async def _serving(self, identity: StoreIdentity, owner_id: str) -> AsyncIterator[SegmentStore]:
        actor = StorageActor(self._chunks, storage_options(self._config), self._world.random)
        hosts = [self._host(index, identity, owner_id, StorageClient(actor)) for index in range(identity.containers)]
        store = SegmentStore(
            hosts,
            append_bytes_max=self._config.append_bytes_max,
            rolling_size=self._config.writer.rolling_size,
            span=self._span,
            storage=actor,
        )
        async with _background(actor.run, actor.stop):
            await actor.wait_active()
            async with _all_running(hosts):
                try:
                    for host in hosts:
                        await host.wait_started()
                    yield store
                finally:
                    store.mark_closed()

    def _host(self, index: int, identity: StoreIdentity, owner_id: str, chunks: ChunkStorage) -> ContainerHost:
        config = self._config
        options = container_options(config, adopt=self._adopt)
        log_id = identity.container_log_id(index)

        def make() -> Container:
            log = LocalLog(self._files, log_folder(self._folder.wal, index), log_id, log_options(config))
            who = Identity(identity.store_id, log_id, bytes.fromhex(owner_id))
            return Container(index, log, chunks, who, self._world, options)

        return ContainerHost(index, make, restart_policy(config), self._world.random, config.timeouts.unavailable)


@asynccontextmanager
async def _background(run: Callable[[], Awaitable[Any]], stop: Callable[[], None]) -> AsyncIterator[None]:
    """Run ``run`` beside the body; at the body's end, however it ends, ask it to stop and wait for it, out of the cancellation's reach."""
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def shielded() -> None:
            # The parts end by their own order (drain, footer), not where a cancellation of the app happens to strike.
            with anyio.CancelScope(shield=True):
                try:
                    await run()
                finally:
                    done.set()

        tasks.start_soon(shielded)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again below
            # Raised again outside the task group, so that an app's own exception does not come back wrapped in a group.
            failure = error
        finally:
            stop()
            with anyio.CancelScope(shield=True):
                await done.wait()

    if failure is not None:
        raise failure


@asynccontextmanager
async def _all_running(hosts: list[ContainerHost]) -> AsyncIterator[None]:
    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            for host in hosts:
                tasks.start_soon(host.run)

    def stop() -> None:
        for host in hosts:
            host.stop()

    async with _background(run, stop):
        yield

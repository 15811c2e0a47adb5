"""The only place that names implementations: files, logs, chunk storage, and what comes from the outside
world.

Owns: the openings, the choice of each part, what the configuration means for it, and the clock, randomness,
ids and process id. Does not own: the order in which the parts start and stop (``serving.py``), nor anything
that they do.

An opening reads or makes the store's identity, announces itself, and serves until the body ends; then it
withdraws the announcement. ``close`` does not flush: what is acked is in the log.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import anyio
import attrs

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import LocalLogOptions, log_folder
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.world import World
from ...storage_backends.chunks.base import BaseChunkStorage
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.core import ChunkedOptions
from ...storage_backends.segments.defrag_rules import DefragOptions
from ..chunk_io.options import StorageOptions
from ..container.admission import AdmissionOptions
from ..container.checkpoint import CheckpointOptions
from ..container.container import ContainerOptions
from ..container.pipeline import PipelineOptions, Protect, unprotected
from ..flush.writer import WriterOptions
from ..folder import lock_files
from ..folder.chunk_location import check_location, make_chunk_storage, resolve_location
from ..folder.identity import StoreIdentity, create_identity, read_identity
from ..folder.layout_version import apply_layout_mode
from ..folder.paths import (
    STORE_TEMPORARY,
    StoreFolder,
    check_path,
    existing_identity,
    remove_empty_restore_folders,
    remove_temporary_files,
    run_program,
)
from ..gc.collector import CollectorOptions
from ..kernel.backoff import Backoff
from ..kernel.event_loop import event_source, running_trio
from ..kernel.mailbox import LaneBounds, MailboxOptions
from ..kernel.supervision import RestartPolicy
from ..read.read_ahead import ReadAheadOptions
from ..read.read_ahead_budget import ReadAheadBudget
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from ..telemetry.tracing import SpanHook
from .runtime import ContainerRuntime, RuntimeOptions, RuntimeParts, serve
from .store import SegmentStore

_log = get_logger("node")


def system_world() -> World:
    """The real clock, real randomness, real ids."""
    return World(time.time, Random(), lambda: uuid.uuid4().hex)


def _shown_time(world: World) -> int:
    """Milliseconds since 1970, for people only: nothing is decided by it. A clock before 1970 is told as
    1970, for records hold no sign."""
    return max(0, int(world.wall_clock() * 1000))


async def identify(
    files: Files, wal: str, containers: int | None, config: StoreConfig, world: World
) -> StoreIdentity:
    """The folder's identity, made if it is new. ``StoreMismatch`` if it was made with another number of
    containers."""
    found = await run_program(files, read_identity(wal), wal)
    if found is None:
        count = config.containers if containers is None else containers
        fresh = StoreIdentity(
            bytes.fromhex(world.new_id()), bytes.fromhex(world.new_id()), count, _shown_time(world)
        )
        found = await run_program(
            files, create_identity(wal, fresh, f"{STORE_TEMPORARY}{world.new_id()}"), wal
        )
    if containers is not None and found.containers != containers:
        raise StoreMismatch(
            f"{wal} was made with {found.containers} containers, not {containers}: the number is fixed when "
            f"a folder is made"
        )

    return found


def log_options(config: StoreConfig) -> LocalLogOptions:
    wal = config.wal
    # Blocks are allocated ahead in steps, and a file never needs more of them than it may grow.
    usual = LocalLogOptions()
    return LocalLogOptions(
        file_size=wal.file_size,
        reserve=wal.reserve,
        low_water=wal.low_water,
        allocation_step=min(usual.allocation_step, wal.file_size),
        length_step=min(usual.length_step, wal.file_size),
    )


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
            soft_bytes=int(cache.bytes * cache.soft),
            hard_bytes=int(cache.bytes * cache.hard),
            segment_bytes=cache.bytes // 4,
        ),
        active_segments_max=config.segments.active_max,
        mailbox=MailboxOptions(
            normal=LaneBounds(count=config.mailbox.count, size_bytes=config.mailbox.bytes)
        ),
        pipeline=PipelineOptions(config.group.bytes, config.group.count),
        writer=WriterOptions(
            config.writer.flush_age, config.writer.concurrent_segments, config.writer.error_pause
        ),
        collector=CollectorOptions(config.gc.delay, config.gc.attempts, config.gc.concurrent_deletes),
        checkpoint=CheckpointOptions(config.checkpoint.wal_bytes, 4 * config.checkpoint.wal_bytes),
        tombstone=config.transactions.tombstone,
        close_timeout=config.timeouts.close,
        events=event_source,
        protect=_protection(),
        adopt=adopt,
        read_ahead=_read_ahead(config),
        # Half of the calls at a time are left to those that nobody foresaw.
        read_ahead_budget=ReadAheadBudget(
            config.read_ahead.total_bytes, max(1, config.storage.concurrent_calls // 2)
        ),
        chunked=ChunkedOptions(defrag=DefragOptions(**attrs.asdict(config.defrag))),
    )


def _read_ahead(config: StoreConfig) -> ReadAheadOptions:
    usual, ahead = ReadAheadOptions(), config.read_ahead.bytes
    return attrs.evolve(
        usual, ahead_bytes=ahead, window_bytes=min(usual.window_bytes, max(usual.block_bytes, ahead))
    )


def restart_policy(config: StoreConfig) -> RestartPolicy:
    supervision = config.supervision
    return RestartPolicy(
        backoff=Backoff(first=supervision.backoff, maximum=supervision.backoff_max),
        restarts_max=supervision.restarts,
        window=supervision.period,
    )


def runtime_options(config: StoreConfig, *, adopt: bool) -> RuntimeOptions:
    return RuntimeOptions(
        container=container_options(config, adopt=adopt),
        storage=storage_options(config),
        restart=restart_policy(config),
        unavailable_wait=config.timeouts.unavailable,
        append_bytes_max=config.append_bytes_max,
        rolling_size=config.writer.rolling_size,
        lease_max=config.transactions.lease_max,
        staged_max=config.transactions.staged_max,
        layout=LayoutMode(config.layout),
    )


def _protection() -> Protect:
    """On trio, keep Ctrl-C out of the containers' tasks (rule C5): it reaches the app's own tasks
    instead."""
    trio = running_trio()
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
    """Open the store in the folder ``path``, made if it is missing: ``async with open_store("data",
    containers=4) as store``.

    ``containers`` is fixed when the folder is made, and so is ``chunks`` in the configuration: where
    long-term storage is, the folder's own ``lts/`` or a bucket. ``storage`` replaces it by a chunk storage of
    your own. ``adopt`` opens a copied or restored folder although long-term storage knows a newer owner.
    ``span`` is told of every call and of the log's groups: ``tierlog.opentelemetry_tracing()``, or a hook of
    your own. ``world`` and ``files`` are for simulations.

    Opening fences every earlier owner: an app that has the folder open gets ``NotOwner``. Raises
    ``StoreMismatch``, ``DataCorruption`` (file, offset), ``StorageFull``, ``Unavailable``,
    ``InvalidArgument``.
    """
    folder = check_path(path)
    config = config or StoreConfig()
    if containers is not None and (type(containers) is not int or not 1 <= containers <= 1024):
        raise InvalidArgument(f"containers is an int from 1 to 1024, not {containers!r}")

    opener = StoreOpener(folder, config, storage, adopt, span, world or system_world(), files or LocalFiles())
    async with opener.store(containers) as store:
        yield store


@asynccontextmanager
async def open_host(
    path: str | os.PathLike[str],
    host_id: str,
    *,
    config: StoreConfig,
    storage: ChunkStorage | None = None,
    adopt: bool = False,
    span: SpanHook | None = None,
) -> AsyncIterator[ContainerRuntime]:
    """Open the existing store in ``path`` as the host process ``host_id``: the containers that it is told to
    serve, none at first."""
    opener = StoreOpener(check_path(path), config, storage, adopt, span, system_world(), LocalFiles())
    async with opener.runtime(host_id) as runtime:
        yield runtime


@asynccontextmanager
async def announced(
    files: Files, world: World, folder: StoreFolder, role: str, url: str = ""
) -> AsyncIterator[str]:
    """Say that this process has the folder open, and take it back at the end. Yields the opening's own id."""
    owner = lock_files.Owner(
        world.new_id(), os.getpid(), socket.gethostname(), _shown_time(world), role=role, url=url
    )
    owners = folder.owners
    handle = await run_program(files, lock_files.create_lock_file(owners, owner), owners)
    try:
        yield owner.owner_id
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await files.run(lock_files.remove_lock_file(owners, owner, handle))
            except OSError as error:
                # Only information: the next opening sweeps the file, because nobody holds its lock.
                _log.warning("owner_file_left", folder=owners, error=str(error))


class StoreOpener:
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
        self._storage = storage

    @asynccontextmanager
    async def store(self, containers: int | None) -> AsyncIterator[SegmentStore]:
        """Serve all containers."""
        chunks = await self._chunks()
        identity = await identify(self._files, self._folder.wal, containers, self._config, self._world)
        await self._settle_layout()
        async with self._announced("") as owner_id, serve(self._parts(identity, owner_id, chunks)) as store:
            yield store

    @asynccontextmanager
    async def runtime(self, host_id: str) -> AsyncIterator[ContainerRuntime]:
        """Serve no container but those that the body begins."""
        identity = await existing_identity(self._files, self._folder)
        chunks = await self._chunks()
        await self._settle_layout()
        async with (
            self._announced(host_id) as owner_id,
            ContainerRuntime(self._parts(identity, owner_id, chunks)).running() as runtime,
        ):
            yield runtime

    async def _chunks(self) -> ChunkStorage:
        """Long-term storage, with its calls told to the tracer."""
        chunks = self._storage if self._storage is not None else await self._own_chunks()
        if self._span is not None and isinstance(chunks, BaseChunkStorage):
            chunks.observe(self._span)
        return chunks

    async def _own_chunks(self) -> ChunkStorage:
        """The chunk storage at this folder's chunk location."""
        location = await resolve_location(self._files, self._folder, self._config, self._world)
        if await run_program(self._files, read_identity(self._folder.wal), self._folder.wal) is None:
            # The folder is not made yet: a wrong location can still be corrected.
            await check_location(location, self._files, self._folder, self._world)
        return make_chunk_storage(location, self._files, self._folder, self._world)

    async def _settle_layout(self) -> None:
        await run_program(self._files, remove_empty_restore_folders(self._folder), self._folder.path)
        await run_program(self._files, remove_temporary_files(self._folder), self._folder.wal)
        await apply_layout_mode(self._files, self._folder, LayoutMode(self._config.layout), self._world)

    def _parts(self, identity: StoreIdentity, owner_id: str, chunks: ChunkStorage) -> RuntimeParts:
        return RuntimeParts(
            identity=identity,
            owner_id=owner_id,
            chunks=chunks,
            make_log=lambda index: self._log(identity, owner_id, index),
            options=runtime_options(self._config, adopt=self._adopt),
            world=self._world,
            span=self._span,
        )

    def _announced(self, role: str) -> AbstractAsyncContextManager[str]:
        return announced(self._files, self._world, self._folder, role)

    def _log(self, identity: StoreIdentity, owner_id: str, index: int) -> LocalLog:
        folder, log_id = log_folder(self._folder.wal, index), identity.container_log_id(index)
        return LocalLog(self._files, folder, log_id, log_options(self._config), owner=bytes.fromhex(owner_id))

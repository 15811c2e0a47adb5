"""Opening a store: with ``shared.py`` and what that imports the only place that names implementations (files,
logs, chunk storage). ``folder_opening.py`` has the first steps.

An opening reads or creates the store's identity, announces itself in the folder, serves until the body ends,
and withdraws the announcement. What is acked is in the log, so the end of a store flushes only if it has a
budget for that (rule F9).
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
import anyio.to_thread
import attrs
from msgspec.structs import replace

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import LocalLogOptions, log_folder
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import InvalidArgument, StoreMismatch, shown
from ...storage_backends.base.files import Files, Program, sync_ancestry
from ...storage_backends.base.segment_layout import StoragePlace
from ...storage_backends.base.world import World
from ...storage_backends.chunks.base import BaseChunkStorage
from ...storage_backends.chunks.filesystem import FileSystemChunkStorage
from ...storage_backends.files.local import LocalFiles
from ...storage_backends.segments.defrag_rules import DefragOptions
from ...storage_backends.segments.options import ChunkedOptions
from ..chunk_io.options import StorageOptions
from ..container.admission import SEGMENTS_MAX, AdmissionOptions
from ..container.checkpoint import CheckpointOptions
from ..container.local_disk import LocalDisk, RunFolder, run_folder
from ..container.options import ContainerOptions
from ..container.pipeline import PipelineOptions, Protect, unprotected
from ..flush.writer import WriterOptions
from ..folder.chunk_location import (
    make_chunk_storage,
)
from ..folder.fingerprint import Fingerprint, read_fingerprint
from ..folder.identity import StoreIdentity
from ..folder.layout_version import apply_layout_mode
from ..folder.paths import (
    StoreFolder,
    check_chunk_cache,
    check_folder,
    check_path,
    chunk_cache_folder,
    existing_identity,
    remove_temporary_files,
    report_shared,
    run_program,
)
from ..folder.place import shared_location
from ..folder.restore_folder import finish_restore
from ..gc.collector import CollectorOptions
from ..kernel.backoff import Backoff
from ..kernel.contexts import owned_context
from ..kernel.event_loop import LaneThreads, event_source, running_trio
from ..kernel.loop_lag import LoopLag
from ..kernel.mailbox import LaneBounds, MailboxOptions
from ..kernel.supervision import RestartPolicy
from ..read.read_ahead import ReadAheadBudget, ReadAheadOptions
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from ..telemetry.tracing import SpanHook
from .folder_opening import announced, identify, locate_chunks, system_world
from .runtime import ContainerRuntime, RuntimeOptions, RuntimeParts, serve
from .store import RollingSizes, SegmentStore

if TYPE_CHECKING:
    from ...storage_backends.chunks.chunk_cache import ChunkCache
    from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
    from ...storage_backends.sorted_runs.compaction import MergeRuns
    from ...storage_backends.sorted_runs.merge import MergeOrder
    from ...storage_backends.sorted_runs.run_entry import RunEntry
    from .shared import SharedOpener

_log = get_logger("node")
_RATE_MAX = 1 << 30
"""Bytes a second: more than one container takes."""


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
    cache, unflushed = config.cache, config.wal.unflushed_max
    cycle_bytes = min(int(cache.bytes * cache.soft), unflushed // 4 * 3)
    return ContainerOptions(
        cache_bytes=cache.bytes,
        flush_bytes=config.writer.flush_bytes,
        admission=AdmissionOptions(
            # Appends are delayed in the last quarter, so that few are ever refused (C6).
            soft_bytes=unflushed // 4 * 3,
            hard_bytes=unflushed,
            segment_bytes=unflushed // 2,
            cycle_bytes=cycle_bytes,
            # Idle ones above ``active_max`` leave memory: the delay begins at twice of it at the lowest.
            segments=max(SEGMENTS_MAX, 4 * config.segments.active_max),
        ),
        active_segments_max=config.segments.active_max,
        mailbox=MailboxOptions(
            normal=LaneBounds(count=config.mailbox.count, size_bytes=config.mailbox.bytes)
        ),
        pipeline=PipelineOptions(config.group.bytes, config.group.count),
        writer=WriterOptions(
            config.writer.flush_age,
            config.writer.concurrent_segments,
            config.writer.error_pause,
            # What makes a full cycle due takes longer to come.
            size_interval=min(WriterOptions().size_interval, cycle_bytes / _RATE_MAX),
        ),
        collector=CollectorOptions(config.gc.delay, config.gc.attempts, config.gc.concurrent_deletes),
        checkpoint=CheckpointOptions(
            config.checkpoint.wal_bytes,
            4 * config.checkpoint.wal_bytes,
            # A small `wal.file_size` must not make every file a small one.
            small_file_bytes=min(4 << 20, config.wal.file_size // 2),
        ),
        tombstone=config.transactions.tombstone,
        close_timeout=config.timeouts.close,
        events=event_source,
        protect=_protection(),
        adopt=adopt,
        read_ahead=_read_ahead(config),
        # Half of the concurrent calls are left to reads that were not anticipated.
        read_ahead_budget=ReadAheadBudget(
            config.read_ahead.total_bytes, max(1, config.storage.concurrent_calls // 2)
        ),
        chunked=ChunkedOptions(defrag=DefragOptions(**attrs.asdict(config.defrag))),
    )


def _read_ahead(config: StoreConfig) -> ReadAheadOptions:
    usual, ahead = ReadAheadOptions(), config.read_ahead.bytes
    return replace(
        usual, ahead_bytes=ahead, window_bytes=min(usual.window_bytes, max(usual.block_bytes, ahead))
    )


def restart_policy(config: StoreConfig) -> RestartPolicy:
    supervision = config.supervision
    return RestartPolicy(
        backoff=Backoff(first=supervision.backoff, maximum=supervision.backoff_max),
        restarts_max=supervision.restarts,
        window=supervision.period,
    )


def runtime_options(
    config: StoreConfig,
    *,
    adopt: bool,
    is_built: bool = False,
    migrates: bool = False,
    flush_budget: float = 0.0,
) -> RuntimeOptions:
    container = replace(container_options(config, adopt=adopt), is_built=is_built, migrates=migrates)
    return RuntimeOptions(
        container=container,
        storage=storage_options(config),
        restart=restart_policy(config),
        unavailable_wait=config.timeouts.unavailable,
        append_bytes_max=config.append_bytes_max,
        rolling_sizes=RollingSizes(config.writer.rolling_size),
        lease_max=config.transactions.lease_max,
        staged_max=config.transactions.staged_max,
        layout=LayoutMode(config.layout),
        flush_budget=flush_budget,
    )


def _protection() -> Protect:
    """On trio, keeps Ctrl-C out of the containers' tasks (rule C5): it reaches the app's own tasks
    instead."""
    trio = running_trio()
    if trio is None:
        return unprotected

    protect: Protect = trio.lowlevel.enable_ki_protection
    return protect


@owned_context("store")
async def open_store(
    path: str | os.PathLike[str],
    *,
    containers: int | None = None,
    config: StoreConfig | None = None,
    storage: ChunkStorage | None = None,
    adopt: bool = False,
    take_over: bool = False,
    recover_from_lts: bool = False,
    span: SpanHook | None = None,
    world: World | None = None,
    files: Files | None = None,
) -> AsyncIterator[SegmentStore]:
    """Opens the store in the folder ``path``, which is created if it is missing: ``async with
    open_store("data") as store``, or ``await open_store("data")`` and ``await store.aclose()``. Refuses one
    that another process has open, unless ``take_over`` is set: then its calls raise ``NotOwner``.

    ``path`` may be ``s3://BUCKET/PREFIX``, or ``bookkeeper://ZOOKEEPER:PORT/PATH`` with chunks where
    ``config.chunks`` says: then all of the store is there, and it can be opened from any machine. It is
    refused while a service serves the store, unless ``take_over`` is set; a service that crashed is waited
    for, 1.25 of its ``server.lease``. Nothing else locks it: the last opening fences the ones before.

    ``containers`` (1 to 1,024, default: the configuration's) is fixed when the folder is created, and so is
    the configuration's ``chunks``, the location of long-term storage: the folder's own ``lts/`` or a bucket.
    ``config`` is ``StoreConfig()`` by default. ``storage`` is a chunk storage of your own, instead.

    ``adopt`` opens a copied or restored folder although long-term storage was claimed by a newer owner. It
    then deletes no chunk until an operator confirms it: ``tierlog gc sweep --confirm``. A container whose log
    is lost is refused all the same. With ``recover_from_lts`` a store whose ``wal/`` is missing is recovered
    from its long-term storage alone, as of its last full flush, and so is a container whose log alone is
    missing: what was acked since is lost, and the log names each container's flush. A folder without a store
    is refused. ``span`` is called around every call and every group of the log: a hook, such as
    ``tierlog.opentelemetry_tracing()``. ``world`` and ``files`` are for simulations.

    Raises:
        NotOwner: Another process has the folder open, or a service the store, and ``take_over`` is not set.
        StoreMismatch: The folder was created with another number of containers or by a newer version, or
            long-term storage belongs to another store or to a newer copy of this one.
        DataCorruption: A file is damaged; the error has its name and the offset.
        StorageFull: There is no room for the log.
        Unavailable: The files or long-term storage do not answer.
        Unsupported: The bucket's service has no conditional puts.
        InvalidArgument: An argument is out of its range.
    """
    location, config = shared_location(path), StoreConfig() if config is None else config
    _check_arguments(config, containers, span, adopt=adopt, take_over=take_over, recover=recover_from_lts)
    _check_storage(storage, recover_from_lts=recover_from_lts)
    threads = LaneThreads()
    world, files = world or system_world(), files or LocalFiles(make_thread=threads.make)
    opener: StoreOpener | SharedOpener
    if location is not None:
        from . import shared  # not above: it opens stores as well

        shared.refuse_arguments(location, storage, recover_from_lts=recover_from_lts)
        opener = shared.SharedOpener(location, config, adopt, span, world, files, take_over=take_over)
    else:
        opener = StoreOpener(
            folder=_checked_folder(path, config),
            config=config,
            storage=storage,
            adopt=adopt,
            take_over=take_over,
            recover_from_lts=recover_from_lts,
            span=span,
            world=world,
            files=files,
        )
    with closing(threads):
        async with opener.store(containers) as store:
            yield store


def _checked_folder(path: object, config: StoreConfig) -> StoreFolder:
    folder = check_path(path)
    check_chunk_cache(folder, config.chunk_cache.path)
    return folder


def _check_arguments(
    config: object, containers: object, span: object, *, adopt: object, take_over: object, recover: object
) -> None:
    if not isinstance(config, StoreConfig):
        raise InvalidArgument(
            f"config is a tierlog.StoreConfig, not {shown(config)}: load a file with tierlog.load_config"
        )
    for name, flag in (("adopt", adopt), ("take_over", take_over), ("recover_from_lts", recover)):
        if not isinstance(flag, bool):
            raise InvalidArgument(f"{name} is True or False, not {shown(flag)}")
    if span is not None and not callable(span):
        raise InvalidArgument(
            f"span is a tierlog.SpanHook, such as tierlog.opentelemetry_tracing(), not {shown(span)}"
        )
    if containers is not None and (type(containers) is not int or not 1 <= containers <= 1024):
        raise InvalidArgument(f"containers must be an int from 1 to 1024, not {containers!r}")


def _check_storage(storage: object, *, recover_from_lts: bool) -> None:
    if storage is not None and not isinstance(storage, ChunkStorage):
        raise InvalidArgument(
            f"storage is a chunk storage of your own, not {shown(storage)}: name a folder or a bucket with "
            f"StoreConfig(chunks=...)"
        )
    if recover_from_lts and storage is not None:
        raise InvalidArgument("recover_from_lts needs the store's own lts/ or bucket, not a storage of yours")


@asynccontextmanager
async def open_host(
    path: str | os.PathLike[str],
    host_id: str,
    *,
    config: StoreConfig,
    store_id: str = "",
    adopt: bool = False,
    span: SpanHook | None = None,
) -> AsyncIterator[ContainerRuntime]:
    """Open the existing store at ``path``, a data folder or a place that all machines reach, as the host
    process ``host_id``. It serves the containers that the supervisor orders, none at first. Raises
    ``StoreMismatch`` if it is not the supervisor's store ``store_id``."""
    world, files, location = system_world(), LocalFiles(), shared_location(path)
    opener: StoreOpener | SharedOpener
    if location is not None:
        from . import shared

        opener = shared.SharedOpener(location, config, adopt, span, world, files)
    else:
        opener = StoreOpener(
            folder=check_path(path), config=config, adopt=adopt, span=span, world=world, files=files
        )
    async with opener.runtime(host_id, store_id) as runtime:
        yield runtime


class _LongTermStorage(NamedTuple):
    chunks: ChunkStorage
    place: StoragePlace
    requests: S3RequestCounts | None
    """Counts those to a bucket."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreOpener:
    """Opens one store in one process, with the parts that its configuration names."""

    folder: StoreFolder
    config: StoreConfig
    storage: ChunkStorage | None = None
    """Replaces the folder's own long-term storage."""
    moves_to: StoreFolder | None = None
    """Where the folder will be, if it is under construction: elements name that as their owner's."""
    adopt: bool = False
    take_over: bool = False
    """Fence another process that has the folder open, instead of refusing."""
    recover_from_lts: bool = False
    """Recover what of its logs is missing from long-term storage alone (rule R11)."""
    migrates: bool = False
    """Open also a store whose move was begun, to complete it or to give it up (rule E3)."""
    span: SpanHook | None = None
    world: World
    files: Files

    @asynccontextmanager
    async def store(self, containers: int | None) -> AsyncIterator[SegmentStore]:
        """Serve all containers."""
        await finish_restore(self.files, self.folder)
        if self.recover_from_lts:
            # Not above: it opens logs as well.
            from .recover_container import recover_if_lost

            await recover_if_lost(self.folder, self.config, self.files, self.world, take_over=self.take_over)
        # Not before: a lost store may have left other files than a new one may find.
        await check_folder(self.files, self.folder)
        await report_shared(self.files, self.folder)
        storage = await self._long_term_storage()
        identity = await identify(self.files, self.folder, containers, self.config, self.world)
        async with announced(self.files, self.world, self.folder, "", take_over=self.take_over) as opening:
            # Not before: a refused opening leaves the folder as it is.
            fingerprint = await self._prepare_folder()
            budget = self.config.shutdown.embedded_budget
            parts = self._parts(identity, opening.owner_id, storage, fingerprint, budget)
            async with serve(replace(parts, withdraw=opening.withdraw)) as store:
                yield store

    @asynccontextmanager
    async def runtime(self, host_id: str, store_id: str) -> AsyncIterator[ContainerRuntime]:
        """Serve the containers that the body begins, and no others."""
        # A host never creates a store: the supervisor does, once for all of them.
        identity = await existing_identity(self.files, self.folder)
        if store_id and store_id != identity.store_id.hex():
            raise StoreMismatch(
                f"{self.folder.path} is store {identity.store_id.hex()} now, and the service serves "
                f"{store_id}: the folder was moved or replaced; stop the service, and start it where its "
                f"folder is"
            )
        storage = await self._long_term_storage()
        # Always allowed: the supervisor and its hosts have the folder open together.
        async with announced(self.files, self.world, self.folder, host_id) as opening:
            fingerprint = await self._prepare_folder()
            budget = self.config.shutdown.flush_budget
            parts = self._parts(identity, opening.owner_id, storage, fingerprint, budget)
            async with ContainerRuntime(parts).running() as runtime:
                yield runtime

    async def _long_term_storage(self) -> _LongTermStorage:
        """Long-term storage, with its calls traced."""
        chunks, place, counts = self.storage, StoragePlace(), None
        if chunks is None:
            location = await locate_chunks(self.files, self.folder, self.config, self.world)
            # Where the folder will be: chunks are read once it is there.
            place = location.place(self.moves_to or self.folder)
            if location.chunks:
                from ...storage_backends.chunks.s3_request_counts import S3RequestCounts

                counts = S3RequestCounts()
            chunks = make_chunk_storage(
                location,
                self.files,
                self.folder,
                self.world,
                create=False,
                reserve_bytes=self.config.storage.reserve,
                counts=counts,
            )
        if self.span is not None and isinstance(chunks, BaseChunkStorage):
            chunks.observe(self.span)
        return _LongTermStorage(chunks, place, counts)

    async def _prepare_folder(self) -> Fingerprint:
        return await run_program(self.files, self._prepare(), self.folder.wal)

    def _prepare(self) -> Program[Fingerprint]:
        # Whoever moved or restored the folder may not have done this; names in it are durable (rule W11).
        yield from sync_ancestry(self.folder.wal)
        yield from remove_temporary_files(self.folder)
        yield from apply_layout_mode(self.folder, LayoutMode(self.config.layout), self.world)
        final = (self.moves_to or self.folder).wal
        return (yield from read_fingerprint(self.folder.wal, socket.gethostname(), final))

    def _parts(
        self,
        identity: StoreIdentity,
        owner_id: str,
        storage: _LongTermStorage,
        fingerprint: Fingerprint,
        flush_budget: float,
    ) -> RuntimeParts:
        # Of their own: a merge takes a thread for minutes, and reads of local copies do not wait for that.
        merge = partial(merge_runs, files=self.files.lane("merges", width=2))
        return RuntimeParts(
            identity=identity,
            owner_id=owner_id,
            chunks=storage.chunks,
            place=storage.place,
            requests=storage.requests,
            chunk_cache=self._chunk_cache(identity, storage.chunks),
            folder=fingerprint,
            make_disk=lambda index: self._disk(identity, owner_id, index, merge),
            options=runtime_options(
                self.config,
                adopt=self.adopt,
                is_built=self.moves_to is not None,
                migrates=self.migrates,
                flush_budget=flush_budget,
            ),
            world=self.world,
            span=self.span,
            loop_lag=LoopLag(),
        )

    def _chunk_cache(self, identity: StoreIdentity, chunks: ChunkStorage) -> ChunkCache | None:
        """The cache in front of ``chunks``, in a folder of this store alone: by default for a bucket."""
        config = self.config.chunk_cache
        is_remote = self.storage is None and not isinstance(chunks, FileSystemChunkStorage)
        if not config.bytes or self.moves_to is not None or not (config.path or is_remote):
            return None

        return make_chunk_cache(
            self.files, chunk_cache_folder(self.folder, config.path, identity), self.config
        )

    def _disk(self, identity: StoreIdentity, owner_id: str, index: int, merge: MergeRuns) -> LocalDisk:
        folder, log_id = log_folder(self.folder.wal, index), identity.container_log_id(index)
        options, owner = log_options(self.config), bytes.fromhex(owner_id)
        log = LocalLog(self.files, folder, log_id, options, owner=owner)
        return LocalDisk(log, RunFolder(self.files, run_folder(folder), merge, options.low_water))


def make_chunk_cache(files: Files, folder: str, config: StoreConfig) -> ChunkCache:
    from ...storage_backends.chunks.chunk_cache import ChunkCache, ChunkCacheOptions

    options = ChunkCacheOptions(config.chunk_cache.bytes, 2 * config.wal.low_water)
    return ChunkCache(files, folder, options, _report_cache)


def _report_cache(event: str, reason: str) -> None:
    if reason:
        _log.warning(event, reason=reason)
    else:
        _log.info(event)


async def merge_runs(order: MergeOrder, files: Files) -> list[RunEntry]:
    limiter = anyio.CapacityLimiter(1)
    # The first time it takes milliseconds, for which neither an opening nor the event loop waits.
    merge = await anyio.to_thread.run_sync(_import_merge, limiter=limiter)
    return await merge(order, files)


def _import_merge() -> Callable[[MergeOrder, Files], Awaitable[list[RunEntry]]]:
    from ...storage_backends.sorted_runs import merge_helper

    return merge_helper.merge

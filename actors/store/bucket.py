"""A store in a bucket: its log, register, identity and chunks are objects below one prefix, so that it can be
opened on any machine. What is on the local disk are copies, which may be removed while it is not open.

An opening takes the store over (rule L1): there is no lock that it could respect. A service has a lease
(``supervisor/term.py``), and its processes on one machine find each other in a folder among the copies.
Crash: the identity is one put (rule D1); whatever else was begun is the log's and the chunks' matter.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import anyio
import attrs

from ...journal.coordination.contract import IDENTITY, Coordination
from ...journal.coordination.objects import ObjectCoordination
from ...journal.log.s3_calls import RepeatedCalls
from ...journal.log.s3_layout import S3LogOptions
from ...journal.log.s3_log import S3Log
from ...journal.manifest.element import CONTAINERS_PREFIX
from ...storage_backends.base.errors import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.files import Files, make_folder
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.world import World
from ...storage_backends.chunks.base import BaseChunkStorage
from ...storage_backends.chunks.s3_location import S3Location
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ..container.local_disk import LocalDisk, RunFolder
from ..folder.chunk_location import ChunkLocation, make_chunk_storage, require_s3, s3_options
from ..folder.fingerprint import Fingerprint
from ..folder.identity import StoreIdentity, decode, encode
from ..folder.paths import StoreFolder, chunk_cache_folder, run_program
from ..kernel.backoff import Backoff
from ..kernel.loop_lag import LoopLag
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from ..telemetry.tracing import SpanHook
from .opening import announced, check_containers, make_chunk_cache, merge_runs, runtime_options
from .runtime import ContainerRuntime, RuntimeParts, serve
from .store import SegmentStore

T = TypeVar("T")
_log = get_logger("node")
_LOGS, _CHUNKS = "wal/", "lts/"
_PATIENCE, _DELAYS = 30.0, (0.02, 1.0)
"""Seconds for which an opening repeats a listing."""
_REOPENING = Backoff(first=0.5, maximum=5)
"""The pauses of a host that waits for the bucket."""
_GROUPS_MAX, _SMALL_GROUP = 128, 64 << 10
"""A checkpoint is due after so many small groups, because an opening fetches each."""
_COSTLY_GROUPS_MAX = 4096


@attrs.frozen(eq=False, repr=False)
class BucketOpener:
    """Opens the store at ``location`` in one process."""

    location: S3Location
    config: StoreConfig
    adopt: bool
    span: SpanHook | None
    world: World
    files: Files
    counts: S3RequestCounts = attrs.field(init=False, factory=S3RequestCounts)
    """Of the log's, the records' and the chunks' requests."""
    cache: str = attrs.field(init=False)
    """The absolute path of the folder for local copies."""

    @cache.default
    def _(self) -> str:
        return _cache_folder(self.config)

    @asynccontextmanager
    async def store(self, containers: int | None) -> AsyncIterator[SegmentStore]:
        """Serve all containers."""
        _check_config(self.config, self.location)
        async with self._connected() as objects:
            coordination = ObjectCoordination(objects, "", self.world)
            identity = await identify_in_bucket(objects, coordination, containers, self.config, self.world)
            # Before anybody is fenced.
            await run_program(self.files, make_folder(self.cache), self.cache)
            budget = self.config.shutdown.embedded_budget
            async with serve(self._parts(objects, identity, self.world.id_bytes(), budget)) as store:
                yield store

    @asynccontextmanager
    async def served(self, containers: int | None) -> AsyncIterator[tuple[Coordination, StoreIdentity]]:
        """For a supervisor: what its store's processes agree on, and the store's identity."""
        _check_config(self.config, self.location)
        async with self._connected() as objects:
            coordination = ObjectCoordination(objects, "", self.world)
            identity = await identify_in_bucket(objects, coordination, containers, self.config, self.world)
            await self._make_local_folder()
            yield coordination, identity

    @asynccontextmanager
    async def runtime(self, host_id: str, store_id: str) -> AsyncIterator[ContainerRuntime]:
        """Serve the containers that the body begins, and no others."""
        _check_config(self.config, self.location)
        async with self._connected(waits=True) as objects:
            # A host never creates a store, as in a data folder.
            coordination = ObjectCoordination(objects, "", self.world)
            identity = await self._awaited(partial(_existing_identity, coordination))
            if store_id and store_id != identity.store_id.hex():
                raise StoreMismatch(
                    f"{self.location} is store {identity.store_id.hex()} now, and the service serves "
                    f"{store_id}: the bucket was replaced; stop the service"
                )
            local = await self._make_local_folder()
            async with announced(self.files, self.world, local, host_id) as opening:
                budget = self.config.shutdown.flush_budget
                parts = self._parts(objects, identity, bytes.fromhex(opening.owner_id), budget)
                parts = attrs.evolve(parts, coordination=coordination)
                async with ContainerRuntime(parts).running() as runtime:
                    yield runtime

    async def _awaited(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asked again while the bucket does not answer: a host that ended for that each time would be given
        up before the outage ends, and nobody would start it then."""
        attempt = 0
        while True:
            try:
                return await ask()
            except Unavailable as error:
                pause = _REOPENING.delay(attempt, self.world.random)
                _log.warning("bucket_unavailable", reason=str(error), seconds=round(pause, 1))
            attempt += 1
            await anyio.sleep(pause)

    async def _make_local_folder(self) -> StoreFolder:
        folder = service_folder(self.config, self.location)
        await run_program(self.files, make_folder(folder.path), folder.path)
        return folder

    @asynccontextmanager
    async def _connected(self, *, waits: bool = False) -> AsyncIterator[ObjectStore]:
        location = ChunkLocation(str(self.location), self.config.s3)
        require_s3(location)
        # Imported for the stores that need it: its client takes long.
        from ...storage_backends.chunks.s3_objects import S3Objects

        objects = S3Objects(self.location, s3_options(location), self.counts)
        await (self._awaited(objects.open) if waits else objects.open())
        try:
            yield objects
        finally:
            with anyio.CancelScope(shield=True):
                await objects.close()

    def _parts(
        self, objects: ObjectStore, identity: StoreIdentity, owner: bytes, flush_budget: float
    ) -> RuntimeParts:
        config, folder = self.config, StoreFolder(self.cache)
        location = ChunkLocation(f"{self.location}{_CHUNKS}", config.s3)
        chunks = make_chunk_storage(
            location, self.files, folder, self.world, create=False, counts=self.counts
        )
        if self.span is not None and isinstance(chunks, BaseChunkStorage):
            chunks.observe(self.span)
        options = runtime_options(config, adopt=self.adopt, flush_budget=flush_budget)
        checkpoint = attrs.evolve(
            options.container.checkpoint,
            files_max=_GROUPS_MAX,
            small_file_bytes=_SMALL_GROUP,
            costly_files_max=_COSTLY_GROUPS_MAX,
        )
        container = attrs.evolve(options.container, checkpoint=checkpoint)
        cache = chunk_cache_folder(folder, self.cache, identity)
        return RuntimeParts(
            identity=identity,
            owner_id=owner.hex(),
            chunks=chunks,
            place=location.place(folder),
            chunk_cache=make_chunk_cache(self.files, cache, config) if config.chunk_cache.bytes else None,
            # The same on all machines: for display only.
            folder=Fingerprint(location=f"{socket.gethostname()}:{self.location}"),
            make_disk=self._disk_maker(objects, identity, owner),
            options=attrs.evolve(options, container=container),
            world=self.world,
            span=self.span,
            requests=self.counts,
            loop_lag=LoopLag(),
        )

    def _disk_maker(
        self, objects: ObjectStore, identity: StoreIdentity, owner: bytes
    ) -> Callable[[int], LocalDisk]:
        merge = partial(merge_runs, files=self.files.lane("merges", width=2))
        log = self.config.s3_log
        options = S3LogOptions(pace=log.pace, pace_bytes=log.pace_bytes, appends_max=log.appends_max)
        runs = f"{self.cache}/{identity.store_id.hex()}-runs"

        def make(index: int) -> LocalDisk:
            return LocalDisk(
                S3Log(
                    objects,
                    f"{_LOGS}{index:04d}/",
                    identity.container_log_id(index),
                    self.world,
                    options,
                    owner,
                ),
                RunFolder(self.files, f"{runs}/{index:04d}", merge, self.config.wal.low_water),
            )

        return make


def _cache_folder(config: StoreConfig) -> str:
    """Where the local copies of stores in buckets are: ``chunk_cache.path``, relative to the working folder,
    or the user's cache folder."""
    path = config.chunk_cache.path or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tierlog"
    )
    if path.startswith("~"):
        raise ConfigError("there is no home folder for local copies: name a folder, `path` of [chunk_cache]")
    return os.path.abspath(path)


def service_folder(config: StoreConfig, location: S3Location) -> StoreFolder:
    """Where the processes of a service on this machine find each other, by their lock files."""
    name = blake2b(str(location).encode(), digest_size=8).hexdigest()
    return StoreFolder(f"{_cache_folder(config)}/{name}-service")


def _check_config(config: StoreConfig, location: S3Location) -> None:
    if config.chunks:
        raise ConfigError(
            f"chunks: a store in a bucket has its chunks in {location}{_CHUNKS}, not in {config.chunks}: "
            f"leave the setting out"
        )
    if config.layout != LayoutMode.INSTALL_NEW.value:
        raise ConfigError(
            f"layout: only stores in a data folder have legacy segments, and {location} is in a bucket: "
            f"use {LayoutMode.INSTALL_NEW.value!r}"
        )


async def identify_in_bucket(
    objects: ObjectStore,
    coordination: Coordination,
    containers: int | None,
    config: StoreConfig,
    world: World,
) -> StoreIdentity:
    """The store's identity, which is created if there is none. Raises as ``identify`` of a data folder
    does."""
    record = await coordination.load(IDENTITY)
    if record is None:
        await _refuse_others(RepeatedCalls(objects, world, _PATIENCE, _DELAYS), coordination)
        count = config.containers if containers is None else containers
        fresh = StoreIdentity(world.id_bytes(), world.id_bytes(), count, world.time_ms())
        await coordination.compare_and_set(IDENTITY, encode(fresh))
        # Not `fresh`: another process may have been first.
        record = await coordination.load(IDENTITY)
    place = coordination.place(IDENTITY)
    if record is None:
        raise Unavailable(f"{place} was not made, and nobody else made it: try again")
    found = decode(record.data, place)
    check_containers(found, containers, place, "the store was made")
    return found


async def _existing_identity(coordination: Coordination) -> StoreIdentity:
    record, place = await coordination.load(IDENTITY), coordination.place(IDENTITY)
    if record is None:
        raise InvalidArgument(f"{place} is missing: there is no store; start its supervisor, which makes it")
    return decode(record.data, place)


async def _refuse_others(calls: RepeatedCalls, coordination: Coordination) -> None:
    """There is no identity: raises if something else is there."""
    if await calls.list(_LOGS) or await calls.list(f"{_CHUNKS}{CONTAINERS_PREFIX}"):
        raise DataCorruption(
            "the store's identity is missing although there are logs or chunks of it: put the object back",
            file=coordination.place(IDENTITY),
        )
    if await calls.list(CONTAINERS_PREFIX):
        raise StoreMismatch(
            f"{coordination.place('')} is long-term storage of a store with logs elsewhere: name another "
            f"prefix"
        )


def refuse_arguments(storage: object, *, recover_from_lts: bool) -> None:
    """Raises ``InvalidArgument`` for what only a data folder can have."""
    if storage is not None:
        raise InvalidArgument("a store in a bucket has its chunks there, and takes no storage of yours")
    if recover_from_lts:
        raise InvalidArgument(
            "recover_from_lts recovers into a data folder: name a folder, and the bucket's lts/ with "
            "StoreConfig(chunks=...)"
        )

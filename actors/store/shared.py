"""A store that is as a whole where all machines reach it: its logs, identity, records and chunks. It can be
opened on any of them. What is on the local disk are copies, which may be removed while it is not open.

An opening takes the store over: there is no lock that it could respect, and its logs fence the owner before.
Only a service has a lease (``supervisor/term.py``), which an opening respects (rule V14). Its processes on
one machine find each other in a folder among the copies. Crash: the identity is one record (rule D1), made
last; whatever else was begun is the log's and the chunks' matter.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import blake2b
from typing import TypeVar

import anyio
import attrs
from msgspec.structs import replace

from ...journal.coordination.contract import CONTROL, IDENTITY, TERM, Coordination
from ...journal.log.contract import DurableDataLog
from ...storage_backends.base.errors import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.files import (
    Close,
    Files,
    Open,
    Program,
    Read,
    make_folder,
    remake_name,
    with_folder,
)
from ...storage_backends.base.world import World
from ...storage_backends.chunks.base import BaseChunkStorage
from ...storage_backends.chunks.s3_location import S3Location
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ..container.checkpoint import CheckpointOptions
from ..container.local_disk import LocalDisk, RunFolder
from ..folder.chunk_location import ChunkLocation, make_chunk_storage
from ..folder.fingerprint import Fingerprint
from ..folder.identity import StoreIdentity, decode, encode
from ..folder.paths import StoreFolder, chunk_cache_folder, run_program
from ..folder.place import BookKeeperLocation, SharedLocation
from ..kernel.backoff import Backoff
from ..kernel.loop_lag import LoopLag
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..telemetry.logging import get_logger
from ..telemetry.tracing import SpanHook
from .folder_opening import announced, check_containers
from .opening import make_chunk_cache, merge_runs, runtime_options
from .runtime import ContainerRuntime, RuntimeParts, serve
from .store import SegmentStore
from .supervised import refuse_supervised

T = TypeVar("T")
_IN_SERVICE = "use tierlog.connect, stop that service, or fence it with take_over=True"
_log = get_logger("node")
_KNOWN, _KNOWN_BYTES = "store", 100
"""In the service's local folder: the id of the store that it had."""
_REOPENING = Backoff(first=0.5, maximum=5)
"""The pauses of a host that waits for the place."""


class SharedPlace(ABC):
    """The service that keeps a store's logs and records, and where its chunks are. Made without asking
    anybody."""

    records: Sequence[str]
    """What a store has directly below the place, besides its chunks."""
    coordination: Coordination
    """Once it is open."""
    counts: S3RequestCounts | None
    """Of all requests to a bucket, if there is one."""

    @abstractmethod
    def running(self) -> AbstractAsyncContextManager[None]:
        """Around ``open`` and all that comes after it. Asks nobody."""

    @abstractmethod
    async def open(self) -> None:
        """Connect. Raises ``ConfigError`` if the configuration must be corrected, ``Unavailable`` if nobody
        answers; then it may be called again."""

    @abstractmethod
    async def begin(self) -> None:
        """Before an identity is made: raises if something of another store is there, and fixes what is fixed
        with the identity."""

    @abstractmethod
    async def locate_chunks(self) -> ChunkLocation:
        """Where the chunks of the store are, which has its identity. Raises if they cannot be reached."""

    @abstractmethod
    async def new_chunks(self) -> ChunkLocation:
        """Where the chunks of a store will be that is moved here. Raises ``ConfigError`` if nothing says
        it."""

    @abstractmethod
    async def check_target(self, chunks: ChunkLocation) -> bool:
        """Before a store is moved here, whose chunks are to be in ``chunks``: raises ``InvalidArgument`` or
        ``StoreMismatch`` for what no move leaves, and ``Unsupported`` if no store can be here. Returns
        whether there are logs."""

    @abstractmethod
    async def record_chunks(self, chunks: ChunkLocation) -> None:
        """Before a store that is moved here has an identity: fix where its chunks are. Raises
        ``StoreMismatch`` if that is fixed already, and is elsewhere."""

    @abstractmethod
    def make_log(self, index: int, log_id: bytes, owner: bytes) -> DurableDataLog:
        """A new log, not open yet, of the container with that index."""

    def checkpoints(self, options: CheckpointOptions) -> CheckpointOptions:
        """When these logs need one."""
        return options


def make_place(location: SharedLocation, config: StoreConfig, files: Files, world: World) -> SharedPlace:
    """Raises ``ConfigError`` for a setting that such a store cannot have."""
    if config.layout != LayoutMode.INSTALL_NEW.value:
        raise ConfigError(
            f"layout: only stores in a data folder have legacy segments, and {location} is none: use "
            f"{LayoutMode.INSTALL_NEW.value!r}"
        )
    # Imported for the stores that need it.
    if isinstance(location, BookKeeperLocation):
        from .ledgers import LedgerPlace

        return LedgerPlace(location, config, files, world)

    from .bucket import BucketPlace

    return BucketPlace(location, config, world)


@attrs.frozen(eq=False, repr=False)
class SharedOpener:
    """Opens the store at ``location`` in one process."""

    location: SharedLocation
    config: StoreConfig
    adopt: bool
    span: SpanHook | None
    world: World
    files: Files
    migrates: bool = False
    """As in ``StoreOpener``."""
    take_over: bool = True
    """Fence a service that serves the store, in place of being refused (rule V14)."""
    place: SharedPlace = attrs.field(init=False)
    cache: str = attrs.field(init=False)
    """The absolute path of the folder for local copies."""

    @place.default
    def _(self) -> SharedPlace:
        return make_place(self.location, self.config, self.files, self.world)

    @cache.default
    def _(self) -> str:
        return _cache_folder(self.config)

    @asynccontextmanager
    async def store(self, containers: int | None) -> AsyncIterator[SegmentStore]:
        """Serve all containers."""
        async with self._connected():
            identity = await self._identify(containers, self.place.begin)
            if not self.take_over:
                # V14: before anybody is fenced.
                coordination, lease = self.place.coordination, self.config.server.lease
                await refuse_supervised(coordination, lease, str(self.location), _IN_SERVICE)
            await run_program(self.files, make_folder(self.cache), self.cache)
            budget = self.config.shutdown.embedded_budget
            async with serve(await self._parts(identity, self.world.id_bytes(), budget)) as store:
                yield store

    @asynccontextmanager
    async def served(
        self, containers: int | None, *, waits: bool = False
    ) -> AsyncIterator[tuple[Coordination, StoreIdentity]]:
        """For a supervisor: what its store's processes agree on, and the store's identity. ``waits``: it
        stands by, and so waits if nobody answers, and makes no store where this machine knows that there was
        one (rule V1)."""

        folder = service_folder(self.config, self.location).path
        memory = f"{folder}/{_KNOWN}"

        async def begin() -> StoreIdentity:
            begin_new = partial(self._begin_new, memory) if waits else self.place.begin
            identity = await self._identify(containers, begin_new)
            # What would keep its hosts from opening it is reported once, and here.
            await self.place.locate_chunks()
            return identity

        async with self._connected(waits=waits):
            identity = await (self._awaited(begin) if waits else begin())
            remember = partial(_remember, memory, identity, self.world.new_id())
            # Another start at this place, which failed, may remove the folder while it is empty.
            await run_program(self.files, with_folder(folder, remember), memory)
            yield self.place.coordination, identity

    @asynccontextmanager
    async def runtime(self, host_id: str, store_id: str) -> AsyncIterator[ContainerRuntime]:
        """Serve the containers that the body begins, and no others."""
        async with self._connected(waits=True):
            coordination = self.place.coordination
            # A host never creates a store, as in a data folder.
            identity = await self._awaited(partial(_existing_identity, coordination, self.location))
            if store_id and store_id != identity.store_id.hex():
                raise StoreMismatch(
                    f"{self.location} is store {identity.store_id.hex()} now, and the service serves "
                    f"{store_id}: what is there was replaced; stop the service"
                )
            local = await self._make_local_folder()
            async with announced(self.files, self.world, local, host_id) as opening:
                budget, owner = self.config.shutdown.flush_budget, bytes.fromhex(opening.owner_id)
                parts = await self._awaited(partial(self._parts, identity, owner, budget))
                parts = replace(parts, coordination=coordination)
                async with ContainerRuntime(parts).running() as runtime:
                    yield runtime

    async def _identify(self, containers: int | None, begin: Callable[[], Awaitable[None]]) -> StoreIdentity:
        return await identify_shared(self.place.coordination, begin, containers, self.config, self.world)

    async def _begin_new(self, memory: str) -> None:
        known = await run_program(self.files, _known(memory), memory)
        if known:
            raise InvalidArgument(
                f"{self.location} had store {known} when a supervisor ran on this machine, and has none now: "
                f"put its records and chunks back; `tierlog serve` makes a new one, and so does this command "
                f"once {memory} is removed"
            )
        await self.place.begin()

    async def _awaited(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Asked again while nobody answers: a host that ended for that each time would be given up before the
        outage ends, and nobody would start it then."""
        attempt = 0
        while True:
            try:
                return await ask()
            except Unavailable as error:
                pause = _REOPENING.delay(attempt, self.world.random)
                _log.warning("store_unavailable", reason=str(error), seconds=round(pause, 1))
            attempt += 1
            await anyio.sleep(pause)

    async def _make_local_folder(self) -> StoreFolder:
        folder = service_folder(self.config, self.location)
        await run_program(self.files, make_folder(folder.path), folder.path)
        return folder

    @asynccontextmanager
    async def _connected(self, *, waits: bool = False) -> AsyncIterator[None]:
        place = self.place
        async with place.running():
            # It may take seconds, and longer if nobody answers.
            _log.info("connecting", place=str(self.location))
            await (self._awaited(place.open) if waits else place.open())
            yield

    async def _parts(self, identity: StoreIdentity, owner: bytes, flush_budget: float) -> RuntimeParts:
        config, folder, place = self.config, StoreFolder(self.cache), self.place
        location = await place.locate_chunks()
        chunks = make_chunk_storage(
            location,
            self.files,
            folder,
            self.world,
            create=False,
            reserve_bytes=config.storage.reserve,
            counts=place.counts,
        )
        if self.span is not None and isinstance(chunks, BaseChunkStorage):
            chunks.observe(self.span)
        options = runtime_options(config, adopt=self.adopt, migrates=self.migrates, flush_budget=flush_budget)
        checkpoint = place.checkpoints(options.container.checkpoint)
        container = replace(options.container, checkpoint=checkpoint)
        cache = chunk_cache_folder(folder, self.cache, identity)
        # As in a data folder: a folder is not worth a copy unless the user says so.
        is_cached = bool(config.chunk_cache.bytes and (location.is_bucket or config.chunk_cache.path))
        return RuntimeParts(
            identity=identity,
            owner_id=owner.hex(),
            chunks=chunks,
            place=location.place(folder),
            chunk_cache=make_chunk_cache(self.files, cache, config) if is_cached else None,
            # The same on all machines: for display only.
            folder=Fingerprint(location=f"{socket.gethostname()}:{self.location}"),
            make_disk=self._disk_maker(identity, owner),
            options=replace(options, container=container),
            world=self.world,
            span=self.span,
            requests=place.counts,
            loop_lag=LoopLag(),
        )

    def _disk_maker(self, identity: StoreIdentity, owner: bytes) -> Callable[[int], LocalDisk]:
        merge = partial(merge_runs, files=self.files.lane("merges", width=2))
        runs = f"{self.cache}/{identity.store_id.hex()}-runs"

        def make(index: int) -> LocalDisk:
            return LocalDisk(
                self.place.make_log(index, identity.container_log_id(index), owner),
                RunFolder(self.files, f"{runs}/{index:04d}", merge, self.config.wal.low_water),
            )

        return make


def _cache_folder(config: StoreConfig) -> str:
    """Where local copies are: ``chunk_cache.path``, relative to the working folder, or the user's cache
    folder."""
    path = config.chunk_cache.path or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tierlog"
    )
    if path.startswith("~"):
        raise ConfigError("there is no home folder for local copies: name a folder, `path` of [chunk_cache]")
    return os.path.abspath(path)


def service_folder(config: StoreConfig, location: SharedLocation) -> StoreFolder:
    """Where the processes of a service on this machine find each other, by their lock files."""
    where = str(location)
    if isinstance(location, S3Location):
        # Two services may have buckets of one name. A profile's endpoint is not known without a client.
        variables = (os.environ.get(f"AWS_ENDPOINT_URL{suffix}") for suffix in ("_S3", ""))
        endpoint = config.s3.endpoint or next(filter(None, variables), "")
        where = f"{endpoint.rstrip('/')} {where}".lstrip()
    name = blake2b(where.encode(), digest_size=8).hexdigest()
    return StoreFolder(f"{_cache_folder(config)}/{name}-service")


async def identify_shared(
    coordination: Coordination,
    begin: Callable[[], Awaitable[None]],
    containers: int | None,
    config: StoreConfig,
    world: World,
) -> StoreIdentity:
    """The store's identity, which is created, after ``begin``, if there is none. Raises as ``identify`` of a
    data folder does."""
    record = await coordination.load(IDENTITY)
    if record is None:
        try:
            await _refuse_left(coordination)
            await begin()
        except (DataCorruption, StoreMismatch):
            # Of a store that another process has made meanwhile.
            if await coordination.load(IDENTITY) is None:
                raise
        count = config.containers if containers is None else containers
        fresh = StoreIdentity(world.id_bytes(), world.id_bytes(), count, world.time_ms())
        await coordination.compare_and_set(IDENTITY, encode(fresh))
        # Not `fresh`: another process may have been first.
        record = await coordination.load(IDENTITY)
    place = coordination.place(IDENTITY)
    if record is None:
        raise Unavailable(f"{place} was not made, and nobody else made it: try again")
    found = decode(record.data, place)
    check_containers(found, containers, place, "a store is made")
    return found


async def _refuse_left(coordination: Coordination) -> None:
    """Raises ``DataCorruption`` if there are records that a service makes of a store that it has opened."""
    for name in (TERM, CONTROL):
        if await coordination.load(name) is not None:
            raise DataCorruption(
                f"the store's identity is missing although there is {coordination.place(name)}: put the "
                f"identity back, or, for a new store, remove what is left of that one",
                file=coordination.place(IDENTITY),
            )


def _known(memory: str) -> Program[str]:
    """The id of the store that a service on this machine had last; empty if there is none."""
    try:
        handle = yield Open(memory)
    except FileNotFoundError:
        return ""
    data: bytes = yield Read(handle, 0, _KNOWN_BYTES)
    yield Close(handle)
    return data.decode(errors="replace").strip()


def _remember(memory: str, identity: StoreIdentity, new_id: str) -> Program[None]:
    store_id = identity.store_id.hex()
    if (yield from _known(memory)) != store_id:
        yield from remake_name(memory, f"{memory}-{new_id}", f"{store_id}\n".encode())


async def _existing_identity(coordination: Coordination, location: SharedLocation) -> StoreIdentity:
    record, place = await coordination.load(IDENTITY), coordination.place(IDENTITY)
    if record is None:
        raise InvalidArgument(
            f"there is no store at {location}, because {place} is missing: start its supervisor, which makes "
            f"it, or correct the place"
        )
    return decode(record.data, place)


def refuse_arguments(location: SharedLocation, storage: object, *, recover_from_lts: bool) -> None:
    """Raises ``InvalidArgument`` for what only a data folder can have."""
    if storage is not None:
        raise InvalidArgument(f"{location} says where its chunks are, and takes no storage of yours")
    if recover_from_lts:
        raise InvalidArgument(
            "recover_from_lts recovers into a data folder: name a folder, and the long-term storage with "
            "StoreConfig(chunks=...)"
        )

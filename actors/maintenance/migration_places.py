"""Where a store is moved from, and where to: a data folder, or a bucket as a whole. For ``migration.py`` they
are alike.

Cancellation and crash: what is built in a folder is in ``.restoring`` until it is published (rule S17). In a
bucket it is in place, and no store before there is an identity."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import anyio
import attrs

from ...journal.coordination.contract import IDENTITY, Coordination
from ...journal.coordination.objects import ObjectCoordination
from ...journal.log.contract import DurableDataLog
from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.world import World
from ...storage_backends.chunks.s3_location import S3Location, parse_location
from ..folder.chunk_location import (
    ChunkLocation,
    make_chunk_reader,
    make_chunk_storage,
    recorded_location,
    resolve_location,
)
from ..folder.identity import StoreIdentity, create_identity, decode, encode, read_identity
from ..folder.lock_files import describe_opening
from ..folder.paths import (
    STORE_TEMPORARY,
    StoreFolder,
    bucket_of,
    check_folder,
    check_path,
    existing_identity,
    live_owners,
    refuse_other_files,
    run_program,
)
from ..folder.restore_folder import (
    finish_restore,
    only_restore,
    publish,
    refuse_logs,
    restore_folder,
    restore_lane,
)
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..store.bucket import LOGS, LOGS_AND_RECORDS, BucketOpener
from ..store.opening import StoreOpener, log_options
from ..store.store import SegmentStore

OnlyService = Callable[[Coordination, StoreIdentity], AbstractAsyncContextManager[object]]
"""While it is entered nobody serves the store. Raises ``Unavailable`` if somebody does."""


@attrs.frozen(eq=False, repr=False)
class ChunkPlace:
    """Where the chunks of a store are, or will be."""

    location: ChunkLocation
    folder: StoreFolder
    _files: Files
    _world: World

    @property
    def shown(self) -> str:
        return self.location.shown(self.folder)

    def reader(self) -> AbstractAsyncContextManager[ChunkStorage]:
        return _opened(make_chunk_reader(self.location, self._files, self.folder, self._world))

    def writer(self, *, create: bool = False) -> AbstractAsyncContextManager[ChunkStorage]:
        """``create``: the folder is made if it is missing, which else counts as not mounted."""
        return _opened(
            make_chunk_storage(self.location, self._files, self.folder, self._world, create=create)
        )


@asynccontextmanager
async def _opened(chunks: ChunkStorage) -> AsyncIterator[ChunkStorage]:
    await chunks.open()
    try:
        yield chunks
    finally:
        with anyio.CancelScope(shield=True):
            await chunks.close()


class Building(ABC):
    """A store that is being made at a place, by one process; nobody can open it yet."""

    @abstractmethod
    def log(self, index: int) -> DurableDataLog:
        """The log of the container with that index, not open yet."""

    @abstractmethod
    async def publish(self) -> None:
        """Make it a store: from then on it can be opened. Does nothing if it is one."""


class MigrationPlace(ABC):
    shown: str
    """For elements and messages."""

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[None]:
        """Around everything else."""

    @abstractmethod
    async def identity(self) -> StoreIdentity | None:
        """Of the store that is there; None if there is none."""

    @abstractmethod
    async def chunks(self) -> ChunkPlace:
        """Where the chunks of that store are; if there is none, where they will be."""

    @abstractmethod
    def roots(self) -> list[str]:
        """What the place consists of, besides its chunks: no other place may overlap with it."""

    @abstractmethod
    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        """What may be deleted when the store has been moved away, whose chunks are in ``chunks``."""

    @abstractmethod
    def opened(self, *, migrates: bool) -> AbstractAsyncContextManager[SegmentStore]:
        """The store that is there, with this process as its only owner; ``migrates`` as in ``StoreOpener``.
        Raises ``InvalidArgument`` or ``Unavailable`` if another process has it open."""

    @abstractmethod
    async def check_target(self, identity: StoreIdentity, chunks: ChunkPlace) -> None:
        """Raises ``InvalidArgument`` if there is anything beside ``chunks``, and beside what a move of this
        store left that was cut off, and ``Unsupported`` if no store can be there."""

    @abstractmethod
    def building(self, identity: StoreIdentity, chunks: ChunkPlace) -> AbstractAsyncContextManager[Building]:
        """Make the store there, whose chunks are in ``chunks``."""


class FolderPlace(MigrationPlace):
    def __init__(self, folder: StoreFolder, config: StoreConfig, files: Files, world: World) -> None:
        self._folder = folder
        self._config = config
        self._files = files
        self._world = world
        self.shown = f"{socket.gethostname()}:{folder.path}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        yield

    async def identity(self) -> StoreIdentity | None:
        return await run_program(self._files, read_identity(self._folder.wal), self._folder.wal)

    async def chunks(self) -> ChunkPlace:
        location = await recorded_location(self._files, self._folder)
        return ChunkPlace(location, self._folder, self._files, self._world)

    def roots(self) -> list[str]:
        return [_slashed(os.path.realpath(self._folder.path))]

    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        others = [] if keeps_chunks or not chunks.location.chunks else [f"{chunks.shown}/"]
        return [f"{self._folder.path}/", *others]

    @asynccontextmanager
    async def opened(self, *, migrates: bool) -> AsyncIterator[SegmentStore]:
        folder, files = self._folder, self._files
        await finish_restore(files, folder)
        await existing_identity(files, folder)
        # For people: another process may open the folder right after this, and is fenced, or fences.
        if owners := await live_owners(files, folder):
            raise InvalidArgument(
                describe_opening(folder.path, owners, use_service="stop that service first")
            )
        opener = StoreOpener(
            folder=folder, config=self._config, migrates=migrates, world=self._world, files=files
        )
        async with opener.store(None) as store:
            yield store

    async def check_target(self, identity: StoreIdentity, chunks: ChunkPlace) -> None:
        await check_folder(self._files, self._folder)
        await run_program(self._files, refuse_other_files(self._folder), self._folder.path)

    @asynccontextmanager
    async def building(self, identity: StoreIdentity, chunks: ChunkPlace) -> AsyncIterator[Building]:
        config = attrs.evolve(self._config, chunks=chunks.location.chunks, s3=chunks.location.s3)
        async with only_restore(self._folder, self._files, config, makes_chunks=True):
            building = restore_folder(self._folder)
            await resolve_location(self._files, building, config, self._world)
            create = create_identity(building.wal, identity, f"{STORE_TEMPORARY}{self._world.new_id()}")
            await run_program(self._files, create, building.wal)
            yield _FolderBuilding(self._folder, identity, config, self._files)


class _FolderBuilding(Building):
    def __init__(
        self,
        folder: StoreFolder,
        identity: StoreIdentity,
        config: StoreConfig,
        files: Files,
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._config = config
        self._files = files

    def log(self, index: int) -> DurableDataLog:
        path = log_folder(restore_folder(self._folder).wal, index)
        log_id = self._identity.container_log_id(index)
        return LocalLog(self._files, path, log_id, log_options(self._config))

    async def publish(self) -> None:
        lane = restore_lane(self._files, self._folder)
        await run_program(lane, refuse_logs(self._folder), self._folder.path)
        await run_program(lane, publish(self._folder), self._folder.path)


class BucketPlace(MigrationPlace):
    def __init__(
        self,
        location: S3Location,
        config: StoreConfig,
        files: Files,
        world: World,
        only_service: OnlyService,
    ) -> None:
        self._location = location
        self._config = attrs.evolve(config, layout=LayoutMode.INSTALL_NEW.value)
        self._files = files
        self._world = world
        self._only_service = only_service
        self._objects: ObjectStore | None = None
        self.shown = str(location).rstrip("/")

    def _opener(self, *, migrates: bool = False) -> BucketOpener:
        return BucketOpener(
            self._location, self._config, False, None, self._world, self._files, migrates=migrates
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        async with self._opener().connected() as self._objects:
            yield

    @property
    def _open_objects(self) -> ObjectStore:
        if self._objects is None:
            raise RuntimeError("not connected")
        return self._objects

    @property
    def _coordination(self) -> ObjectCoordination:
        return ObjectCoordination(self._open_objects, "", self._world)

    async def identity(self) -> StoreIdentity | None:
        record = await self._coordination.load(IDENTITY)
        return None if record is None else decode(record.data, self._coordination.place(IDENTITY))

    async def chunks(self) -> ChunkPlace:
        opener = self._opener()
        return ChunkPlace(opener.chunks, StoreFolder(opener.cache), self._files, self._world)

    def roots(self) -> list[str]:
        return [str(self._location)]

    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        names = LOGS_AND_RECORDS if keeps_chunks else ("",)
        return [f"{self._location}{name}" for name in names]

    @asynccontextmanager
    async def opened(self, *, migrates: bool) -> AsyncIterator[SegmentStore]:
        identity = await self.identity()
        if identity is None:
            raise InvalidArgument(f"{self.shown} has no store")
        async with (
            self._only_service(self._coordination, identity),
            self._opener(migrates=migrates).store(None) as store,
        ):
            yield store

    async def check_target(self, identity: StoreIdentity, chunks: ChunkPlace) -> None:
        own = chunks.shown.removeprefix(str(self._location)) + "/"
        has_logs = False
        async with aclosing(self._open_objects.list("")) as listed:
            async for each in listed:
                is_log = each.key.startswith(LOGS)
                has_logs |= is_log
                if not is_log and each.key != "trial" and not each.key.startswith(own):
                    raise InvalidArgument(
                        f"{self.shown} has other objects, such as {each.key}: name an empty prefix"
                    )
        await self._coordination.try_conditions()
        if has_logs:
            # Without an identity they are no store's. Those of another one have other ids, and are refused.
            make_log = self._opener().log_maker(self._open_objects, identity, bytes(16))
            for index in range(identity.containers):
                await make_log(index).inspect()

    @asynccontextmanager
    async def building(self, identity: StoreIdentity, chunks: ChunkPlace) -> AsyncIterator[Building]:
        opener = self._opener()
        if chunks.shown != opener.chunks.chunks.rstrip("/"):
            raise InvalidArgument(
                f"a store in {self.shown} has its chunks in {opener.chunks.chunks}, and not in "
                f"{chunks.shown}: copy them (--chunks copy)"
            )
        yield _BucketBuilding(opener, self._open_objects, self._coordination, identity)


class _BucketBuilding(Building):
    def __init__(
        self,
        opener: BucketOpener,
        objects: ObjectStore,
        coordination: Coordination,
        identity: StoreIdentity,
    ) -> None:
        self._coordination = coordination
        self._identity = identity
        self._make_log = opener.log_maker(objects, identity, bytes(16))

    def log(self, index: int) -> DurableDataLog:
        return self._make_log(index)

    async def publish(self) -> None:
        await self._coordination.compare_and_set(IDENTITY, encode(self._identity))
        # Another process may have been first, with another store.
        record = await self._coordination.load(IDENTITY)
        if record is None or record.data != encode(self._identity):
            raise StoreMismatch(f"somebody has made a store in {self._coordination.place('')} meanwhile")


def make_place(
    path: str, config: StoreConfig, files: Files, world: World, only_service: OnlyService
) -> MigrationPlace:
    """The place that a user names: a folder, or ``s3://BUCKET/PREFIX``."""
    # What is where is known from the places themselves, and no end of a store flushes (rule E1).
    shutdown = attrs.evolve(config.shutdown, embedded_budget=0.0)
    config = attrs.evolve(config, chunks="", shutdown=shutdown)
    location = bucket_of(path)
    if location is None:
        return FolderPlace(check_path(path), config, files, world)
    return BucketPlace(location, config, files, world, only_service)


def check_apart(source: MigrationPlace, own: ChunkPlace, target: MigrationPlace, new: ChunkPlace) -> None:
    """Raises ``InvalidArgument`` if the two places overlap, but for chunks that stay where they are."""
    mine, there = source.roots(), target.roots()
    if own.shown != new.shown:
        mine, there = [*mine, _root(own)], [*there, _root(new)]
    for one in mine:
        for other in there:
            if one.startswith(other) or other.startswith(one):
                raise InvalidArgument(
                    f"{source.shown} and {target.shown} are the same place, or one is within the other: name "
                    f"a folder, or a prefix of a bucket, elsewhere"
                )


def _root(chunks: ChunkPlace) -> str:
    location = chunks.location.chunks
    return str(parse_location(location)) if location else _slashed(os.path.realpath(chunks.shown))


def _slashed(path: str) -> str:
    return path.rstrip("/") + "/"

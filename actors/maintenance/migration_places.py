"""Where a store is moved from, and where to: a data folder, or a place that all machines reach. For
``migration.py`` they are alike.

Cancellation and crash: what is built in a folder is in ``.restoring`` until it is published (rule S17).
Elsewhere it is in place, and no store before there is an identity."""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import attrs

from ...journal.coordination.contract import IDENTITY, Coordination
from ...journal.log.contract import DurableDataLog
from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.world import World
from ...storage_backends.chunks.filesystem_programs import IDENTIFICATION
from ..folder.chunk_location import (
    ChunkLocation,
    folder_location,
    make_chunk_reader,
    make_chunk_storage,
    opened_chunks,
    recorded_location,
    resolve_location,
)
from ..folder.identity import StoreIdentity, create_identity, decode, encode, read_identity
from ..folder.lock_files import describe_opening
from ..folder.paths import (
    STORE_TEMPORARY,
    StoreFolder,
    check_folder,
    check_path,
    existing_identity,
    live_owners,
    refuse_other_files,
    run_program,
)
from ..folder.place import SharedLocation, is_shared, shared_location
from ..folder.restore_folder import (
    finish_restore,
    only_restore,
    publish,
    refuse_logs,
    restore_folder,
    restore_lane,
)
from ..settings.configuration import S3Config, StoreConfig
from ..settings.layout_mode import LayoutMode
from ..store.nesting import refuse_nested_chunks
from ..store.opening import StoreOpener, log_options
from ..store.shared import SharedOpener, SharedPlace
from ..store.shared import make_place as make_shared_place
from ..store.store import SegmentStore

OnlyService = Callable[[Coordination, StoreIdentity], AbstractAsyncContextManager[object]]
"""While it is entered nobody serves the store. Raises ``Unavailable`` if somebody does."""

_LINKS_MAX = 40
"""More on the way to a folder are a loop."""


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

    def own(self) -> list[str]:
        """The parts that a store has there, but for imported files, which keep their names."""
        names = ("containers/", "_system/", *([] if self.location.is_bucket else [IDENTIFICATION]))
        return [f"{self.shown}/{name}" for name in names]

    async def refuse_nested(self) -> None:
        """Raises ``InvalidArgument`` if they would be inside another store, or around one."""
        if self.location.chunks:
            await refuse_nested_chunks(self.location, self._files, self._world)

    def reader(self) -> AbstractAsyncContextManager[ChunkStorage]:
        return opened_chunks(make_chunk_reader(self.location, self._files, self.folder, self._world))

    def writer(self, *, create: bool = False) -> AbstractAsyncContextManager[ChunkStorage]:
        """``create``: the folder is made if it is missing, which else counts as not mounted."""
        return opened_chunks(
            make_chunk_storage(self.location, self._files, self.folder, self._world, create=create)
        )


class Building(ABC):
    """A store that is being made at a place, by one process; nobody can open it yet."""

    @abstractmethod
    def log(self, index: int) -> DurableDataLog:
        """The log of the container with that index, not open yet."""

    @abstractmethod
    async def fix_chunks(self) -> None:
        """Fix where the chunks are. Raises ``StoreMismatch`` if somebody has fixed another place."""

    @abstractmethod
    async def publish(self) -> None:
        """Make it a store: from then on it can be opened. Does nothing if it is one."""


class MigrationPlace(ABC):
    shown: str
    """For elements and messages."""
    named: str
    """As a command takes it."""

    @abstractmethod
    def connected(self) -> AbstractAsyncContextManager[None]:
        """Around everything else."""

    @abstractmethod
    async def identity(self) -> StoreIdentity | None:
        """Of the store that is there; None if there is none."""

    @abstractmethod
    def choose_chunks(self, chunks: str, s3: S3Config | None = None) -> None:
        """Before ``connected``: where the chunks of a store will be that is moved here, and how that is
        reached."""

    @abstractmethod
    async def chunks(self) -> ChunkPlace:
        """Where the chunks of the store are."""

    @abstractmethod
    async def new_chunks(self) -> ChunkPlace:
        """Where those of a store that is moved here will be. Raises ``ConfigError`` if they cannot be where
        they should, or if nothing says it."""

    @abstractmethod
    def roots(self) -> list[str]:
        """What the place consists of, besides its chunks: no other place may overlap with it."""

    @abstractmethod
    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        """What may be deleted when the store has been moved away, whose chunks are in ``chunks``: only what
        is its own, because other stores may be beside it."""

    @abstractmethod
    def opened(self, *, migrates: bool) -> AbstractAsyncContextManager[SegmentStore]:
        """The store that is there, with this process as its only owner; ``migrates`` as in ``StoreOpener``.
        Raises ``InvalidArgument`` or ``Unavailable`` if another process has it open."""

    @abstractmethod
    async def check_closed(self) -> None:
        """Raises ``InvalidArgument`` or ``Unavailable`` if another process has the store open that is
        there."""

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
        self.named = folder.path
        self.shown = f"{socket.gethostname()}:{folder.path}"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        yield

    async def identity(self) -> StoreIdentity | None:
        return await run_program(self._files, read_identity(self._folder.wal), self._folder.wal)

    def choose_chunks(self, chunks: str, s3: S3Config | None = None) -> None:
        self._config = attrs.evolve(self._config, chunks=chunks, s3=s3 or self._config.s3)

    async def chunks(self) -> ChunkPlace:
        location = await recorded_location(self._files, self._folder)
        return ChunkPlace(location, self._folder, self._files, self._world)

    async def new_chunks(self) -> ChunkPlace:
        return ChunkPlace(folder_location(self._config), self._folder, self._files, self._world)

    def roots(self) -> list[str]:
        return [f"{self._folder.path}/"]

    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        others = [] if keeps_chunks or not chunks.location.chunks else chunks.own()
        return [f"{self._folder.path}/", *others]

    @asynccontextmanager
    async def opened(self, *, migrates: bool) -> AsyncIterator[SegmentStore]:
        folder, files = self._folder, self._files
        await finish_restore(files, folder)
        await existing_identity(files, folder)
        await self.check_closed()
        opener = StoreOpener(
            folder=folder, config=self._config, migrates=migrates, world=self._world, files=files
        )
        async with opener.store(None) as store:
            yield store

    async def check_closed(self) -> None:
        # For people: another process may open the folder right after this, and is fenced, or fences.
        if owners := await live_owners(self._files, self._folder):
            raise InvalidArgument(
                describe_opening(self._folder.path, owners, use_service="stop that service first")
            )

    async def check_target(self, identity: StoreIdentity, chunks: ChunkPlace) -> None:
        await check_folder(self._files, self._folder)
        await run_program(self._files, refuse_other_files(self._folder), self._folder.path)

    @asynccontextmanager
    async def building(self, identity: StoreIdentity, chunks: ChunkPlace) -> AsyncIterator[Building]:
        config = self._config
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

    async def fix_chunks(self) -> None:
        """They are where the folder says that is being made."""

    async def publish(self) -> None:
        lane = restore_lane(self._files, self._folder)
        await run_program(lane, refuse_logs(self._folder), self._folder.path)
        await run_program(lane, publish(self._folder), self._folder.path)


class SharedMigrationPlace(MigrationPlace):
    """A place that all machines reach."""

    def __init__(
        self,
        location: SharedLocation,
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
        self._connected: SharedPlace | None = None
        self.named = self.shown = str(location).rstrip("/")

    def choose_chunks(self, chunks: str, s3: S3Config | None = None) -> None:
        # A bucket has its own, which cannot be configured.
        if chunks.rstrip("/") != f"{self.shown}/lts":
            self._config = attrs.evolve(self._config, chunks=chunks, s3=s3 or self._config.s3)

    def _opener(self, *, migrates: bool = False) -> SharedOpener:
        return SharedOpener(
            self._location, self._config, False, None, self._world, self._files, migrates=migrates
        )

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        place = make_shared_place(self._location, self._config, self._files, self._world)
        async with place.running():
            await place.open()
            self._connected = place
            yield

    @property
    def _place(self) -> SharedPlace:
        if self._connected is None:
            raise RuntimeError("not connected")
        return self._connected

    async def identity(self) -> StoreIdentity | None:
        coordination = self._place.coordination
        record = await coordination.load(IDENTITY)
        return None if record is None else decode(record.data, coordination.place(IDENTITY))

    async def chunks(self) -> ChunkPlace:
        return self._chunk_place(await self._place.locate_chunks())

    async def new_chunks(self) -> ChunkPlace:
        return self._chunk_place(await self._place.new_chunks())

    def _chunk_place(self, location: ChunkLocation) -> ChunkPlace:
        return ChunkPlace(location, StoreFolder(self._opener().cache), self._files, self._world)

    def roots(self) -> list[str]:
        return [f"{self.shown}/"]

    def left(self, chunks: ChunkPlace, *, keeps_chunks: bool) -> list[str]:
        records = [f"{self.shown}/{name}" for name in self._place.records]
        return records if keeps_chunks else [*records, *chunks.own()]

    @asynccontextmanager
    async def opened(self, *, migrates: bool) -> AsyncIterator[SegmentStore]:
        async with self._unserved(), self._opener(migrates=migrates).store(None) as store:
            yield store

    async def check_closed(self) -> None:
        async with self._unserved():
            pass

    @asynccontextmanager
    async def _unserved(self) -> AsyncIterator[None]:
        identity = await self.identity()
        if identity is None:
            raise InvalidArgument(f"there is no store in {self.shown}")
        async with self._only_service(self._place.coordination, identity):
            yield

    async def check_target(self, identity: StoreIdentity, chunks: ChunkPlace) -> None:
        if await self._place.check_target(chunks.location):
            # Without an identity they are no store's. Those of another one have other ids, and are refused.
            for index in range(identity.containers):
                log = self._place.make_log(index, identity.container_log_id(index), bytes(16))
                try:
                    await log.inspect()
                finally:
                    with anyio.CancelScope(shield=True):
                        await log.close(clean=False)

    @asynccontextmanager
    async def building(self, identity: StoreIdentity, chunks: ChunkPlace) -> AsyncIterator[Building]:
        yield _SharedBuilding(self._place, identity, chunks.location)


class _SharedBuilding(Building):
    def __init__(self, place: SharedPlace, identity: StoreIdentity, chunks: ChunkLocation) -> None:
        self._place = place
        self._identity = identity
        self._chunks = chunks

    def log(self, index: int) -> DurableDataLog:
        return self._place.make_log(index, self._identity.container_log_id(index), bytes(16))

    async def fix_chunks(self) -> None:
        await self._place.record_chunks(self._chunks)

    async def publish(self) -> None:
        coordination, identity = self._place.coordination, encode(self._identity)
        await coordination.compare_and_set(IDENTITY, identity)
        # Another process may have been first, with another store.
        record = await coordination.load(IDENTITY)
        if record is None or record.data != identity:
            raise StoreMismatch(f"somebody has made a store in {coordination.place('')} meanwhile")


def make_place(
    path: str, config: StoreConfig, files: Files, world: World, only_service: OnlyService
) -> MigrationPlace:
    """The place that a user names, as ``open_store`` takes it."""
    # What is where is known from the places themselves, and no end of a store flushes (rule E1).
    shutdown = attrs.evolve(config.shutdown, embedded_budget=0.0)
    config = attrs.evolve(config, chunks="", shutdown=shutdown)
    location = shared_location(path)
    if location is None:
        return FolderPlace(check_path(path), config, files, world)
    return SharedMigrationPlace(location, config, files, world, only_service)


def check_apart(source: MigrationPlace, own: ChunkPlace, target: MigrationPlace, new: ChunkPlace) -> None:
    """Raises ``InvalidArgument`` if the two places overlap, but for chunks that stay where they are, or if
    what is left of the old one contains something of the new one."""
    _check_disjoint(source, source.roots(), target, target.roots())
    list_left(source, own, [new.shown, *target.roots()])
    if own.shown != new.shown:
        _check_disjoint(source, [*source.roots(), own.shown], target, [*target.roots(), new.shown])


def _check_disjoint(
    source: MigrationPlace, mine: Iterable[str], target: MigrationPlace, there: Iterable[str]
) -> None:
    for one in mine:
        for other in there:
            if _is_within(one, other) or _is_within(other, one):
                raise InvalidArgument(
                    f"{source.shown} and {target.shown} are the same place, or one is within the other: name "
                    f"a folder, or a prefix of a bucket, elsewhere"
                )


def list_left(old: MigrationPlace, chunks: ChunkPlace, needed: Iterable[str]) -> list[str]:
    """What may be deleted of ``old``, whose chunks are in ``chunks``, once its store is elsewhere and needs
    the places ``needed`` (rule E6). Raises ``InvalidArgument`` if one of these would be deleted with it."""
    needed = [_slashed(place) for place in needed]
    left = old.left(chunks, keeps_chunks=_slashed(chunks.shown) in needed)
    for place in needed:
        if any(_is_within(place, each) for each in left):
            raise InvalidArgument(f"{place} is a part of {old.shown}: its chunks must be copied")
        if any(_is_within(each, place) for each in left):
            raise InvalidArgument(f"{place} is around a part of {old.shown}: name a place elsewhere")
    return left


def _is_within(place: str, outer: str) -> bool:
    """Whether ``place`` is ``outer`` or lies in it, or is a folder that is reached through it by links."""
    if is_shared(place) or is_shared(outer):
        return _slashed(place).startswith(_slashed(outer))
    above, name = os.path.split(outer.rstrip("/"))
    ways = os.path.join(os.path.realpath(above), name), os.path.realpath(outer)
    return any(_slashed(each).startswith(_slashed(way)) for each in _looked_up(place) for way in ways)


def _looked_up(path: str) -> list[str]:
    """The names that the system looks up on the way to ``path``, each in a folder that is named without
    links."""
    names, found, here, links = path.split("/"), list[str](), "/", 0
    while names:
        name = names.pop(0)
        if name == "..":
            here = os.path.dirname(here)
        elif name not in ("", "."):
            found.append(os.path.join(here, name))
            if os.path.islink(found[-1]) and links < _LINKS_MAX:
                links += 1
                target = os.readlink(found[-1])
                here = "/" if target.startswith("/") else here
                names = [*target.split("/"), *names]
            else:
                here = found[-1]
    return found


def _slashed(path: str) -> str:
    return path.rstrip("/") + "/"

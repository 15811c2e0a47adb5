"""A store on BookKeeper: its logs are ledgers, its records are ZooKeeper's, and its chunks are in a bucket or
in a folder that all machines share.

Where the chunks are is fixed when the store is made: a record says it, made before the identity. Each process
has one sidecar (``storage_backends/ledgers``) for as long as it has the store open. The sidecar's end breaks
the logs of all containers, which recover by being opened again, with a new sidecar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ...journal.coordination.contract import CHUNKS, CONTROL, IDENTITY, TERM
from ...journal.coordination.zookeeper import ZooKeeperCoordination
from ...journal.log.bookkeeper_layout import BookKeeperLogOptions
from ...journal.log.bookkeeper_log import BookKeeperLog
from ...journal.log.bookkeeper_quorum import choose_quorum, quorum_warning
from ...journal.log.bookkeeper_sweep import KnownLedgers
from ...journal.manifest.store_record import STORE_RECORD
from ...storage_backends.base.errors import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.files import Files, ListFolder, Program
from ...storage_backends.base.ledger_service import Quorum, SidecarNotStarted
from ...storage_backends.base.world import World
from ...storage_backends.chunks.filesystem_programs import IDENTIFICATION, create_root
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ...storage_backends.ledgers.installed import find_program
from ...storage_backends.ledgers.sidecar import SidecarOptions, SidecarService
from ..folder.chunk_location import (
    ChunkLocation,
    decode_location,
    encode_location,
    make_chunk_reader,
)
from ..folder.paths import StoreFolder, run_program
from ..folder.place import BOOKKEEPER, BookKeeperLocation
from ..settings.configuration import BookKeeperConfig, StoreConfig
from ..telemetry.logging import get_logger
from .folder_opening import refuse_claimed
from .nesting import refuse_around, refuse_inside, refuse_nested_chunks
from .runtime import background
from .shared import SharedPlace

_log = get_logger("node")
_LOGS = "logs"
_NODES_MAX = 2_000
"""The most nodes below the path of a new store that are asked for others below them."""
_NO_FOLDER = StoreFolder("/")
"""These chunks are in no data folder."""
_OF_FILE_SYSTEMS = {"lost+found"}
"""What the root of a file system has when it is empty."""
_LOST_RECORDS = (
    "If its records in ZooKeeper were lost, and its logs with them, `tierlog recover --from-lts` recovers "
    "what long-term storage has into a data folder; --chunks names it"
)


def make_service(location: BookKeeperLocation, config: StoreConfig) -> SidecarService:
    """Raises ``ConfigError`` if what it needs is not installed."""
    settings = config.bookkeeper
    program = find_program(settings.folder, heap_mb=settings.memory >> 20)
    servers = ",".join(location.servers)
    return SidecarService(
        program, SidecarOptions(servers=servers, root=settings.ledgers, session_timeout=settings.timeout)
    )


def wanted_quorum(settings: BookKeeperConfig) -> Quorum | None:
    """The configured one; None leaves it to the number of bookies."""
    write = settings.write_quorum
    return Quorum(write, write, settings.ack_quorum or min(2, write)) if write else None


class LedgerPlace(SharedPlace):
    records = (f"{_LOGS}/", IDENTITY, CHUNKS, TERM, CONTROL, "leases/")

    def __init__(self, location: BookKeeperLocation, config: StoreConfig, files: Files, world: World) -> None:
        self._location = location
        self._config = config
        self._files = files
        self._world = world
        self.counts: S3RequestCounts | None = None
        self._service = make_service(location, config)
        self._known = KnownLedgers()
        self.coordination = ZooKeeperCoordination(self._service, location.path, world)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # Shielded: the containers close their logs while the body is cancelled.
        async with background(self._service.run, self._service.close):
            yield

    async def open(self) -> None:
        try:
            bookies = await self._service.count_bookies()
        except SidecarNotStarted:
            raise
        except Unavailable as error:
            raise Unavailable(
                f"{error}: start it, or correct the servers in {self._location} or the setting "
                f"bookkeeper.ledgers"
            ) from error
        # Before anybody is fenced: without enough of them nothing could be appended.
        wanted = wanted_quorum(self._config.bookkeeper)
        choose_quorum(bookies, wanted)
        if warning := quorum_warning(bookies, wanted):
            _log.warning("few_bookies", reason=warning)

    async def begin(self) -> None:
        recorded = await self._recorded()
        location = self._decide(recorded)
        await self._refuse_nested()
        logs = f"{self._location.path}/{_LOGS}"
        if await self._service.children(logs):
            raise DataCorruption(
                "the store's identity is missing although there are logs of it: put the record back",
                file=self.coordination.place(IDENTITY),
            )
        await self._check_new(location)
        if recorded is None:
            await self.coordination.compare_and_set(CHUNKS, encode_location(location))
            # Another process may have been first.
            location = self._decide(await self._recorded())
        if not location.is_bucket:
            # Before the identity: an existing store takes a missing folder for one that is not mounted.
            root = location.chunks
            await run_program(self._files, create_root(root, self._world.new_id()), root)

    async def locate_chunks(self) -> ChunkLocation:
        found = await self.coordination.load(CHUNKS)
        place = self.coordination.place(CHUNKS)
        if found is None:
            raise DataCorruption("the record of where the chunks are is missing: put it back", file=place)
        recorded = decode_location(found.data, place)
        location = self._decide(recorded)
        # How it is reached may change. Who opens the store at the same time decides as well as this process.
        if location != recorded:
            await self.coordination.compare_and_set(CHUNKS, encode_location(location), found.version)
        await self._check_reachable(location)
        self.counts = self.counts or (S3RequestCounts() if location.is_bucket else None)
        return location

    async def new_chunks(self) -> ChunkLocation:
        return self._decide(await self._recorded())

    async def _refuse_nested(self) -> None:
        servers, own = ",".join(self._location.servers), self._location.path[1:]

        async def find(path: str) -> bytes | None:
            found = await self._service.load(f"/{path}")
            return found and found.data

        def shown(path: str) -> str:
            return f"{BOOKKEEPER}{servers}/{path}".rstrip("/")

        await refuse_inside(own, find, shown)
        await refuse_around(
            [key async for key in self._below(own) if key != f"{own}/{IDENTITY}"],
            find,
            lambda path: shown(path or own),
        )

    async def _below(self, path: str) -> AsyncIterator[str]:
        """The first ``_NODES_MAX`` nodes below ``path``, the nearest first."""
        found = deque([path])
        for _ in range(_NODES_MAX):
            if not found:
                return
            above = found.popleft()
            for name in await self._service.children(f"/{above}"):
                yield f"{above}/{name}"
                found.append(f"{above}/{name}")

    async def check_target(self, chunks: ChunkLocation) -> bool:
        await self._refuse_nested()
        self._require_same(await self._recorded(), chunks)
        if not chunks.is_bucket:
            await run_program(self._files, _names_in(chunks.chunks), chunks.chunks)
        return bool(await self._service.children(f"{self._location.path}/{_LOGS}"))

    async def record_chunks(self, chunks: ChunkLocation) -> None:
        await self.coordination.compare_and_set(CHUNKS, encode_location(chunks))
        # Another process may have been first, with another store.
        self._require_same(await self._recorded(), chunks)

    def _require_same(self, recorded: ChunkLocation | None, chunks: ChunkLocation) -> None:
        if recorded is not None and recorded.chunks != chunks.chunks:
            raise StoreMismatch(
                f"{self.coordination.place(CHUNKS)} says that the chunks are in {recorded.chunks}, not in "
                f"{chunks.chunks}: name another path"
            )

    def make_log(self, index: int, log_id: bytes, owner: bytes) -> BookKeeperLog:
        settings, path = self._config.bookkeeper, f"{self._location.path}/{_LOGS}/{index:04d}"
        options = BookKeeperLogOptions(
            quorum=wanted_quorum(settings),
            appends_max=settings.appends_max,
            ledger_bytes=settings.ledger_bytes,
        )
        return BookKeeperLog(self._service, path, log_id, self._world, options, owner, self._known)

    # --- chunks ----------------------------------------------------------------------------------

    async def _recorded(self) -> ChunkLocation | None:
        found = await self.coordination.load(CHUNKS)
        return found and decode_location(found.data, self.coordination.place(CHUNKS))

    def _decide(self, recorded: ChunkLocation | None) -> ChunkLocation:
        configured = ChunkLocation(self._config.chunks.rstrip("/"), self._config.s3)
        if recorded is None and not configured.chunks:
            raise ConfigError(
                f"chunks: {self._location} is a new store, and needs to know where its chunks will be: name "
                f"s3://BUCKET/PREFIX, or a folder that all machines share, with --chunks or "
                f"StoreConfig(chunks=...)"
            )
        if recorded is None:
            return configured
        if not configured.chunks:
            return recorded
        if configured.chunks != recorded.chunks:
            raise StoreMismatch(
                f"the chunks of {self._location} are in {recorded.chunks}, not in {configured.chunks}: "
                f"correct `chunks` in the configuration, or leave it out; the location is fixed when a store "
                f"is made"
            )
        return configured

    async def _check_new(self, location: ChunkLocation) -> None:
        """Raises if the chunks of a new store cannot be there."""
        if location.is_bucket or await run_program(
            self._files, _is_identified(location.chunks), location.chunks
        ):
            await refuse_claimed(location, self._files, _NO_FOLDER, self._world, _LOST_RECORDS)
        else:
            await refuse_nested_chunks(location, self._files, self._world)

    async def _check_reachable(self, location: ChunkLocation) -> None:
        chunks = make_chunk_reader(location, self._files, _NO_FOLDER, self._world)
        await chunks.open()
        try:
            await chunks.exists(STORE_RECORD)
        finally:
            await chunks.close()


def _is_identified(folder: str) -> Program[bool]:
    """Whether the folder has been one of chunks. Raises ``InvalidArgument`` if it cannot become one."""
    names = yield from _names_in(folder)
    if names and IDENTIFICATION not in names:
        raise InvalidArgument(
            f"chunks: {folder} holds other files, such as {min(names)!r}: name an empty folder"
        )
    return bool(names)


def _names_in(folder: str) -> Program[set[str]]:
    """Raises ``InvalidArgument`` if there is no such folder."""
    try:
        return {entry.name for entry in (yield ListFolder(folder, others=True))} - _OF_FILE_SYSTEMS
    except (FileNotFoundError, NotADirectoryError) as error:
        # Not made here: on another machine it would be another folder.
        raise InvalidArgument(
            f"chunks: there is no folder {folder}: mount what all machines of the store share, on each of "
            f"them at the same path, and make the folder inside of it. A mount point itself would be taken "
            f"while nothing is mounted on it, and the chunks be on the disk of this machine"
        ) from error

"""The site of a simulation: one host with a disk, a log service or a bucket, a chunk store, and the processes
that open the store one after another.

The log service, the bucket and the chunk services live elsewhere: a power loss kills every process and leaves
the disk with what it may keep, the services with all they have.

Determinism: every purpose has a ``Random`` of its own, made from the site's and the purpose's name, so that
chance in one place does not change chance in another. Ids carry the number of their process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio.abc
import attrs
import trio

from support.table_rows import simulated_runs
from tierlog.actors.container.local_disk import LocalDisk, run_folder
from tierlog.actors.folder.fingerprint import Fingerprint
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.folder.paths import StoreFolder
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.store.bucket import refuse_others
from tierlog.actors.store.folder_opening import identify
from tierlog.actors.store.runtime import RuntimeParts, serve
from tierlog.actors.store.shared import identify_shared
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.coordination.objects import ObjectCoordination
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import log_folder
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.log.s3_log import S3Log
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.chunk_cache import ChunkCache, ChunkCacheOptions
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

from .bucket import LOGS, SharedBucket, SimulatedObjects
from .damage import Damage
from .disk import Keep, SimulatedDisk
from .faults import ChunkFaults, Faults, FileFaults, Kind, LogServiceFaults, Target
from .gates import Gate, GatedFiles
from .ledgers import SharedLedgers, SimulatedLedgers, log_path
from .process import Process, ProcessDied
from .services import ServiceChunks, ServiceLog
from .settings import ChunksKind, Latency, Limits, SiteKind, WalKind
from .trace import Trace

__all__ = ["ChunksKind", "Latency", "Limits", "Process", "ProcessDied", "Site", "SiteKind", "WalKind"]

FOLDER = StoreFolder("/data")
CACHE = "/cache"
"""The folder of the chunk cache, for all processes of the host."""
FIRST_LOG = b"simulated-log..."
"""The id of the logs that a service has at first: a recovery makes others."""
BEGIN = 1_700_000_000.0
"""Seconds since 1970 when a simulation begins."""


@attrs.frozen(eq=False)
class ServiceFolder:
    """What a process opens that is not the site's only one: the logs in a service, the copies of runs on the
    host's disk, and whose folder it is."""

    logs: MemoryLogService
    runs: str = "/runs"
    fingerprint: Fingerprint = Fingerprint()
    adopt: bool = False
    log_id: bytes = FIRST_LOG


class Site:
    def __init__(self, kind: SiteKind, random: Random, trace: Trace) -> None:
        self.kind = kind
        self.trace = trace
        self._seed = random.getrandbits(64)
        self.disk = SimulatedDisk(self._random("disk"), kind.capacity)
        self.chunk_state = MemoryChunkState()
        self.bucket = SharedBucket(self.chunk_state)
        self.ledgers = SharedLedgers()
        self.ledgers_of: dict[int, SimulatedLedgers] = {}
        self.logs_of: defaultdict[int, dict[int, DurableDataLog]] = defaultdict(dict)
        """By process and container: the log that it has opened last."""
        """The service as each process sees it, by the process's number."""
        self.processes: list[Process] = []
        """All that ever were, dead ones too; process number n is at n - 1."""
        self.faults = Faults(trace, self._random("faults"), self._strike)
        self.damage = Damage(self)
        self.has_foreign_files = False
        """Whether others have files in the folder of the chunk cache."""
        self._folder = ServiceFolder(MemoryLogService())

    def _random(self, purpose: str) -> Random:
        return Random(f"{self._seed} {purpose}")

    # --- processes -------------------------------------------------------------------------------

    def begin(self, tasks: anyio.abc.TaskGroup, folder: ServiceFolder | None = None) -> Process:
        """A new process that begins to open the store, or the one in ``folder``."""
        process = self._make(len(self.processes) + 1, folder or self._folder)
        self.processes.append(process)
        self.trace.note(process.gate.name, "starts")
        tasks.start_soon(process.run, name=process.gate.name)
        return process

    async def start(self, tasks: anyio.abc.TaskGroup, folder: ServiceFolder | None = None) -> Process:
        """``begin``, until it serves. Raises why it can not; ``ProcessDied`` if it was killed before it
        could. To do something to it earlier, find it in ``processes`` meanwhile."""
        process = self.begin(tasks, folder)
        await process.opened.wait()
        if process.error is not None:
            raise process.error
        if not process.alive:
            raise ProcessDied(f"process {process.number} was killed while it started")
        return process

    def _make(self, number: int, folder: ServiceFolder) -> Process:
        gate = Gate(f"p{number}", self.trace, self._random(f"gate {number}"), self.kind.latency)
        files = GatedFiles(
            self.disk, gate, FileFaults(self.faults, number, gate), interleave=self.kind.interleave
        )
        process = Process(number, gate, files, lambda: self._opened(process, files, folder))
        return process

    @asynccontextmanager
    async def _opened(
        self, process: Process, files: GatedFiles, folder: ServiceFolder
    ) -> AsyncIterator[SegmentStore]:
        """What ``open_store`` does, with simulated parts."""
        world = World(
            lambda: BEGIN + trio.current_time() + process.clock_offset,
            self._random(f"process {process.number}"),
            ids_of(process),
        )
        objects = SimulatedObjects(self.bucket, process.number, process.gate, self.faults)
        identity = await self._identity(files, objects, world, folder)
        owner_id = world.new_id()
        parts = RuntimeParts(
            identity=identity,
            owner_id=owner_id,
            chunks=self._chunks(process, files, world),
            chunk_cache=self._cache(process, files),
            make_disk=self._disk_maker(process, files, objects, identity, owner_id, folder, world),
            options=self.kind.limits.serving(adopt=folder.adopt, layout=self.kind.layout),
            world=world,
            folder=folder.fingerprint,
        )
        async with serve(parts) as store:
            yield store

    async def _identity(
        self, files: GatedFiles, objects: SimulatedObjects, world: World, folder: ServiceFolder
    ) -> StoreIdentity:
        count, config = self.kind.containers, StoreConfig()
        if self.kind.wal is WalKind.DISK:
            return await identify(files, FOLDER, count, config, world)
        if self.kind.wal is WalKind.BUCKET:
            coordination = ObjectCoordination(objects, "", world)
            begin = partial(refuse_others, objects, coordination, world)
            return await identify_shared(coordination, begin, count, config, world)

        return StoreIdentity(b"simulated-store.", folder.log_id, self.kind.containers, int(BEGIN * 1000))

    def _disk_maker(
        self,
        process: Process,
        files: GatedFiles,
        objects: SimulatedObjects,
        identity: StoreIdentity,
        owner_id: str,
        folder: ServiceFolder,
        world: World,
    ) -> Callable[[int], LocalDisk]:
        kind, owner = self.kind, bytes.fromhex(owner_id)
        faults = LogServiceFaults(self.faults, process.number, process.gate)
        ledgers = SimulatedLedgers(self.ledgers, process.number, process.gate, self.faults)
        self.ledgers_of[process.number] = ledgers

        def make(index: int) -> LocalDisk:
            log_id, runs = identity.container_log_id(index), f"{folder.runs}/{index}"
            log: DurableDataLog
            if kind.wal is WalKind.DISK:
                path, options = log_folder(FOLDER.wal, index), kind.limits.log_options()
                log, runs = LocalLog(files, path, log_id, options, owner=owner), run_folder(path)
            elif kind.wal is WalKind.BUCKET:
                log = S3Log(objects, f"{LOGS}{index:04d}/", log_id, world, kind.s3_log, owner)
            elif kind.wal is WalKind.LEDGERS:
                log = BookKeeperLog(ledgers, log_path(index), log_id, world, kind.ledgers, owner)
            else:
                log = ServiceLog(folder.logs.log(str(index)), str(index), process.gate, faults)
            self.logs_of[process.number][index] = log
            return LocalDisk(log, simulated_runs(files, runs, self.stored_run))

        return make

    def _cache(self, process: Process, files: GatedFiles) -> ChunkCache | None:
        """All processes of the host share it."""
        name, options = process.gate.name, ChunkCacheOptions(self.kind.chunk_cache)
        report = partial(self.trace.note, name)
        return (
            ChunkCache(files, CACHE, options, lambda *what: report(" ".join(what))) if options.size else None
        )

    def _chunks(self, process: Process, files: GatedFiles, world: World) -> ChunkStorage:
        faults = ChunkFaults(self.faults, process.number, process.gate)
        if self.kind.chunks is ChunksKind.FOLDER:
            folder = FileSystemChunkStorage(
                files, FOLDER.chunks, world, reserve_bytes=self.kind.storage_reserve
            )
            return FaultyChunkStorage(folder, faults.script, hang=faults.hang)

        memory = MemoryChunkStorage(self.chunk_state, append=self.kind.chunks is ChunksKind.APPEND)
        return ServiceChunks(FaultyChunkStorage(memory, faults.script, hang=faults.hang), process.gate)

    # --- ends ------------------------------------------------------------------------------------

    def lose_power(self, keep: Keep) -> None:
        """Every process dies, and the disk keeps of unsynced data what ``keep`` allows."""
        self.trace.note("host", f"power loss, keeps {keep}")
        # First nothing moves any more, then the disk crashes, then the processes unwind.
        for process in self.processes:
            process.gate.kill()
        self.disk = self.disk.crash(keep)
        for process in self.processes:
            process.end()

    def kill_all(self) -> None:
        """The end of a simulation: every process that still lives is killed."""
        for process in self.processes:
            process.kill()

    async def or_all_end(self, part: Callable[[], Awaitable[object]]) -> None:
        """``part``; if it fails, every process is killed before anything is cancelled: what is frozen would
        not let go of its calls."""
        try:
            await part()
        except trio.Cancelled:
            raise
        except BaseException:
            self.kill_all()
            raise

    def _strike(self, kind: Kind, number: int) -> None:
        process = self.processes[number - 1]
        if kind is Kind.KILL:
            process.kill()
        elif kind is Kind.FREEZE:
            process.freeze()
        else:
            self.lose_power("random")

    @property
    def log_target(self) -> Target:
        """Where the calls of a log that is elsewhere meet faults."""
        return _LOG_TARGETS.get(self.kind.wal, Target.LOG)

    # --- inspection ------------------------------------------------------------------------------

    def time_ms(self) -> int:
        """By a wall clock that is right."""
        return int((BEGIN + trio.current_time()) * 1000)

    @property
    def calls(self) -> int:
        """I/O calls of all kinds and processes so far."""
        return sum(process.gate.calls for process in self.processes)

    def stored_run(self, name: str) -> bytes:
        """The object of that name in long-term storage."""
        if self.kind.chunks is ChunksKind.FOLDER:
            return self.disk.content(f"{FOLDER.chunks}/{name}")
        return bytes(self.chunk_state.chunks[name].data)

    def chunk_names(self) -> list[str]:
        if self.kind.chunks is not ChunksKind.FOLDER:
            return [name for name, _ in self.chunk_state.chunks.items()]

        return [path.removeprefix(f"{FOLDER.chunks}/") for path in self.disk.files_below(f"{FOLDER.chunks}/")]

    def chunk_contents(self) -> dict[str, bytes]:
        """What long-term storage holds under the names of chunks, in name order, past all faults."""
        if self.kind.chunks is not ChunksKind.FOLDER:
            return {name: bytes(chunk.data) for name, chunk in self.chunk_state.chunks.items()}

        root = f"{FOLDER.chunks}/"
        paths = [path for path in self.disk.files_below(root) if not path.rpartition("/")[2].startswith(".")]
        return {path.removeprefix(root): self.disk.content(path) for path in paths}


_LOG_TARGETS = {WalKind.BUCKET: Target.OBJECTS, WalKind.LEDGERS: Target.LEDGERS}


def ids_of(process: Process) -> Callable[[], str]:
    """Ids that no other process of the site has."""
    made = 0

    def new_id() -> str:
        nonlocal made
        made += 1
        return f"{process.number:016x}{made:016x}"

    return new_id

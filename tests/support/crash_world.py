"""Whole embedded stores on a simulated disk: small limits, processes that end in every way, and the disk as
it would be after a crash now.

A *crash image* is the disk at one I/O call of a running store. It is taken without disturbing that store, so
one run of a script gives the images of all its calls, each with a copy of what the oracle knew at that
instant.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from random import Random
from typing import Literal
from unittest import mock

import anyio
import attrs
from msgspec.structs import replace
from simulation.disk import BLOCK, Keep, SimulatedDisk
from simulation.file_layer import Fault, Pause, SimulatedFiles, SimulatedHandle
from simulation.records import broken_records
from simulation.storage_invariants import check_stored, left_over

from support.oracle import all_names, observe_one
from support.virtual import virtual_world
from tierlog.actors.container import checkpoint as checkpointer
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.container.container import Container
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.kernel.exits import leaves
from tierlog.actors.legacy_rolling.file_claims import CLAIMS_PREFIX
from tierlog.actors.legacy_rolling.header import HEADER_SUFFIX
from tierlog.actors.settings.configuration import StorageConfig, StoreConfig, SupervisionConfig
from tierlog.actors.store import opening as node
from tierlog.actors.store.opening import open_store
from tierlog.actors.store.store import RollingSizes, SegmentStore
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.manifest.pin_record import OLD_BACKUPS, PINS
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import (
    Allocate,
    Extend,
    IoCall,
    Link,
    MakeFolder,
    Open,
    RemoveFolder,
    Rename,
    SetReadOnly,
    Sync,
    SyncFolder,
    Trim,
    Unlink,
    Write,
)
from tierlog.storage_backends.chunks.filesystem_programs import IDENTIFICATION, RESERVE
from tierlog.storage_backends.sorted_runs.compaction_policy import FAN_OUT
from tierlog.storage_backends.sorted_runs.merge_helper import merge_here

FOLDER = "/data"
NOT_CHUNKS = (OLD_BACKUPS, PINS, CLAIMS_PREFIX, IDENTIFICATION, RESERVE)
Mode = Keep | Literal["kill"]
"""What a crash keeps of what was not synced."""
CONFIG = StoreConfig(
    containers=1,
    storage=StorageConfig(backoff=0.001, backoff_max=0.002, reserve=2 * BLOCK),
    supervision=SupervisionConfig(backoff=0.001, backoff_max=0.002),
)


@attrs.frozen(kw_only=True)
class Limits:
    """Limits so small that a script of a few dozen calls meets them all; they are below what an operator may
    configure."""

    wal_file: int = 3000
    """Bytes after which a log file rolls."""
    flush: int = 1500
    """Unflushed bytes of one segment that make a flush cycle due."""
    checkpoint: int = 3000
    """Logged bytes that make a checkpoint due."""
    checkpoint_part: int = 256
    """Records in one part of a checkpoint."""
    reserve: int = 4096
    """Bytes that the log keeps allocated, twice."""
    low_water: int = 0
    """Free bytes of the disk below which appends are refused."""
    active_segments: int = 4
    merge_fan_out: int = FAN_OUT

    def log(self, config: StoreConfig) -> LocalLogOptions:
        return LocalLogOptions(
            file_size=self.wal_file,
            reserve=self.reserve,
            allocation_step=8192,
            length_step=600,
            low_water=self.low_water,
        )

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        options: ContainerOptions = _usual_options(config, adopt=adopt)
        return replace(
            options,
            cache_bytes=1 << 20,
            flush_bytes=self.flush,
            admission=AdmissionOptions(soft_bytes=600_000, hard_bytes=900_000, segment_bytes=1 << 18),
            active_segments_max=self.active_segments,
            merge_fan_out=self.merge_fan_out,
            checkpoint=CheckpointOptions(wal_bytes=self.checkpoint, pinned_groups_bytes=9000),
            collector=CollectorOptions(delay=0.0),
        )

    def config(self, process: int) -> StoreConfig:
        """What process number ``process`` is configured with."""
        return CONFIG

    async def prepare(self, files: SimulatedFiles, process: int) -> None:
        """What is done to the folder before process number ``process`` opens it."""


_usual_options = node.container_options
SMALL = Limits()


_in_force: list[Limits] = []
_patches = ExitStack()


@contextmanager
def small_limits(limits: Limits = SMALL) -> Iterator[None]:
    """Stores may overlap, and the first to open may be the first to close."""
    _in_force.append(limits)
    _patch()
    try:
        yield
    finally:
        _in_force.remove(limits)
        _patch()


def _patch() -> None:
    _patches.close()
    if _in_force:
        latest = _in_force[-1]
        _patches.enter_context(
            mock.patch.multiple(
                node,
                container_options=latest.container,
                log_options=latest.log,
                # On the simulated disk, and not in a thread, which knows no virtual time.
                merge_runs=merge_here,
            )
        )
        _patches.enter_context(mock.patch.object(checkpointer, "_PART_RECORDS", latest.checkpoint_part))


@asynccontextmanager
async def opened(files: SimulatedFiles, process: int, limits: Limits = SMALL) -> AsyncIterator[SegmentStore]:
    """The store, opened by process number ``process``, with small limits."""
    with small_limits(limits):
        await limits.prepare(files, process)
        async with open_store(
            FOLDER,
            containers=1,
            config=limits.config(process),
            take_over=True,  # an earlier process may be frozen
            files=files,
            world=virtual_world(process),
        ) as store:
            # Smaller chunks than a caller may ask for.
            store._rolling_sizes = RollingSizes(CONFIG.writer.rolling_size, smallest=1)
            yield store


def container(store: SegmentStore) -> Container:
    active = store.local_containers[0].active
    assert active is not None
    return active


# --- processes that end -------------------------------------------------------------------------


class Ending:
    """An ``on_call`` hook: once ``end`` was called nothing of the process reaches the disk any more.

    Its calls fail instead of hanging, so that the store in memory unwinds; whatever that does or answers is
    no longer asked about.
    """

    def __init__(self, watch: Callable[[int, IoCall], None] | None = None) -> None:
        self._watch = watch
        self.ended = False

    def end(self) -> None:
        self.ended = True

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if not self.ended and self._watch is not None:
            self._watch(index, call)
        if self.ended:
            raise OSError(5, "this process has ended")
        return None


@attrs.define
class Freezer:
    """An ``on_call`` hook: holds every call of its process from the first ``wanted`` one on, until it
    resumes."""

    wanted: Callable[[int, IoCall], bool] = lambda index, call: False
    frozen: anyio.Event = attrs.field(factory=anyio.Event)
    resume: anyio.Event = attrs.field(factory=anyio.Event)

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if self.wanted(index, call):
            self.frozen.set()
        return Pause(self.resume) if self.frozen.is_set() and not self.resume.is_set() else None


async def live_and_end(
    files: SimulatedFiles,
    process: int,
    ending: Ending,
    body: Callable[[SegmentStore], Awaitable[None]],
    limits: Limits = SMALL,
) -> None:
    """Open the store and run ``body``. The process ends without closing anything: after that, or when
    ``ending.end()`` is called."""
    by_itself = False
    try:
        async with opened(files, process, limits) as store:
            try:
                await body(store)
            except Exception:
                by_itself = not ending.ended
                raise
            finally:
                ending.end()
    except Exception as error:
        if by_itself or not ending.ended or not _is_noise(error):
            raise


def _is_noise(error: Exception) -> bool:
    return all(isinstance(leaf, (OSError, TierlogError)) for leaf in leaves(error))


# --- crash images -------------------------------------------------------------------------------


def describe(call: IoCall) -> str:
    path = (
        getattr(call, "path", "")
        or getattr(call, "target", "")
        or getattr(getattr(call, "handle", None), "path", "")
    )
    return f"{type(call).__name__} {path}"


def changes_disk(disk: SimulatedDisk, call: IoCall) -> bool:
    """Whether ``call`` changes what a crash may leave. The image before a call that does not is the image
    after it."""
    match call:
        case Write(buffers=buffers):
            return any(map(len, buffers))
        case Sync(SimulatedHandle(inode=inode)):
            return bool(inode.pending)
        case SyncFolder(path):
            return bool(disk.folder(path).pending)
        case Allocate(SimulatedHandle(inode=inode), offset, size):
            return disk.capacity is not None and 0 < offset + size - inode.blocks * BLOCK <= disk.free()
        case Extend(SimulatedHandle(inode=inode), size):
            return size > len(inode.cache)
        case Trim(SimulatedHandle(inode=inode), size):
            return size < len(inode.cache) or (disk.capacity is not None and inode.blocks * BLOCK > size)
        case SetReadOnly(path, read_only):
            return disk.find(path).read_only != read_only
        case _:
            return _changes_names(disk, call)


def _changes_names(disk: SimulatedDisk, call: IoCall) -> bool:
    match call:
        case Open(path, create=True):
            return not _is_there(disk, path) and disk.free() >= BLOCK
        case Link(source, target):
            return _is_there(disk, source) and not _is_there(disk, target)
        case Rename(path, _) | Unlink(path):
            return _is_there(disk, path)
        case MakeFolder(path):
            return bool(missing_folders(disk, path))
        case RemoveFolder(path):
            return path in disk._folders and not disk._folders[path].names
        case _:
            return False


def _is_there(disk: SimulatedDisk, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder in disk._folders and name in disk._folders[folder].names


def image_at(disk: SimulatedDisk, call: IoCall, random: Random) -> SimulatedDisk:
    """The disk at ``call``, which has not happened; of a write, any part may be in the page cache."""
    if not isinstance(call, Write):
        return image_within(disk, call, 0)

    size = sum(map(len, call.buffers))
    written = min(size, random.choice((0, 0, 512, 1024, size)))
    if written < size:
        written -= (call.offset + written) % 512
    return image_within(disk, call, written)


def image_within(disk: SimulatedDisk, call: IoCall, done: int) -> SimulatedDisk:
    """The disk in the middle of ``call``: the first ``done`` bytes of a write, or the first ``done`` new
    folders of a path, are there."""
    copy = disk.copy()
    match call:
        case Write(SimulatedHandle(inode=inode), offset, buffers) if done > 0 and (
            file := copy.copy_of(inode)
        ):
            with suppress(OSError):  # of a full disk: the write ends where the disk does
                copy.write(file, offset, b"".join(buffers)[:done])
        case MakeFolder(path) if done > 0:
            copy.make_folder(missing_folders(disk, path)[done - 1])
        case _:
            pass
    return copy


def missing_folders(disk: SimulatedDisk, path: str) -> list[str]:
    """``path`` and those folders above it that are not there yet, the highest one first."""
    parts = path.rstrip("/").split("/")
    above = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
    return [folder for folder in above if folder not in disk._folders]


def after(image: SimulatedDisk, mode: Mode, random: Random) -> SimulatedDisk:
    """The disk that the next owner finds: with its page cache after a ``kill``, else with ``mode`` of what
    was not synced."""
    copy = image.copy()
    copy.random = random
    if mode == "kill":
        return copy

    return copy.crash(mode)


# --- long-term storage against metadata ---------------------------------------------------------


async def eventually(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    """Wait until ``condition()`` holds; bounded, in virtual time."""
    for _ in range(2000):
        if condition():
            return

        await anyio.sleep(0.001)
    raise AssertionError(explain())


def stored_objects(disk: SimulatedDisk) -> dict[str, bytes]:
    """The content of everything in long-term storage, and of temporary objects."""
    root = f"{FOLDER}/lts/"
    return {path.removeprefix(root): disk.content(path) for path in disk.files_below(root)}


def stored(disk: SimulatedDisk) -> dict[str, bytes]:
    """The content of all data chunks on the disk, of the system, and of temporary objects."""
    return {
        name: data
        for name, data in stored_objects(disk).items()
        if not name.startswith(NOT_CHUNKS) and not name.endswith(HEADER_SUFFIX)
    }


async def check_chunks(store: SegmentStore, disk: SimulatedDisk, *, gone: Sequence[str] = ()) -> None:
    """After a flush: the chunks hold every segment's bytes, none that metadata names is missing, except what
    is known to be ``gone``, and in the end no other is left."""
    owner, view = container(store), {}
    for name in await all_names(store):
        info = await store.segment_info(name)
        assert info.flushed_length == info.length, (
            f"{name} is flushed to {info.flushed_length} of {info.length}"
        )
        view[name] = await observe_one(store, name, ())
    check_stored([owner], {**dict.fromkeys(gone, b""), **stored(disk)}, view)
    broken = [*broken_records(owner)]
    assert not broken, broken
    await eventually(
        lambda: not left_over([owner], stored(disk)), lambda: f"left over: {left_over([owner], stored(disk))}"
    )

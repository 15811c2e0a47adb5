"""The writing programs of a local log: creating files, trimming them, keeping room (rule W6).

A file's header, with the re-logged group if there is one, is written, synced and its name made durable before
anything else is written to it (W4). Crash: a file with a torn start never took effect. A failed sync is never
retried (W6). On a full disk a new file is the renamed ``reserve`` file, whose blocks are allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import attrs
from msgspec import Struct

from ...storage_backends.base.errors import StorageFull, Unavailable
from ...storage_backends.base.files import (
    FULL,
    Allocate,
    Close,
    Extend,
    FileHandle,
    FreeSpace,
    IoCall,
    ListFolder,
    Open,
    Program,
    Rename,
    Sync,
    SyncFolder,
    Trim,
    Unlink,
    Write,
)
from .frames import FileHeader, FileId, Seal, encode_frame, encode_header, file_salt, relog_salt
from .local_history import LastGroup, Part
from .local_layout import LocalLogOptions, LogLayout

_LEAST_STEP = 4096
"""Bytes: a block. Less is not worth a call."""


@attrs.frozen(eq=False, repr=False)
class LogContext:
    """What every program of one log needs to know."""

    layout: LogLayout
    log_id: bytes
    options: LocalLogOptions
    owner: bytes
    """16 bytes that are written with the epoch: the same for all ownerships of one opening of the store."""
    handles: list[FileHandle] = attrs.field(factory=list, eq=False)
    """The log's open files. Only its programs change it, one at a time, so that a failed one leaks nothing
    (W7)."""
    own_epochs: list[int] = attrs.field(factory=list, eq=False)
    """The epochs that this log took or tried to take."""

    def close_others(self, *kept: FileHandle) -> Program[None]:
        """Close all handles but ``kept``. At the start of a program, when nothing reads them any more."""
        for handle in [handle for handle in self.handles if handle not in kept]:
            # Before the call: the kernel releases the descriptor whatever close() returns, so it is never
            # closed twice (W7).
            self.handles.remove(handle)
            yield Close(handle)


class CurrentFile(Struct, frozen=True, eq=False):
    """The file that groups are written to."""

    handle: FileHandle
    file: FileId
    first_group: int
    salt: int
    sync: IoCall
    position: int
    """Where the next frame is written."""
    allocated: int
    """Where the allocated blocks end, if the file system supports allocation."""
    length: int
    """The length of the file; from ``position`` on it holds zeros, or what is left of its earlier life."""
    recycled: int = 0
    """Where the bytes of its earlier life end (W13); 0 if it is new."""


class Space(Struct, frozen=True, eq=False):
    """What was measured on the disk."""

    free: int
    """Bytes free on the file system."""
    log: int
    """Bytes of the blocks that the log's folder holds."""


class Room(Struct, frozen=True, eq=False):
    space: Space
    allocated: int
    reserve_file: bool


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


# --- making a file ------------------------------------------------------------------------------


def begin_file(
    context: LogContext,
    file: FileId,
    first_group: int,
    truncate_before: int,
    parts: Sequence[Part],
    relog: LastGroup | None,
    *,
    scarce: bool = False,
) -> Program[CurrentFile]:
    """Create the WAL file ``file``; return when its start and its name are durable. Raises ``StorageFull`` if
    there is no room for its start and ``reserve`` bytes behind it, or fewer if ``scarce``."""
    seals = tuple(part.seal for part in parts)
    header = FileHeader(context.log_id, file, first_group, truncate_before, relog is not None, seals)
    start = encode_header(header)
    salt = file_salt(context.log_id, file)
    size, buffers = len(start), [start]
    if relog is not None:
        frame_size, frame = encode_frame(
            relog_salt(salt, start),
            size,
            file.epoch,
            relog.number,
            relog.tag,
            relog.truncate_before,
            [relog.payload],
        )
        size, buffers = size + frame_size, [start, *frame]  # type: ignore[list-item]

    path = context.layout.wal(file)
    handle, allocated = yield from _create(context, path, size, scarce)
    context.handles.append(handle)
    try:
        yield Write(handle, 0, buffers)
        # Before the sync, which makes the new length durable as well.
        length = yield from lengthen(context.options, handle, size, size)
        yield Sync(handle)
        yield SyncFolder(context.layout.folder)
    except OSError as error:
        if is_full(error):
            yield from withdraw(context.layout, path)
        raise
    return CurrentFile(
        handle,
        file,
        first_group,
        salt,
        Sync(handle),
        size,
        allocated,
        length,
    )


def withdraw(layout: LogLayout, *paths: str) -> Program[None]:
    """Remove a file that could not be begun, under the names that it may have. Raises ``Unavailable`` if a
    power loss may bring it back: its header would end the current file where that is now (W4)."""
    try:
        for path in paths:
            with suppress(FileNotFoundError):
                yield Unlink(path)
        yield SyncFolder(layout.folder)
    except OSError as error:
        raise Unavailable(
            f"{paths[-1]} could not be begun, nor durably removed ({error}): the log has to be opened again"
        ) from error


def _create(context: LogContext, path: str, size: int, scarce: bool) -> Program[tuple[FileHandle, int]]:
    """Return a new file with blocks for its start of ``size`` bytes and the next groups, or the reserve if
    the disk is full, and where its blocks end."""
    reserve = context.options.reserve
    try:
        return (yield from _create_allocated(path, size + reserve)), size + reserve
    except OSError as error:
        if not is_full(error):
            raise
    try:
        return (yield from _take_reserve(context.layout, path, max(size, reserve))), max(size, reserve)
    except OSError as error:
        if not is_full(error) and not isinstance(error, FileNotFoundError):
            raise
        full = error
    if scarce:
        try:
            return (yield from _create_smaller(path, size, reserve))
        except OSError as error:
            if not is_full(error):
                raise
            full = error

    free = yield FreeSpace(context.layout.folder)
    entries = yield ListFolder(context.layout.folder)
    reserve_name = context.layout.reserve.rpartition("/")[2]
    held = sum(entry.allocated for entry in entries if entry.name == reserve_name)
    # In whole blocks, and one for the file itself.
    missing = -(-max(0, size - held - free) // _LEAST_STEP) * _LEAST_STEP + _LEAST_STEP
    raise StorageFull(
        f"no space for {path}: its start, with the log's last group, needs {size} bytes; the log's reserve "
        f"has {held} and the disk {free}: free {missing} bytes on its file system, and as many for each "
        f"other container that is refused, then open it again"
    ) from full


def _create_allocated(path: str, size: int) -> Program[FileHandle]:
    handle: FileHandle = yield Open(path, write=True, create=True, cold=True)
    try:
        if size:
            yield Allocate(handle, 0, size)
    except OSError:
        yield Close(handle)
        with suppress(FileNotFoundError):  # A newer owner removed it: what failed here is the room (W1).
            yield Unlink(path)
        raise
    return handle


def _take_reserve(layout: LogLayout, path: str, size: int) -> Program[FileHandle]:
    """W6: the reserve, whose blocks are allocated, becomes the new file."""
    handle: FileHandle = yield Open(layout.reserve, write=True)
    try:
        # A group that is logged again may be larger than the reserve, which then stays as it is.
        yield Allocate(handle, 0, size)
    finally:
        yield Close(handle)
    yield Rename(layout.reserve, path)
    handle = yield Open(path, write=True, cold=True)
    return handle


def _create_smaller(path: str, size: int, reserve: int) -> Program[tuple[FileHandle, int]]:
    """A new file with blocks for ``size`` bytes and as much of ``reserve`` as there is room for."""
    handle = yield from _create_allocated(path, size)
    end, step = size, reserve // 2
    while step >= _LEAST_STEP:
        try:
            yield Allocate(handle, end, step)
        except OSError as error:
            if not is_full(error):
                yield Close(handle)
                raise
        else:
            end += step
        step //= 2
    return handle, end


def trim(handle: FileHandle, end: int) -> Program[None]:
    """W9: end a file that gets no more groups at ``end``, behind its last one."""
    with suppress(OSError):  # It costs space only, and the next owner tries again.
        yield Trim(handle, end)


def trim_sealed(layout: LogLayout, seals: Sequence[Seal]) -> Program[None]:
    """W9: end older files where the durable header of this owner's file seals them."""
    for seal in seals:
        with suppress(OSError):
            handle = yield Open(layout.wal(seal.file), write=True)
            yield from trim(handle, seal.end)
            yield Close(handle)


def unlink_files(layout: LogLayout, files: Iterable[FileId]) -> Program[None]:
    """Remove WAL files that are not needed. Another owner may have removed them already."""
    for file in files:
        try:
            yield Unlink(layout.wal(file))
        except FileNotFoundError:
            continue


# --- keeping room -------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class SpaceGauge:
    """Whether there is room for user appends, with hysteresis at the low-water mark (rule W6). Pure."""

    options: LocalLogOptions
    room: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: -self.options.low_water, takes_self=True)
    )
    """Bytes that user appends may have; negative if not even an empty one may. Read for every append."""
    _open: bool = True
    _spent: int = 0
    """Bytes appended since free space was last measured."""
    _free: int = 0
    """Free space as last measured."""

    def observe(self, free: int, *, reserved: bool) -> None:
        """``free``: bytes on the file system. ``reserved``: whether the allocated blocks and the reserve file
        exist."""
        low = self.options.low_water
        # Without the distance a disk at the mark would refuse and accept by turns.
        self._open = reserved and free >= (low if self._open else 2 * low)
        self.room = free - low if self._open else -1
        self._spent = 0
        self._free = free

    def shortage(self) -> str:
        """Why user appends have no room."""
        low = self.options.low_water
        return (
            f"{self._free} bytes are free, and appends need {low} bytes (wal.low_water) and the log's reserve"
            if self._open
            else f"appends stop below {low} bytes (wal.low_water) besides the log's reserve, and go on at "
            f"{2 * low}; {self._free} are free"
        )

    def spend(self, size: int) -> None:
        self._spent += size
        self.room -= size

    @property
    def due(self) -> bool:
        """Whether the next append should measure again: after every allocation step, and always while there
        is no room."""
        return self.room < 0 or self._spent >= self.options.allocation_step


def next_allocation(options: LocalLogOptions, allocated: int, end: int) -> int:
    """Where the allocated blocks must end before a file is written up to ``end``; ``allocated`` if they
    suffice.

    Rule W6: ``reserve`` bytes stay allocated behind ``end`` for later internal groups on a full disk.
    """
    if allocated >= end + options.reserve:
        return allocated
    # One step more than is needed, so that most groups allocate nothing.
    return end + options.reserve + options.allocation_step


def allocate_ahead(options: LocalLogOptions, current: CurrentFile, end: int) -> Program[int]:
    """Keep ``reserve`` bytes allocated behind ``end``. Returns where the allocated blocks end."""
    wanted = next_allocation(options, current.allocated, end)
    # A disk without room for a whole step may still have room for the reserve.
    for goal in (wanted, end + options.reserve):
        if goal <= current.allocated:
            break
        try:
            yield Allocate(current.handle, current.allocated, goal - current.allocated)
        except OSError as error:
            if not is_full(error):
                raise
            continue  # Not a failure: users have no room, and internal groups use the blocks that exist (W6).
        return goal
    return current.allocated


def lengthen(options: LocalLogOptions, handle: FileHandle, length: int, end: int) -> Program[int]:
    """Extend a file of ``length`` bytes beyond ``end``, so that most writes do not change its length. Returns
    its length."""
    if options.length_step:
        try:
            yield Extend(handle, end + options.length_step)
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return end + options.length_step
    # On a full disk the write itself makes the file longer, inside the blocks that are allocated (W6).
    return max(length, end)


def measure_room(context: LogContext, current: CurrentFile) -> Program[Room]:
    """Restore the allocated blocks and the reserve file as far as possible, and measure free space."""
    allocated = yield from allocate_ahead(context.options, current, current.position)
    reserve_file = yield from restore_reserve(context)
    space = yield from measure_space(context.layout)
    return Room(space, allocated, reserve_file)


def measure_space(layout: LogLayout) -> Program[Space]:
    entries = yield ListFolder(layout.folder)
    free = yield FreeSpace(layout.folder)
    return Space(free, sum(entry.allocated for entry in entries))


def restore_reserve(context: LogContext) -> Program[bool]:
    """Returns whether the reserve file exists with its blocks. It must survive a power loss, so its name is
    synced."""
    size, path = context.options.reserve, context.layout.reserve
    if not size:
        return True
    try:
        handle = yield from _create_allocated(path, size)
    except FileExistsError:
        # Whoever created it may have been killed before it had its blocks.
        return (yield from _allocate_reserve(path, size))
    except OSError as error:
        if not is_full(error):
            raise
        return False
    yield Sync(handle)
    yield Close(handle)
    yield SyncFolder(context.layout.folder)
    return True


def _allocate_reserve(path: str, size: int) -> Program[bool]:
    try:
        handle: FileHandle = yield Open(path, write=True)
    except FileNotFoundError:
        return False  # A newer owner took it.
    try:
        yield Allocate(handle, 0, size)
    except OSError as error:
        if not is_full(error):
            raise
        return False
    finally:
        yield Close(handle)
    return True

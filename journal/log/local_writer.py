"""The writing half of a local log as I/O programs: making files, rolling, keeping room.

Owns: how a WAL file comes into being, the reserve file and the blocks ahead (W6). Does not own: when any of
it happens (``local.py``), nor what a header says about older files (``local_open.py``, ``local_history.py``).

Ordering: a file's header (with the re-logged group, if any) is written, synced, and its name made durable,
before anything else is written to it (W4). Crash: a file whose start is torn never took effect. A failed sync
is never retried (W6). On a full disk a new file is the renamed ``reserve`` file, whose blocks are allocated.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

import attrs

from ...storage_backends.base.errors import StorageFull
from ...storage_backends.base.files import (
    Allocate,
    Close,
    Extend,
    FileHandle,
    FreeSpace,
    IoCall,
    Open,
    Program,
    Rename,
    Sync,
    SyncFolder,
    Unlink,
    Write,
)
from ..registers.local import confirm_epoch
from .frames import FileHeader, FileId, encode_frame, encode_header, file_salt, relog_salt
from .local_history import LastGroup, Part
from .local_layout import LocalLogOptions, LogLayout
from .space import next_allocation

_FULL = (errno.ENOSPC, errno.EDQUOT)


@attrs.frozen
class LogContext:
    """What every program of one log needs to know."""

    layout: LogLayout
    log_id: bytes
    options: LocalLogOptions
    owner: bytes
    """Who raises the register: 16 bytes, the same for all ownerships of one process's opening of the
    store."""
    handles: list[FileHandle] = attrs.field(factory=list, eq=False)
    """What this log holds open. Only its programs, of which one runs at a time, change it; so a failed one
    leaks nothing (W7)."""
    own_epochs: list[int] = attrs.field(factory=list, eq=False)
    """The epochs that this log took or tried to take."""

    def close_others(self, *kept: FileHandle) -> Program[None]:
        """Close all handles but ``kept``; at the start of a program, when nobody can be peeking at them any
        more."""
        for handle in [handle for handle in self.handles if handle not in kept]:
            self.handles.remove(handle)
            yield Close(handle)


@attrs.frozen
class CurrentFile:
    """The file that groups are written to."""

    handle: FileHandle
    file: FileId
    first_group: int
    salt: int
    sync: IoCall
    position: int
    """Where the next frame goes."""
    allocated: int
    """Up to where blocks are allocated, as far as the file system can do that."""
    length: int
    """Of the file: what is behind ``position`` are zeros."""


@attrs.frozen
class Room:
    """What a look at the disk found."""

    free: int
    allocated: int
    reserve_file: bool


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in _FULL


# --- making a file ------------------------------------------------------------------------------


def begin_file(
    context: LogContext,
    file: FileId,
    first_group: int,
    truncate_before: int,
    parts: Sequence[Part],
    relog: LastGroup | None,
) -> Program[CurrentFile]:
    """Make the WAL file ``file`` and return when its start and its name are durable."""
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

    allocated = size + context.options.reserve
    path = context.layout.wal(file)
    handle, fresh = yield from _create(context.layout, path, allocated)
    context.handles.append(handle)
    try:
        yield Write(handle, 0, buffers)
        length = yield from lengthen(context.options, handle, size, size)
        yield Sync(handle)
        yield SyncFolder(context.layout.folder)
    except OSError as error:
        if is_full(error):
            yield Unlink(path)
        raise
    return CurrentFile(
        handle,
        file,
        first_group,
        salt,
        Sync(handle),
        size,
        allocated if fresh else context.options.reserve,
        length,
    )


def _create(layout: LogLayout, path: str, size: int) -> Program[tuple[FileHandle, bool]]:
    """A new file with ``size`` bytes allocated, or else the reserve; the flag tells a new one."""
    try:
        return (yield from _create_allocated(path, size)), True
    except OSError as error:
        if not is_full(error):
            raise
        return (yield from _take_reserve(layout, path, error)), False


def _create_allocated(path: str, size: int) -> Program[FileHandle]:
    handle: FileHandle = yield Open(path, write=True, create=True, cold=True)
    try:
        if size:
            yield Allocate(handle, 0, size)
    except OSError:
        yield Close(handle)
        yield Unlink(path)
        raise
    return handle


def _take_reserve(layout: LogLayout, path: str, error: OSError) -> Program[FileHandle]:
    """W6: the reserve becomes the new file; its blocks are on the disk already."""
    try:
        yield Rename(layout.reserve, path)
    except FileNotFoundError:
        raise StorageFull(
            f"no room for {path} and the reserve of this log is used up: free some space on its file "
            f"system, then open it again"
        ) from error
    handle: FileHandle = yield Open(path, write=True, cold=True)
    return handle


def roll(
    context: LogContext, current: CurrentFile, next_group: int, truncate_before: int, parts: Sequence[Part]
) -> Program[tuple[CurrentFile, FileHandle] | None]:
    """Go on in a new file; returns it with a freshly opened register, or None when the disk has no room for
    one.

    None is harmless: the current file still has its blocks ahead, it only becomes longer than it should.
    """
    epoch = current.file.epoch
    file = FileId(epoch, current.file.sequence + 1)
    try:
        fresh = yield from begin_file(context, file, next_group, truncate_before, parts, None)
    except StorageFull:
        return None
    except OSError as error:
        if not is_full(error):
            raise
        return None
    # Hole 14: through its name, so that a register file that somebody replaced is noticed here.
    register: FileHandle = yield Open(context.layout.register, write=True)
    context.handles.append(register)
    yield from confirm_epoch(register, context.log_id, epoch, context.owner)
    return fresh, register


def unlink_files(layout: LogLayout, files: Sequence[FileId]) -> Program[None]:
    """Remove WAL files that nobody needs; another owner, for whom they were as needless, may have come
    first."""
    for file in files:
        try:
            yield Unlink(layout.wal(file))
        except FileNotFoundError:
            continue


# --- keeping room -------------------------------------------------------------------------------


def allocate_ahead(options: LocalLogOptions, current: CurrentFile, end: int) -> Program[int]:
    """Keep ``reserve`` bytes allocated behind ``end``; returns up to where blocks are allocated."""
    wanted = next_allocation(options, current.allocated, end)
    for goal in (wanted, end + options.reserve):
        if goal <= current.allocated:
            break
        try:
            yield Allocate(current.handle, current.allocated, goal - current.allocated)
        except OSError as error:
            if not is_full(error):
                raise
            continue  # Not a failure of the log: there is no room for users, and the blocks that are there serve internal groups (W6).
        return goal
    return current.allocated


def lengthen(options: LocalLogOptions, handle: FileHandle, length: int, end: int) -> Program[int]:
    """Make a file of ``length`` bytes long enough for more than a write up to ``end``; returns its length."""
    if options.length_step:
        try:
            yield Extend(handle, end + options.length_step)
        except OSError as error:
            if not is_full(error):
                raise
        else:
            return end + options.length_step
    return max(length, end)


def look_at_room(context: LogContext, current: CurrentFile) -> Program[Room]:
    """Restore the blocks ahead and the reserve file as far as possible, and see what is free."""
    allocated = yield from allocate_ahead(context.options, current, current.position)
    reserve_file = yield from _restore_reserve(context)
    free = yield FreeSpace(context.layout.folder)
    return Room(free, allocated, reserve_file)


def _restore_reserve(context: LogContext) -> Program[bool]:
    """Whether the reserve file is in place. It must survive a power loss, so its name is synced."""
    size, path = context.options.reserve, context.layout.reserve
    if not size:
        return True
    try:
        handle = yield from _create_allocated(path, size)
    except FileExistsError:
        return True
    except OSError as error:
        if not is_full(error):
            raise
        return False
    yield Sync(handle)
    yield Close(handle)
    yield SyncFolder(context.layout.folder)
    return True

"""Drives I/O programs on the operating system (vocabulary: ``base/files.py``). A whole program runs in one
hop into a worker thread.

Every lane has a thread or a ``CapacityLimiter`` of its own, never anyio's shared one, which the host
application may exhaust (rule W7). Cancellation: before its first call a program is dropped; after that
``run`` waits for the last call, even if asyncio cancels the task past anyio's shields, because a running call
owns its descriptor (rule W7).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import stat
from _thread import LockType, allocate_lock
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from msgspec import Struct

from ..base import modes
from ..base.files import (
    Allocate,
    Close,
    Extend,
    FileHandle,
    FileNumbers,
    Files,
    FindData,
    FolderEntry,
    FreeSpace,
    IoCall,
    IsAsMade,
    IsGuarded,
    IsNamed,
    IsReadOnly,
    IsSameFile,
    IsShared,
    Link,
    ListFolder,
    Lock,
    MakeFolder,
    Open,
    Program,
    Read,
    RemoveFolder,
    Rename,
    SetReadOnly,
    Size,
    Sync,
    SyncFolder,
    T,
    Touch,
    Trim,
    Unlink,
    Unlock,
    Write,
)
from .cold_pages import ColdPages
from .folder_syncs import FolderSyncs
from .local_lock import lock_file
from .local_write import write_bulk, write_whole
from .nofollow import NoFollowFolder, open_file

if TYPE_CHECKING:
    from ..base.storage_statistics import FilesStatistics

_KEEP_SIZE = 1
_STAT_BLOCK_BYTES = 512
_SEEK_DATA: int = getattr(os, "SEEK_DATA", -1)
"""-1 is invalid for every system that has no such call."""
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """The C library's ``fallocate``: Python only has the POSIX form, which changes the file's length."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
        function.restype = ctypes.c_int
    return function


_fallocate = _find_fallocate()


class LocalHandle(FileHandle):
    """A descriptor. ``fd`` is -1 once closed, so that a later use fails instead of touching another file."""

    __slots__ = ("_path", "cold", "fd")

    def __init__(self, path: str, fd: int, cold: ColdPages | None) -> None:
        self._path = path
        self.fd = fd
        self.cold = cold

    @property
    def path(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"<LocalHandle {self._path} fd={self.fd}>"


def _fd(handle: FileHandle) -> int:
    fd: int = handle.fd  # type: ignore[attr-defined]
    if fd < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), handle.path)
    return fd


def _open(call: Open, at: NoFollowFolder | None = None) -> LocalHandle:
    flags = os.O_CLOEXEC | (os.O_RDWR if call.write or call.create else os.O_RDONLY)
    if call.create:
        # Never an existing file: its bytes would be taken for this one's.
        flags |= os.O_CREAT | os.O_EXCL
    fd = (open_file if at is None else at.open)(call.path, flags, modes.FILE)
    return LocalHandle(call.path, fd, ColdPages() if call.cold else None)


def _close(call: Close) -> None:
    handle = call.handle
    assert isinstance(handle, LocalHandle)
    # First, because the kernel releases the number whatever close() returns (rule W7).
    fd, handle.fd = _fd(handle), -1
    os.close(fd)


def _read(call: Read) -> bytes:
    fd = _fd(call.handle)
    data = os.pread(fd, call.size, call.offset)
    if len(data) == call.size or not data:
        return data

    # The kernel caps one read at 2 GiB; only an empty answer is the end of the file.
    parts = [data]
    done = len(data)
    while done < call.size and (data := os.pread(fd, call.size - done, call.offset + done)):
        parts.append(data)
        done += len(data)
    return b"".join(parts)


def _write(call: Write) -> None:
    handle = call.handle
    assert isinstance(handle, LocalHandle)
    end = (write_bulk if call.bulk else write_whole)(_fd(handle), call.buffers, call.offset)
    if handle.cold is not None:
        handle.cold.wrote(call.offset, end - call.filler)


def _sync(call: Sync) -> None:
    handle = call.handle
    assert isinstance(handle, LocalHandle)
    fd = _fd(handle)
    _fdatasync(fd)
    if handle.cold is not None:
        handle.cold.synced(fd)


def _find_data(call: FindData) -> int:
    fd = _fd(call.handle)
    try:
        return os.lseek(fd, call.offset, _SEEK_DATA)
    except OSError as error:
        # No data up to the end of the file.
        if error.errno == errno.ENXIO:
            return max(call.offset, os.fstat(fd).st_size)
        # A file system without the call: everything counts as data.
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return call.offset
        raise


def _allocate(call: Allocate) -> None:
    if _fallocate is None:
        return

    while _fallocate(_fd(call.handle), _KEEP_SIZE, call.offset, call.size):
        code = ctypes.get_errno()
        # Blocks are then allocated by the writes.
        if code in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        if code != errno.EINTR:
            raise OSError(code, os.strerror(code), call.handle.path)


def _extend(call: Extend) -> None:
    fd = _fd(call.handle)
    # Never shorter: another program may have extended it further.
    if os.fstat(fd).st_size < call.size:
        os.ftruncate(fd, call.size)


def _trim(call: Trim) -> None:
    fd = _fd(call.handle)
    if os.fstat(fd).st_size >= call.size:
        os.ftruncate(fd, call.size)


_FOLDER_SYNCS = FolderSyncs()
"""Of the whole process: what one ``LocalFiles`` lost is lost for all."""


def _sync_folder(call: SyncFolder, began: int, at: NoFollowFolder | None = None) -> None:
    fd = (
        os.open(call.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if at is None
        else at.open_folder(call.path)
    )
    try:
        info = os.fstat(fd)
        _FOLDER_SYNCS.sync(call.path, (info.st_dev, info.st_ino), began, lambda: os.fsync(fd))
    finally:
        os.close(fd)


def _list_folder(call: ListFolder) -> list[FolderEntry]:
    return [entry for entry, _ in _entries(call.path)]


def _list_folder_nofollow(call: ListFolder, at: NoFollowFolder) -> list[FolderEntry]:
    fd = at.open_folder(call.path)
    try:
        # Only files and folders can be opened, so nothing else is listed unless asked for.
        return [entry for entry, is_file in _entries(fd) if call.others or is_file or entry.is_folder]
    finally:
        os.close(fd)


def _entries(folder: str | int) -> list[tuple[FolderEntry, bool]]:
    """Each entry, and whether it is a regular file."""
    entries = []
    with os.scandir(folder) as found:
        for entry in found:
            try:
                # A link counts as what it is: its target may lie anywhere.
                info = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # It was removed after it was listed.
            known = FolderEntry(
                entry.name,
                stat.S_ISDIR(info.st_mode),
                info.st_size,
                info.st_blocks * _STAT_BLOCK_BYTES,
                info.st_mtime,
            )
            entries.append((known, stat.S_ISREG(info.st_mode)))
    return sorted(entries, key=lambda pair: pair[0].name)


def _is_same_file(call: IsSameFile, status: Callable[[str], os.stat_result]) -> bool:
    return os.path.samestat(status(call.path), status(call.other))


def _mode(call: SetReadOnly) -> int:
    return modes.READ_ONLY_FILE if call.read_only else modes.FILE


def _is_named(call: IsNamed, status: Callable[[str], os.stat_result]) -> bool:
    try:
        return os.path.samestat(os.fstat(_fd(call.handle)), status(call.handle.path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _file_numbers(call: FileNumbers) -> tuple[int, int]:
    info = os.stat(call.path)
    return info.st_dev, info.st_ino


def _free_space(call: FreeSpace) -> int:
    info = os.statvfs(call.path)
    # Not `f_bfree`, which has blocks that only root may use.
    return info.f_bavail * info.f_frsize


_PERFORM: dict[type[IoCall], Callable[..., Any]] = {
    Open: _open,
    Close: _close,
    Read: _read,
    Write: _write,
    Sync: _sync,
    Size: lambda call: os.fstat(_fd(call.handle)).st_size,
    FindData: _find_data,
    Allocate: _allocate,
    Extend: _extend,
    Trim: _trim,
    Lock: lambda call: lock_file(_fd(call.handle), call.handle.path, wait=call.wait),
    Unlock: lambda call: fcntl.flock(_fd(call.handle), fcntl.LOCK_UN),
    MakeFolder: lambda call: modes.make_folders(call.path),
    SyncFolder: _sync_folder,
    ListFolder: _list_folder,
    Unlink: lambda call: os.unlink(call.path),
    RemoveFolder: lambda call: os.rmdir(call.path),
    Link: lambda call: os.link(call.source, call.target, follow_symlinks=False),
    Rename: lambda call: os.rename(call.source, call.target),
    SetReadOnly: lambda call: os.chmod(call.path, _mode(call)),
    Touch: lambda call: os.utime(_fd(call.handle)),
    IsReadOnly: lambda call: not os.stat(call.path).st_mode & 0o222,
    IsShared: lambda call: bool(os.stat(call.path).st_mode & modes.WRITABLE_BY_OTHERS),
    IsGuarded: lambda call: modes.is_guarded(call.path),
    IsAsMade: lambda call: modes.is_as_made(call.path),
    IsSameFile: lambda call: _is_same_file(call, os.lstat),
    IsNamed: lambda call: _is_named(call, os.lstat),
    FileNumbers: _file_numbers,
    FreeSpace: _free_space,
}


def _perform_nofollow(at: NoFollowFolder) -> dict[type[IoCall], Callable[..., Any]]:
    return {
        **_PERFORM,
        Open: lambda call: _open(call, at),
        MakeFolder: lambda call: at.make_folders(call.path),
        SyncFolder: lambda call, began: _sync_folder(call, began, at),
        ListFolder: lambda call: _list_folder_nofollow(call, at),
        Unlink: lambda call: at.unlink(call.path),
        RemoveFolder: lambda call: at.remove_folder(call.path),
        Link: lambda call: at.link(call.source, call.target),
        Rename: lambda call: at.rename(call.source, call.target),
        SetReadOnly: lambda call: at.change_mode(call.path, _mode(call)),
        IsReadOnly: lambda call: not at.status(call.path).st_mode & 0o222,
        IsSameFile: lambda call: _is_same_file(call, at.status_of_name),
        IsNamed: lambda call: _is_named(call, at.status_of_name),
    }


def drive(program: Program[T], perform: Mapping[type[IoCall], Callable[..., Any]] = _PERFORM) -> T:
    """Drive ``program`` to its end in the calling thread, for code without an event loop."""
    send = program.send
    # The failures before the program: a name that it made cannot be lost by them.
    began = _FOLDER_SYNCS.failures
    try:
        call = next(program)
        while True:
            kind = type(call)
            try:
                result = perform[kind](call, began) if kind is SyncFolder else perform[kind](call)
            except Exception as error:  # noqa: BLE001 - without memory too, a program closes what it opened
                call = program.throw(error)
            else:
                call = send(result)
    except StopIteration as stop:
        value: T = stop.value
        return value


def _drive_nofollow(program: Program[T], root: str) -> T:
    """The same, where no path below ``root`` is followed through a symbolic link, and none leaves the folder
    in which the first call was made."""
    with NoFollowFolder(root) as at:
        return drive(program, _perform_nofollow(at))


class _Counts(Struct, eq=False):
    programs: int = 0
    running: int = 0


_NOTHING = object()


class _Job:
    """One program on its way through a thread. The first to acquire ``lock``, thread or caller, decides
    whether it runs; the thread holds it until the program has ended."""

    __slots__ = ("_counts", "_drive", "_program", "has_begun", "lock", "value")

    def __init__(self, program: Program[Any], drive: Callable[[Program[Any]], Any], counts: _Counts) -> None:
        self._program = program
        self._drive = drive
        self._counts = counts
        # A lock and not an event of the loop: the thread releases it even if the loop has ended.
        self.lock: LockType = allocate_lock()
        self.has_begun = False
        self.value: Any = _NOTHING

    def __call__(self) -> Any:
        if not self.lock.acquire(blocking=False):
            return None
        self.has_begun = True
        try:
            self.value = self._drive(self._program)
            return self.value
        finally:
            self._counts.running -= 1
            self.lock.release()


MakeThread = Callable[[], Callable[[Callable[[], Any]], Awaitable[Any]] | None]
"""Makes what runs one job after the other in a thread, for the event loop that is running; None if there is
nothing better than anyio."""


class LocalFiles(Files):
    """Files of the operating system. At most ``width`` programs of this lane run at a time."""

    def __init__(
        self, name: str = "files", width: int = 4, *, make_thread: MakeThread = lambda: None
    ) -> None:
        """``make_thread``: for lanes of one program at a time."""
        self._name = name
        self._width = width
        self._make_thread = make_thread
        self._thread: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None
        self._counts = _Counts()
        self._drive: Callable[[Program[Any]], Any] = drive
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, program: Program[T]) -> T:
        if self._thread is None and self._limiter is None:
            # Both belong to the event loop that first uses them.
            self._thread = self._make_thread() if self._width == 1 else None
            self._limiter = anyio.CapacityLimiter(self._width)
        job = _Job(program, self._drive, self._counts)
        self._counts.programs += 1
        self._counts.running += 1
        try:
            if self._thread is None:
                value: T = await anyio.to_thread.run_sync(job, limiter=self._limiter)
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
                # Without a shield, which would cost more than all the rest here.
                value = await self._thread(job)
        except BaseException:
            is_running = not job.lock.acquire(blocking=False)
            if not is_running and not job.has_begun:
                self._counts.running -= 1
                program.close()
                raise
            # What anyio cancels, it cancels again: as behind a shield, at the next checkpoint. What asyncio
            # cancels, before that or while this waits, it cancels once.
            comes_again = self._thread is not None and anyio.current_effective_deadline() == -math.inf
            if is_running and await _outlive(job):
                comes_again = False
            if comes_again and job.value is not _NOTHING:
                value = job.value
            else:
                if isinstance(job.value, FileHandle):
                    drive(_closing(job.value))  # Nobody else has it, or would give up its lock.
                raise
        return value

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> LocalFiles:
        lane = LocalFiles(name, width, make_thread=self._make_thread)
        lane._counts = self._counts
        lane._drive = partial(_drive_nofollow, root=nofollow_root) if nofollow_root else self._drive
        return lane

    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        return os.pread(_fd(handle), size, offset)

    def peek_named(self, handle: FileHandle) -> bool:
        return _is_named(IsNamed(handle), os.lstat)

    def statistics(self) -> FilesStatistics:
        from ..base.storage_statistics import FilesStatistics

        return FilesStatistics(programs=self._counts.programs, running=self._counts.running)

    def __repr__(self) -> str:
        return f"<LocalFiles {self._name} width={self._width} running={self._counts.running}>"


def _closing(handle: FileHandle) -> Program[None]:
    yield Close(handle)


async def _outlive(job: _Job) -> bool:
    """W7: wait for the thread, even if asyncio's own ``Task.cancel`` passes anyio's shield. Returns whether
    it did."""
    again = False
    while job.lock.locked():
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_wait_for, job.lock, limiter=anyio.CapacityLimiter(1))
        except anyio.get_cancelled_exc_class():
            again = True  # The caller raises the first cancellation.
    return again


def _wait_for(lock: LockType) -> None:
    lock.acquire()
    lock.release()

"""``Files`` on a simulated disk: no threads, and between any two calls the world may change.

Between two calls of a program other tasks run, so a process can be frozen between its sync and its register
check; with ``interleave=False`` they run before each program only, which costs less where scheduling is not
the point. A program is shielded from cancellation like one in a thread (rule W7), except while it hangs for
ever. ``SimulatedDisk.lose_power`` or a ``LosePower`` fault stops every process of the disk,
``SimulatedFiles.kill`` one of them; what the killed process wrote stays in the page cache. A subclass may
decide how calls wait (``_begin``, ``_turn``, ``_resume``, ``_end``). Determinism: the order of calls is the
order in which the event loop runs the tasks; chance comes from the disk's ``Random`` only.
"""

from __future__ import annotations

import errno
import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import attrs

from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.files import (
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
from tierlog.storage_backends.base.storage_statistics import FilesStatistics
from tierlog.storage_backends.files.folder_syncs import FolderSyncs

from .disk import BLOCK, SECTOR, SimulatedDisk, SimulatedInode

__all__ = [
    "Fail",
    "FailAfter",
    "Fault",
    "Hang",
    "LosePower",
    "OnCall",
    "Pause",
    "SimulatedDisk",
    "SimulatedFiles",
]


@attrs.frozen
class Fail:
    """Raise ``error`` instead of the call; of a write, its first ``written`` bytes happen.

    A failed sync, of a file or a folder, loses what it should have saved.
    """

    error: OSError
    written: int = 0


@attrs.frozen
class FailAfter:
    """The call happens, and ``error`` is raised all the same: a lost answer. An ``Open`` leaves no handle
    behind."""

    error: OSError


@attrs.frozen
class Hang:
    """The call never begins and never returns."""


@attrs.frozen
class Pause:
    """The call begins once ``until`` is set, a frozen process, or after ``seconds``. If it did not last so
    long it fails with ``error``."""

    until: anyio.Event
    seconds: float = math.inf
    error: OSError | None = None


@attrs.frozen
class LosePower:
    """Power is lost at this call; of a write, its first ``written`` bytes, down to a sector boundary, are in
    the page cache.

    A sector is never torn: what is written inside one is there or not.
    """

    written: int = 0


Fault = Fail | FailAfter | Hang | Pause | LosePower
OnCall = Callable[[int, IoCall], Fault | None]
"""Called before every call with its index, from 0, in the process; it may also raise an ``OSError``
itself."""


class _Stopped(BaseException):
    """Thrown into a program whose world has ended, so that it unwinds without any further I/O."""


class _Step(NamedTuple):
    """How a program goes on: with a call's result, or with its error."""

    feed: Callable[[Any], IoCall]
    answer: Any


class SimulatedHandle(FileHandle):
    __slots__ = ("_path", "inode", "is_open")

    def __init__(self, path: str, inode: SimulatedInode) -> None:
        self._path = path
        self.inode = inode
        self.is_open = True

    @property
    def path(self) -> str:
        return self._path


@attrs.define
class _Process:
    """What the lanes of one process share."""

    alive: bool = True
    calls: int = 0
    programs: int = 0
    running: int = 0
    handles: list[SimulatedHandle] = attrs.field(factory=list)
    folder_syncs: FolderSyncs = attrs.field(factory=FolderSyncs)


class SimulatedFiles(Files):
    """One process on ``disk``. ``on_call`` is called before every call of this process."""

    def __init__(
        self, disk: SimulatedDisk, on_call: OnCall | None = None, *, interleave: bool = True
    ) -> None:
        self.disk = disk
        self.interleave = interleave
        self.on_call = on_call
        self._root = self
        self._process = _Process()
        self._width: int | None = None
        self._busy = self._running = 0
        self._queue: deque[anyio.Event] = deque()
        self._perform: dict[type[IoCall], Callable[[Any], Any]] = {
            Open: self._open,
            Close: self._close,
            Read: lambda call: bytes(_inode(call.handle).cache[call.offset : call.offset + call.size]),
            Write: lambda call: disk.write(_inode(call.handle), call.offset, b"".join(call.buffers)),
            Sync: lambda call: _inode(call.handle).sync(),
            Size: lambda call: len(_inode(call.handle).cache),
            FindData: lambda call: _inode(call.handle).find_data(call.offset),
            Allocate: lambda call: disk.allocate(_inode(call.handle), call.offset + call.size),
            Extend: lambda call: _inode(call.handle).extend(call.size),
            Trim: lambda call: _inode(call.handle).trim(call.size),
            Unlock: self._unlock,
            MakeFolder: lambda call: disk.make_folder(call.path),
            SyncFolder: lambda call: disk.folder(call.path).sync(),
            ListFolder: self._list_folder,
            Unlink: lambda call: disk.unlink(call.path),
            RemoveFolder: lambda call: disk.remove_folder(call.path),
            Link: lambda call: disk.link(call.source, call.target),
            Rename: lambda call: disk.rename(call.source, call.target),
            SetReadOnly: self._set_read_only,
            Touch: lambda call: disk.touch(_inode(call.handle)),
            IsReadOnly: lambda call: disk.find(call.path).read_only,
            IsShared: lambda call: False,
            IsGuarded: lambda call: True,
            IsAsMade: lambda call: True,
            IsSameFile: lambda call: disk.find(call.path) is disk.find(call.other),
            IsNamed: lambda call: self._is_named(call.handle),
            FileNumbers: lambda call: (1, crc32c(call.path.encode())),
            FreeSpace: lambda call: disk.free(),
        }

    # --- the process ---

    @property
    def calls(self) -> int:
        """How many calls this process has made."""
        return self._process.calls

    @property
    def open_handles(self) -> int:
        return len(self._process.handles)

    @property
    def is_busy(self) -> bool:
        """Whether a program of this lane runs or waits to."""
        return self._running > 0

    @property
    def alive(self) -> bool:
        return self._process.alive and not self.disk.dead

    def kill(self) -> None:
        """SIGKILL: every call of this process hangs from here on, its locks are free, the page cache
        stays."""
        self._process.alive = False
        for handle in self._process.handles:
            self._shut(handle)
        self._process.handles.clear()
        self.disk.wake_lock_waiters()

    # --- Files ---

    async def run(self, program: Program[T]) -> T:
        await self._begin()
        self._process.programs += 1
        self._process.running += 1
        self._running += 1
        try:
            if self._width is None:
                return await self._drive(program)
            await self._take_slot(self._width)
            try:
                return await self._drive(program)
            finally:
                self._leave_place()
        finally:
            self._process.running -= 1
            self._running -= 1

    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> SimulatedFiles:
        # The simulated disk has no symbolic links.
        lane = self._sibling()
        lane._root, lane._process, lane._width = self._root, self._process, width
        return lane

    def _sibling(self) -> SimulatedFiles:
        return SimulatedFiles(self.disk, interleave=self.interleave)

    async def _take_slot(self, width: int) -> None:
        """Wait for one of the lane's threads; those who wait get them in order."""
        while self._busy >= width:
            turn = anyio.Event()
            self._queue.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn in self._queue:
                    self._queue.remove(turn)
                else:
                    self._wake_next()
                raise
        self._busy += 1

    def _leave_place(self) -> None:
        self._busy -= 1
        self._wake_next()

    def _wake_next(self) -> None:
        if self._queue:
            self._queue.popleft().set()

    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        if not self.alive:
            raise OSError(errno.EIO, "this simulated process has stopped", handle.path)
        return bytes(_inode(handle).cache[offset : offset + size])

    def peek_named(self, handle: FileHandle) -> bool:
        if not self.alive:
            raise OSError(errno.EIO, "this simulated process has stopped", handle.path)
        return self._is_named(handle)

    def _is_named(self, handle: FileHandle) -> bool:
        return self.disk.exists(handle.path) and self.disk.find(handle.path) is _inode(handle)

    def statistics(self) -> FilesStatistics:
        return FilesStatistics(programs=self._process.programs, running=self._process.running)

    # --- driving ---

    async def _drive(self, program: Program[T]) -> T:
        with anyio.CancelScope(shield=True) as scope:
            step = _Step(program.send, None)
            began = self._process.folder_syncs.failures
            while True:
                try:
                    call = step.feed(step.answer)
                except StopIteration as stop:
                    await self._end(scope)
                    return stop.value  # type: ignore[no-any-return]
                try:
                    step = _Step(program.send, await self._call(call, scope, began))
                except OSError as error:
                    step = _Step(program.throw, error)
                except BaseException:
                    # The world has ended, by a cancellation or by a subclass's own way.
                    _bury(program)
                    raise
        raise AssertionError("nobody cancels this scope itself")

    async def _call(self, call: IoCall, scope: anyio.CancelScope, began: int) -> Any:
        await self._turn(call, scope)
        index = self._process.calls
        self._process.calls += 1
        fault = self._root.on_call(index, call) if self._root.on_call else None
        if fault is not None:
            await self._suffer(fault, call, scope)
        if type(call) is Lock:
            return await self._lock(call, scope)
        if type(call) is SyncFolder:
            self._process.folder_syncs.check(call.path, began)
        result = self._do(call)
        if type(fault) is FailAfter:
            if isinstance(result, SimulatedHandle):
                self._close(Close(result))
            raise fault.error
        return result

    def _do(self, call: IoCall) -> Any:
        """The effect."""
        return self._perform[type(call)](call)

    async def _begin(self) -> None:
        """Before a program: here a cancellation drops it."""
        await anyio.lowlevel.checkpoint()

    async def _turn(self, call: IoCall, scope: anyio.CancelScope) -> None:
        """Before a call: let others run, and end here if this process has ended."""
        if self.interleave:
            await anyio.lowlevel.checkpoint()
        await self._resume(scope)

    async def _resume(self, scope: anyio.CancelScope) -> None:
        """After any wait inside a call."""
        if not self.alive:
            await _hang(scope)

    async def _end(self, scope: anyio.CancelScope) -> None:
        """After a program's last call, before its answer."""

    async def _suffer(self, fault: Fault, call: IoCall, scope: anyio.CancelScope) -> None:
        match fault:
            case Fail(error, written):
                self._write_part(call, written)
                if isinstance(call, Sync):
                    _inode(call.handle).lose_sync(self.disk.random)
                elif isinstance(call, SyncFolder):
                    self.disk.folder(call.path).lose_sync(self.disk.random)
                    self._process.folder_syncs.failed(call.path)
                raise error
            case Hang():
                await _hang(scope)
            case Pause(until, seconds, error):
                with anyio.move_on_after(seconds):
                    await until.wait()
                await self._resume(scope)
                if until.is_set() and error is not None:
                    raise error
            case LosePower(written):
                if isinstance(call, Write):
                    self._write_part(
                        call,
                        written
                        if written >= sum(map(len, call.buffers))
                        else written - (call.offset + written) % SECTOR,
                    )
                self.disk.lose_power()
        await self._resume(scope)

    def _write_part(self, call: IoCall, size: int) -> None:
        if size > 0 and isinstance(call, Write):
            self.disk.write(_inode(call.handle), call.offset, b"".join(call.buffers)[:size])

    # --- calls ---

    def _open(self, call: Open) -> SimulatedHandle:
        inode = self.disk.create(call.path) if call.create else self.disk.find(call.path)
        if call.write and inode.read_only:
            raise PermissionError(errno.EACCES, "read-only", call.path)
        handle = SimulatedHandle(call.path, inode)
        self._process.handles.append(handle)
        self.disk.hold(inode)
        return handle

    def _close(self, call: Close) -> None:
        handle = call.handle
        _inode(handle)
        assert isinstance(handle, SimulatedHandle)
        self._process.handles.remove(handle)
        self._shut(handle)

    def _shut(self, handle: SimulatedHandle) -> None:
        handle.is_open = False
        self.disk.unlock(handle.inode, handle)
        self.disk.release(handle.inode)

    async def _lock(self, call: Lock, scope: anyio.CancelScope) -> bool:
        inode = _inode(call.handle)
        while inode.holder not in (None, call.handle):
            if not call.wait:
                return False
            free = anyio.Event()
            self.disk.call_at_unlock(free.set)
            await free.wait()
            await self._resume(scope)
        inode.holder = call.handle
        return True

    def _unlock(self, call: Unlock) -> None:
        self.disk.unlock(_inode(call.handle), call.handle)

    def _list_folder(self, call: ListFolder) -> list[FolderEntry]:
        names = self.disk.folder(call.path).names
        entries = [
            FolderEntry(name, True, 0)
            if entry is None
            else FolderEntry(name, False, len(entry.cache), entry.blocks * BLOCK, entry.modified)
            for name, entry in names.items()
        ]
        return sorted(entries, key=lambda entry: entry.name)

    def _set_read_only(self, call: SetReadOnly) -> None:
        self.disk.find(call.path).read_only = call.read_only


def _inode(handle: FileHandle) -> SimulatedInode:
    assert isinstance(handle, SimulatedHandle)
    if not handle.is_open:
        raise OSError(errno.EBADF, "closed already", handle.path)
    return handle.inode


async def _hang(scope: anyio.CancelScope) -> None:
    """For ever, and open to cancellation: a call that never returns shields nothing."""
    scope.shield = False
    await anyio.sleep_forever()


def _bury(program: Program[Any]) -> None:
    """Unwind a program whose world has ended: its clean-up calls are answered with the end again."""
    try:
        while True:
            program.throw(_Stopped())
    except (_Stopped, StopIteration):
        return

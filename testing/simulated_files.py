"""``Files`` on a simulated disk: no threads, every step a place where the world may change.

Owns: running programs call by call, faults before any call, the life of a simulated process. Does not own: what the disk keeps
(``simulated_disk.py``).

Between two calls of a program other tasks run, so a process can be frozen between its sync and its register check. A program is
shielded from cancellation like one in a thread (rule W7), except while it hangs for ever.
A crash is: everything hangs first, then the test cancels (hole 38). ``SimulatedDisk.lose_power`` or a ``LosePower`` fault stops every
process of the disk, ``SimulatedFiles.kill`` one of them; what the killed process wrote stays in the page cache.
Determinism: the order of calls is the order in which the event loop runs the tasks; chance comes from the disk's ``Random`` only.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import attrs

from ..storage_backends.base.files import (
    Allocate,
    Close,
    FileHandle,
    Files,
    FilesStatistics,
    FolderEntry,
    FreeSpace,
    IoCall,
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
    Unlink,
    Unlock,
    Write,
)
from .simulated_disk import SECTOR, SimulatedDisk, SimulatedInode

__all__ = ["Fail", "Fault", "Hang", "LosePower", "OnCall", "Pause", "SimulatedDisk", "SimulatedFiles"]


@attrs.frozen
class Fail:
    """Raise ``error`` instead of the call; of a write, its first ``written`` bytes happen.

    A failed ``Sync`` loses what it should have saved.
    """

    error: OSError
    written: int = 0


@attrs.frozen
class Hang:
    """The call never begins and never returns."""


@attrs.frozen
class Pause:
    """The call begins once ``until`` is set: a frozen process."""

    until: anyio.Event


@attrs.frozen
class LosePower:
    """Power is lost at this call; of a write, its first ``written`` bytes, down to a sector border, are in the page cache.

    A sector is never torn: what is written inside one is there or not.
    """

    written: int = 0


Fault = Fail | Hang | Pause | LosePower
OnCall = Callable[[int, IoCall], Fault | None]
"""Called before every call with its index, from 0, in the process; it may also raise an ``OSError`` itself."""


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


class SimulatedFiles(Files):
    """One process on ``disk``. ``on_call`` is asked before every call of this process."""

    def __init__(self, disk: SimulatedDisk, on_call: OnCall | None = None) -> None:
        self.disk = disk
        self.on_call = on_call
        self._root = self
        self._process = _Process()
        self._width: int | None = None
        self._limiter: anyio.CapacityLimiter | None = None
        self._perform: dict[type[IoCall], Callable[[Any], Any]] = {
            Open: self._open,
            Close: self._close,
            Read: lambda call: bytes(_inode(call.handle).cache[call.offset : call.offset + call.size]),
            Write: lambda call: disk.write(_inode(call.handle), call.offset, b"".join(call.buffers)),
            Sync: lambda call: _inode(call.handle).sync(),
            Size: lambda call: len(_inode(call.handle).cache),
            Allocate: lambda call: disk.allocate(_inode(call.handle), call.offset + call.size),
            Unlock: self._unlock,
            MakeFolder: lambda call: disk.make_folder(call.path),
            SyncFolder: lambda call: disk.folder(call.path).sync(),
            ListFolder: self._list_folder,
            Unlink: lambda call: disk.unlink(call.path),
            RemoveFolder: lambda call: disk.remove_folder(call.path),
            Link: lambda call: disk.link(call.source, call.target),
            Rename: lambda call: disk.rename(call.source, call.target),
            SetReadOnly: self._set_read_only,
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
    def alive(self) -> bool:
        return self._process.alive and not self.disk.dead

    def kill(self) -> None:
        """SIGKILL: every call of this process hangs from here on, its locks are free, the page cache stays."""
        self._process.alive = False
        for handle in self._process.handles:
            self._shut(handle)
        self._process.handles.clear()

    # --- Files ---

    async def run(self, program: Program[T]) -> T:
        await anyio.lowlevel.checkpoint()
        self._process.programs += 1
        self._process.running += 1
        try:
            if self._width is None:
                return await self._drive(program)
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(self._width)
            async with self._limiter:
                return await self._drive(program)
        finally:
            self._process.running -= 1

    def lane(self, name: str, width: int = 1) -> SimulatedFiles:
        lane = SimulatedFiles(self.disk)
        lane._root, lane._process, lane._width = self._root, self._process, width
        return lane

    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        if not self.alive:
            raise OSError(errno.EIO, "this simulated process has stopped", handle.path)
        return bytes(_inode(handle).cache[offset : offset + size])

    def statistics(self) -> FilesStatistics:
        return FilesStatistics(programs=self._process.programs, running=self._process.running)

    # --- driving ---

    async def _drive(self, program: Program[T]) -> T:
        with anyio.CancelScope(shield=True) as scope:
            step = _Step(program.send, None)
            while True:
                try:
                    call = step.feed(step.answer)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                try:
                    step = _Step(program.send, await self._call(call, scope))
                except OSError as error:
                    step = _Step(program.throw, error)
                except anyio.get_cancelled_exc_class():
                    _bury(program)
                    raise
        raise AssertionError("nobody cancels this scope itself")

    async def _call(self, call: IoCall, scope: anyio.CancelScope) -> Any:
        await anyio.lowlevel.checkpoint()
        await self._hang_if_stopped(scope)
        index = self._process.calls
        self._process.calls += 1
        fault = self._root.on_call(index, call) if self._root.on_call else None
        if fault is not None:
            await self._suffer(fault, call, scope)
        if type(call) is Lock:
            return await self._lock(call, scope)
        return self._perform[type(call)](call)

    async def _suffer(self, fault: Fault, call: IoCall, scope: anyio.CancelScope) -> None:
        match fault:
            case Fail(error, written):
                self._write_part(call, written)
                if isinstance(call, Sync):
                    _inode(call.handle).lose_sync(self.disk.random)
                raise error
            case Hang():
                await _hang(scope)
            case Pause(until):
                await until.wait()
            case LosePower(written):
                if isinstance(call, Write):
                    self._write_part(
                        call, written if written >= sum(map(len, call.buffers)) else written - (call.offset + written) % SECTOR
                    )
                self.disk.lose_power()
        await self._hang_if_stopped(scope)

    async def _hang_if_stopped(self, scope: anyio.CancelScope) -> None:
        if not self.alive:
            await _hang(scope)

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
        if handle.inode.holder is handle:
            handle.inode.holder = None
        self.disk.release(handle.inode)

    async def _lock(self, call: Lock, scope: anyio.CancelScope) -> bool:
        inode = _inode(call.handle)
        while inode.holder not in (None, call.handle):
            if not call.wait:
                return False
            await anyio.lowlevel.checkpoint()
            await self._hang_if_stopped(scope)
        inode.holder = call.handle
        return True

    def _unlock(self, call: Unlock) -> None:
        inode = _inode(call.handle)
        if inode.holder is call.handle:
            inode.holder = None

    def _list_folder(self, call: ListFolder) -> list[FolderEntry]:
        names = self.disk.folder(call.path).names
        entries = [FolderEntry(name, entry is None, 0 if entry is None else len(entry.cache)) for name, entry in names.items()]
        return sorted(entries, key=lambda entry: entry.name)

    def _set_read_only(self, call: SetReadOnly) -> None:
        self.disk.find(call.path).read_only = call.read_only


def _inode(handle: FileHandle) -> SimulatedInode:
    assert isinstance(handle, SimulatedHandle)
    if not handle.is_open:
        raise OSError(errno.EBADF, "closed already", handle.path)
    return handle.inode


async def _hang(scope: anyio.CancelScope) -> None:
    """For ever, and open to cancellation: a call that never returns shields nobody."""
    scope.shield = False
    await anyio.sleep_forever()


def _bury(program: Program[Any]) -> None:
    """Unwind a program whose world has ended: its clean-up calls are answered with the end again."""
    try:
        while True:
            program.throw(_Stopped())
    except (_Stopped, StopIteration):
        return

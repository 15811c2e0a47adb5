"""The file layer: all local file I/O goes through here.

A piece of I/O is a *program*: a generator that yields I/O calls (the frozen classes below) and receives their
results; an ``OSError`` of a call is raised at its ``yield``. ``Files.run`` drives a whole program, so "write,
sync, check the register, store the watermark" costs one hop into a worker thread, reads like plain code, and
can be driven step by step by a simulated disk that drops unsynced writes, tears pages, hangs or loses power
between any two calls. ``files/local.py`` drives programs on the operating system,
``tests/simulation/file_layer.py`` on a simulated disk.

Order: the calls of one program happen one after the other; programs of a lane of width 1 never overlap.
Cancellation (rule W7): a running program is never abandoned; ``run`` returns or raises only after its last
call has returned, and then delivers the cancellation. A handle is closed only by a ``Close`` call, hence
after every earlier call on it. ``OSError`` passes through unchanged; each backend maps it.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from msgspec import Struct

from .checksum import Buffer
from .values import Value

if TYPE_CHECKING:
    from .storage_statistics import FilesStatistics

T = TypeVar("T")

_ATTEMPTS = 8

NOT_A_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""The error numbers of an ``Open`` of a folder, a pipe, a device, a link or a socket."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk, or of a quota that is used up."""


class FileHandle(ABC):
    """An open file, usable only with the ``Files`` that opened it."""

    __slots__ = ()

    @property
    @abstractmethod
    def path(self) -> str: ...


class IoCall(Struct, frozen=True):
    """The base of all calls."""


class _OnHandle(IoCall, frozen=True):
    handle: FileHandle


class _OnPath(IoCall, frozen=True):
    path: str


class _OnRange(IoCall, frozen=True):
    handle: FileHandle
    offset: int
    size: int


class _OnSize(IoCall, frozen=True):
    handle: FileHandle
    size: int


class _OnNames(IoCall, frozen=True):
    source: str
    target: str


class Open(IoCall, frozen=True):
    """Open a regular file: result ``FileHandle``; ``NOT_A_FILE`` has the errors of anything else. ``create``:
    create it, ``FileExistsError`` if it exists. ``cold``: what is written will not be read soon, so the page
    cache need not keep it once it is synced."""

    path: str
    write: bool = False
    create: bool = False
    cold: bool = False


class Close(_OnHandle, frozen=True):
    """Close the file."""


class Read(_OnRange, frozen=True):
    """Read up to ``size`` bytes at ``offset``: result ``bytes``, short only at the end of the file."""


class Write(IoCall, frozen=True):
    """Write all buffers one after the other at ``offset``. After an ``OSError`` any part may be written.
    ``bulk``: no caller waits for the following sync, so the disk may begin at once in slices, between syncs
    of other files. ``filler``: so many of the last bytes are zeros that the next write goes over, and stay in
    the page cache until then."""

    handle: FileHandle
    offset: int
    buffers: Sequence[Buffer]
    bulk: bool = False
    filler: int = 0


class Sync(_OnHandle, frozen=True):
    """fdatasync: make everything written to the file durable. Never retried after a failure (rule W6)."""


class Size(_OnHandle, frozen=True):
    """The file's length in bytes: result ``int``."""


class FindData(IoCall, frozen=True):
    """Where the next bytes are, at or behind ``offset``, that may be other than zeros: result ``int``, at the
    end of the file its length. Holes and allocated blocks that were never written are passed over where the
    file system knows them."""

    handle: FileHandle
    offset: int


class Allocate(_OnRange, frozen=True):
    """Reserve disk blocks for ``offset .. offset + size`` without changing the file's length. ``ENOSPC`` if
    there is no room; a no-op where the file system does not support it."""


class Extend(_OnSize, frozen=True):
    """Make the file at least ``size`` bytes long, with zeros. A later sync of bytes written there need not
    make a new length durable, which makes it about a third cheaper (one journal commit per group, on
    ext4)."""


class Trim(_OnSize, frozen=True):
    """End a file at ``size`` bytes and free the blocks behind them, also those that ``Allocate`` reserved. A
    shorter file stays as it is."""


class Lock(IoCall, frozen=True):
    """An exclusive flock, held until ``Unlock`` or ``Close``. Result ``bool``: False if ``wait`` is False and
    another process holds it. One that is held for long raises ``EBUSY``."""

    handle: FileHandle
    wait: bool = True


class Unlock(_OnHandle, frozen=True):
    """Release the lock."""


class MakeFolder(_OnPath, frozen=True):
    """Make a folder and its missing parents, if they do not exist. Durable after ``SyncFolder`` of each
    parent."""


class SyncFolder(_OnPath, frozen=True):
    """Make the folder's entries (creations, links, renames, unlinks in it) durable. Fails too if the same
    call of another program failed after this program began (rule W11)."""


class ListFolder(IoCall, frozen=True):
    """The names in a folder, sorted: result ``list[FolderEntry]``; ``FileNotFoundError`` if it is missing.
    ``others``: also below a ``nofollow_root`` with those of links, pipes, devices and sockets."""

    path: str
    others: bool = False


@attrs.frozen(eq=False, repr=False)
class FolderEntry(Value):
    name: str
    is_folder: bool
    size: int
    allocated: int = attrs.field(default=0, eq=False)
    """Bytes of the blocks that it holds: more than its size if some are allocated ahead, fewer if it has
    holes."""
    modified: float = attrs.field(default=0.0, eq=False)
    """When it was written or touched last: to compare files with each other."""


class Unlink(_OnPath, frozen=True):
    """Remove a file; ``FileNotFoundError`` if it is missing."""


class RemoveFolder(_OnPath, frozen=True):
    """Remove an empty folder."""


class Link(_OnNames, frozen=True):
    """Give the file at ``source`` the second name ``target``; ``FileExistsError`` if that exists."""


class Rename(_OnNames, frozen=True):
    """Give the file at ``source`` the name ``target``. A file that had this name loses it."""


class SetReadOnly(IoCall, frozen=True):
    path: str
    read_only: bool


class IsReadOnly(_OnPath, frozen=True):
    """Whether the file's permissions allow no one to write: result ``bool``; ``FileNotFoundError`` if it is
    missing."""


class IsShared(_OnPath, frozen=True):
    """Whether other users than its owner may write to the file or folder: result ``bool``;
    ``FileNotFoundError`` if it is missing."""


class IsGuarded(_OnPath, frozen=True):
    """Whether nobody but this user and root can change what is in a folder, or put another one in its place:
    it and its parent are theirs, and no other may write to them; to a parent with the sticky bit all may.
    Result ``bool``; ``FileNotFoundError`` if it is missing."""


class IsAsMade(_OnPath, frozen=True):
    """Whether a folder is as ``MakeFolder`` makes it: of this user, accessible to no other, and without
    extended attributes. One that somebody prepared is not. Result ``bool``; ``FileNotFoundError`` if it is
    missing."""


class IsSameFile(IoCall, frozen=True):
    """Whether both paths name the same file: result ``bool``; ``FileNotFoundError`` if one is missing."""

    path: str
    other: str


class Touch(_OnHandle, frozen=True):
    """Make the file the one that was modified last."""


class IsNamed(_OnHandle, frozen=True):
    """Whether the path of the open file still leads to it: result ``bool``."""


class FileNumbers(_OnPath, frozen=True):
    """The device and the inode of a file or folder: result ``tuple[int, int]``. A copy has others."""


class FreeSpace(_OnPath, frozen=True):
    """Bytes free for this user on the file system of ``path``: result ``int``."""


Program = Generator[IoCall, Any, T]


class Files(ABC):
    """Drives programs. Paths are absolute strings with ``/``."""

    @abstractmethod
    async def run(self, program: Program[T]) -> T:
        """Drive ``program`` to its end and return its value. It is never abandoned on cancellation (rule
        W7)."""

    @abstractmethod
    def lane(self, name: str, width: int = 1, nofollow_root: str = "") -> Files:
        """A view with ``width`` threads of its own, which calls of other lanes cannot delay (rule W7).

        Below the folder ``nofollow_root`` it follows no symbolic links and opens regular files only; anything
        else raises ``ENOTDIR``, ``ELOOP`` or ``EISDIR``. All calls of one program below that folder are in
        the same one, even if something is mounted there or unmounted meanwhile, up to a ``MakeFolder`` of it.
        """

    @abstractmethod
    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        """A small read without a thread, for bytes in the page cache (an owner's own register: under 1
        us)."""

    @abstractmethod
    def peek_named(self, handle: FileHandle) -> bool:
        """``IsNamed`` without a thread, on a local file system: about 10 us."""

    @abstractmethod
    def statistics(self) -> FilesStatistics: ...


def make_folder(folder: str, *, with_parent: bool = False) -> Program[None]:
    """Make the folder and its missing parents, and their names durable before anything is in them.

    So a folder with anything in it has a durable name. That of an empty one may be lost in a power loss,
    although its sync succeeds: an earlier one may have failed in a process that was killed then. So an empty
    folder is removed and made again (rule W11). Another program may do this until there is something in it.
    ``with_parent``: its parent too, if it has nothing else in it. One that somebody else prepared, with an
    owner, a mode or attributes of their choice, is only synced.
    """
    yield from _repeated(lambda: _make_folder(folder, with_parent))


def _make_folder(folder: str, with_parent: bool) -> Program[None]:
    parent = folder.rpartition("/")[0] or "/"
    try:
        if (yield ListFolder(folder)) or folder == "/":
            return
        with suppress(OSError):  # A mount point, or another program was faster.
            if (yield IsAsMade(folder)):
                yield RemoveFolder(folder)
                if with_parent and (yield IsAsMade(parent)):
                    yield RemoveFolder(parent)
    except FileNotFoundError:
        pass
    # All of them before the first sync: if one fails, the last folder is empty.
    if with_parent:
        yield MakeFolder(parent)  # By its own name, because it may be a ``nofollow_root``.
    yield MakeFolder(folder)
    yield from sync_ancestry(parent, (yield from _nearest_with_others(folder)))


def _nearest_with_others(folder: str) -> Program[str]:
    """The nearest parent that has other names too, so that its own is durable, or the root."""
    while folder.count("/") > 1:
        folder, _, name = folder.rpartition("/")
        try:
            entries: Sequence[FolderEntry] = yield ListFolder(folder)
        except PermissionError:
            return folder
        if any(entry.name != name for entry in entries):
            return folder
    return "/"


def with_folder(folder: str, begin: Callable[[], Program[T]], *, with_parent: bool = False) -> Program[T]:
    """Make the folder, and run ``begin``, whose first call makes something in it. As long as it is empty,
    another program may remove it and make it again: then ``begin``, which fails, is repeated."""

    def program() -> Program[T]:
        yield from _make_folder(folder, with_parent)
        return (yield from begin())

    return (yield from _repeated(program))


def _repeated(program: Callable[[], Program[T]]) -> Program[T]:
    """Run ``program``, again if another program removed its folder meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(FileNotFoundError):
            return (yield from program())
    return (yield from program())


def write_file(path: str, content: bytes) -> Program[None]:
    """A new file with ``content``, which is durable; its name is not."""
    handle: FileHandle = yield Open(path, write=True, create=True)
    try:
        yield Write(handle, 0, [content])
        yield Sync(handle)
    finally:
        yield Close(handle)


def create_whole(path: str, temporary: str, content: bytes) -> Program[None]:
    """Create the file ``path`` with ``content``, durably, unless there is one, and its folder."""
    folder = path.rpartition("/")[0]
    yield from with_folder(folder, lambda: write_file(temporary, content), with_parent=True)
    # If another process is first, it may remove the temporary file.
    with suppress(FileExistsError, FileNotFoundError):
        # A rename would replace what another process has made; a link fails.
        yield Link(temporary, path)
    with suppress(FileNotFoundError):
        yield Unlink(temporary)
    yield SyncFolder(folder)


def remake_name(path: str, temporary: str, content: bytes) -> Program[None]:
    """Make the name ``path`` of a file that has ``content`` again, by way of ``temporary``, and durable: a
    sync that succeeds need not write the name that an earlier, failed one lost (rule W11)."""
    while True:
        yield from write_file(temporary, content)
        with suppress(FileNotFoundError):  # An opening removes all temporary files.
            yield Rename(temporary, path)
            break
    yield SyncFolder(path.rpartition("/")[0])


def sync_ancestry(folder: str, top: str = "/") -> Program[None]:
    """Make the names in ``folder``, its own name and those of its parents durable, up to the names in
    ``top``.

    All of them, because an earlier process may have crashed before it did: what the page cache shows proves
    nothing.
    """
    path = folder
    while True:
        try:
            yield SyncFolder(path)
        except PermissionError:
            return  # A process that may not read this folder cannot have created anything in it.
        if path == top:
            return
        path = path.rpartition("/")[0] or "/"

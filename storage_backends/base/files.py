"""The file layer: every byte that tierlog keeps in local files goes through here.

A piece of I/O is a *program*: a generator that yields I/O calls (the frozen classes below) and receives their
results; an ``OSError`` of a call is raised at its ``yield``. ``Files.run`` drives a whole program to its end,
so "write, sync, check the register, note the watermark" costs one hop into a worker thread, reads like plain
code, and can be driven step by step by a simulated disk that drops unsynced writes, tears pages, hangs or
loses power between any two calls.

Owns: the vocabulary. ``files/local.py`` drives it on the operating system, ``tests/simulation/file_layer.py``
on a simulated disk.

Ordering: the calls of one program happen one after the other; programs of one lane never overlap (a lane has
one thread). Cancellation (rule W7): a running program is never abandoned; ``run`` returns or raises only when
its last call has returned. A cancellation is delivered after that. A handle is closed only by a ``Close``
call, hence after every earlier call on it. Errors: ``OSError`` passes through unmapped; each backend maps it
at its own edge.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import attrs

from .checksum import Buffer
from .statistics import counter, gauge

T = TypeVar("T")


class FileHandle(ABC):
    """An open file. Opaque: only its own ``Files`` can use it."""

    __slots__ = ()

    @property
    @abstractmethod
    def path(self) -> str: ...


class IoCall:
    """The base of all calls."""

    __slots__ = ()


@attrs.frozen
class Open(IoCall):
    """Open a file: result ``FileHandle``. ``create`` makes it and fails if it exists (``FileExistsError``).

    ``cold`` says that what is written through the handle is not going to be read soon: once it is synced,
    memory need not keep it.
    """

    path: str
    write: bool = False
    create: bool = False
    cold: bool = False


@attrs.frozen
class Close(IoCall):
    handle: FileHandle


@attrs.frozen
class Read(IoCall):
    """Read up to ``size`` bytes at ``offset``: result ``bytes``, short only at the end of the file."""

    handle: FileHandle
    offset: int
    size: int


@attrs.frozen
class Write(IoCall):
    """Write all buffers one after the other at ``offset``; complete, or an ``OSError`` after any part of it.
    ``bulk`` says that a sync follows for which nobody waits: the disk may begin at once, bit by bit, so that
    syncs of other files come in between."""

    handle: FileHandle
    offset: int
    buffers: Sequence[Buffer]
    bulk: bool = False


@attrs.frozen
class Sync(IoCall):
    """fdatasync: everything written to the file before is on the disk. Never retried after a failure (rule
    W6)."""

    handle: FileHandle


@attrs.frozen
class Size(IoCall):
    """The file's length in bytes: result ``int``."""

    handle: FileHandle


@attrs.frozen
class Allocate(IoCall):
    """Reserve disk blocks for ``offset .. offset + size`` without changing the file's length. ``ENOSPC`` when
    there is no room; a no-op where the file system cannot do it."""

    handle: FileHandle
    offset: int
    size: int


@attrs.frozen
class Extend(IoCall):
    """Make the file at least ``size`` bytes long; what is new reads as zeros. A later sync of bytes written
    there has no new length to make durable, which costs it about a third less (a journal commit for each
    group, on ext4)."""

    handle: FileHandle
    size: int


@attrs.frozen
class Lock(IoCall):
    """An exclusive flock, held until ``Unlock`` or ``Close``. Result ``bool``: False if ``wait`` is False and
    another process holds it."""

    handle: FileHandle
    wait: bool = True


@attrs.frozen
class Unlock(IoCall):
    handle: FileHandle


@attrs.frozen
class MakeFolder(IoCall):
    """Make a folder and its missing parents; existing is fine. Durable after ``SyncFolder`` of each
    parent."""

    path: str


@attrs.frozen
class SyncFolder(IoCall):
    """Make the folder's entries (creations, links, renames, unlinks in it) durable."""

    path: str


@attrs.frozen
class ListFolder(IoCall):
    """The names in a folder, sorted: result ``list[FolderEntry]``; ``FileNotFoundError`` if it is missing."""

    path: str


@attrs.frozen
class FolderEntry:
    name: str
    is_folder: bool
    size: int


@attrs.frozen
class Unlink(IoCall):
    """Remove a file; ``FileNotFoundError`` if it is missing."""

    path: str


@attrs.frozen
class RemoveFolder(IoCall):
    """Remove an empty folder."""

    path: str


@attrs.frozen
class Link(IoCall):
    """Give the file at ``source`` the second name ``target``; ``FileExistsError`` if that is taken."""

    source: str
    target: str


@attrs.frozen
class Rename(IoCall):
    source: str
    target: str


@attrs.frozen
class SetReadOnly(IoCall):
    path: str
    read_only: bool


@attrs.frozen
class IsReadOnly(IoCall):
    """Whether the file's permissions refuse writes to everybody: result ``bool``; ``FileNotFoundError`` if it
    is missing."""

    path: str


@attrs.frozen
class IsSameFile(IoCall):
    """Whether both paths name one file: result ``bool``; ``FileNotFoundError`` if one is missing."""

    path: str
    other: str


@attrs.frozen
class FreeSpace(IoCall):
    """Bytes free for this user on the file system of ``path``: result ``int``."""

    path: str


Program = Generator[IoCall, Any, T]


class Files(ABC):
    """Drives programs. Paths are absolute strings with ``/``."""

    @abstractmethod
    async def run(self, program: Program[T]) -> T:
        """Drive ``program`` to its end and return its value. Not abandoned on cancellation (see the module's
        head)."""

    @abstractmethod
    def lane(self, name: str, width: int = 1, beneath: str = "") -> Files:
        """A view with its own ``width`` threads, so that nobody else's calls can delay it (rule W7).

        Below the folder ``beneath`` it follows no symbolic link, and opens regular files only: ``ENOTDIR``,
        ``ELOOP`` or ``EISDIR``.
        """

    @abstractmethod
    def peek(self, handle: FileHandle, offset: int, size: int) -> bytes:
        """A small read without a thread, for bytes that are in the page cache (an owner's own register: under
        1 us)."""

    @abstractmethod
    def statistics(self) -> FilesStatistics: ...


@attrs.frozen
class FilesStatistics:
    programs: int = attrs.field(metadata=counter("Programs begun."))
    running: int = attrs.field(
        metadata=gauge(
            "Programs in a thread now; after a close past its deadline: threads leaked on purpose."
        )
    )


def sync_ancestry(folder: str) -> Program[None]:
    """Make the names in ``folder``, its own name and those of all its parents durable.

    All of them, because an earlier process, or whoever made them, may have died before doing so: what the
    page cache shows proves nothing.
    """
    path = folder
    while True:
        try:
            yield SyncFolder(path)
        except PermissionError:
            return  # Nobody who may not read this folder has made anything in it.
        if path == "/":
            return
        path = path.rpartition("/")[0] or "/"

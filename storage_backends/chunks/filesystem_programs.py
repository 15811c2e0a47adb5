"""The I/O programs of the filesystem chunk storage: publish a whole object, remove one, make folders, copy ranges.

Owns: their order of calls, and the mapping of ``OSError``. A program notes in its ``Progress`` when the next call may change what
others see: an error before that means that nothing happened, one after it that the outcome is unknown. No program yields in a
``finally``: a simulated power loss closes the generator, and nothing may run after that.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from posixpath import dirname
from typing import TypeVar

import attrs

from ..base.chunk_storage import ChunkRange
from ..base.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkReadOnly,
    InvalidArgument,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ..base.files import (
    Close,
    FileHandle,
    IoCall,
    Link,
    MakeFolder,
    Open,
    Program,
    Read,
    RemoveFolder,
    Size,
    Sync,
    SyncFolder,
    Unlink,
    Write,
)
from .counted import bad_offset

TEMPORARY = ".tmp-"
MARK = ".tierlog-chunks"
_COPY_SIZE = 4 << 20
_LINK_ATTEMPTS = 3
T = TypeVar("T")


@attrs.define
class Progress:
    changed: bool = False
    """Whether a call that others can see may have taken effect."""


def mapped(error: OSError, name: str, progress: Progress) -> TierlogError:
    """The error that tells the caller of a chunk verb what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(f"no room for chunk {name}: {error}")

    if progress.changed:
        return OutcomeUnknown(f"chunk {name} may have been changed: {error}")

    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return ChunkNotFound(f"there is no chunk {name}", chunk=name)

    if error.errno == errno.EEXIST:
        return ChunkExists(f"chunk {name} exists already", chunk=name)

    if error.errno in (errno.EACCES, errno.EPERM):
        return ChunkReadOnly(f"chunk {name} cannot be changed or read with this process's permissions: {error}", chunk=name)

    return Unavailable(f"chunk {name} cannot be reached now: {error}")


def with_file(opening: Open, body: Callable[[FileHandle], Program[T]]) -> Program[T]:
    """Open, run ``body``, and close whatever ``body`` raised."""
    handle = yield opening
    try:
        result = yield from body(handle)
    except Exception:
        yield Close(handle)
        raise
    yield Close(handle)
    return result


class Folders:
    """The folders below a root that are known to exist durably. Shared by the threads of one storage."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: set[str] = set()

    def make(self, folder: str) -> Program[None]:
        """Make a folder below the root durably, level by level."""
        if folder == self.root or folder in self._known:
            return

        yield from self.make(dirname(folder))
        try:
            yield MakeFolder(folder)
        except (FileExistsError, NotADirectoryError) as error:
            raise InvalidArgument(f"{folder} is a chunk, it cannot also be a folder of chunks") from error

        yield SyncFolder(dirname(folder))
        self._known.add(folder)

    def remove_empty(self, folder: str) -> Program[None]:
        """Remove a folder and its parents below the root as far as they are empty. Need not survive a crash."""
        while folder != self.root:
            try:
                yield RemoveFolder(folder)
            except OSError:
                return  # In use, or removed by somebody else.
            self.forget(folder)
            folder = dirname(folder)

    def forget(self, folder: str) -> None:
        while folder != self.root:
            self._known.discard(folder)
            folder = dirname(folder)


def publish(path: str, temporary: str, fill: Callable[[FileHandle], Program[int]], folders: Folders, progress: Progress) -> Program[int]:
    """A whole object: all of what ``fill`` writes appears durably under ``path``, or nothing does."""
    handle = yield Open(temporary, write=True, create=True)
    try:
        size = yield from fill(handle)
        yield Sync(handle)
    except Exception:
        yield Close(handle)
        yield from discard(temporary)
        raise
    yield Close(handle)
    try:
        yield from _link(temporary, path, folders, progress)
    except Exception:
        yield from discard(temporary)
        raise
    yield from discard(temporary)
    yield SyncFolder(dirname(path))
    return size


def remove(path: str, folders: Folders, progress: Progress) -> Program[None]:
    """Remove a chunk durably, and the folders that it leaves empty."""
    yield from _effect(progress, Unlink(path), (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError))
    yield SyncFolder(dirname(path))
    yield from folders.remove_empty(dirname(path))


def copy_ranges(target: FileHandle, ranges: Sequence[ChunkRange], path_of: Callable[[str], str]) -> Program[int]:
    """Write the ranges to ``target`` one after the other; returns their total length. Sources are only read (rule S4)."""
    end = 0
    for part in ranges:
        yield from with_file(Open(path_of(part.name)), partial(_copy, part=part, target=target, at=end))
        end += part.length
    return end


def _copy(source: FileHandle, *, part: ChunkRange, target: FileHandle, at: int) -> Program[None]:
    length = yield Size(source)
    if part.offset + part.length > length:
        raise bad_offset(part.name, length, part.offset + part.length)

    for done in range(0, part.length, _COPY_SIZE):
        data = yield Read(source, part.offset + done, min(_COPY_SIZE, part.length - done))
        yield Write(target, at + done, [data])


def _link(temporary: str, path: str, folders: Folders, progress: Progress) -> Program[None]:
    """Give the object its name. Its folder may vanish meanwhile: a delete removes folders that are empty."""
    for _ in range(_LINK_ATTEMPTS):
        yield from folders.make(dirname(path))
        try:
            return (yield from _effect(progress, Link(temporary, path), (FileExistsError, FileNotFoundError)))
        except FileNotFoundError:
            folders.forget(dirname(path))
    raise Unavailable(f"the temporary file {temporary} was swept by another process that opened this root; write {path} again")


def _effect(progress: Progress, call: IoCall, harmless: tuple[type[OSError], ...]) -> Program[None]:
    """A call that others can see; after an error that is not ``harmless`` it may have happened."""
    progress.changed = True
    try:
        yield call
    except harmless:
        progress.changed = False
        raise


def discard(temporary: str) -> Program[None]:
    try:
        yield Unlink(temporary)
    except OSError:
        return  # Another opener swept it, or the next one will.

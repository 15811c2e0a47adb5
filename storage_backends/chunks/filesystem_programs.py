"""The I/O programs of the filesystem chunk storage: publish a whole object, remove one, make folders, copy
ranges.

Owns: their order of calls, and the mapping of ``OSError``. A program notes in its ``Progress`` when the next
call may change what others see: an error before that means that nothing happened, one after it that the
outcome is unknown. No program yields in a ``finally``: a simulated power loss closes the generator, and
nothing may run after that.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
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
    IsSameFile,
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
from .base import bad_offset

TEMPORARY = ".tmp-"
MARK = ".tierlog-chunks"
_COPY_SIZE = 4 << 20
_LINK_ATTEMPTS = 20
T = TypeVar("T")


@attrs.define
class Progress:
    changed: bool = False
    """Whether a call that others can see may have taken effect."""
    appends: bool = False
    """Whether it adds bytes to a chunk that is there, which count for nothing before they are committed."""
    alters: bool = False
    """Whether it is about a change of one chunk that is there: what forbids it, forbids nothing else."""


def mapped(error: OSError, name: str, progress: Progress) -> TierlogError:
    """The error that tells the caller of a chunk verb what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and (progress.appends or not progress.changed):
        return StorageFull(f"no room for chunk {name}: {error}")

    if progress.changed:
        return OutcomeUnknown(f"chunk {name} may have been changed: {error}")

    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
        return ChunkNotFound(f"there is no chunk {name}", chunk=name)

    if error.errno == errno.EEXIST:
        return ChunkExists(f"chunk {name} exists already", chunk=name)

    if error.errno in (errno.EACCES, errno.EPERM) and progress.alters:
        return ChunkReadOnly(
            f"chunk {name} cannot be changed with this process's permissions: {error}", chunk=name
        )

    if error.errno in (errno.EACCES, errno.EPERM):
        # Not about a chunk that was closed on purpose: trouble, that lasts until somebody corrects it.
        return Unavailable(
            f"chunk {name} cannot be reached with this process's permissions: {error}; correct the owner or "
            f"the mode"
        )

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
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
                raise
            raise InvalidArgument(
                f"{folder} is a chunk or a link, it cannot also be a folder of chunks"
            ) from error

        yield SyncFolder(dirname(folder))
        self._known.add(folder)

    def remove_empty(self, folder: str) -> Program[None]:
        """Remove a folder and its parents below the root as far as they are empty. Need not survive a
        crash."""
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


def publish(
    path: str,
    temporary: str,
    fill: Callable[[FileHandle], Program[int]],
    folders: Folders,
    progress: Progress,
) -> Program[int]:
    """A whole object: all of what ``fill`` writes appears durably under ``path``, or nothing does."""
    try:
        handle = yield Open(temporary, write=True, create=True, cold=True)
    except FileExistsError as error:
        raise Unavailable(
            f"the temporary name {temporary} is taken; write {path} again under another one"
        ) from error

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
    """Remove a chunk durably, and the folders that it leaves empty. ``FileNotFoundError`` is as durable."""
    try:
        yield from _effect(
            progress,
            Unlink(path),
            (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError),
        )
    except FileNotFoundError:
        # A delete whose answer was lost may have removed it unsynced, and whoever is told that it is gone
        # forgets its name for good.
        yield from _sync_what_is_left(dirname(path), folders.root)
        raise
    yield from _sync_what_is_left(dirname(path), folders.root)
    yield from folders.remove_empty(dirname(path))


def _sync_what_is_left(folder: str, root: str) -> Program[None]:
    """Sync a folder; or, where another delete has just removed it with all that was in it, the one that it
    was removed from."""
    while True:
        try:
            yield SyncFolder(folder)
        except FileNotFoundError:
            if folder == root:
                raise
            folder = dirname(folder)
        else:
            return


def copy_ranges(
    target: FileHandle, ranges: Sequence[ChunkRange], path_of: Callable[[str], str]
) -> Program[int]:
    """Write the ranges to ``target`` one after the other; returns their total length. Sources are only read
    (rule S4)."""
    end = 0
    for part in ranges:
        handle = yield from _open_source(part.name, path_of(part.name))
        try:
            yield from _copy(handle, part=part, target=target, at=end)
        except Exception:
            yield Close(handle)
            raise
        yield Close(handle)
        end += part.length
    return end


def _open_source(name: str, path: str) -> Program[FileHandle]:
    try:
        handle: FileHandle = yield Open(path)
    except OSError as error:
        # An error about a source says so: the caller of a concat gave several names.
        raise mapped(error, name, Progress()) from error
    return handle


def _copy(source: FileHandle, *, part: ChunkRange, target: FileHandle, at: int) -> Program[None]:
    length = yield Size(source)
    if part.offset + part.length > length:
        raise bad_offset(part.name, length, part.offset + part.length)

    for done in range(0, part.length, _COPY_SIZE):
        data = yield Read(source, part.offset + done, min(_COPY_SIZE, part.length - done))
        yield Write(target, at + done, [data], bulk=True)


def _link(temporary: str, path: str, folders: Folders, progress: Progress) -> Program[None]:
    """Give the object its name. Its folder may vanish meanwhile: a delete removes folders that are empty."""
    for _ in range(_LINK_ATTEMPTS):
        try:
            yield from folders.make(dirname(path))
            return (
                yield from _effect(
                    progress, Link(temporary, path), (FileExistsError, FileNotFoundError, PermissionError)
                )
            )
        except FileNotFoundError:
            folders.forget(dirname(path))
        except FileExistsError:
            if (yield from _is_linked(temporary, path, progress)):
                return None
            raise
    raise Unavailable(
        f"the temporary file {temporary} was swept by another process that opened this root; write {path} "
        f"again"
    )


def _is_linked(temporary: str, path: str, progress: Progress) -> Program[bool]:
    """Whether the name that is taken is this object's own. A network file system that gets no answer sends a
    link again, and is told then that the name exists: by its own first try."""
    try:
        is_same: bool = yield IsSameFile(temporary, path)
    except FileNotFoundError:
        return False  # One of the two is gone: the name was somebody else's, or this object was swept.
    except OSError:
        progress.changed = True
        raise
    return is_same


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

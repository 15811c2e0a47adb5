"""The I/O programs of the filesystem chunk storage: publish a whole object, remove one, make folders, copy
ranges.

A program notes in its ``Progress`` when its next call may change what others see: an error before that means
that nothing happened, one after it that the outcome is unknown. No program yields in a ``finally``: a
simulated power loss closes the generator, and nothing may run after that.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from posixpath import dirname
from typing import TypeVar

from msgspec import Struct

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
    FULL,
    NOT_A_FILE,
    Allocate,
    Close,
    FileHandle,
    IoCall,
    IsReadOnly,
    IsSameFile,
    Link,
    MakeFolder,
    Open,
    Program,
    Read,
    RemoveFolder,
    Rename,
    Size,
    Sync,
    SyncFolder,
    Unlink,
    Write,
    remake_name,
    with_folder,
)
from ..base.names import SYSTEM_SCOPE
from ..base.os_errors import NO_PERMISSION, NOT_SUPPORTED, explain, reason_of
from .base import bad_offset

TEMPORARY = ".tmp-"
IDENTIFICATION = ".tierlog-chunks"
RESERVE = ".tierlog-reserve"
"""An empty file with blocks that are kept for the store's own objects (rule S22)."""
_COPY_SIZE = 4 << 20
T = TypeVar("T")


class Progress(Struct, eq=False):
    changed: bool = False
    """A call that others can see may have taken effect."""
    appends: bool = False
    """It appends to an existing chunk; the bytes count only once they are committed."""
    alters: bool = False
    """It changes one existing chunk, so a missing permission concerns that chunk only."""


def mapped(error: OSError, name: str, path: str, progress: Progress) -> TierlogError:
    """The contract's error for an ``OSError``. ``path`` is that of the chunk ``name``."""
    # A full disk is sure to have changed nothing but an append's tail, which no record counts (S3).
    if error.errno in FULL and (progress.appends or not progress.changed):
        return StorageFull(f"no room for chunk {name}: {reason_of(error)}; free space in long-term storage")

    # Whatever the error, once a call that others can see was made.
    if progress.changed:
        return OutcomeUnknown(f"chunk {name} may have been changed: {reason_of(error)}")

    if error.errno in (errno.ENOENT, errno.ENOTDIR, *NOT_A_FILE):
        is_taken = error.errno in NOT_A_FILE
        why = ": what has its name is not a regular file" if is_taken else ""
        return ChunkNotFound(f"there is no chunk {name}{why}", chunk=name, is_taken=is_taken)

    if error.errno == errno.EEXIST:
        return ChunkExists(f"chunk {name} exists already", chunk=name)

    if error.errno in NO_PERMISSION and progress.alters:
        return ChunkReadOnly(f"chunk {name} cannot be changed: {explain(error, path)}", chunk=name)

    # Also a missing permission: not one read-only chunk, but a problem of the folder that an operator must
    # correct.
    return Unavailable(explain(error, path))


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


def create_root(root: str, new_id: str) -> Program[None]:
    """Make the root of a new storage and its identification, and their names durable. Those of the folders
    above are left to the caller, as far as they have other names in them (rule W11)."""
    yield from with_folder(root, lambda: identify_root(root, new_id), with_parent=True)


def identify_root(root: str, new_id: str) -> Program[None]:
    """Also if the identification is there: its creator may have been killed before its sync, or have failed
    (rule W11)."""
    yield from remake_name(f"{root}/{IDENTIFICATION}", f"{root}/{TEMPORARY}{new_id}", b"")


def keep_reserve(root: str, size: int, new_id: Callable[[], str]) -> Program[None]:
    """Make the reserve unless it is there. Raises ``StorageFull`` without room for it (rule S22)."""
    path = f"{root}/{RESERVE}"
    try:
        yield IsReadOnly(path)
    except OSError as error:
        if error.errno != errno.ENOENT:
            return  # The next call of the caller's own program says what is wrong.
    else:
        return

    temporary = f"{root}/{TEMPORARY}{new_id()}"
    try:
        yield from with_file(Open(temporary, write=True, create=True), lambda new: _allocate(new, size))
        yield Rename(temporary, path)
    except OSError as error:
        yield from discard(temporary)
        if error.errno in FULL:
            raise StorageFull(
                f"long-term storage has no room: the store's own objects need the {size} bytes of {path} "
                f"first. Delete or truncate segments, or free space"
            ) from error


def _allocate(handle: FileHandle, size: int) -> Program[None]:
    yield Allocate(handle, 0, size)
    yield Sync(handle)


def release_reserve(root: str) -> Program[None]:
    """Free the room of the reserve for an object of the store's own."""
    with suppress(FileNotFoundError):
        yield Unlink(f"{root}/{RESERVE}")


class FolderRemoved(Exception):
    """The folder of a chunk was removed after it had been made: make it again."""


class Folders:
    """The folders below a root that are known to exist durably. Shared by the threads of one storage."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: set[str] = set()
        self._proven: set[str] = set()
        """The folders that had a chunk of this process in them when the folders above were synced."""

    def knows(self, folder: str) -> bool:
        return folder == self.root or folder in self._known

    def missing(self, folder: str) -> str | None:
        """The highest of the folder and its parents that is not known; None if all are."""
        levels = self._unknown(folder)
        return levels[-1] if levels else None

    def make(self, folder: str) -> Program[None]:
        """Make a folder below the root durably, level by level. Programs with the same ``missing`` folder
        must not overlap. Raises ``FolderRemoved`` if a level above is gone."""
        levels = self._unknown(folder)
        above = dirname(levels[-1]) if levels else self.root
        # Else the first level would bring it back, and nobody would sync its name.
        if above != self.root and (yield from self._is_gone(above)):
            self.forget(above)
            raise FolderRemoved

        try:
            for level in reversed(levels):
                if not (yield from self._is_durable(level)):
                    yield from self._make(level)
        except FileNotFoundError:
            # Another delete, or creation, found a level that was still empty, and removed it.
            self.forget(folder)
            raise FolderRemoved from None
        # All at once: other programs must not begin with a level that this one still works at.
        self._known.update(levels)

    def _unknown(self, folder: str) -> list[str]:
        """The folder and its parents that are not known, the highest last."""
        levels = []
        while not self.knows(folder):
            levels.append(folder)
            folder = dirname(folder)
        return levels

    def _is_gone(self, folder: str) -> Program[bool]:
        """Whether another process removed a known folder, or emptied it: an empty one may be another folder
        of that name."""
        try:
            yield RemoveFolder(folder)
        except OSError as error:
            return error.errno == errno.ENOENT
        return True

    def _is_durable(self, folder: str) -> Program[bool]:
        """A folder with anything in it has a durable name, because its name was synced before. The name of an
        empty one may be one that a failed sync lost: it is removed (rule W11)."""
        try:
            yield RemoveFolder(folder)
        except OSError as error:
            return error.errno in (errno.ENOTEMPTY, errno.EEXIST)
        return False

    def _make(self, folder: str) -> Program[None]:
        try:
            yield MakeFolder(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ELOOP):
                raise
            if f"{folder}/".removeprefix(f"{self.root}/").startswith(SYSTEM_SCOPE):
                # The store's own, which no caller has named.
                raise Unavailable(f"{folder} is a link or no folder: put the store's folder back") from error
            raise InvalidArgument(
                f"{folder} is a chunk or a link, so it cannot be a folder of chunks"
            ) from error

        # Known only when durable: a chunk whose folder a power loss takes back is gone, although its record
        # is committed.
        try:
            yield SyncFolder(dirname(folder))
        except OSError:
            # A later sync that succeeds proves nothing about this name: the next one makes it again.
            with suppress(OSError):
                yield RemoveFolder(folder)
            raise

    def prove(self, folder: str) -> Program[None]:
        """Sync the folders above one that has its first chunk of this process. While it was empty, another
        process may have removed it and made another, whose name is not durable yet (rule W11)."""
        levels = []
        while folder != self.root and folder not in self._proven:
            levels.append(folder)
            folder = dirname(folder)
        for level in levels:
            yield SyncFolder(dirname(level))
        self._proven.update(self._known.intersection(levels))

    def remove_empty(self, folder: str) -> Program[None]:
        """Remove a folder and its parents below the root as far as they are empty. Need not be durable."""
        while folder != self.root:
            try:
                yield RemoveFolder(folder)
            except OSError:
                return  # In use, or removed by another process.
            self.forget(folder)
            folder = dirname(folder)

    def forget(self, folder: str) -> None:
        while folder != self.root:
            self._known.discard(folder)
            self._proven.discard(folder)
            folder = dirname(folder)


def publish(
    path: str,
    temporary: str,
    fill: Callable[[FileHandle], Program[int]],
    folders: Folders,
    progress: Progress,
) -> Program[int]:
    """Durably create the object ``path`` with what ``fill`` writes, or nothing at all."""
    size = yield from _fill(temporary, path, fill)
    try:
        yield from _link(temporary, path, folders, progress)
    except Exception:
        yield from discard(temporary)
        raise
    yield from discard(temporary)
    # S2: the name is durable before the caller learns of it.
    yield SyncFolder(dirname(path))
    yield from folders.prove(dirname(path))
    if not folders.knows(dirname(path)):
        # A delete removed the folder, and the name of the one that is there now may not be durable (W11).
        yield from discard(path)
        raise FolderRemoved
    return size


def publish_instead(
    path: str, temporary: str, fill: Callable[[FileHandle], Program[int]], progress: Progress
) -> Program[int]:
    """Durably replace the object ``path`` by what ``fill`` writes, or leave it as it is."""
    size = yield from _fill(temporary, path, fill)
    try:
        yield from _effect(progress, Rename(temporary, path), (FileNotFoundError, PermissionError))
    except Exception:
        yield from discard(temporary)
        raise
    yield SyncFolder(dirname(path))
    return size


def _fill(temporary: str, path: str, fill: Callable[[FileHandle], Program[int]]) -> Program[int]:
    """Durably make the file ``temporary``, whose name is not synced."""
    try:
        handle = yield Open(temporary, write=True, create=True, cold=True)
    except FileExistsError as error:
        raise Unavailable(
            f"the temporary name {temporary} exists; write {path} again under another one"
        ) from error

    try:
        size = yield from fill(handle)
        yield Sync(handle)
    except Exception:
        yield Close(handle)
        yield from discard(temporary)
        raise
    yield Close(handle)
    return size


def remove(paths: Sequence[str], folders: Folders, progress: Progress) -> Program[list[str]]:
    """Durably remove chunks, with one sync for each folder, and the folders that they leave empty. Returns
    those that were missing, durably too: an interrupted delete may have removed one unsynced, and the caller
    will forget the name for good."""
    missing, changed = [], dict[str, None]()
    for path in paths:
        try:
            yield from _effect(
                progress,
                Unlink(path),
                # The kernel refuses these before it removes anything.
                (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError),
            )
        except FileNotFoundError:
            missing.append(path)
        except (NotADirectoryError, IsADirectoryError):
            missing.append(path)  # It never was a chunk.
            continue
        changed[dirname(path)] = None
    for folder in changed:
        yield from _sync_what_is_left(folder, folders.root)
        yield from folders.remove_empty(folder)
    return missing


def _sync_what_is_left(folder: str, root: str) -> Program[None]:
    """Sync a folder, or its nearest remaining parent if another delete has just removed it."""
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
    """Write the ranges to ``target`` one after the other, and return their total length. Sources are only
    read (rule S4)."""
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
        # Name the source: the caller of a concat passed several names.
        raise mapped(error, name, path, Progress()) from error
    return handle


def _copy(source: FileHandle, *, part: ChunkRange, target: FileHandle, at: int) -> Program[None]:
    length = yield Size(source)
    if part.offset + part.length > length:
        raise bad_offset(part.name, length, part.offset + part.length)

    for done in range(0, part.length, _COPY_SIZE):
        data = yield Read(source, part.offset + done, min(_COPY_SIZE, part.length - done))
        yield Write(target, at + done, [data], bulk=True)


def _link(temporary: str, path: str, folders: Folders, progress: Progress) -> Program[None]:
    """Give the object its name. ``FileExistsError`` is durable too. A concurrent delete may remove its
    folder, if that is empty."""
    try:
        try:
            yield from _effect(
                progress, Link(temporary, path), (FileExistsError, FileNotFoundError, PermissionError)
            )
        except FileExistsError:
            if not (yield from _is_linked(temporary, path, progress)):
                # Its creator may have died before it synced the name, and the caller counts on it.
                yield from _make_again(temporary, path)
                yield SyncFolder(dirname(path))
                raise
    except FileNotFoundError:
        folders.forget(dirname(path))
        raise FolderRemoved from None


def _make_again(temporary: str, path: str) -> Program[None]:
    """Make an existing name again if its object has the bytes of ``temporary``: its creator's sync of the
    folder may have failed, and a later one that succeeds does not write the names that the failed one lost.

    Others see the same bytes all the time. An object that grows is never replaced: only its owner creates its
    name, and takes another one after an unknown outcome (rule S3)."""
    if (yield from with_file(Open(temporary), lambda handle: _has_bytes_of(handle, path))):
        yield Rename(temporary, path)


def _has_bytes_of(new: FileHandle, path: str) -> Program[bool]:
    def compare(existing: FileHandle) -> Program[bool]:
        size = yield Size(new)
        if not size or (yield Size(existing)) != size:
            return False

        for offset in range(0, size, _COPY_SIZE):
            data = yield Read(new, offset, _COPY_SIZE)
            if (yield Read(existing, offset, _COPY_SIZE)) != data:
                return False
        return True

    try:
        return (yield from with_file(Open(path), compare))
    except OSError as error:
        if error.errno in (errno.ENOENT, *NOT_A_FILE):
            return False
        raise


def _is_linked(temporary: str, path: str, progress: Progress) -> Program[bool]:
    """Whether the existing name is this object's own. A network file system that gets no answer repeats a
    link, and then finds the name that its first attempt created."""
    try:
        is_same: bool = yield IsSameFile(temporary, path)
    except FileNotFoundError:
        return False  # The name was another object's, which is deleted, or this object was swept.
    except OSError:
        progress.changed = True
        raise
    return is_same


def _effect(progress: Progress, call: IoCall, harmless: tuple[type[OSError], ...]) -> Program[None]:
    """A call that others can see. After any error that is not ``harmless`` it may have happened."""
    has_changed, progress.changed = progress.changed, True
    try:
        yield call
    except OSError as error:
        if isinstance(error, harmless) or error.errno in NOT_SUPPORTED:
            progress.changed = has_changed
        raise


def discard(temporary: str) -> Program[None]:
    try:
        yield Unlink(temporary)
    except OSError:
        return  # Another process swept it, or the next ``open`` will.

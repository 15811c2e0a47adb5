"""A store's data folder: where its parts lie, and the questions that need no open store.

Owns: the layout (``wal/`` with the identity, the owners and one log folder a container; ``lts/``), the check
of a path, and the mapping of ``OSError`` for the small programs that read these files. Does not own: what the
files hold (``identity.py``, ``presence.py``, the logs).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import attrs

from ...storage_backends.base.errors import InvalidArgument, StorageFull, Unavailable
from ...storage_backends.base.files import Files, FolderEntry, ListFolder, Program, RemoveFolder, T, Unlink
from .identity import StoreIdentity, read_identity
from .lock_files import Owner, list_owners

RESTORE_TEMPORARY = ".restoring-"
"""What the name of a folder begins with in which a restore builds logs."""
STORE_TEMPORARY, LAYOUT_TEMPORARY = ".store-", ".layout-"
"""What names in ``wal/`` begin with under which the identity and the mark of the layout are written before
they are linked."""


@attrs.frozen
class StoreFolder:
    """Paths below one data folder; ``path`` is absolute."""

    path: str

    @property
    def wal(self) -> str:
        return f"{self.path}/wal"

    @property
    def owners(self) -> str:
        return f"{self.wal}/owners"

    @property
    def chunks(self) -> str:
        return f"{self.path}/lts"


def check_path(path: object) -> StoreFolder:
    """The folder at ``path``, which may be relative and need not exist."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidArgument(f"a data folder is a path, not {path!r}")

    return StoreFolder(os.path.abspath(os.fsdecode(os.fspath(path))))


async def run_program(files: Files, program: Program[T], path: str) -> T:
    """Drive ``program``; an ``OSError`` becomes ``StorageFull`` or ``Unavailable`` with ``path`` in it."""
    try:
        return await files.run(program)
    except OSError as error:
        kind = StorageFull if error.errno == errno.ENOSPC else Unavailable
        raise kind(f"{path}: {error.strerror or error}") from error


def list_files(folder: str) -> Program[tuple[FolderEntry, ...]]:
    """What lies in ``folder``, sorted by name; nothing if it is missing."""
    try:
        entries = yield ListFolder(folder)
    except FileNotFoundError:
        return ()

    return tuple(entries)


def remove_empty_restore_folders(folder: StoreFolder) -> Program[None]:
    """Remove what is left of a restore that ended right after its last step: its folder, without the logs
    (rule S17)."""
    for entry in (yield from list_files(folder.path)):
        if entry.is_folder and entry.name.startswith(RESTORE_TEMPORARY):
            try:
                yield RemoveFolder(f"{folder.path}/{entry.name}")
            except OSError:
                continue  # it has something in it: the next restore judges that


def remove_temporary_files(folder: StoreFolder) -> Program[None]:
    """Remove what openings left that ended while they made the identity or the mark of the layout. The folder
    has its identity already.

    One that still makes them may lose its file too: it finds the identity there, and tries the mark again.
    """
    for entry in (yield from list_files(folder.wal)):
        if entry.name.startswith((STORE_TEMPORARY, LAYOUT_TEMPORARY)):
            with suppress(FileNotFoundError):  # another opening removes it too
                yield Unlink(f"{folder.wal}/{entry.name}")


async def existing_identity(files: Files, folder: StoreFolder) -> StoreIdentity:
    """Whose folder this is. ``InvalidArgument`` if there is no store in it; reads only."""
    return await run_program(files, _existing_identity(folder), folder.path)


def _existing_identity(folder: StoreFolder) -> Program[StoreIdentity]:
    try:
        yield ListFolder(folder.path)
    except FileNotFoundError as error:
        raise InvalidArgument(f"there is no folder {folder.path}: name the data folder of a store") from error
    except NotADirectoryError as error:
        raise InvalidArgument(f"{folder.path} is a file: name the data folder of a store") from error

    found = yield from read_identity(folder.wal)
    if found is None:
        raise InvalidArgument(f"{folder.path} holds no tierlog store: name the data folder of a store")

    return found


async def live_owners(files: Files, folder: StoreFolder) -> list[Owner]:
    """Who has the folder open now."""
    return [
        owner for owner in await run_program(files, list_owners(folder.owners), folder.owners) if owner.alive
    ]

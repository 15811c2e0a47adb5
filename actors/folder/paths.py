"""The layout of a data folder, and what can be learned from it without opening the store.

``wal/`` has the identity and one log folder for each container; ``lts/`` has the chunks; ``owners/`` has the
lock files; ``cache/`` may have copies of chunks in a bucket.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from ...journal.log.local_layout import moved_folders
from ...journal.manifest.store_record import MIGRATION_RECORD
from ...storage_backends.base.errors import (
    ConfigError,
    DataCorruption,
    InvalidArgument,
    StorageFull,
    Unavailable,
)
from ...storage_backends.base.files import (
    FULL,
    NOT_A_FILE,
    Close,
    Files,
    FolderEntry,
    IsShared,
    ListFolder,
    Open,
    Program,
    T,
    Unlink,
)
from ...storage_backends.base.os_errors import NO_PERMISSION, NOT_SUPPORTED, explain, reason_of
from ...storage_backends.chunks.filesystem_programs import IDENTIFICATION
from ..telemetry.logging import get_logger
from .identity import StoreIdentity, identity_file, read_identity
from .lock_files import Owner, list_owners

_log = get_logger("folder")
RESTORE_FOLDER = ".restoring"
"""The folder in which a restore builds logs (``restore_folder.py``). Earlier versions added an id to its
name."""
STORE_TEMPORARY, LAYOUT_TEMPORARY = ".store-", ".layout-"
"""The prefixes in ``wal/`` of the files that become the identity and the layout version when they are
linked."""
_ALLOWED_IN_A_NEW_FOLDER = {"cache", "lts", "owners", "tierlog.toml", "wal"}
_REMEDIES = {
    errno.ENOTDIR: "a part of this path is a file, or a link where none may be: name a folder",
    errno.ENOENT: "no folder can be made there: name another one",
    errno.ENAMETOOLONG: "name a folder with a shorter path",
}
"""What to do about errors that a repetition meets again; ``explain`` has that of others."""


class StoreFolder(Struct, frozen=True):
    """Paths below one data folder; ``path`` is absolute."""

    path: str

    @property
    def wal(self) -> str:
        return f"{self.path}/wal"

    @property
    def owners(self) -> str:
        return f"{self.path}/owners"

    @property
    def chunks(self) -> str:
        return f"{self.path}/lts"


def chunk_cache_folder(folder: StoreFolder, path: str, identity: StoreIdentity) -> str:
    """The folder of the local chunk cache: one of this store alone in ``path``, which is relative to the data
    folder and by default its ``cache/``."""
    return f"{os.path.join(folder.path, path or 'cache')}/{identity.store_id.hex()}"


def check_chunk_cache(folder: StoreFolder, path: str) -> None:
    """Raises ``ConfigError`` if the local chunk cache would lie among the files of the store, or beside the
    data folder."""
    cache, data = os.path.realpath(os.path.join(folder.path, path or "cache")), os.path.realpath(folder.path)
    inner = (os.path.realpath(folder.wal), os.path.realpath(folder.chunks))
    if os.path.commonpath((cache, data)) == cache or any(
        os.path.commonpath((cache, each)) == each for each in inner
    ):
        raise ConfigError(
            f"chunk_cache.path: {path!r} is the folder {cache}, where the store or others have files: name a "
            f"folder of its own, such as 'cache', outside of wal/ and lts/"
        )


def check_path(path: object) -> StoreFolder:
    """The folder at ``path``, which may be relative and need not exist. Raises ``InvalidArgument``."""
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InvalidArgument(f"a data folder is a path, not {path!r}")

    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"no file can have the name {path!r}") from error
    if b"\0" in encoded:
        raise InvalidArgument(f"no file can have the name {path!r}")
    if encoded.startswith((b"s3:/", b"bookkeeper:/")):  # a Path has lost a slash
        scheme, _, rest = os.fsdecode(encoded).partition(":/")
        where = "in a bucket" if scheme == "s3" else "on BookKeeper"
        raise InvalidArgument(
            f"'{scheme}://{rest.lstrip('/')}' is {where}, and this needs a data folder: such a store is "
            f"opened by tierlog.open_store and by `tierlog serve`, with a text s3://BUCKET/PREFIX or "
            f"bookkeeper://ZOOKEEPER:PORT/PATH; other commands take its service, --url"
        )
    try:
        return StoreFolder(os.path.abspath(os.fsdecode(encoded)))
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"there is no working directory for {os.fspath(path)!r}, it was deleted: change to another one"
        ) from error


async def run_program(files: Files, program: Program[T], path: str) -> T:
    """Run ``program``. An ``OSError`` is raised with ``path`` in the message: as ``InvalidArgument`` if a
    repetition would meet it again, else as ``StorageFull`` or ``Unavailable``."""
    try:
        return await files.run(program)
    except OSError as error:
        if problem := await _problem_of_links(files, error, path):
            raise InvalidArgument(problem) from error

        # The file layer refuses to open what is not a regular file: a pipe would block, a link lead
        # elsewhere.
        if error.errno in NOT_A_FILE:
            raise DataCorruption(
                "this is not a regular file", file=error.filename or path, offset=0
            ) from error
        if error.errno in _REMEDIES:
            raise InvalidArgument(f"{explain(error, path)}; {_REMEDIES[error.errno]}") from error

        if error.errno in (*NO_PERMISSION, *NOT_SUPPORTED, errno.EROFS):
            raise InvalidArgument(explain(error, path)) from error

        kind = StorageFull if error.errno in FULL else Unavailable
        raise kind(explain(error, path)) from error


async def _problem_of_links(files: Files, error: OSError, path: str) -> str:
    """What is wrong with a link on the way to ``path``, if ``error`` comes from that; else empty. A link
    below it is no regular file."""

    def listing(folder: str) -> Program[None]:
        yield ListFolder(folder)

    if error.errno == errno.EEXIST and str(error.filename).startswith("/"):
        path = error.filename
    elif error.errno != errno.ELOOP:
        return ""
    try:
        await files.run(listing(path))
    except FileNotFoundError:
        # It exists, so it is a link.
        if error.errno == errno.EEXIST:
            return f"{path} is a link to a missing folder: make that folder, or name another one"
    except OSError as refused:
        if refused.errno == errno.ELOOP:
            return f"{path}: {reason_of(refused)}: its links form a circle, name another folder"
    return ""


def list_files(folder: str, *, others: bool = False) -> Program[tuple[FolderEntry, ...]]:
    """The entries of ``folder``, sorted by name; none if the folder is missing. ``others`` as in
    ``ListFolder``."""
    try:
        entries = yield ListFolder(folder, others)
    except FileNotFoundError:
        return ()

    return tuple(entries)


def list_data_folder(folder: StoreFolder) -> Program[tuple[FolderEntry, ...]]:
    """The entries of the data folder; none if it is missing. Raises ``InvalidArgument`` if it is a file."""
    try:
        return (yield from list_files(folder.path, others=True))
    except NotADirectoryError as error:
        raise _is_a_file(folder) from error


def _moved_wals(folder: StoreFolder, entries: Iterable[FolderEntry]) -> list[str]:
    return moved_folders(folder.wal, [each.name for each in entries if each.is_folder])


def _is_a_file(folder: StoreFolder) -> InvalidArgument:
    return InvalidArgument(f"{folder.path} is a file: name the data folder of a store")


async def check_folder(files: Files, folder: StoreFolder) -> None:
    """Refuse to make a store among other files, or inside the folder of another store."""
    await run_program(files, _check_folder(folder), folder.path)


async def report_shared(files: Files, folder: StoreFolder) -> None:
    """Warn if other users may change the folder. ``check_folder`` comes first: the advice would harm a folder
    that is no store's, such as ``/tmp``."""
    shared = await run_program(files, _find_shared(folder), folder.path)
    if shared:
        _log.warning(
            "folder_shared",
            folders=shared,
            advice=f"other users may change the store: chmod -R go= {folder.path}",
        )


def _find_shared(folder: StoreFolder) -> Program[list[str]]:
    shared = []
    for path in (folder.path, folder.wal, folder.chunks):
        with suppress(FileNotFoundError, NotADirectoryError):
            if (yield IsShared(path)):
                shared.append(path)
    return shared


def _check_folder(folder: StoreFolder) -> Program[None]:
    entries = yield from list_data_folder(folder)
    if (yield from read_identity(folder.wal)) is not None:
        return

    yield from refuse_inside_folders(folder.path)
    if _links_chunks(folder):
        yield from refuse_inside_folders(folder.chunks)
    for inner in (folder.wal, folder.chunks):
        with suppress(OSError):
            for each in (yield ListFolder(inner)):
                other = f"{inner}/{each.name}"
                if (yield from _kind_of(other)):
                    raise InvalidArgument(
                        f"{folder.path} is around another store, {other}: name that one, or another folder"
                    )
    if _other_file(entries):
        yield from _refuse_lost_logs(folder)
        yield from refuse_other_files(folder)


def refuse_restored_inside(folder: StoreFolder) -> Program[None]:
    """Before a store is restored into ``folder``: raises ``InvalidArgument`` if it would be made inside
    another one. One whose long-term storage is there already is not made."""
    has_chunks, links = bool((yield from _kind_of(folder.chunks))), _links_chunks(folder)
    if links or not has_chunks:
        yield from refuse_inside_folders(folder.path)
    if links and not has_chunks:
        yield from refuse_inside_folders(folder.chunks)


def _links_chunks(folder: StoreFolder) -> bool:
    return os.path.dirname(os.path.realpath(folder.chunks)) != os.path.realpath(folder.path)


def refuse_inside_folders(path: str) -> Program[None]:
    """Raises ``InvalidArgument`` if a store, or the chunks of one, are in a folder above ``path``, or above
    what it is a link to."""
    parent = path = os.path.realpath(path)
    while (parent := os.path.dirname(parent)) != os.path.dirname(parent):
        if kind := (yield from _kind_of(parent)):
            raise InvalidArgument(
                f"{path} is inside the {kind} {parent}: name that one, or a folder outside of it"
            )


def _kind_of(folder: str) -> Program[str]:
    """What the folder is; empty if it is no store's."""
    for kind, mark in (
        ("store", identity_file(StoreFolder(folder).wal)),
        ("long-term storage", f"{folder}/{IDENTIFICATION}"),
        # Which is deleted as a whole if the move is given up.
        ("target of a move", f"{StoreFolder(folder).chunks}/{MIGRATION_RECORD}"),
    ):
        with suppress(OSError):  # a folder that cannot be read is no store of this process
            yield Close((yield Open(mark)))
            return kind
    return ""


def refuse_other_files(folder: StoreFolder) -> Program[None]:
    """Before a store is made there: raise ``InvalidArgument`` if the folder has files that no store has."""
    if name := _other_file((yield from list_data_folder(folder))):
        raise InvalidArgument(
            f"{folder.path} holds other files, such as {name!r}, and no store: name a new or empty folder"
        )


def _other_file(entries: Sequence[FolderEntry]) -> str:
    names = (each.name for each in entries if not each.name.startswith(RESTORE_FOLDER))
    return next((name for name in names if name not in _ALLOWED_IN_A_NEW_FOLDER), "")


def has_lost_logs(folder: StoreFolder) -> Program[bool]:
    """Whether ``folder`` has the chunks of a store, and no logs."""
    has_wal = any(entry.name == "wal" for entry in (yield from list_data_folder(folder)))
    if has_wal and not (yield from is_empty_folder(folder.wal)):
        return False

    entries: tuple[FolderEntry, ...] = ()
    with suppress(NotADirectoryError):
        entries = yield from list_files(folder.chunks)
    return any(entry.name == IDENTIFICATION for entry in entries)


def is_empty_folder(path: str) -> Program[bool]:
    """Whether it is a folder, and empty: one that another file system was mounted on, perhaps."""
    try:
        return not (yield ListFolder(path, others=True))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _refuse_lost_logs(folder: StoreFolder) -> Program[None]:
    """``folder`` has no identity. A new store beside the chunks of another one is refused elsewhere."""
    moved = _moved_wals(folder, (yield from list_data_folder(folder)))
    where = f" (it may be {' or '.join(moved)}, if a restore was killed)" if moved else ""
    if (yield from has_lost_logs(folder)):
        raise InvalidArgument(
            f"{folder.path} has the chunks of a store in lts/, but its wal/ is missing or empty: put wal/ "
            f"back{where}, recover what lts/ has (`tierlog recover --from-lts`), or restore a backup "
            f"(`tierlog restore`)"
        )
    if moved:  # and the chunks are in a bucket
        raise InvalidArgument(
            f"{folder.path} is the folder of a store, but its wal/ is missing: put wal/ back{where}, recover "
            f"what long-term storage has (`tierlog recover --from-lts`), or restore a backup (`tierlog "
            f"restore`)"
        )


def remove_temporary_files(folder: StoreFolder) -> Program[None]:
    """Remove the temporary files of openings that crashed while they wrote the identity or the layout
    version. The folder has its identity already.

    An opening that is still at it may lose its file too: it then finds the identity, and writes the layout
    version again.
    """
    for entry in (yield from list_files(folder.wal)):
        if entry.name.startswith((STORE_TEMPORARY, LAYOUT_TEMPORARY)):
            with suppress(FileNotFoundError):  # another opening removes it too
                yield Unlink(f"{folder.wal}/{entry.name}")


async def existing_identity(files: Files, folder: StoreFolder) -> StoreIdentity:
    """The identity of the store in ``folder``. Raises ``InvalidArgument`` if there is none."""
    return await run_program(files, _existing_identity(folder), folder.path)


def _existing_identity(folder: StoreFolder) -> Program[StoreIdentity]:
    try:
        yield ListFolder(folder.path)
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"there is no folder {folder.path}: name the data folder of a store with --data or TIERLOG_DATA"
        ) from error
    except NotADirectoryError as error:
        raise _is_a_file(folder) from error

    found = yield from read_identity(folder.wal)
    if found is None:
        yield from _refuse_lost_logs(folder)
        raise InvalidArgument(f"{folder.path} holds no tierlog store: name the data folder of a store")

    return found


def lock_lane(files: Files, folder: StoreFolder) -> Files:
    """For lock files. A link may not lead out of the folder: files are removed there."""
    return files.lane("owners", nofollow_root=folder.path)


async def live_owners(files: Files, folder: StoreFolder) -> list[Owner]:
    """The processes that have the folder open now."""
    return await run_program(lock_lane(files, folder), list_live(folder), folder.owners)


def list_live(folder: StoreFolder) -> Program[list[Owner]]:
    owners = yield from list_owners(folder.owners)
    # Where earlier versions have their lock files. Nothing is made or removed there.
    try:
        owners += yield from list_owners(f"{folder.wal}/owners")
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, *NOT_A_FILE):
            raise
    return [owner for owner in owners if owner.alive]

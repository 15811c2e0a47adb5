"""The folder ``.restoring`` of a data folder, in which one restore at a time builds logs (rule S17).

A restore holds the lock in it from its check to its end. As long as the folder is there, ``wal`` may be taken
away again, and its name need not be durable (rule W11). So an opening that finds it is refused while a
restore is under way. Otherwise it makes the name again and removes the folder, before it relies on anything.
Crash: whatever a process leaves, the next opening or restore goes on from there. A ``wal`` that was published
is never removed: it may have been opened since, by a version without this rule.

Everything in the folder is removed, so no link there may lead out of it, no matter who makes one and when:
all programs of this module run in ``restore_lane``. What is neither a file nor a folder is left, and refused.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from ...storage_backends.base.errors import InvalidArgument, TierlogError, Unavailable
from ...storage_backends.base.files import (
    NOT_A_FILE,
    Close,
    FileHandle,
    Files,
    FolderEntry,
    ListFolder,
    Program,
    RemoveFolder,
    Rename,
    SyncFolder,
    Unlink,
    sync_ancestry,
)
from ..settings.configuration import StoreConfig
from .paths import RESTORE_FOLDER, StoreFolder, list_data_folder, run_program
from .process_lock import LOCK_FILE, lock_holder, remove_lock, take_lock

_REMADE = ".remaking-wal"
"""The name of ``wal`` while its own is made again."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


def restore_folder(folder: StoreFolder) -> StoreFolder:
    """The folder in which a restore builds the logs of ``folder``."""
    return StoreFolder(f"{folder.path}/{RESTORE_FOLDER}")


def restore_lane(files: Files, folder: StoreFolder) -> Files:
    return files.lane("restoring", nofollow_root=folder.path)


def begin_restore(folder: StoreFolder) -> Program[FileHandle]:
    """Begin the only restore into ``folder``, and remove what others left that ended early. Returns its lock.

    Raises ``Unavailable`` if another restore is under way, ``InvalidArgument`` if there are logs, or if a
    service is alive whose logs were moved away."""
    entries = yield from list_data_folder(folder)
    if not any(entry.name.startswith(RESTORE_FOLDER) for entry in entries):
        yield from refuse_logs(folder)  # and nothing is made there
    lock = yield from _lock_and_remake(folder)
    try:
        yield from _clear(restore_folder(folder).path)
        for entry in (yield from list_data_folder(folder)):
            # Of earlier versions, which had a folder for each restore.
            if entry.is_folder and entry.name.startswith(f"{RESTORE_FOLDER}-"):
                yield from _remove(f"{folder.path}/{entry.name}")
        yield from refuse_logs(folder)
        yield from _refuse_service(folder)
    except (OSError, TierlogError):
        yield from end_restore(folder, lock)
        raise
    return lock


def refuse_logs(folder: StoreFolder) -> Program[None]:
    if _logs((yield from list_data_folder(folder))):
        raise _has_logs(folder)


def _refuse_service(folder: StoreFolder) -> Program[None]:
    """Who moved ``wal`` away under a service took the lock files of its hosts along: its supervisor's is
    elsewhere. The hosts would go on to ack what the recovered store does not have, until their next check."""
    if (pid := (yield from lock_holder(f"{folder.path}/supervisor"))) is not None:
        raise InvalidArgument(
            f"{folder.path} is served by process {pid}, whose logs were moved away: put wal/ back, or stop "
            f"that service first"
        )


def _logs(entries: Sequence[FolderEntry]) -> bool:
    return any(entry.name == "wal" for entry in entries)


def _has_logs(folder: StoreFolder) -> InvalidArgument:
    return InvalidArgument(
        f"{folder.path} already has the logs of a store: name a folder without wal/; `tierlog restore "
        f"--replace` goes back to a backup in this one, and moves them away"
    )


def publish(folder: StoreFolder) -> Program[None]:
    """Move the logs to their place. The emptied folder is synced first, so that a crash never leaves the logs
    in both places. If the name does not become durable, there is no store (rule W11)."""
    building = restore_folder(folder)
    yield from _forget_terms(folder)
    try:
        yield Rename(building.wal, folder.wal)
    except OSError as error:
        if error.errno in _TAKEN:
            raise _has_logs(folder) from error
        raise
    try:
        yield SyncFolder(building.path)
        yield from sync_ancestry(folder.path)
    except OSError:
        yield Rename(folder.wal, building.wal)
        raise


def _forget_terms(folder: StoreFolder) -> Program[None]:
    """Those of the supervisors of the logs before: a register of other logs is refused (rule V1)."""
    path = f"{folder.path}/supervisor"
    try:
        yield Unlink(f"{path}/term")
        yield SyncFolder(path)
    except (FileNotFoundError, NotADirectoryError):
        return


def end_restore(folder: StoreFolder, lock: FileHandle, *, is_published: bool = True) -> Program[None]:
    """Remove what the restore worked in, the lock last. If it failed and could not take its logs away, leave
    all of it, so that the next opening sees that."""
    path = restore_folder(folder).path
    try:
        if not is_published and _logs((yield from list_data_folder(folder))):
            return
        yield from _clear(path)
        yield from remove_lock(path)
    finally:
        yield Close(lock)


def _clear(path: str) -> Program[None]:
    for entry in (yield ListFolder(path, others=True)):
        if entry.name != LOCK_FILE:
            yield from _remove_entry(path, entry)


@asynccontextmanager
async def only_restore(
    folder: StoreFolder, files: Files, config: StoreConfig, *, makes_chunks: bool = False
) -> AsyncIterator[None]:
    """Nobody else restores into the folder, or opens a store there. ``makes_chunks``: long-term storage is
    made by the restore. Raises ``InvalidArgument`` if there is no
    long-term storage, or if there are logs, and ``Unavailable`` if another restore is under way."""
    # Before anything is made there: the folder may be the wrong one.
    if not makes_chunks:
        await check_long_term_storage(folder, files, config)
    lane = restore_lane(files, folder)
    with anyio.CancelScope(shield=True):
        lock = await run_program(lane, begin_restore(folder), folder.path)
    is_published = False
    try:
        yield
        is_published = True
    finally:
        with anyio.CancelScope(shield=True):
            await run_program(lane, end_restore(folder, lock, is_published=is_published), folder.path)


async def check_long_term_storage(folder: StoreFolder, files: Files, config: StoreConfig) -> None:
    """Raises ``InvalidArgument`` if there is neither ``lts/`` nor a bucket that ``config`` names."""
    if not config.chunks:
        await run_program(files, _check_chunk_folder(folder), folder.chunks)


def _check_chunk_folder(folder: StoreFolder) -> Program[None]:
    try:
        yield ListFolder(folder.chunks)
    except NotADirectoryError:
        yield from list_data_folder(folder)  # refuses that it is a file itself
        raise
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"{folder.path} has no lts/: put the long-term storage of the store there, or name its bucket "
            f"(--chunks)"
        ) from error


async def finish_restore(files: Files, folder: StoreFolder) -> None:
    """Finish what a restore left that ended early. Call it before an opening reads the folder, and again
    before it relies on what it found there. Raises ``Unavailable`` while a restore is under way."""
    await run_program(restore_lane(files, folder), _finish_if_left(folder), folder.path)


def _finish_if_left(folder: StoreFolder) -> Program[None]:
    try:
        yield ListFolder(restore_folder(folder).path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        yield from list_data_folder(folder)  # Refuses that it is a file itself.

    lock = yield from _lock_and_remake(folder)
    yield from end_restore(folder, lock)


def _lock_and_remake(folder: StoreFolder) -> Program[FileHandle]:
    def refusal(pid: str) -> Unavailable:
        return Unavailable(
            f"process {pid} is restoring a store into {folder.path}: wait until it has ended, or stop it"
        )

    path = restore_folder(folder).path
    try:
        lock = yield from take_lock(path, refusal, with_parent=True)
    except NotADirectoryError as error:
        raise _foreign(path) from error
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise _foreign(f"{path}/{LOCK_FILE}") from error
        raise
    try:
        yield from _remake_wal(folder)
    except (OSError, TierlogError):
        # The folder stays: the next opening or restore goes on from here.
        yield Close(lock)
        raise
    return lock


def _remake_wal(folder: StoreFolder) -> Program[None]:
    """Make the name of ``wal`` again, if there is one: its sync may have failed in a process that was killed
    then."""
    moved = f"{folder.path}/{_REMADE}"
    names = {entry.name for entry in (yield from list_data_folder(folder))}
    if "wal" in names:
        yield Rename(folder.wal, moved)
    if not names.isdisjoint(("wal", _REMADE)):
        yield Rename(moved, folder.wal)
        yield SyncFolder(folder.path)


def _remove(path: str) -> Program[None]:
    for entry in (yield ListFolder(path, others=True)):
        yield from _remove_entry(path, entry)
    yield RemoveFolder(path)


def _remove_entry(folder: str, entry: FolderEntry) -> Program[None]:
    if entry.is_folder:
        yield from _remove(f"{folder}/{entry.name}")
        return

    path = f"{folder}/{entry.name}"
    try:
        yield Unlink(path)
    except IsADirectoryError as error:
        raise _foreign(path) from error


def _foreign(path: str) -> InvalidArgument:
    return InvalidArgument(
        f"{path} is a link, or of another kind than what a restore makes there: remove it, not what it names"
    )

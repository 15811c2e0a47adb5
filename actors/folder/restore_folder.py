"""The folder ``.restoring`` of a data folder, in which one restore at a time builds logs (rule S17): those of
the whole store, or in a folder with its number that of one container (rule R11).

A restore holds the lock in it from its check to its end. As long as the folder is there, ``wal`` may be taken
away again, and its name need not be durable (rule W11). So an opening that finds it is refused while a
restore is under way. Otherwise it makes the name again and removes the folder, before it relies on anything.
Crash: whatever a process leaves, the next opening or restore goes on from there. A ``wal`` that was published
is never removed: it may have been opened since, by a version without this rule. The same goes for the log of
one container in ``wal``, as long as the folder with its number is there.

Everything in the folder is removed, so no link there may lead out of it, no matter who makes one and when:
all programs of this module run in ``restore_lane``. What is neither a file nor a folder is left, and refused.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from ...journal.log.local_layout import log_folder
from ...storage_backends.base.errors import InvalidArgument, TierlogError, Unavailable
from ...storage_backends.base.files import (
    NOT_A_FILE,
    Close,
    FileHandle,
    Files,
    FolderEntry,
    ListFolder,
    MakeFolder,
    Program,
    RemoveFolder,
    Rename,
    SyncFolder,
    Unlink,
    sync_ancestry,
)
from ..settings.configuration import StoreConfig
from .lock_files import describe_opening
from .paths import (
    RESTORE_FOLDER,
    StoreFolder,
    is_empty_folder,
    list_data_folder,
    list_files,
    list_live,
    refuse_other_files,
    refuse_restored_inside,
    run_program,
)
from .process_lock import LOCK_FILE, remove_lock, take_lock

_REMADE = ".remaking-"
"""What comes before the name of ``wal``, or of a container's log in it, while it is made again."""
_TAKEN = (errno.EEXIST, errno.ENOTEMPTY)


def restore_folder(folder: StoreFolder) -> StoreFolder:
    """The folder in which a restore builds the logs of ``folder``."""
    return StoreFolder(f"{folder.path}/{RESTORE_FOLDER}")


def restore_lane(files: Files, folder: StoreFolder) -> Files:
    return files.lane("restoring", nofollow_root=folder.path)


def begin_restore(folder: StoreFolder) -> Program[FileHandle]:
    """Begin the only restore into ``folder``, and remove what others left that ended early. Returns its lock.

    Raises ``Unavailable`` if another restore is under way, ``InvalidArgument`` if there are logs, or if a
    process is alive whose logs were moved away."""
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
        yield from refuse_open(folder, ", or put wal/ back, which was moved away")
    except (OSError, TierlogError):
        yield from end_restore(folder, lock)
        raise
    return lock


def begin_log(folder: StoreFolder) -> Program[FileHandle]:
    """Begin the only restore of one container's log into ``folder``, which has logs. Returns its lock.

    Raises ``Unavailable`` if another restore is under way, ``InvalidArgument`` if a process has the folder
    open."""
    yield from refuse_open(folder)  # and nothing is made there
    # Not without need: an opening that began before would find no ``wal``.
    is_left = any(entry.name == RESTORE_FOLDER for entry in (yield from list_data_folder(folder)))
    lock = yield from (_lock_and_remake(folder) if is_left else _lock(folder))
    try:
        yield from _clear(restore_folder(folder).path)
        yield from refuse_open(folder)
        yield from _check_moves(folder)
    except (OSError, TierlogError):
        yield from end_restore(folder, lock)
        raise
    return lock


def _check_moves(folder: StoreFolder) -> Program[None]:
    """Nothing can be moved between file systems, and once the chain is claimed the lost log is no longer the
    store's. So before anything else an empty folder is moved to ``wal``, as the log will be."""
    made, moved = f"{restore_folder(folder).path}/moves", _moved(folder)
    yield MakeFolder(made)
    yield from _remove_moved(folder)
    try:
        yield Rename(made, moved)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise InvalidArgument(
            f"{folder.wal} is on another file system than {folder.path}, so no log can be moved there: copy "
            f"wal/ to the file system of the data folder, recover, and copy it back"
        ) from error
    yield RemoveFolder(moved)


def _moved(folder: StoreFolder) -> str:
    return f"{folder.wal}/{_REMADE}moves"


def _remove_moved(folder: StoreFolder) -> Program[None]:
    """Remove the folder of ``_check_moves`` that a killed recovery left in ``wal``."""
    with suppress(FileNotFoundError):
        yield RemoveFolder(_moved(folder))


def refuse_logs(folder: StoreFolder) -> Program[None]:
    if not _logs((yield from list_data_folder(folder))):
        return
    try:
        yield ListFolder(folder.wal, others=True)
    except NotADirectoryError as error:
        raise InvalidArgument(
            f"{folder.wal} is a file, in the place of the logs: move it away and run the same command again"
        ) from error
    if (yield from is_empty_folder(folder.wal)):
        # An opening may be about to make a new store in it, or a mount be missing.
        raise InvalidArgument(
            f"{folder.wal} is there, and empty: mount what belongs there, or, if the logs are lost, remove "
            f"it and run the same command again"
        )
    raise _has_logs(folder)


def refuse_missing_log(folder: StoreFolder, container: int) -> Program[None]:
    """A link to what is not there, such as a missing mount, is no lost log: that would be replaced (rule
    R11)."""
    path = log_folder(folder.wal, container)
    try:
        yield ListFolder(path)
    except FileNotFoundError as error:
        names = {entry.name for entry in (yield from list_files(folder.wal, others=True))}
        if path.rpartition("/")[2] in names:
            raise InvalidArgument(
                f"{path} is a link, and the folder that it names is not there: is it not mounted? Mount it, "
                f"or, if the log is lost, remove the link and run the same command again"
            ) from error
    except NotADirectoryError:
        return  # Whoever reads the log says what it is.


def refuse_open(folder: StoreFolder, remedy: str = "") -> Program[None]:
    """A process that has the folder open, whose log was moved away, would go on to ack what the recovered
    store does not have, until its next check (rule R5). ``remedy``: what helps besides stopping it."""
    if owners := (yield from list_live(folder)):
        raise InvalidArgument(
            describe_opening(folder.path, owners, use_service="stop that service first") + remedy
        )


def _logs(entries: Sequence[FolderEntry]) -> bool:
    return any(entry.name == "wal" for entry in entries)


def _has_logs(folder: StoreFolder) -> InvalidArgument:
    return InvalidArgument(
        f"{folder.path} already has the logs of a store: name a folder without wal/. In this one `tierlog "
        f"recover --from-lts --container N` recovers a container whose log is lost or damaged, and `tierlog "
        f"restore --replace` goes back to a backup and moves the logs away"
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


def log_building(folder: StoreFolder, container: int) -> str:
    """Where the log of one container is built, in its place of a ``wal``."""
    return f"{restore_folder(folder).path}/{container:04d}"


def move_log_away(folder: StoreFolder, container: int, kept: str) -> Program[bool]:
    """Move the container's log to ``kept``, a path in ``wal``. Returns whether there was one."""
    return (yield from _move_log(folder, log_folder(folder.wal, container), kept))


def put_back_log(folder: StoreFolder, container: int, kept: str) -> Program[None]:
    """Undo ``move_log_away``, unless it moved nothing, or another log is in that place."""
    try:
        yield from _move_log(folder, kept, log_folder(folder.wal, container))
    except OSError as error:
        if error.errno not in _TAKEN:
            raise


def _move_log(folder: StoreFolder, source: str, target: str) -> Program[bool]:
    try:
        yield Rename(source, target)
    except FileNotFoundError:
        return False
    try:
        yield SyncFolder(folder.wal)
    except OSError:
        yield Rename(target, source)
        raise
    return True


def publish_log(folder: StoreFolder, container: int) -> Program[None]:
    """Move the log of one container to its place, as ``publish`` moves those of a store."""
    building, place = log_building(folder, container), log_folder(folder.wal, container)
    built = log_folder(building, container)
    try:
        yield Rename(built, place)
    except OSError as error:
        if error.errno in _TAKEN:
            raise Unavailable(f"somebody has made {place} meanwhile: stop that process first") from error
        raise
    try:
        yield SyncFolder(building)
        yield SyncFolder(folder.wal)
    except OSError:
        yield Rename(place, built)
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


def end_log(folder: StoreFolder, lock: FileHandle, container: int, *, is_published: bool) -> Program[None]:
    """As ``end_restore``, of one container's log."""
    name = f"{container:04d}"
    begun = yield from list_files(restore_folder(folder).path)
    built = yield from list_files(log_building(folder, container))
    was_moved = name in {each.name for each in begun} and name not in {each.name for each in built}
    if is_published or not was_moved:
        yield from end_restore(folder, lock)
    else:
        yield Close(lock)  # The log is in its place, maybe without a durable name.


def _clear(path: str) -> Program[None]:
    for entry in (yield ListFolder(path, others=True)):
        if entry.name != LOCK_FILE:
            try:
                yield from _remove_entry(path, entry)
            except RecursionError as error:
                raise InvalidArgument(
                    f"{path}/{entry.name} has folders in folders, more than a restore makes: remove it"
                ) from error


@asynccontextmanager
async def only_log(folder: StoreFolder, files: Files, container: int) -> AsyncIterator[None]:
    """Nobody else restores into the folder, or opens it. Raises as ``begin_log``."""
    lane = restore_lane(files, folder)
    with anyio.CancelScope(shield=True):
        lock = await run_program(lane, begin_log(folder), folder.path)
    is_published = False
    try:
        yield
        is_published = True
    finally:
        with anyio.CancelScope(shield=True):
            end = end_log(folder, lock, container, is_published=is_published)
            await run_program(lane, end, folder.path)


@asynccontextmanager
async def only_restore(
    folder: StoreFolder, files: Files, config: StoreConfig, *, makes_chunks: bool = False
) -> AsyncIterator[None]:
    """Nobody else restores into the folder, or opens a store there. ``makes_chunks``: long-term storage is
    made by the restore. Raises ``InvalidArgument`` if there is no long-term storage, if there are logs, or if
    the store would be inside another one, and ``Unavailable`` if another restore is under way."""
    # Before anything is made there: the folder may be the wrong one.
    await run_program(files, refuse_restored_inside(folder), folder.path)
    if makes_chunks:
        await run_program(files, _check_new_folder(folder), folder.path)
    else:
        await check_long_term_storage(folder, files, config)
    lane = restore_lane(files, folder)
    is_new = await run_program(files, _is_missing(folder), folder.path)
    with anyio.CancelScope(shield=True):
        lock = await run_program(lane, begin_restore(folder), folder.path)
    is_published = False
    try:
        yield
        is_published = True
    finally:
        with anyio.CancelScope(shield=True):
            await run_program(lane, end_restore(folder, lock, is_published=is_published), folder.path)
            if is_new and not is_published:
                await run_program(files, _remove_empty(folder), folder.path)


def _is_missing(folder: StoreFolder) -> Program[bool]:
    try:
        yield ListFolder(folder.path)
    except FileNotFoundError:
        return True
    return False


def _remove_empty(folder: StoreFolder) -> Program[None]:
    try:
        yield RemoveFolder(folder.path)
    except OSError as error:
        # What a restore has copied stays, for the next one.
        if error.errno not in (*_TAKEN, errno.ENOENT):
            raise


def _check_new_folder(folder: StoreFolder) -> Program[None]:
    try:
        yield ListFolder(folder.chunks)
    except (FileNotFoundError, NotADirectoryError):
        yield from refuse_other_files(folder)


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
            f"{folder.path} has no lts/: put the long-term storage of the store there, or a link to it, or "
            f"name where it is (--chunks)"
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


def _lock(folder: StoreFolder) -> Program[FileHandle]:
    def refusal(pid: str) -> Unavailable:
        return Unavailable(
            f"process {pid} is restoring or recovering the store in {folder.path}: wait until it has "
            f"ended, or stop it"
        )

    path = restore_folder(folder).path
    try:
        return (yield from take_lock(path, refusal, with_parent=True))
    except NotADirectoryError as error:
        raise _foreign(path) from error
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise _foreign(f"{path}/{LOCK_FILE}") from error
        raise


def _lock_and_remake(folder: StoreFolder) -> Program[FileHandle]:
    lock = yield from _lock(folder)
    try:
        yield from _remake_wal(folder)
    except (OSError, TierlogError):
        # The folder stays: the next opening or restore goes on from here.
        yield Close(lock)
        raise
    return lock


def _remake_wal(folder: StoreFolder) -> Program[None]:
    """Make the name of ``wal`` again, if there is one, and that of a container's log that was restored alone:
    its sync may have failed in a process that was killed then."""
    yield from _remake(folder.path, "wal", (yield from list_data_folder(folder)))
    yield from _remove_moved(folder)
    for entry in (yield from list_files(restore_folder(folder).path, others=True)):
        if entry.is_folder and entry.name.isdigit():
            yield from _remake(folder.wal, entry.name, (yield from list_files(folder.wal, others=True)))


def _remake(path: str, name: str, entries: Sequence[FolderEntry]) -> Program[None]:
    moved, names = f"{_REMADE}{name}", {entry.name for entry in entries}
    if {name, moved} <= names and (yield from _settle_two(path, name, moved)):
        names.remove(name)
    if name in names:
        yield Rename(f"{path}/{name}", f"{path}/{moved}")
    if not names.isdisjoint((name, moved)):
        yield Rename(f"{path}/{moved}", f"{path}/{name}")
        yield SyncFolder(path)


def _settle_two(path: str, name: str, moved: str) -> Program[bool]:
    """Somebody made ``name`` while it was ``moved``, such as an opening under way. Removes the one
    that is an empty folder; returns whether that was ``name``. Raises ``InvalidArgument`` if neither is."""
    for each in (name, moved):
        try:
            yield RemoveFolder(f"{path}/{each}")
            return each == name
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
    raise InvalidArgument(
        f"{path}/{moved} was {name} until a restore or an opening was killed, and {path}/{name} was made "
        f"since: move the one away that the store is not to go on with, and keep it"
    )


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

"""Moving the logs of a store away, so that another state is restored into the same folder (rule P6).

Cancellation and crash: what failed before there are other logs puts them back. A process that is killed
leaves the folder without logs: ``wal-before-...`` has them, and a restore goes on without this."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ...journal.log.local_layout import moved_folder
from ...storage_backends.base.errors import InvalidArgument
from ...storage_backends.base.files import Files, Program, Rename, SyncFolder
from ...storage_backends.base.world import World
from ..folder.lock_files import describe_opening
from ..folder.paths import StoreFolder, existing_identity, list_data_folder, live_owners, run_program
from ..folder.restore_folder import finish_restore, restore_lane


@asynccontextmanager
async def logs_moved_away(
    folder: StoreFolder, files: Files, world: World, *, is_wanted: bool = True
) -> AsyncIterator[None]:
    """The body restores into the folder. Raises ``InvalidArgument`` if a process has the folder open, or if
    there is no store, and ``Unavailable`` if another restore is under way, which has moved the logs away."""
    if not is_wanted:
        yield
        return

    await finish_restore(files, folder)
    await existing_identity(files, folder)
    # For people: an owner that is missed here finds that its folder has moved (rule W1).
    if owners := await live_owners(files, folder):
        raise InvalidArgument(describe_opening(folder.path, owners, use_service="stop that service first"))
    lane = restore_lane(files, folder)
    kept = moved_folder(folder.wal, world.new_id())
    await run_program(lane, _move(folder.wal, kept, folder), folder.path)
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await run_program(lane, _move_back(kept, folder), folder.path)
        raise


def _move(source: str, target: str, folder: StoreFolder) -> Program[None]:
    yield Rename(source, target)
    yield SyncFolder(folder.path)


def _move_back(kept: str, folder: StoreFolder) -> Program[None]:
    if all(entry.name != "wal" for entry in (yield from list_data_folder(folder))):
        yield from _move(kept, folder.wal, folder)

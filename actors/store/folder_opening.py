"""The first steps of opening a data folder, which a supervisor takes too: chunk location, the identity, and
the announcement of the process that opens it. Nothing here needs a container, so that a supervisor, which has
none, starts without importing one. With ``opening.py`` the only place that takes clock, randomness and ids
from the outside world.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from random import Random

import anyio

from ...journal.manifest.element import CONTAINERS_PREFIX
from ...journal.manifest.store_record import MIGRATION_RECORD, being_moved
from ...storage_backends.base.errors import StoreMismatch, Unavailable
from ...storage_backends.base.files import FileHandle, Files, Program
from ...storage_backends.base.world import World
from ..folder import lock_files
from ..folder.chunk_location import (
    ChunkLocation,
    create_chunk_folder,
    folder_location,
    make_chunk_reader,
    resolve_location,
)
from ..folder.identity import StoreIdentity, confirm_identity, create_identity, identity_file, read_identity
from ..folder.paths import STORE_TEMPORARY, StoreFolder, lock_lane, run_program
from ..folder.restore_folder import finish_restore
from ..kernel.process_status import process_start
from ..settings.configuration import StoreConfig
from ..telemetry.logging import get_logger

_log = get_logger("node")


def system_world() -> World:
    """The real clock, real randomness, real ids."""
    return World(time.time, Random(), lambda: uuid.uuid4().hex)


_LOST_LOGS = (
    "If its logs (wal/) were lost, put wal/ back, recover what long-term storage has as of its last full "
    "flush (`tierlog recover --from-lts`, `tierlog serve --recover-from-lts`, or "
    "open_store(recover_from_lts=True)), or restore a backup (`tierlog restore`). If a `tierlog "
    "restore --from` was interrupted, run it again"
)


async def locate_chunks(
    files: Files, folder: StoreFolder, config: StoreConfig, world: World
) -> ChunkLocation:
    """The chunk location of the store in ``folder``, which is recorded if the folder is new. Then nothing is
    made there before long-term storage answers and is known to belong to no other store (rule W8)."""
    is_new = await run_program(files, read_identity(folder.wal), folder.wal) is None
    if is_new:
        await refuse_claimed(folder_location(config), files, folder, world, _LOST_LOGS)
    location = await resolve_location(files, folder, config, world)
    if is_new:
        # Before the identity: an existing store takes a missing folder for one that is not mounted.
        await create_chunk_folder(location, files, folder, world)
    return location


async def refuse_claimed(
    location: ChunkLocation, files: Files, folder: StoreFolder, world: World, advice: str
) -> None:
    """Raises ``StoreMismatch`` if a store has its chunks there, ``InvalidArgument`` if they would be inside
    another store, or around one."""
    chunks = make_chunk_reader(location, files, folder, world)
    await chunks.open()
    try:
        if await chunks.exists(MIGRATION_RECORD):
            raise being_moved(folder.path)
        async with aclosing(chunks.list(CONTAINERS_PREFIX)) as claims:
            async for claim in claims:
                raise StoreMismatch(
                    f"{location.shown(folder)} has a store already, which made {claim.name}. {advice}. "
                    f"Another store needs its own folder or S3 prefix"
                )
    except Unavailable:
        if location.chunks:
            raise
        # A new folder has no ``lts/`` either.
    finally:
        await chunks.close()
    if location.chunks:
        from .nesting import refuse_nested_chunks  # asks buckets: few openings need it

        await refuse_nested_chunks(location, files, world)


async def identify(
    files: Files, folder: StoreFolder, containers: int | None, config: StoreConfig, world: World
) -> StoreIdentity:
    """The folder's identity, created if the folder is new. Raises ``StoreMismatch`` if it was created with
    another number of containers, ``Unavailable`` while a restore is under way."""
    wal = folder.wal
    count = config.containers if containers is None else containers
    found = await run_program(files, _identify(wal, count, world), wal)
    # A restore may have begun since the folder was first looked at. It takes its logs away if it fails.
    await finish_restore(files, folder)
    if await run_program(files, read_identity(wal), wal) != found:
        raise Unavailable(f"{wal} was replaced while it was opened: try again")

    # After the identity exists: another process may have created it with another number.
    check_containers(found, containers, wal, "a folder is created")
    return found


def _identify(wal: str, containers: int, world: World) -> Program[StoreIdentity]:
    temporary = f"{STORE_TEMPORARY}{world.new_id()}"
    found = yield from read_identity(wal)
    if found is not None:
        yield from confirm_identity(wal, found, temporary)
        return found
    fresh = StoreIdentity(world.id_bytes(), world.id_bytes(), containers, world.time_ms())
    # Not `fresh`: another process may have been first.
    return (yield from create_identity(wal, fresh, temporary))


def check_containers(found: StoreIdentity, containers: int | None, place: str, begin: str) -> None:
    """Raises ``StoreMismatch`` if the caller wants another number."""
    if containers is not None and found.containers != containers:
        raise StoreMismatch(
            f"{place} was created with {found.containers} containers, not {containers}, and their "
            f"number is fixed when {begin}: leave it out"
        )


@asynccontextmanager
async def announced(
    files: Files, world: World, folder: StoreFolder, role: str, url: str = "", *, take_over: bool = True
) -> AsyncIterator[Announcement]:
    """Announce in the folder that this process has it open; withdraw that at the end. Raises ``NotOwner`` if
    another process has it open and ``take_over`` is False."""
    pid = os.getpid()
    owner = lock_files.Owner(
        world.new_id(),
        pid,
        socket.gethostname(),
        world.time_ms(),
        role=role,
        url=url,
        start=process_start(pid),
    )
    owners, files = folder.owners, lock_lane(files, folder)
    create = (
        lock_files.create_lock_file(owners, owner)
        if take_over
        else lock_files.create_only_lock_file(folder.path, owners, owner, _identity_behind_links(folder))
    )
    announcement = Announcement(files, owners, owner, await run_program(files, create, owners))
    try:
        yield announcement
    finally:
        await announcement.withdraw()


def _identity_behind_links(folder: StoreFolder) -> str:
    """The lane of lock files follows no link below the folder, and ``wal`` may be one, to another disk."""
    return identity_file(os.path.realpath(folder.wal))


class Announcement:
    """The lock file of a process that has the folder open."""

    def __init__(self, files: Files, folder: str, owner: lock_files.Owner, handle: FileHandle) -> None:
        self._files = files
        self._folder = folder
        self._owner = owner
        self._handle: FileHandle | None = handle

    @property
    def owner_id(self) -> str:
        return self._owner.owner_id

    async def withdraw(self) -> None:
        """Does nothing the second time."""
        handle, self._handle = self._handle, None
        if handle is None:
            return

        with anyio.CancelScope(shield=True):
            try:
                await self._files.run(lock_files.remove_lock_file(self._folder, self._owner, handle))
            except OSError as error:
                # The file only informs. The next opening removes it, because its lock is free.
                _log.warning("owner_file_not_removed", folder=self._folder, error=str(error))

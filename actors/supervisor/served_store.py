"""The store that a service serves, in a data folder or where all machines reach it: its identity, what its
processes agree on, and the folder in which those of this machine find each other.

A store that is new is created. Crash: as that of an opening (``store/opening.py``, ``store/shared.py``).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import attrs

from ...journal.coordination.contract import Coordination
from ...storage_backends.base.errors import DataCorruption, InvalidArgument, Unavailable
from ...storage_backends.base.files import Files, IsGuarded, MakeFolder, Program, RemoveFolder
from ...storage_backends.base.world import World
from ...storage_backends.chunks.s3_request_counts import S3RequestCounts
from ..folder.chunk_location import ChunkLocation, check_location, make_chunk_reader, opened_chunks
from ..folder.identity import StoreIdentity
from ..folder.local_coordination import LocalCoordination
from ..folder.paths import StoreFolder, check_chunk_cache, check_folder, report_shared, run_program
from ..folder.place import SharedLocation
from ..kernel.task_groups import finish_within
from ..settings.configuration import StoreConfig
from ..store.folder_opening import identify, locate_chunks
from .term import OnWait, TermOptions

_REMOVAL_SECONDS = 1.0
_LOOK_SECONDS = 5.0
"""Long-term storage that takes longer to say whether the store was moved is not waited for."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class StoreAsked:
    """The store that is asked for, and how it may be opened."""

    place: StoreFolder | SharedLocation
    config: StoreConfig
    containers: int | None
    take_over: bool
    recover_from_lts: bool = False
    """Recover what of its logs is missing from long-term storage alone (rule R11)."""
    stands_by: bool = False
    """Wait until no other supervisor is active, however long."""
    on_wait: OnWait | None = None
    """As in ``TermOptions``."""

    @property
    def shown(self) -> str:
        """The place, for hosts and messages."""
        return self.place.path if isinstance(self.place, StoreFolder) else str(self.place).rstrip("/")

    @property
    def is_local(self) -> bool:
        """It is in a data folder, which only this machine has."""
        return isinstance(self.place, StoreFolder)

    @property
    def local(self) -> StoreFolder:
        """Where the lock files of the store's processes on this machine are: the data folder, or a folder
        among the local copies of a shared store."""
        if isinstance(self.place, StoreFolder):
            return self.place

        from ..store.shared import service_folder

        return service_folder(self.config, self.place)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class ServedStore:
    identity: StoreIdentity
    coordination: Coordination
    term: TermOptions
    requests: S3RequestCounts | None = None
    """Counts those that ``coordination`` makes to a bucket."""


def check_place(asked: StoreAsked) -> None:
    """Raises ``ConfigError`` or ``InvalidArgument`` for what cannot be asked of the place."""
    if isinstance(asked.place, StoreFolder):
        check_chunk_cache(asked.place, asked.config.chunk_cache.path)
    else:
        from ..store.shared import refuse_arguments

        refuse_arguments(asked.place, None, recover_from_lts=asked.recover_from_lts)


@asynccontextmanager
async def open_served(asked: StoreAsked, files: Files, world: World) -> AsyncIterator[ServedStore]:
    """The store, while the body supervises it."""
    if isinstance(asked.place, StoreFolder):
        yield await _in_folder(asked, asked.place, files, world)
        return

    # Before anything is asked of the place.
    folder = asked.local.path
    await run_program(files, _make_guarded(folder), folder)
    try:
        async with _where_all_reach_it(asked, asked.place, files, world) as served:
            yield served
    finally:
        # Of a misspelt place nothing is left.
        await finish_within(_REMOVAL_SECONDS, partial(run_program, files, _remove_empty(folder), folder))


@asynccontextmanager
async def _where_all_reach_it(
    asked: StoreAsked, place: SharedLocation, files: Files, world: World
) -> AsyncIterator[ServedStore]:
    # Imported for the stores that need it.
    from ..store.shared import SharedOpener

    opener = SharedOpener(place, asked.config, adopt=False, span=None, world=world, files=files)
    async with opener.served(asked.containers, waits=asked.stands_by) as (coordination, identity):
        location = await opener.place.locate_chunks()
        await _refuse_moved(location, files, StoreFolder(opener.cache), world, asked.shown)
        lease = asked.config.server.lease
        yield ServedStore(
            identity=identity,
            coordination=coordination,
            term=TermOptions.watched(lease, takes_over=asked.take_over, stands_by=asked.stands_by),
            requests=opener.place.counts,
        )


def _make_guarded(folder: str) -> Program[None]:
    """Make the folder of the lock files. Raises ``InvalidArgument`` if another user could put owners there,
    which this service would end."""
    while True:
        yield MakeFolder(folder)
        with suppress(FileNotFoundError):  # another start, which failed, removed it meanwhile
            is_guarded = yield IsGuarded(folder)
            break
    if not is_guarded:
        parent = os.path.dirname(folder)
        raise InvalidArgument(
            f"other users can change {folder}, where the processes of the service find each other: take that "
            f"right from them (`chmod go-w {parent} {folder}`), or name another chunk_cache.path"
        )


def _remove_empty(folder: str) -> Program[None]:
    with suppress(OSError):  # once the store was there it has a file
        yield RemoveFolder(folder)


async def _refuse_moved(
    location: ChunkLocation, files: Files, folder: StoreFolder, world: World, place: str
) -> None:
    """Raises ``StoreMismatch`` if the chain of the first container, the first that a move ends, says that the
    store was moved from ``place`` (rule E2): each host would be refused. What cannot be read is left to the
    hosts."""
    from ...journal.manifest.chain import list_elements, read_newest
    from ..container.listed_chain import refuse_moved

    with suppress(Unavailable, DataCorruption), anyio.move_on_after(_LOOK_SECONDS):
        async with opened_chunks(make_chunk_reader(location, files, folder, world)) as chunks:
            newest = await read_newest(chunks, 0, await list_elements(chunks, 0))
            await refuse_moved(chunks, 0, newest, place)


async def _in_folder(asked: StoreAsked, folder: StoreFolder, files: Files, world: World) -> ServedStore:
    if asked.recover_from_lts:
        # Not above: it opens logs and containers.
        from ..store.recover_container import recover_if_lost

        await recover_if_lost(folder, asked.config, files, world, take_over=asked.take_over)
    await check_folder(files, folder)
    await report_shared(files, folder)
    location = await locate_chunks(files, folder, asked.config, world)
    await check_location(location, files, folder, world)
    identity = await identify(files, folder, asked.containers, asked.config, world)
    await _refuse_moved(location, files, folder, world, asked.shown)
    coordination = LocalCoordination(files, folder, world.new_id)
    return ServedStore(identity=identity, coordination=coordination, term=TermOptions())

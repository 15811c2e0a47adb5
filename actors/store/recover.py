"""Recovering a store from its long-term storage alone, when its logs are lost (rules R1 to R8), and restoring
it from a backup (rule P6), which is the same with earlier elements.

A recovery makes ``wal/`` and one element in each container's chain, and nothing else. Each container begins
with what the newest element of its chain publishes, its last complete full flush, or with what the record of
the backup has. The store keeps its id, and
its segments keep theirs. Anything later is lost, and nobody can say what that was; chunks that only the lost
logs knew are kept until an operator confirms (rule G4).

Order: lock the folder; read and check every container; build the logs in ``.restoring``; create the elements
that claim the chains; rename the logs to ``wal``; unlock. What is refused has changed nothing but the chains
of containers that were claimed before. Cancellation and crash: as for a restore (rule S17); the next recovery
goes on above what was claimed."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

import anyio
import attrs

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder
from ...journal.manifest.chain import ChainReport, element_name, read_owners
from ...journal.manifest.element import Kind
from ...journal.manifest.pin_record import (
    PinRecord,
    check_store_of,
    find_lost_element,
    pin_of,
    pin_record_name,
    read_pinned,
    require_pin_record,
)
from ...journal.manifest.store_record import (
    STORE_RECORD,
    StoreRecord,
    ensure_store_record,
    require_store_record,
)
from ...journal.operations.log_element import LogElement
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import BackupIncomplete, ChunkNotFound, DataCorruption
from ...storage_backends.base.files import Files
from ...storage_backends.base.world import World
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ..container.listed_chain import ListedChain, refuse_moved
from ..container.lts_boot import LtsBoot, claim_chain, read_boot, read_logs, without_elements
from ..container.owner import Identity
from ..folder.chunk_location import make_chunk_storage, resolve_location
from ..folder.fingerprint import read_fingerprint
from ..folder.identity import StoreIdentity, create_identity
from ..folder.paths import STORE_TEMPORARY, StoreFolder, run_program
from ..folder.restore_folder import only_restore, publish, refuse_logs, restore_folder, restore_lane
from ..settings.configuration import StoreConfig
from .lts_view import LtsContainer, check_readable
from .opening import log_options
from .supervised import refuse_supervised_chunks

Prepare = Callable[[ChunkStorage], Awaitable[object]]
_CACHE_BYTES = 16 << 20
_SHOWN_MAX = 3
_STOP = "stop it first, because a recovery shuts its containers out"


@attrs.frozen
class RecoveredContainer:
    container: int
    element: int = 0
    """The number of the element that it begins with; 0 if there was none."""
    cycle: int = 0
    """The full flush that it is as of; 0 if there was none."""
    completed_ms: int = 0
    """When that was complete, at the latest."""
    is_exact: bool = True
    """Whether it was complete then; otherwise earlier: only a later element is left."""
    segments: int = 0


@attrs.frozen
class RecoveredStore:
    store_id: str
    containers: tuple[RecoveredContainer, ...]
    backup: str = ""
    """The backup that it was restored from; empty after a recovery."""
    kept: str = ""
    """Where the lost log of the container is, if only that was recovered and it had one."""

    @property
    def segments(self) -> int:
        return sum(each.segments for each in self.containers)


async def recover_store(
    folder: StoreFolder,
    config: StoreConfig,
    files: Files,
    world: World,
    backup: str = "",
    prepare: Prepare | None = None,
    *,
    take_over: bool = False,
) -> RecoveredStore:
    """Make the logs of the store in ``folder``, or in the bucket that ``config`` names, from its long-term
    storage alone; with ``backup`` as of that, which the newest elements keep. ``prepare`` copies the backup
    there first. Long-term storage of a store in a bucket that a service serves is refused (rule V14), unless
    ``take_over`` is set: then its containers are shut out.

    Raises ``NotOwner`` (a service serves it), ``InvalidArgument`` (there are logs, no long-term storage, no
    complete backup, or it would be inside another store), ``Unavailable`` (another restore into the folder is
    under way, or long-term storage does not answer), ``DataCorruption`` (an object is damaged, or a segment
    is not as of one moment), ``StoreMismatch`` (an earlier version wrote it).
    """
    async with only_restore(folder, files, config, makes_chunks=prepare is not None):
        building = restore_folder(folder)
        location = await resolve_location(files, building, config, world)
        if not take_over:
            # V14: before anything of it is claimed.
            await refuse_supervised_chunks(location, config.server.lease, world, _STOP)
        chunks = make_chunk_storage(location, files, folder, world, create=prepare is not None)
        await chunks.open()
        try:
            if prepare is not None:
                if location.chunks and not await chunks.exists(STORE_RECORD):
                    from .nesting import refuse_nested_chunks  # asks buckets: few recoveries need it

                    await refuse_nested_chunks(location, files, world)
                await prepare(chunks)
            pins = await require_pin_record(chunks, backup) if backup else None
            return await Recovery(folder, chunks, config, files, world, pins).run()
        finally:
            await chunks.close()


class Recovery:
    """One recovery into ``folder``."""

    def __init__(
        self,
        folder: StoreFolder,
        chunks: ChunkStorage,
        config: StoreConfig,
        files: Files,
        world: World,
        pins: PinRecord | None = None,
    ) -> None:
        self._folder = folder
        self._pins = pins
        """The backup that is restored; None to recover the newest state."""
        self._chunks = chunks
        self._config = config
        self._files = files
        self._world = world

    async def run(self) -> RecoveredStore:
        """Recover the whole store: its logs are built in ``.restoring`` and moved from there."""
        record = await require_store_record(self._chunks)
        if self._pins is not None:
            check_store_of(self._pins, record)
        boots: list[LtsBoot] = []
        containers: list[RecoveredContainer] = []
        for index in range(record.containers):
            boot, described = await self.read(record, index)
            boots.append(boot)
            containers.append(described)
        # Everything is checked: from here on only in the temporary folder, until the chains are claimed.
        identity = await self._make_identity(record)
        wal = restore_folder(self._folder).wal
        claims = [await self.write(wal, wal, identity, boot) for boot in boots]
        lane = restore_lane(self._files, self._folder)
        # Somebody may have put logs there, whose owner would be shut out.
        await run_program(lane, refuse_logs(self._folder), self._folder.path)
        await ensure_store_record(self._chunks, record.store, record.containers, record)
        for boot, op in zip(boots, claims, strict=True):
            await claim_chain(self._chunks, boot.container, op)
        await run_program(lane, publish(self._folder), self._folder.path)
        backup = "" if self._pins is None else self._pins.name
        return RecoveredStore(record.store.hex(), tuple(containers), backup)

    async def read(self, record: StoreRecord, index: int) -> tuple[LtsBoot, RecoveredContainer]:
        """What the container begins with."""
        chain = await read_owners(self._chunks, index)
        newest = await LtsContainer(index, self._chunks, record.store).newest()
        if lost := await find_lost_element(self._chunks, index, 0 if newest is None else newest.n):
            raise DataCorruption(lost.message, file=lost.name, offset=lost.offset)
        if newest is None:
            if self._pins is not None:
                raise _not_kept(self._pins.name, index)
            # R4: an owner of the lost logs may have opened it, and acked appends, in an outage.
            runs = RunReader(StoredRuns(self._chunks), BlockCache(_CACHE_BYTES))
            nothing = without_elements(record.store)
            return await read_boot(index, nothing, nothing.element, runs), RecoveredContainer(index)

        await refuse_moved(self._chunks, index, newest)
        chosen, pin = newest.element, None
        if self._pins is not None:
            try:
                pinned = await read_pinned(self._chunks, self._pins, index)
            except ChunkNotFound as error:
                raise _not_kept(self._pins.name, index) from error
            chosen, pin = pinned.element, pin_of(self._pins.name, pinned)
            check_readable(chosen, pin_record_name(self._pins.name))
            if pin not in newest.element.pins:
                raise _not_kept(self._pins.name, index)

        # What is unreadable below the newest element may as well have been deleted (rule J8).
        for problem in chain.problems:
            if not problem.n:
                raise DataCorruption(problem.message, file=problem.name, offset=problem.offset)
        ListedChain(newest).check_room(index)
        runs = RunReader(StoredRuns(self._chunks), BlockCache(_CACHE_BYTES))
        boot = await read_boot(index, newest, chosen, runs, pin, await read_logs(chain.elements, runs))
        if found := boot.published.inconsistencies:
            some = "; ".join(
                f"{each.segment or 'the container'}: {each.message}" for each in found[:_SHOWN_MAX]
            )
            raise DataCorruption(
                f"not all that it publishes is of one moment, so nothing can be recovered from it: {some}"
                + (f"; and {len(found) - _SHOWN_MAX} more" if len(found) > _SHOWN_MAX else ""),
                file=element_name(index, chosen.n) if pin is None else pin_record_name(pin.name),
            )
        return boot, _describe(boot, chain)

    async def _make_identity(self, record: StoreRecord) -> StoreIdentity:
        wal, world = restore_folder(self._folder).wal, self._world
        fresh = StoreIdentity(record.store, bytes.fromhex(world.new_id()), record.containers, world.time_ms())
        create = create_identity(wal, fresh, f"{STORE_TEMPORARY}{world.new_id()}")
        return await run_program(self._files, create, wal)

    async def write(self, building: str, owned: str, identity: StoreIdentity, boot: LtsBoot) -> LogElement:
        """Make the container's log in the folder ``building``. ``owned`` has the fingerprint of the logs of
        the store. Returns the element that claims the chain."""
        log_id, owner_id = identity.container_log_id(boot.container), bytes.fromhex(self._world.new_id())
        program = read_fingerprint(owned, socket.gethostname(), self._folder.wal)
        fingerprint = await run_program(self._files, program, owned)
        owner = Identity(identity.store_id, log_id, owner_id, fingerprint).signature
        log = LocalLog(self._files, log_folder(building, boot.container), log_id, log_options(self._config))
        is_complete = False
        try:
            opened = await log.open(above=boot.epoch)
            claim = await boot.write(log, owner, opened.epoch, self._world.time_ms())
            is_complete = True
        finally:
            with anyio.CancelScope(shield=True):
                await log.close(clean=is_complete)
        return claim


def _not_kept(backup: str, container: int) -> BackupIncomplete:
    """P6: as of the element above which the chain is claimed, so what the backup needs was never garbage."""
    return BackupIncomplete(
        f"backup {backup!r} is not complete: container {container} does not keep it, because it was given up "
        f"while it was made, or is being removed"
    )


def _describe(boot: LtsBoot, chain: ChainReport) -> RecoveredContainer:
    progress = boot.chosen.progress
    if boot.pin is not None:
        # When it was pinned.
        time_ms, segments = boot.chosen.time_ms, boot.published.segments
        return RecoveredContainer(
            boot.container, boot.chosen.n, progress.cycle, time_ms, is_exact=False, segments=segments
        )
    # Elements behind that of the cycle repeat its number.
    repeating = [each.element for each in chain.elements if each.element.progress.cycle == progress.cycle]
    # None if an owner has gone on meanwhile: then the claim is refused (R5).
    first = repeating[-1] if repeating else boot.chosen
    return RecoveredContainer(
        boot.container,
        boot.newest.n,
        progress.cycle,
        first.time_ms,
        first.kind is Kind.CYCLE_COMPLETE,
        boot.published.segments,
    )

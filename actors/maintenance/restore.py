"""Restoring a store from a backup of an earlier version and its long-term storage; those of this version are
restored as a recovery is (``recover.py``).

A restore makes ``wal/`` and nothing else; chunks stay where they are. The store keeps its id and gets new
logs, above every epoch of the old ones. Every segment gets a new id, because it may have fewer bytes than the
old one had. What is newer than the backup is lost to the restored store, but nothing refers to its chunks: so
the store begins unconfirmed and deletes nothing until an operator confirms it (rule G4). Then these chunks
are collected, and legacy files that were released at the time of the backup if they are unchanged and no
restored segment uses them. Transactions are lost.

Order (rule S17): lock the folder; read and check the backup; check every chunk; build the logs in
``.restoring``, which adopt the chains of the old owners; rename the logs to ``wal``; unlock. Everything is
checked before the first change, and until the last one there is no store. Cancellation and crash: the next
restore removes the leftovers and starts again; after the rename the next opening removes them
(``folder/restore_folder.py``). An old folder of the same store is refused from then on, as a copy is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import attrs

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder
from ...journal.manifest.pin_record import old_manifest_name, require_pin_record
from ...storage_backends.base.backups import check_backup_name
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, InvalidArgument, StoreMismatch
from ...storage_backends.base.files import Files
from ...storage_backends.base.names import container_of
from ...storage_backends.base.segments import ATTRIBUTE_UPDATES_MAX, AttributeUpdate
from ...storage_backends.base.world import World
from ...storage_backends.segments.records import ChunkRecord, ReleasedRecord
from ...storage_backends.segments.records.imported import ImportedRecord, imported_key
from ...storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from ...storage_backends.segments.verify import find_flaws, find_missing
from ..container.container import Container
from ..container.listed_chain import list_chain
from ..folder.chunk_location import (
    ChunkLocation,
    folder_location,
    make_chunk_reader,
    make_chunk_storage,
    opened_chunks,
    resolve_location,
)
from ..folder.identity import StoreIdentity, create_identity
from ..folder.layout_version import apply_layout_mode
from ..folder.paths import STORE_TEMPORARY, StoreFolder, run_program
from ..folder.restore_folder import (
    check_long_term_storage,
    only_restore,
    publish,
    refuse_logs,
    restore_folder,
    restore_lane,
)
from ..kernel.slices import in_slices
from ..kernel.task_groups import work_through
from ..legacy_rolling.importing import Progress, no_progress
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..store.opening import StoreOpener, log_options
from ..store.recover import Prepare, RecoveredStore, recover_store
from ..store.store import SegmentStore
from .backup_copy import copy_for_restore
from .backup_objects import Manifest, ReleasedFile, SegmentBackup, read_manifest, read_segments

_WORKERS = 8
_NO_COLLECTION = 31_536_000.0
"""Seconds; longer than any restore."""


@attrs.frozen
class LostSegment:
    """A segment that was not restored."""

    segment: str
    reason: str


@attrs.frozen
class RestoreReport:
    backup: str
    created_ms: int
    segments: int
    chunks: int
    bytes: int
    unflushed: int
    """Bytes that were only in the old logs when the backup was made."""
    staged: int
    lost: tuple[LostSegment, ...]


@attrs.frozen
class RestoreOptions:
    backup: str
    deep: bool = False
    """Whether the checksums of all chunks are verified first."""
    partial: bool = False
    """Whether segments with damaged chunks are left out, instead of failing."""


async def restore_backup(
    folder: StoreFolder,
    options: RestoreOptions,
    config: StoreConfig,
    files: Files,
    world: World,
    progress: Progress,
    source: ChunkStorage | None,
) -> RecoveredStore | RestoreReport:
    """Restore a backup of either format. ``source`` is the open storage of a copy, or of the objects of a
    backup of an earlier version; None: the store's long-term storage. Raises as ``restore`` and
    ``recover_store``."""
    if await _is_old(folder, options.backup, config, files, world, source):
        return await restore(folder, source, options, config, files, world, progress)

    if options.deep or options.partial:
        raise InvalidArgument("--deep and --partial are for backups of an earlier version: leave them out")
    prepare: Prepare | None = None
    if source is not None:
        await require_pin_record(source, options.backup)  # before anything is made in the folder
        prepare = partial(copy_for_restore, source, options.backup, progress=progress)
    return await recover_store(folder, config, files, world, options.backup, prepare)


async def _is_old(
    folder: StoreFolder,
    backup: str,
    config: StoreConfig,
    files: Files,
    world: World,
    source: ChunkStorage | None,
) -> bool:
    async def has_manifest(chunks: ChunkStorage) -> bool:
        return await chunks.exists(old_manifest_name(backup))

    check_backup_name(backup)
    if source is not None:
        return await has_manifest(source)
    await check_long_term_storage(folder, files, config)
    async with opened_chunks(make_chunk_reader(folder_location(config), files, folder, world)) as chunks:
        return await has_manifest(chunks)


async def restore(
    folder: StoreFolder,
    backups: ChunkStorage | None,
    options: RestoreOptions,
    config: StoreConfig,
    files: Files,
    world: World,
    progress: Progress = no_progress,
) -> RestoreReport:
    """Make the store of a backup in ``folder``. ``backups`` is the open storage of the backup's objects;
    None: the store's long-term storage.

    Raises ``InvalidArgument`` (there is a store already, or no such backup), ``Unavailable`` (another restore
    into the folder is under way), ``DataCorruption`` (the backup or a chunk is damaged), ``StoreMismatch``
    (the chunks belong to another store).
    """
    async with only_restore(folder, files, config):
        building = restore_folder(folder)
        location = await resolve_location(files, building, config, world)
        return await _Restore(folder, building, location, config, files, world).run(
            backups, options, progress
        )


class _Restore:
    """One restore: the logs are built in ``building`` and moved to ``folder``."""

    def __init__(
        self,
        folder: StoreFolder,
        building: StoreFolder,
        location: ChunkLocation,
        config: StoreConfig,
        files: Files,
        world: World,
    ) -> None:
        self._folder = folder
        self._building = building
        self._location = location
        # Until all segments are there, their chunks look like garbage.
        self._config = attrs.evolve(config, gc=attrs.evolve(config.gc, delay=_NO_COLLECTION))
        self._files = files
        self._world = world

    async def run(
        self, backups: ChunkStorage | None, options: RestoreOptions, progress: Progress
    ) -> RestoreReport:
        reader = make_chunk_reader(self._location, self._files, self._folder, self._world)
        # Only a reader, until everything is checked: a refused restore changes nothing in long-term storage.
        async with opened_chunks(reader):
            source = backups or reader
            manifest = await read_manifest(source, options.backup)
            segments = await read_segments(source, manifest)
            await _check_store(reader, manifest)
            whole, lost = await _check_chunks(reader, segments, options, progress)
            released = await _still_released(reader, manifest, segments)
        if lost and not options.partial:
            raise DataCorruption(
                f"{len(lost)} of {len(segments)} segments have damaged chunks, the first is "
                f"{lost[0].segment!r}: {lost[0].reason}; put the chunks back, or restore the other segments "
                f"with --partial"
            )

        # From here on only in the temporary folder, until `publish`.
        identity = await self._make_folder(manifest)
        # Somebody may have put logs there, which would be fenced.
        lane = restore_lane(self._files, self._folder)
        await run_program(lane, refuse_logs(self._folder), self._folder.path)
        await self._fill(identity, manifest, whole, released)
        await run_program(lane, publish(self._folder), self._folder.path)
        chunks = [chunk for segment in whole for _, chunk in segment.chunks]
        return RestoreReport(
            options.backup,
            manifest.created_ms,
            len(whole),
            len(chunks),
            sum(chunk.length for chunk in chunks),
            manifest.unflushed,
            manifest.staged,
            tuple(lost),
        )

    async def _make_folder(self, manifest: Manifest) -> StoreIdentity:
        """The folder of the logs, with the store's identity and logs above every old epoch."""
        wal, world = self._building.wal, self._world
        fresh = StoreIdentity(
            manifest.store_id,
            bytes.fromhex(world.new_id()),
            len(manifest.epochs),
            world.time_ms(),
        )
        identity = await run_program(
            self._files, create_identity(wal, fresh, f"{STORE_TEMPORARY}{world.new_id()}"), wal
        )
        if manifest.upgraded:
            upgrade = apply_layout_mode(self._building, LayoutMode.LAYOUT_UPGRADE, world)
            await run_program(self._files, upgrade, self._building.wal)
        for index, epoch in enumerate(manifest.epochs):
            log = LocalLog(
                self._files,
                log_folder(wal, index),
                identity.container_log_id(index),
                log_options(self._config),
            )
            # Names of chunks contain the epoch, so the new owners begin above the old ones (S2).
            await log.open(above=epoch)
            await log.close(clean=True)
        return identity

    async def _fill(
        self,
        identity: StoreIdentity,
        manifest: Manifest,
        segments: Sequence[SegmentBackup],
        released: Sequence[ReleasedFile],
    ) -> None:
        chunks = make_chunk_storage(self._location, self._files, self._folder, self._world, create=True)
        opener = StoreOpener(
            folder=self._building,
            moves_to=self._folder,
            config=self._config,
            storage=chunks,
            # The old owners' elements are still there.
            adopt=True,
            world=self._world,
            files=self._files,
        )
        async with opener.store(identity.containers) as store:
            for index in range(store.containers):
                await store.on_container(index, _keep_unknown_chunks)
            for segment in segments:
                await _import(store, segment)
            # So that these names are never imported again (rule S14).
            for name in manifest.imported:
                container = container_of(name, store.containers)
                await _write(store, container, imported_key(name), ImportedRecord(0).encode())
            for each in released:
                await _write(store, each.container, each.record.key, each.record.encode())


async def _check_store(chunks: ChunkStorage, manifest: Manifest) -> None:
    for index in range(len(manifest.epochs)):
        # The journals name the store whose chunks these are.
        for store in (await list_chain(chunks, index)).stores - {manifest.store_id}:
            raise StoreMismatch(
                f"the chunks belong to store {store.hex()}, the backup to {manifest.store_id.hex()}: "
                f"restore it where its own chunks are"
            )


async def _check_chunks(
    chunks: ChunkStorage, segments: Sequence[SegmentBackup], options: RestoreOptions, progress: Progress
) -> tuple[list[SegmentBackup], list[LostSegment]]:
    """The segments whose chunks are whole, and those with a damaged chunk."""
    progress(0, sum(chunk.length for segment in segments for _, chunk in segment.chunks))
    reasons: dict[str, str] = {}

    async def check(item: tuple[str, ChunkRecord]) -> None:
        segment, chunk = item
        if options.deep:
            flaws = await find_flaws(chunks, chunk, lambda done: progress(done, 0))
        else:
            flaw = await find_missing(chunks, chunk)
            flaws = [] if flaw is None else [flaw]
            progress(chunk.length, 0)
        for flaw in flaws:
            reasons.setdefault(segment, f"{chunk.name}: {flaw.message}")

    await work_through(
        [(each.image.name, chunk) for each in segments for _, chunk in each.chunks], _WORKERS, check
    )
    # By segment, which is restored whole or not at all.
    whole = [segment for segment in segments if segment.image.name not in reasons]
    return whole, [LostSegment(name, reasons[name]) for name in sorted(reasons)]


async def _import(store: SegmentStore, segment: SegmentBackup) -> None:
    await store.on_container(
        segment.container, lambda container: container.imports.restore(segment.image, segment.chain)
    )
    for part in in_slices(segment.attributes, ATTRIBUTE_UPDATES_MAX):
        updates = [AttributeUpdate(name, value) for name, value in part]
        await store.update_attributes(segment.image.name, updates)


async def _keep_unknown_chunks(container: Container) -> None:
    await container.confirmation.mark(UnconfirmedRecord(Reason.RESTORED))


async def _write(store: SegmentStore, container: int, key: str, value: bytes) -> None:
    """Write a record that does not exist yet."""

    async def act(owner: Container) -> None:
        await owner.metadata.commit({key: 0}, {key: value})

    await store.on_container(container, act)


async def _still_released(
    chunks: ChunkStorage, manifest: Manifest, segments: Sequence[SegmentBackup]
) -> list[ReleasedFile]:
    """The released files that are unchanged and that no segment of the backup uses (rule S19)."""
    used = {chunk.name for segment in segments for _, chunk in segment.chunks}
    return [
        each
        for each in manifest.released
        if each.record.name not in used and await _is_unchanged(chunks, each.record)
    ]


async def _is_unchanged(chunks: ChunkStorage, record: ReleasedRecord) -> bool:
    try:
        return (await chunks.info(record.name)).length == record.length
    except ChunkNotFound:
        return False

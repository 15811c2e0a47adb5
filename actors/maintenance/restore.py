"""Restore: a data folder's logs out of a backup, over the chunks that are there.

Owns: ``restore``: its checks, its order, its report. Does not own: the objects (``backup/objects.py``), nor
how a segment enters a container (``container/older.py``). Like ``node.py`` it names implementations, because
it makes a folder.

A restore makes ``wal/`` and nothing else; the chunks stay where they are. The store keeps its id and gets new
logs, above every epoch of the old ones. Each segment gets a new id, because it may have fewer bytes than the
old one had. What is newer than the backup is lost: its chunks are referred to by nothing, and whoever opens
the folder collects them. Files of the legacy layout that were released when the backup was taken are
collected too, if they are there as they were and no segment of the backup has them. Transactions are lost.

Order (rule S17): read and check the backup; check every chunk; build the logs in ``.restoring-<id>`` beside
their place, with a collector that deletes nothing; take the claims of the old owners away; rename the logs to
``wal``. Before the first change everything was checked; before the last one there is no store. Cancellation
and crash: the next restore removes what was left and begins again; after the rename only the emptied folder
can be left, which whoever opens the store removes. The old folder, if there is one, is refused from then on,
as a copy is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import attrs

from ...journal.log.local import LocalLog
from ...journal.log.local_layout import log_folder
from ...storage_backends.base.checksum import crc32c
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption, InvalidArgument, StoreMismatch
from ...storage_backends.base.files import (
    Files,
    ListFolder,
    Program,
    RemoveFolder,
    Rename,
    SyncFolder,
    Unlink,
    sync_ancestry,
)
from ...storage_backends.base.names import container_of
from ...storage_backends.base.world import World
from ...storage_backends.segments.records import ChunkRecord, ReleasedRecord
from ...storage_backends.segments.records.imported import ImportedRecord, imported_key
from ...storage_backends.segments.verify import Flaw, find_flaws, find_missing
from ..container.claims import Claim, claim_name, list_claims
from ..container.container import Container
from ..container.operations.metadata import CommitMetadataRequest
from ..folder.chunk_location import ChunkLocation, make_chunk_reader, make_chunk_storage, resolve_location
from ..folder.identity import StoreIdentity, create_identity
from ..folder.layout_version import apply_layout_mode
from ..folder.paths import RESTORE_TEMPORARY, STORE_TEMPORARY, StoreFolder, list_files, run_program
from ..kernel.task_groups import work_through
from ..settings.configuration import StoreConfig
from ..settings.layout_mode import LayoutMode
from ..store.opening import StoreOpener, log_options
from ..store.store import SegmentStore
from .backup import Progress, read_object
from .backup_objects import (
    Manifest,
    ReleasedFile,
    SegmentBackup,
    decode_manifest,
    decode_segment,
    manifest_name,
)

_WORKERS = 8
_NO_COLLECTION = 31_536_000.0
"""Seconds: longer than a restore takes."""


@attrs.frozen
class Lost:
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
    """Bytes that were only in the old logs when the backup was taken."""
    staged: int
    lost: tuple[Lost, ...]


@attrs.frozen
class RestoreOptions:
    backup: str
    deep: bool = False
    """Whether all bytes are read and compared with their checksums first."""
    partial: bool = False
    """Whether segments whose chunks are not whole are left out, instead of refusing all."""


async def restore(
    folder: StoreFolder,
    backups: ChunkStorage | None,
    terms: RestoreOptions,
    config: StoreConfig,
    files: Files,
    world: World,
    progress: Progress = lambda done, found: None,
) -> RestoreReport:
    """Make the store of the backup in ``folder``. ``backups``: where its objects are, open; default: the
    store's long-term storage.

    ``InvalidArgument`` (there is a store already, or no such backup), ``DataCorruption`` (the backup, or a
    chunk), ``StoreMismatch`` (the chunks are another store's).
    """
    await _check_empty(folder, files)
    building = StoreFolder(f"{folder.path}/{RESTORE_TEMPORARY}{world.new_id()}")
    place = await resolve_location(files, building, config, world)
    try:
        return await _Restore(folder, building, place, terms, config, files, world, progress).run(backups)
    finally:
        with anyio.CancelScope(shield=True):
            await run_program(files, _remove(building.path), building.path)


async def _check_empty(folder: StoreFolder, files: Files) -> None:
    entries = await run_program(files, list_files(folder.path), folder.path)
    for entry in entries:
        if entry.is_folder and entry.name.startswith(RESTORE_TEMPORARY):
            await run_program(files, _remove(f"{folder.path}/{entry.name}"), folder.path)
    if any(entry.name == "wal" for entry in entries):
        raise InvalidArgument(
            f"{folder.path} has a store's logs already: a restore needs a folder without wal/"
        )


def _remove(path: str) -> Program[None]:
    try:
        entries = yield ListFolder(path)
    except FileNotFoundError:
        return

    for entry in entries:
        if entry.is_folder:
            yield from _remove(f"{path}/{entry.name}")
        else:
            yield Unlink(f"{path}/{entry.name}")
    yield RemoveFolder(path)


def _publish(building: StoreFolder, folder: StoreFolder) -> Program[None]:
    """The folder that is emptied is synced first: whoever sees the logs in their place finds nothing of them
    in the other."""
    yield Rename(building.wal, folder.wal)
    yield SyncFolder(building.path)
    yield from sync_ancestry(folder.path)


class _Restore:
    def __init__(
        self,
        folder: StoreFolder,
        building: StoreFolder,
        place: ChunkLocation,
        terms: RestoreOptions,
        config: StoreConfig,
        files: Files,
        world: World,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._building = building
        self._place = place
        self._terms = terms
        self._config = attrs.evolve(config, gc=attrs.evolve(config.gc, delay=_NO_COLLECTION))
        self._files = files
        self._world = world
        self._progress = progress

    async def run(self, backups: ChunkStorage | None) -> RestoreReport:
        reader = make_chunk_reader(self._place, self._files, self._folder, self._world)
        async with _opened(reader):
            manifest, segments = await self._read(backups or reader)
            await self._check_claims(reader, manifest)
            whole, lost = await self._check_chunks(reader, segments)
            released = await _still_released(reader, manifest, segments)
        if lost and not self._terms.partial:
            raise DataCorruption(
                f"{len(lost)} of {len(segments)} segments are not whole, the first is {lost[0].segment!r}: "
                f"{lost[0].reason}; "
                f"put the chunks back, or restore the others alone"
            )

        identity = await self._make_folder(manifest)
        await self._fill(identity, manifest, whole, released)
        await self._clear_claims(identity)
        await run_program(self._files, _publish(self._building, self._folder), self._folder.path)
        return self._report(manifest, whole, lost)

    async def _read(self, backups: ChunkStorage) -> tuple[Manifest, list[SegmentBackup]]:
        file = manifest_name(self._terms.backup)
        manifest = decode_manifest(await read_object(backups, file), file)
        segments = []
        for each in manifest.objects:
            data = await read_object(backups, each.name)
            if len(data) != each.length or crc32c(data) != each.crc:
                raise DataCorruption(
                    "an object of the backup is not the one that its manifest names", file=each.name
                )
            segment = decode_segment(data, each.name)
            if segment.container != container_of(segment.image.name, len(manifest.epochs)):
                raise DataCorruption(
                    f"segment {segment.image.name!r} cannot be in container {segment.container}",
                    file=each.name,
                )
            segments.append(segment)
        return manifest, segments

    async def _check_claims(self, chunks: ChunkStorage, manifest: Manifest) -> None:
        for claim in await _claims(chunks, len(manifest.epochs)):
            if claim.identity.store != manifest.store_id:
                raise StoreMismatch(
                    f"the chunks belong to store {claim.identity.store.hex()}, the backup to "
                    f"{manifest.store_id.hex()}: "
                    f"restore it where its own chunks are"
                )

    async def _check_chunks(
        self, chunks: ChunkStorage, segments: Sequence[SegmentBackup]
    ) -> tuple[list[SegmentBackup], list[Lost]]:
        self._progress(0, sum(chunk.length for segment in segments for _, chunk in segment.chunks))
        flawed: dict[str, str] = {}

        async def check(wanted: tuple[str, ChunkRecord]) -> None:
            name, chunk = wanted
            for flaw in await self._flaws(chunks, chunk):
                flawed.setdefault(name, f"{chunk.name}: {flaw.message}")

        await work_through(
            [(each.image.name, chunk) for each in segments for _, chunk in each.chunks], _WORKERS, check
        )
        whole = [segment for segment in segments if segment.image.name not in flawed]
        return whole, [Lost(name, flawed[name]) for name in sorted(flawed)]

    async def _flaws(self, chunks: ChunkStorage, chunk: ChunkRecord) -> list[Flaw]:
        if self._terms.deep:
            return await find_flaws(chunks, chunk, lambda done: self._progress(done, 0))

        flaw = await find_missing(chunks, chunk)
        self._progress(chunk.length, 0)
        return [] if flaw is None else [flaw]

    async def _make_folder(self, manifest: Manifest) -> StoreIdentity:
        """The logs' folder with the store's identity, and logs that are above every epoch of the old ones."""
        wal, world = self._building.wal, self._world
        fresh = StoreIdentity(
            manifest.store_id,
            bytes.fromhex(world.new_id()),
            len(manifest.epochs),
            max(0, int(world.wall_clock() * 1000)),
        )
        identity = await run_program(
            self._files, create_identity(wal, fresh, f"{STORE_TEMPORARY}{world.new_id()}"), wal
        )
        if manifest.upgraded:
            await apply_layout_mode(self._files, self._building, LayoutMode.LAYOUT_UPGRADE, world)
        for index, epoch in enumerate(manifest.epochs):
            log = LocalLog(
                self._files,
                log_folder(wal, index),
                identity.container_log_id(index),
                log_options(self._config),
            )
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
        chunks = make_chunk_storage(self._place, self._files, self._folder, self._world)
        opener = StoreOpener(self._building, self._config, chunks, True, None, self._world, self._files)
        async with opener.store(identity.containers) as store:
            for segment in segments:
                await _import(store, segment)
            for name in manifest.taken:
                await _write(
                    store,
                    container_of(name, store.containers),
                    imported_key(name),
                    ImportedRecord(0).encode(),
                )
            for each in released:
                await _write(store, each.container, each.record.key, each.record.encode())

    async def _clear_claims(self, identity: StoreIdentity) -> None:
        """Take the old owners' claims away: the new logs never had their epochs (rule W8)."""
        async with _opened(make_chunk_storage(self._place, self._files, self._folder, self._world)) as chunks:
            for index in range(identity.containers):
                for claim in await list_claims(chunks, index):
                    if claim.identity.log != identity.container_log_id(index):
                        await chunks.delete(claim_name(index, claim.epoch))

    def _report(
        self, manifest: Manifest, whole: Sequence[SegmentBackup], lost: Sequence[Lost]
    ) -> RestoreReport:
        chunks = [chunk for segment in whole for _, chunk in segment.chunks]
        size = sum(chunk.length for chunk in chunks)
        return RestoreReport(
            self._terms.backup,
            manifest.created_ms,
            len(whole),
            len(chunks),
            size,
            manifest.unflushed,
            manifest.staged,
            tuple(lost),
        )


@asynccontextmanager
async def _opened(chunks: ChunkStorage) -> AsyncIterator[ChunkStorage]:
    await chunks.open()
    try:
        yield chunks
    finally:
        with anyio.CancelScope(shield=True):
            await chunks.close()


async def _claims(chunks: ChunkStorage, containers: int) -> list[Claim]:
    return [claim for index in range(containers) for claim in await list_claims(chunks, index)]


async def _import(store: SegmentStore, segment: SegmentBackup) -> None:
    await store.on_container(
        segment.container, lambda container: container.imports.restore(segment.image, segment.chain)
    )


async def _write(store: SegmentStore, container: int, key: str, value: bytes) -> None:
    """A record that is not there yet."""

    async def act(owner: Container) -> None:
        await owner.ask_internal(CommitMetadataRequest({key: 0}, {key: value}), len(key) + len(value))

    await store.on_container(container, act)


async def _still_released(
    chunks: ChunkStorage, manifest: Manifest, segments: Sequence[SegmentBackup]
) -> list[ReleasedFile]:
    """The released files that nobody has deleted or written anew since, and that no segment of the backup has
    (rule S19)."""
    used = {chunk.name for segment in segments for _, chunk in segment.chunks}
    return [
        each
        for each in manifest.released
        if each.record.name not in used and await _is_as_it_was(chunks, each.record)
    ]


async def _is_as_it_was(chunks: ChunkStorage, record: ReleasedRecord) -> bool:
    try:
        return (await chunks.info(record.name)).length == record.length
    except ChunkNotFound:
        return False

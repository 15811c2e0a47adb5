"""What the crash scenarios of long-term storage's protocols are made of: limits, calls, and what must be true
in the end.

The limits make deferred work of a handful of chunks and joins of a handful of bytes. Most calls
change nothing that the model knows. The checks are a scenario's ``settle``:
what the last owner after a crash does and checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any
from unittest import mock

import anyio
import attrs
from msgspec.structs import replace
from simulation import model_calls
from simulation.disk import SimulatedDisk, _Change
from simulation.file_layer import SimulatedFiles
from simulation.model import Outcome, Returned, Segment, State
from simulation.model_calls import ImplicitImport, Op

from support.crash_world import CONFIG, FOLDER, Limits, container, eventually
from support.legacy_layout import write_legacy
from support.old_backups import BackupOptions, back_up_store
from support.oracle import Oracle, Unseen
from support.patience import scaled
from support.places_of_copies import backups_of, damage_of
from support.table_rows import records_of
from support.virtual import virtual_world
from tierlog.actors.container.confirmation import JUMP
from tierlog.actors.container.container import Container
from tierlog.actors.container.options import ContainerOptions
from tierlog.actors.container.published_check import pages_of_rows
from tierlog.actors.container.segment_rows import image_key, name_key
from tierlog.actors.container.state import HISTORY_KEY
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.folder.paths import RESTORE_FOLDER, check_path
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.legacy_rolling.find import find
from tierlog.actors.legacy_rolling.header import header_name, parse_header
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance import restore as restore_module
from tierlog.actors.maintenance.backup_copy import copy_backup
from tierlog.actors.maintenance.backup_objects import (
    list_old_backups,
)
from tierlog.actors.maintenance.defrag import defrag_segment
from tierlog.actors.maintenance.transfer import chunks_of, export_segment
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.actors.store import recover as recover_module
from tierlog.actors.store import recover_container as recover_container_module
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.local_layout import parse_wal_names
from tierlog.journal.manifest.pin_record import read_pin_record, read_pinned
from tierlog.journal.manifest.store_record import read_store_record
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import BackupNotFound, DataCorruption
from tierlog.storage_backends.base.world import World
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import (
    DeferredWorkKind,
    chunk_key,
    deferred_work_key,
    index_key,
    released_names,
    segment_key,
)
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.storage_backends.segments.records.claim import CLAIM_PREFIX
from tierlog.storage_backends.segments.records.unconfirmed import Reason, UnconfirmedRecord
from tierlog.storage_backends.sorted_runs.table import Table

BACKUP, LATER = "b", "c"
PLACE = "/copies"
NO_DEFRAG = DefragOptions(loose_chunks=0, relocate_max=0)


@attrs.frozen(kw_only=True)
class Tier2Limits(Limits):
    """Nothing happens by itself but deferred work, one step in a cycle."""

    wal_file: int = 1 << 20
    flush: int = 1 << 20
    checkpoint: int = 1 << 20
    chunked: ChunkedOptions = ChunkedOptions(defrag=NO_DEFRAG)
    layout: LayoutMode = LayoutMode.INSTALL_NEW

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        options = super().container(config, adopt=adopt)
        writer = WriterOptions(deferred_steps=1, deferred_pause=0.01)
        return replace(options, writer=writer, chunked=self.chunked)

    def config(self, process: int) -> StoreConfig:
        return attrs.evolve(CONFIG, layout=self.layout.value)


@attrs.frozen(kw_only=True)
class LostLogs(Tier2Limits):
    """The logs are lost before process ``lost_before`` begins; the next opener restores its backup first, or
    recovers what long-term storage has."""

    lost_before: int = 2
    has_backup: bool = True
    """Of an earlier version."""
    is_pinned: bool = False
    """Whether it is restored from a backup."""

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        options = super().container(config, adopt=adopt)
        # A restore asks for no collection by a long delay.
        return replace(
            options,
            collector=CollectorOptions(delay=config.gc.delay if config.gc.delay > CONFIG.gc.delay else 0.0),
        )

    async def prepare(self, files: SimulatedFiles, process: int) -> None:
        if process < self.lost_before:
            return

        if process == self.lost_before:
            _lose_logs(files.disk)
        if f"{FOLDER}/wal" not in files.disk._folders:
            await self._make_logs(files, virtual_world(1000 + process))
        assert not self.has_backup or files.disk.exists(f"{FOLDER}/wal/layout"), (
            "the restored store forgot that its layout was upgraded"
        )

    async def _make_logs(self, files: SimulatedFiles, world: World) -> None:
        folder = check_path(FOLDER)
        with (
            mock.patch.object(restore_module, "log_options", self.log),
            mock.patch.object(recover_module, "log_options", self.log),
        ):
            if self.has_backup:
                options = restore_module.RestoreOptions(BACKUP, deep=True)
                await restore_module.restore(folder, None, options, CONFIG, files, world)
            else:
                backup = BACKUP if self.is_pinned else ""
                await recover_module.recover_store(folder, CONFIG, files, world, backup)


@attrs.frozen(kw_only=True)
class DeclaredLost(Tier2Limits):
    """The log of the container is declared lost before process ``lost_before`` begins, and again by each
    that does not find the recovered one."""

    lost_before: int = 2

    def container(self, config: StoreConfig, *, adopt: bool) -> ContainerOptions:
        options = super().container(config, adopt=adopt)
        return replace(options, collector=CollectorOptions(delay=0.0))

    async def prepare(self, files: SimulatedFiles, process: int) -> None:
        if process < self.lost_before or _has_recovered_log(files.disk):
            return

        world = virtual_world(1000 + process)
        with (
            mock.patch.object(recover_module, "log_options", self.log),
            mock.patch.object(recover_container_module, "log_options", self.log),
        ):
            await recover_container_module.recover_container(check_path(FOLDER), CONFIG, files, world, 0)


def _has_recovered_log(disk: SimulatedDisk) -> bool:
    """Its epoch is above all that were used (rule R4)."""
    log = f"{FOLDER}/wal/0000"
    names = disk.folder(log).names if log in disk._folders else ()
    return any(file.epoch > JUMP for file in parse_wal_names(names))


def _lose_logs(disk: SimulatedDisk) -> None:
    for path in [path for path in disk._folders if f"{path}/".startswith(f"{FOLDER}/wal/")]:
        del disk._folders[path]
    disk.folder(FOLDER).change(_Change(removes=("wal",)))
    disk.folder(FOLDER).sync()


# --- calls --------------------------------------------------------------------------------------

_CYCLE_SECONDS = 25.0
"""Less than the age at which a cycle is due anyway."""


class RunDeferredWork(Unseen):
    """Waits until no deferred work is left."""

    async def send(self, store: SegmentStore) -> Any:
        with anyio.fail_after(min(scaled(5), _CYCLE_SECONDS)):
            while await container(store).storage.deferred_work():
                await anyio.sleep(0.001)


class Collect(Unseen):
    """Waits until the opening has listed what dead owners left, and no garbage is left."""

    async def send(self, store: SegmentStore) -> Any:
        with anyio.fail_after(min(scaled(5), _CYCLE_SECONDS)):
            await anyio.wait_all_tasks_blocked()
            while container(store).statistics().collector.queued:
                await anyio.sleep(0.001)


@attrs.frozen
class MergeRuns(Unseen):
    """Waits until the runs of the system table were merged."""

    async def send(self, store: SegmentStore) -> Any:
        with anyio.fail_after(min(scaled(5), _CYCLE_SECONDS)):
            while not container(store).statistics().table.merges:
                await anyio.sleep(0.001)


@attrs.frozen
class Defrag(Unseen):
    name: str

    async def send(self, store: SegmentStore) -> Any:
        await defrag_segment(store, self.name)


@attrs.frozen
class Export(Unseen):
    name: str

    async def send(self, store: SegmentStore) -> Any:
        await export_segment(store, self.name, replace=True)


@attrs.frozen
class Backup(Unseen):
    """Creates the backup, unless it exists."""

    upgraded: bool = False

    async def send(self, store: SegmentStore) -> Any:
        chunks = await chunks_of(store)
        if BACKUP not in await list_old_backups(chunks):
            record = await read_store_record(chunks)
            assert record is not None
            await back_up_store(
                store, None, BackupOptions(BACKUP, record.store, 0, self.upgraded), no_progress
            )


@attrs.frozen
class Pin(Unseen):
    """Makes the backup, unless it exists."""

    name: str = BACKUP

    async def send(self, store: SegmentStore) -> Any:
        if self.name not in [backup.name for backup in await store.backups()]:
            await store.backup(self.name)


@attrs.frozen
class Copy(Unseen):
    """Copies the backup to another folder of the disk."""

    name: str = BACKUP

    async def send(self, store: SegmentStore) -> Any:
        async with place_of_copies(store) as place:
            await copy_backup(await chunks_of(store), self.name, place)


class Unpin(Unseen):
    """Removes the backup, unless it is gone."""

    async def send(self, store: SegmentStore) -> Any:
        with suppress(BackupNotFound):
            await store.remove_backup(BACKUP)


@attrs.frozen
class AfterBackup(Unseen):
    """A call whose effect the loss of the logs takes away again."""

    op: Op

    async def send(self, store: SegmentStore) -> Any:
        return await self.op.send(store)


@attrs.frozen
class LegacyFiles(Op):
    """Another software has left a segment in the legacy layout."""

    name: str
    parts: tuple[bytes, ...]
    start: int = 0
    sealed: bool = False

    @property
    def segment(self) -> Segment:
        return Segment(b"".join(self.parts), self.start, self.sealed)

    def apply(self, state: State) -> tuple[State, Outcome]:
        return attrs.evolve(state, legacy=((self.name, self.segment),)), Returned(None)

    async def send(self, store: SegmentStore) -> None:
        await write_legacy(
            await chunks_of(store), self.name, *self.parts, max_size=100, start=self.start, sealed=self.sealed
        )


@attrs.frozen
class Import(model_calls.Import):
    """Imports a legacy segment, once what an earlier import left unfinished was rolled back."""

    async def send(self, store: SegmentStore) -> int:
        unfinished = await container(store).storage.deferred_work()
        if any(work.kind is DeferredWorkKind.ADOPT for work in unfinished):
            await RunDeferredWork().send(store)
        return await super().send(store)


@attrs.frozen
class FirstAccess(ImplicitImport):
    """Names a segment that only the legacy layout knows, which imports it."""

    legacy: LegacyFiles

    def apply(self, state: State) -> tuple[State, Outcome]:
        if state.find(self.name) is None:
            state = state.put(self.name, self.legacy.segment)
        return state, Returned(dict(state.segments)[self.name].length)

    async def send(self, store: SegmentStore) -> int:
        return (await store.segment_info(self.name)).length


# --- checks -------------------------------------------------------------------------------------


async def work_done(store: SegmentStore, oracle: Oracle) -> None:
    """Deferred work is done although nobody asks, and the records are those of the live segments and no
    others (rule S11)."""
    await RunDeferredWork().send(store)
    await store.flush()
    await RunDeferredWork().send(store)
    owner = container(store)
    # Files of the legacy layout that were released, by this owner or by one that died before it deleted them,
    # go by themselves (rule G3).
    await eventually(
        lambda: not released_names(records_of(owner)),
        lambda: f"released: {released_names(records_of(owner))}",
    )
    found, expected = set(records_of(container(store))), await _records(container(store))
    assert found == expected, (
        f"records of nothing: {sorted(found - expected)}, missing: {sorted(expected - found)}"
    )


async def _records(owner: Container) -> set[str]:
    """The keys of all records that should be there once all deferred work that is due was done."""
    metadata, spacing = records_of(owner), owner.options.chunked.index_spacing
    expected = {key for key in metadata if key.startswith(("o:", CLAIM_PREFIX, HISTORY_KEY))}
    for name in owner.state.segments.names():
        segment = owner.state.segments.find(name)
        assert segment is not None
        expected |= {name_key(name).decode(), image_key(segment.sid).decode()}
        if not segment.has_record:
            continue
        record, chain = await owner.storage.info(segment.sid), await owner.storage.chunks(segment.sid)
        expected |= {segment_key(segment.sid), *(chunk_key(chunk.name) for _, chunk in chain)}
        multiples = range(
            max(spacing, -(-record.first_chunk_start // spacing) * spacing), record.length, spacing
        )
        expected |= {index_key(segment.sid, offset) for offset in multiples}
        # Chunks that are too few to be joined are counted for later.
        expected |= {deferred_work_key(segment.sid, DeferredWorkKind.DEFRAG)} & set(metadata)
    return expected


async def restored(store: SegmentStore, oracle: Oracle) -> None:
    """As ``recovered``, and ``work_done``."""
    await recovered(store, oracle)
    await work_done(store, oracle)


async def recovered(store: SegmentStore, oracle: Oracle) -> None:
    """The store is unconfirmed (rule G4); and what the restore worked in is gone, wherever it ended (rule
    S17)."""
    confirmation = container(store).confirmation
    assert confirmation.unconfirmed == UnconfirmedRecord(Reason.RESTORED)
    await confirmation.confirm()
    await store.flush()
    left = [name for name in disk_of(store).folder(FOLDER).names if name.startswith(RESTORE_FOLDER)]
    assert not left, f"a restore left {left}"


async def recovered_alone(store: SegmentStore, oracle: Oracle) -> None:
    """As ``recovered``; and the log that was declared lost is kept."""
    await recovered(store, oracle)
    disk = disk_of(store)
    kept = [name for name in disk.folder(f"{FOLDER}/wal").names if name.startswith("0000-before-")]
    files = [file for name in kept for file in parse_wal_names(disk.folder(f"{FOLDER}/wal/{name}").names)]
    assert any(file.epoch < JUMP for file in files), f"the lost log is not in {kept}"


def disk_of(store: SegmentStore) -> SimulatedDisk:
    log = container(store).log
    assert isinstance(log, LocalLog)
    assert isinstance(log._files, SimulatedFiles)
    return log._files.disk


async def imported(store: SegmentStore, oracle: Oracle) -> None:
    """Each legacy segment of the scenario is imported now, completely, or was imported before and is never
    imported again (rule S14)."""
    for prefix, legacy in (("a/", LEGACY_A), ("b/", LEGACY_B)):
        await oracle.call(store, prefix, Import(legacy.name))
    await work_done(store, oracle)


async def imported_in_pieces(store: SegmentStore, oracle: Oracle) -> None:
    """What a crash left of an import is taken back by the next owner, and every file stays; then it comes in
    whole (rule S14)."""
    await work_done(store, oracle)
    await oracle.call(store, "a/", Import("a/o"))
    await work_done(store, oracle)


async def accessed(store: SegmentStore, oracle: Oracle) -> None:
    """As ``exported``, of a segment that comes in at first access, and without asking for the export (rules
    S14, S15)."""
    await oracle.call(store, "a/", FirstAccess("a/o", LEGACY_A))
    await work_done(store, oracle)
    await _check_header(store, oracle, "a/o")


async def exported(store: SegmentStore, oracle: Oracle) -> None:
    """The header that the crash left says the truth, or ends inside an item, or is not there; the same call
    completes it (rule S15)."""
    await store.flush()
    try:
        await check_legacy_reader(store, oracle, "a/s")
    except DataCorruption:
        assert await _is_cut_short(await chunks_of(store), "a/s")
    await Export("a/s").send(store)
    await _check_header(store, oracle, "a/s")
    await work_done(store, oracle)


async def _is_cut_short(chunks: ChunkStorage, name: str) -> bool:
    """Whether the header is one whose last items a power loss kept from the disk: a legacy reader refuses
    it."""
    file = header_name(name)
    data = await chunks.read(file, 0, (await chunks.info(file)).length)
    whole = data[: data.find(b"\0")].rpartition(b"&")[0] + b"&"
    return b"\0" in data and parse_header(whole, file) is not None


async def check_legacy_reader(store: SegmentStore, oracle: Oracle, name: str) -> int | None:
    """What legacy software reads by the header, if there is one, are bytes that the segment has or had; how
    far it goes."""
    chunks = await chunks_of(store)
    segment, found = oracle.segments()[name], await find(chunks, name)
    if found is None:
        return None

    assert found.length <= segment.length
    for chunk in found.chunks:
        if chunk.start + chunk.length <= segment.start:
            continue  # truncated since the header was written, and perhaps collected just now
        data = await chunks.read(chunk.name, 0, chunk.length)
        skip = max(0, segment.start - chunk.start)
        at = chunk.start + skip - segment.start
        assert data[skip:] == segment.data[at : at + len(data[skip:])], (
            f"legacy software reads wrong bytes in {chunk.name}"
        )
    return found.length


async def _check_header(store: SegmentStore, oracle: Oracle, name: str) -> None:
    """Legacy software reads the whole segment and sees its seal."""
    segment, found = oracle.segments()[name], await find(await chunks_of(store), name)
    assert found is not None, f"{name} has no header"
    assert await check_legacy_reader(store, oracle, name) == segment.length
    assert found.sealed == segment.sealed
    assert found.start_offset <= segment.start


async def pinned(store: SegmentStore, oracle: Oracle) -> None:
    """With a record the backup is whole; without one the container keeps nothing for it (rules P2, P3)."""
    owner = container(store)
    if not await store.backups():
        await eventually(lambda: not owner.state.manifest.pins, lambda: f"{owner.state.manifest.pins}")
        await store.backup(BACKUP)
    [backup] = await store.backups()
    assert not backup.problem
    assert [pin.name for pin in owner.state.manifest.pins] == [BACKUP]
    record = await read_pin_record(owner.chunks, BACKUP)
    element = (await read_pinned(owner.chunks, record, 0)).element
    names = {run.name for run in element.runs}
    with Table(element.runs).view() as view:
        async with aclosing(pages_of_rows(view, owner.runs, CHUNK_PREFIX.encode())) as pages:
            async for rows in pages:
                names |= {row.key.decode().removeprefix(CHUNK_PREFIX) for row in rows}
    there = {info.name async for info in owner.chunks.list("")}
    assert names <= there, f"the backup needs {sorted(names - there)}"
    await work_done(store, oracle)


async def copied(store: SegmentStore, oracle: Oracle) -> None:
    """Each backup that the place has a record of is whole there, and the copy goes on (rule P7)."""
    async with place_of_copies(store) as place:
        for again in (False, True):
            if again:
                await Pin(LATER).send(store)
                await Copy(LATER).send(store)
                assert LATER in await backups_of(place)
            for name in await backups_of(place):
                assert not (damage := await damage_of(place, name)), f"{name}: {damage}"
        left = [info.name async for info in place.list("_system/copying/")]
        assert not left, f"pieces are left: {left}"
    await work_done(store, oracle)


@asynccontextmanager
async def place_of_copies(store: SegmentStore) -> AsyncIterator[ChunkStorage]:
    log = container(store).log
    assert isinstance(log, LocalLog)
    place = FileSystemChunkStorage(log._files, PLACE, container(store).world)
    await place.open()
    try:
        yield place
    finally:
        await place.close()


async def unpinned(store: SegmentStore, oracle: Oracle) -> None:
    """What only the backup needed is garbage, once it is removed (rule P4)."""
    await Unpin().send(store)
    assert not container(store).state.manifest.pins
    await work_done(store, oracle)


LEGACY_A = LegacyFiles("a/o", (b"one." * 10, b"two." * 10, b"end." * 5))
LEGACY_B = LegacyFiles("b/o", (b"cut." * 8, b"old." * 8), start=24, sealed=True)

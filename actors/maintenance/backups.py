"""The backups in long-term storage, of the present format and of the one before."""

from __future__ import annotations

from contextlib import aclosing, suppress

from ...journal.manifest.pin_record import list_pins, pin_of, read_pin_record, read_pinned
from ...storage_backends.base.backups import Backup
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import ChunkNotFound, DataCorruption
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ...storage_backends.sorted_runs.table import Table
from ..container.published_check import pages_of_rows
from ..store.views import ContainerSnapshot
from .backup_objects import list_old_backups, read_manifest

_CACHE_BYTES = 16 << 20


async def list_backups(chunks: ChunkStorage, *, is_copy: bool) -> list[Backup]:
    """Sorted by name. ``is_copy``: the storage is a copy (``backup_copy.py``), whose newest elements need not
    know each backup in it."""
    found = await list_pins(chunks, is_copy=is_copy)
    for name in await list_old_backups(chunks):
        try:
            manifest = await read_manifest(chunks, name)
            found.append(Backup(name, manifest.created_ms, len(manifest.epochs)))
        except DataCorruption as error:
            found.append(Backup(name, 0, 0, str(error)))
    return sorted(found, key=lambda each: each.name)


async def kept_names(chunks: ChunkStorage, snapshot: ContainerSnapshot) -> frozenset[str]:
    """The chunks and runs of a container that its backups need (rule P4). A backup that is damaged cannot be
    restored, and needs none."""
    state, names = snapshot.state, set[str]()
    runs = RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))
    for pin in state.manifest.pins:
        with suppress(DataCorruption, ChunkNotFound):
            record = await read_pin_record(chunks, pin.name)
            pinned = await read_pinned(chunks, record, state.container)
            if pin_of(pin.name, pinned) != pin:
                continue
            names |= {run.name for run in pinned.element.runs}
            with Table(pinned.element.runs).view() as view:
                async with aclosing(pages_of_rows(view, runs, CHUNK_PREFIX.encode())) as pages:
                    async for rows in pages:
                        names |= {row.key.decode().removeprefix(CHUNK_PREFIX) for row in rows}
    return frozenset(names)

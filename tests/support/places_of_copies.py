"""What a place of copies promises, checked object by object (rule P7)."""

from __future__ import annotations

from contextlib import aclosing

from tierlog.actors.container.published_check import check_published, pages_of_rows
from tierlog.actors.maintenance.place_of_copies import chunk_damage, chunk_of_row, reader_of
from tierlog.actors.maintenance.tables import object_damage
from tierlog.journal.manifest.pin_record import PINS, read_pin_record, read_pinned
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.storage_backends.sorted_runs.table import Table


async def backups_of(place: ChunkStorage) -> list[str]:
    return [info.name.removeprefix(PINS) async for info in place.list(PINS)]


async def damage_of(place: ChunkStorage, backup: str) -> list[str]:
    """What a restore from the place would lack of the backup; every byte is read."""
    record = await read_pin_record(place, backup)
    found: list[str] = []
    for index in range(len(record.elements)):
        runs = (await read_pinned(place, record, index)).element.runs
        found += [str(damage) for run in runs if (damage := await object_damage(run, place)) is not None]
        if found:
            return found
        with Table(runs).view() as view:
            async with aclosing(pages_of_rows(view, reader_of(place), CHUNK_PREFIX.encode())) as pages:
                async for rows in pages:
                    for row in rows:
                        chunk = chunk_of_row(row)
                        if chunk is not None and (damage := await chunk_damage(chunk, place)) is not None:
                            found.append(str(damage))
            published = await check_published(view, reader_of(place), index)
        found += [each.message for each in published.inconsistencies]
    return found

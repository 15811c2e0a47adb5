"""Copying a backup to another place: everything that a restore needs, and nothing else (rule P7).

The copy is long-term storage of the same store, as of the backup. What is there and undamaged is not copied
again, so a later backup, or a repeated call, copies what is new. What an earlier call verified is not read
again, unless that is asked for: its length is compared.

Order, and what a crash or a cancellation leaves in the place after each step:

1. Chunks and runs, each verified (``copied_objects.py``): some of them, verified or not, beside the earlier
   backups, which lack nothing at any moment. The next call goes on, and verifies what no record names.
2. The store's record: all that the backup needs.
3. The record of the backup, whole or not at all: it can be restored, and says that all of it was verified.
4. The elements, one container after the other: the newest backup of some containers and the one before of
   others. Each is whole, ``open_lts`` reads both, and the next call creates the others.

The record is created before the elements, so a place has no element without the record that it is from,
unless a store lives there. A copy for a restore has step 2 at the end: long-term storage with the store's
record and without an element has lost its journal, and is refused."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import Enum
from functools import partial

import attrs

from ...journal.manifest.chain import StoredElement, element_name, list_elements, read_element
from ...journal.manifest.pin_record import (
    PinRecord,
    encode_pin_record,
    missing_pins,
    pin_of,
    pin_record_name,
    read_pin_record,
    read_pinned,
    require_pin_record,
)
from ...journal.manifest.store_record import STORE_RECORD, require_store_record
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import BackupIncomplete, DataCorruption
from ...storage_backends.base.names import SYSTEM_SCOPE
from ...storage_backends.chunks.chunk_cache import OWN_CHUNKS
from ...storage_backends.segments.records import ChunkRecord
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.table import Table
from ..container.listed_chain import list_chain
from ..container.published_check import check_published, pages_of_rows
from ..kernel.task_groups import work_through
from ..legacy_rolling.importing import Progress, no_progress
from ..store.lts_view import LtsContainer
from .copied_objects import CopiedObjects, Known, Needed
from .place_of_copies import (
    PlaceOfCopies,
    VerifiedObjects,
    check_name,
    check_store,
    chunk_of_row,
    needed_chunk,
    reader_of,
)
from .tables import object_damage

_WORKERS = 4


@attrs.frozen
class CopiedBackup:
    backup: str
    created_ms: int
    objects: int
    """Chunks and runs of the backup."""
    bytes: int
    copied_objects: int
    """Those that were not there, or damaged."""
    copied_bytes: int
    unread_objects: int
    """Those that an earlier call verified: they are there with all of their bytes, which were not read."""


async def copy_backup(
    source: ChunkStorage,
    name: str,
    target: ChunkStorage,
    progress: Progress = no_progress,
    *,
    verify: bool = False,
    is_alone: bool = True,
) -> CopiedBackup:
    """Copy the backup ``name`` from the long-term storage ``source`` to ``target``, both open. ``verify``:
    read all that the backup has there, and copy again what is damaged. Without ``is_alone`` the store itself
    follows, and with it the store's record and the elements.

    Raises ``BackupNotFound``, ``BackupIncomplete``, ``BackupExists`` (``target`` has another one of that
    name), ``StoreMismatch`` (``target`` has another store or history, or a store lives there),
    ``DataCorruption`` (an object is damaged or missing, or a container is not as of one moment),
    ``StorageFull``, ``Unavailable``."""
    record = await require_pin_record(source, name)
    if missing := await missing_pins(source, record):
        raise BackupIncomplete(
            f"backup {name!r} is not complete: container {missing[0]} does not keep it; make another one"
        )
    await check_store(target, record)
    await check_name(target, name, record)
    copy = await _Copy.of(source, target, record, progress, verify=verify)
    rewritten = (record, copy.elements) if verify else ()
    place = PlaceOfCopies(target, len(record.elements), *rewritten)
    await place.check_history(source)
    await copy.verified.choose(place.records(), name)
    return await copy.run(_Rest.COPY if is_alone else _Rest.FOLLOWS)


async def copy_for_restore(
    source: ChunkStorage, name: str, target: ChunkStorage, progress: Progress = no_progress
) -> CopiedBackup:
    """Copy the backup ``name`` back from the copy ``source`` to the long-term storage ``target``, which keeps
    the backup or was never used but by such a call (rule P6). Raises as ``copy_backup``."""
    record = await require_pin_record(source, name)
    is_store = await check_store(target, record)
    for index in range(len(record.elements)):
        newest = (
            await LtsContainer(index, target, record.store).newest()
            if is_store
            else (await list_chain(target, index)).newest
        )
        pin = pin_of(name, await read_pinned(source, record, index))
        if newest is not None and pin not in newest.element.pins:
            raise BackupIncomplete(
                f"long-term storage does not keep backup {name!r} (container {index}), so what it needs may "
                f"still be deleted there: restore it into another folder, or with --chunks into another "
                f"bucket or prefix"
            )
    return await (await _Copy.of(source, target, record, progress, verify=True)).run(_Rest.STORE)


class _Rest(Enum):
    """What comes besides runs, chunks and the backup's record."""

    COPY = "the store's record, and the elements at the end"
    STORE = "the elements, and the store's record at the end: a store has all of its elements"
    FOLLOWS = "nothing"


class _Copy:
    def __init__(
        self,
        source: ChunkStorage,
        target: ChunkStorage,
        record: PinRecord,
        elements: Sequence[StoredElement],
        objects: CopiedObjects,
    ) -> None:
        self.elements = elements
        self.verified = VerifiedObjects(target)
        """What is known of the place; at first nothing."""
        self._source = source
        self._target = target
        self._record = record
        self._objects = objects

    @classmethod
    async def of(
        cls,
        source: ChunkStorage,
        target: ChunkStorage,
        record: PinRecord,
        progress: Progress,
        *,
        verify: bool,
    ) -> _Copy:
        elements = [await read_pinned(source, record, index) for index in range(len(record.elements))]
        objects = CopiedObjects(source, target, record.name, progress, rereads=verify)
        return cls(source, target, record, elements, objects)

    async def run(self, rest: _Rest) -> CopiedBackup:
        record, target = self._record, self._target
        file = pin_record_name(record.name)
        await copy_elements(self._source, self.elements, self._objects, self.verified, lambda index: file)
        if rest is _Rest.COPY:
            await self._put_store_record()
        parts = encode_pin_record(record.name, record.store, self.elements)
        await self._objects.put(pin_record_name(record.name), parts, self._read_record)
        for index, element in enumerate(self.elements if rest is not _Rest.FOLLOWS else ()):
            if not await list_elements(target, index, element.n):
                read = partial(read_element, target, index, element.n)
                await self._objects.put(element_name(index, element.n), [element.element.encode()], read)
        if rest is _Rest.STORE:
            await self._put_store_record()
        return CopiedBackup(record.name, record.time_ms, **attrs.asdict(self._objects.totals))

    async def _put_store_record(self) -> None:
        await self._objects.put(STORE_RECORD, [(await require_store_record(self._source)).encode()])

    async def _read_record(self) -> None:
        """Read all of the record in the place. Raises ``DataCorruption``."""
        there = await read_pin_record(self._target, self._record.name)
        for index in range(len(there.elements)):
            await read_pinned(self._target, there, index)


async def copy_elements(
    source: ChunkStorage,
    elements: Sequence[StoredElement],
    objects: CopiedObjects,
    verified: VerifiedObjects,
    file_of: Callable[[int], str],
) -> None:
    """Copy the runs and chunks of one element of each container. ``file_of(container)`` is the object that
    has it. Raises ``DataCorruption``."""
    for index, element in enumerate(elements):
        await _check_published(source, element, index, file_of(index))
    await objects.remove_parts()

    async def copy_run(known: Mapping[str, Known], run: RunEntry) -> None:
        needed = Needed(run.name, run.length, partial(object_damage, run))
        await objects.copy(needed, known.get(run.name))

    async def copy_chunk(known: Mapping[str, Known], chunk: ChunkRecord) -> None:
        await objects.copy(needed_chunk(chunk), known.get(chunk.name))

    for index, element in enumerate(elements):
        known = await verified.runs(index)
        await work_through(element.element.runs, _WORKERS, partial(copy_run, known))
        async with aclosing(_chunks_of(source, element)) as pages:
            async for chunks in pages:
                _check_names(chunks, index, file_of(index))
                known = await verified.chunks(index, chunks)
                await work_through(chunks, _WORKERS, partial(copy_chunk, known))


def _check_names(chunks: Sequence[ChunkRecord], container: int, file: str) -> None:
    """A record that somebody forged may name any object there, such as one of another container, which would
    be replaced. Those of runs are checked as they are read."""
    for chunk in chunks:
        if not _is_chunk_name(chunk.name, container):
            raise DataCorruption(
                f"it names {chunk.name}, which is no chunk of container {container}", file=file
            )


async def _check_published(source: ChunkStorage, element: StoredElement, index: int, file: str) -> None:
    """A copy that could not be restored is not made (rule R3)."""
    with Table(element.element.runs).view() as view:
        published = await check_published(view, reader_of(source), index)
    if published.inconsistencies:
        first = published.inconsistencies[0]
        raise DataCorruption(
            f"not all that it has is of one moment, so it cannot be restored: "
            f"{first.segment or 'the container'}: {first.message}; make another backup",
            file=file,
        )


async def _chunks_of(source: ChunkStorage, element: StoredElement) -> AsyncGenerator[list[ChunkRecord], None]:
    with Table(element.element.runs).view() as view:
        async with aclosing(pages_of_rows(view, reader_of(source), CHUNK_PREFIX.encode())) as pages:
            async for rows in pages:
                yield [chunk for row in rows if (chunk := chunk_of_row(row)) is not None]


def _is_chunk_name(name: str, container: int) -> bool:
    """Imported chunks have names of the earlier layout (rule S14)."""
    return name.startswith(f"{OWN_CHUNKS}{container:04d}/") or not name.startswith((OWN_CHUNKS, SYSTEM_SCOPE))

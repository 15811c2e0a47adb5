"""Copying a backup to another place: everything that a restore needs, and nothing else (rule P7).

The copy is long-term storage of the same store, as of the backup. What is there and undamaged is not copied
again, so a later backup, or a repeated call, copies what is new.

Order: chunks and runs, each verified; the store's record; the record of the backup, which makes it a backup
and says that all of it was verified; the elements, which make it a store that can be read. So a place has no
element without the record that it is from, unless a store lives there. Cancellation and crash: what was
copied stays, verified or not, and the next call goes on from there."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial

import attrs

from ...journal.manifest.chain import (
    StoredElement,
    element_name,
    list_elements,
    read_element,
    read_newest,
)
from ...journal.manifest.pin_record import (
    PINS,
    PinRecord,
    encode_pin_record,
    missing_pins,
    pin_of,
    pin_record_name,
    read_pin_record,
    read_pinned,
    require_pin_record,
)
from ...journal.manifest.store_record import (
    STORE_RECORD,
    read_store_record,
    require_store_record,
)
from ...storage_backends.base.chunk_storage import ChunkRange, ChunkStorage
from ...storage_backends.base.errors import (
    BackupIncomplete,
    BackupNotFound,
    BadChunkOffset,
    ChunkExists,
    ChunkNotFound,
    DataCorruption,
    StorageFull,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.names import SYSTEM_SCOPE
from ...storage_backends.chunks.chunk_cache import OWN_CHUNKS
from ...storage_backends.segments.records import ChunkRecord
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.segments.verify import find_flaws
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ...storage_backends.sorted_runs.rows import Row
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.table import Table
from ..container.confirmation import JUMP
from ..container.listed_chain import list_chain
from ..container.published_check import check_published, pages_of_rows
from ..kernel.task_groups import work_through
from ..legacy_rolling.importing import Progress, no_progress
from ..store.lts_view import LtsContainer
from .tables import object_damage

_WORKERS = 4
_PIECE_BYTES = 32 << 20
"""Of each worker, in memory."""
_CACHE_BYTES = 16 << 20
_PARTS = "_system/copying/"
FindDamage = Callable[[ChunkStorage], Awaitable[DataCorruption | None]]
"""What is wrong with an object in a storage, all of it read."""
PutRanges = Callable[[str, Sequence[ChunkRange]], Awaitable[int]]
"""``concat`` or ``replace``."""


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


@attrs.define(eq=False, repr=False)
class _Totals:
    objects: int = 0
    bytes: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0


async def copy_backup(
    source: ChunkStorage, name: str, target: ChunkStorage, progress: Progress = no_progress
) -> CopiedBackup:
    """Copy the backup ``name`` from the long-term storage ``source`` to ``target``, both open.

    Raises ``BackupNotFound``, ``BackupIncomplete``, ``StoreMismatch`` (``target`` has another store, or a
    store lives there), ``DataCorruption`` (an object is damaged or missing, or a container is not as of one
    moment), ``StorageFull``, ``Unavailable``."""
    record = await require_pin_record(source, name)
    if missing := await missing_pins(source, record):
        raise BackupIncomplete(
            f"backup {name!r} is not complete: container {missing[0]} does not keep it; make another one"
        )
    await _check_store(target, record)
    records = await _records(target)
    await _check_is_copy(source, target, records, len(record.elements))
    return await _Copy(source, target, record, progress, _Verified(target, records, name)).run()


async def check_target(source: ChunkStorage, target: ChunkStorage) -> None:
    """Raise what keeps ``target`` from having copies of backups of the store whose long-term storage is
    ``source``, before one is made: ``StoreMismatch``, ``DataCorruption``."""
    own, there = await read_store_record(source), await read_store_record(target)
    if own is None:
        return  # Nothing was flushed yet.
    if there is not None and there.store != own.store:
        raise _other_place(there.store, own.store)
    await _check_is_copy(source, target, await _records(target), own.containers)


async def _records(target: ChunkStorage) -> list[PinRecord]:
    names = [info.name.removeprefix(PINS) async for info in target.list(PINS)]
    return [await read_pin_record(target, name) for name in names]


async def _check_is_copy(
    source: ChunkStorage, target: ChunkStorage, records: Sequence[PinRecord], containers: int
) -> None:
    """Raises ``StoreMismatch`` if a store lives in ``target``, whose chain a copied element would break, or
    if what is there is of another history than the source's. In a copy all elements are those of the backups
    there. So they can be in a store, if it made two backups without a flush between them; then its epoch is
    far above the source's, as after each recovery (rule R4).
    """
    for index in range(containers):
        known = {record.elements[index][1]: record for record in records if index < len(record.elements)}
        newest = await read_newest(source, index, await list_elements(source, index))
        there: StoredElement | None = None
        for n in await list_elements(target, index):
            there = await read_element(target, index, n)
            is_copied = there.position.crc in known
            if not is_copied or newest is None or there.element.epoch > newest.element.epoch:
                raise StoreMismatch(
                    f"{element_name(index, n)} there is of no backup that was copied from here: somebody "
                    f"recovered or opened the store in that place, or removed a backup. Copy to another place"
                )
        if there is not None and newest is not None:
            newest_there = known[there.position.crc]
            if not await _is_of_history(source, newest, newest_there, there):
                raise StoreMismatch(
                    f"backup {newest_there.name!r} there is not of the history that this store has: an "
                    f"earlier backup was restored, or the store was recovered after that one was removed. "
                    f"Copy to another place, and keep that one for what is only there"
                )


async def _is_of_history(
    source: ChunkStorage, newest: StoredElement, record: PinRecord, there: StoredElement
) -> bool:
    """Whether the source went on from element ``there`` of the backup ``record``; False if it may not have.
    It has if it keeps that backup, or if it counted on without a recovery."""
    with suppress(BackupNotFound, DataCorruption):
        if (await require_pin_record(source, record.name)).elements == record.elements:
            return True
    return newest.n >= there.n and newest.element.epoch < there.element.epoch + JUMP


async def copy_for_restore(
    source: ChunkStorage, name: str, target: ChunkStorage, progress: Progress = no_progress
) -> CopiedBackup:
    """Copy the backup ``name`` back from the copy ``source`` to the long-term storage ``target``, which keeps
    the backup or was never used (rule P6). Raises as ``copy_backup``."""
    record = await require_pin_record(source, name)
    is_store = await _check_store(target, record)
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
    return await _Copy(source, target, record, progress).run()


async def _check_store(target: ChunkStorage, record: PinRecord) -> bool:
    """Whether there is a store. Raises ``StoreMismatch`` if it is another one."""
    there = await read_store_record(target)
    if there is not None and there.store != record.store:
        raise _other_place(there.store, record.store)
    return there is not None


def _other_place(there: bytes, own: bytes) -> StoreMismatch:
    return StoreMismatch(
        f"there are backups or data of store {there.hex()}, and the backup is of store {own.hex()}: name "
        f"another folder, or another prefix of the bucket"
    )


class _Verified:
    """What records in the place name: all of it was verified before they were created (rule P7). Those of
    the backup itself and of the newest one: others know little besides, and reading them takes long."""

    def __init__(self, target: ChunkStorage, records: Sequence[PinRecord], name: str) -> None:
        self._target = target
        by_time = sorted(records, key=lambda record: (record.name == name, record.time_ms))
        self._records = by_time[-2:]
        self._runs = _reader(target)

    async def lengths(self, container: int, chunks: Sequence[ChunkRecord]) -> dict[str, int]:
        """How many bytes of each of the chunks were verified."""
        found = dict.fromkeys((chunk.name for chunk in chunks), 0)
        for record in self._records:
            try:
                element = (await read_pinned(self._target, record, container)).element
                with Table(element.runs).view() as view:
                    rows = await find_rows(view, self._runs, [chunk.key.encode() for chunk in chunks])
                known = [chunk for row in rows.values() if (chunk := _chunk_of(row)) is not None]
            except (DataCorruption, Unavailable):
                continue  # then they are verified once more
            for each in known:
                found[each.name] = max(found[each.name], each.length)
        return found


class _Copy:
    def __init__(
        self,
        source: ChunkStorage,
        target: ChunkStorage,
        record: PinRecord,
        progress: Progress,
        verified: _Verified | None = None,
    ) -> None:
        """``verified``: None if nothing there is known to be right."""
        self._source = source
        self._target = target
        self._record = record
        self._progress = progress
        self._verified = verified
        self._totals = _Totals()

    async def run(self) -> CopiedBackup:
        record, totals = self._record, self._totals
        elements = [await read_pinned(self._source, record, index) for index in range(len(record.elements))]
        for index, element in enumerate(elements):
            await self._check_published(element, index)
        for index, element in enumerate(elements):
            await work_through(element.element.runs, _WORKERS, self._copy_run)
            async with aclosing(self._chunks_of(element)) as pages:
                async for chunks in pages:
                    self._check_names(chunks, index)
                    known = {} if self._verified is None else await self._verified.lengths(index, chunks)
                    await work_through(chunks, _WORKERS, partial(self._copy_chunk, known))
        await self._put(STORE_RECORD, [(await require_store_record(self._source)).encode()])
        parts = encode_pin_record(record.name, record.store, elements)
        await self._put(pin_record_name(record.name), parts)
        for index, element in enumerate(elements):
            newer = await list_elements(self._target, index, element.n)
            if not newer:
                await self._put(element_name(index, element.n), [element.element.encode()])
        return CopiedBackup(record.name, record.time_ms, **attrs.asdict(totals))

    def _check_names(self, chunks: Sequence[ChunkRecord], container: int) -> None:
        """A record that somebody forged may name any object there, such as one of another container, which
        would be replaced. Those of runs are checked as they are read."""
        for chunk in chunks:
            if not _is_chunk_name(chunk.name, container):
                raise DataCorruption(
                    f"it names {chunk.name}, which is no chunk of container {container}",
                    file=pin_record_name(self._record.name),
                )

    async def _check_published(self, element: StoredElement, index: int) -> None:
        """A copy that could not be restored is not made (rule R3)."""
        with Table(element.element.runs).view() as view:
            published = await check_published(view, _reader(self._source), index)
        if published.inconsistencies:
            first = published.inconsistencies[0]
            raise DataCorruption(
                f"not all that the backup has is of one moment, so it cannot be restored: "
                f"{first.segment or 'the container'}: {first.message}; make another one",
                file=pin_record_name(self._record.name),
            )

    async def _chunks_of(self, element: StoredElement) -> AsyncGenerator[list[ChunkRecord], None]:
        with Table(element.element.runs).view() as view:
            async with aclosing(pages_of_rows(view, _reader(self._source), CHUNK_PREFIX.encode())) as pages:
                async for rows in pages:
                    yield [chunk for row in rows if (chunk := _chunk_of(row)) is not None]

    async def _copy_run(self, run: RunEntry) -> None:
        await self._copy(run.name, run.length, partial(object_damage, run))

    async def _copy_chunk(self, verified: Mapping[str, int], chunk: ChunkRecord) -> None:
        await self._copy(chunk.name, chunk.length, partial(_chunk_damage, chunk), verified.get(chunk.name, 0))

    async def _copy(self, name: str, length: int, find_damage: FindDamage, verified: int = 0) -> None:
        """Have the object there with all of its bytes; ``verified`` of them are known to be right."""
        totals = self._totals
        totals.objects, totals.bytes = totals.objects + 1, totals.bytes + length
        # Without a total: it grows while rows are read.
        self._progress(0, length)
        there = await self._length(name)
        if there is None or there < length:
            with _writing(name):
                await self._extend(name, there, length, find_damage)
        else:
            self._progress(length, 0)
            if verified >= length:
                return
        copied = max(0, length - (there or 0))
        if (damage := await find_damage(self._target)) is not None:
            with _writing(name):
                await self._replace(name, length, find_damage, damage)
            copied = length
        totals.copied_objects += copied > 0
        totals.copied_bytes += copied

    async def _extend(self, name: str, there: int | None, length: int, find_damage: FindDamage) -> None:
        if there is None:
            await self._create(name, length)
            return

        # Other backups may need what is there: nothing worse takes its place.
        await self._check_source(find_damage)
        if self._target.capabilities.append:
            await self._append(name, there, length)
        else:
            await self._put_parts(name, length, self._target.replace)

    async def _replace(self, name: str, length: int, find_damage: FindDamage, damage: DataCorruption) -> None:
        """Copy the object again: a call that was cut short left it, a read went wrong, or it was damaged
        since. If the source is damaged, it stays as it is: other backups may need a part of it."""
        await self._check_source(find_damage)
        if (await self._length(name) or 0) > length:
            raise damage  # longer than what could take its place
        await self._put_parts(name, length, self._target.replace)
        if (left := await find_damage(self._target)) is not None:
            raise left

    async def _check_source(self, find_damage: FindDamage) -> None:
        if (damage := await find_damage(self._source)) is not None:
            raise damage

    async def _length(self, name: str) -> int | None:
        try:
            return (await self._target.info(name)).length
        except ChunkNotFound:
            return None

    async def _read(self, name: str, offset: int, size: int) -> bytes:
        try:
            data = await self._source.read(name, offset, size)
        except ChunkNotFound as error:
            raise DataCorruption("an object that the backup needs is missing", file=name) from error
        if len(data) < size:
            raise DataCorruption(
                "an object that the backup needs is too short", file=name, offset=offset + len(data)
            )
        self._progress(size, 0)
        return data

    async def _create(self, name: str, length: int) -> None:
        if self._target.capabilities.append:
            await self._target.create(name)
            await self._append(name, 0, length)
        elif length <= _PIECE_BYTES:
            await self._target.create_with_content(name, [await self._read(name, 0, length)])
        else:
            await self._put_parts(name, length, self._target.concat)

    async def _append(self, name: str, there: int, length: int) -> None:
        for offset in range(there, length, _PIECE_BYTES):
            data = await self._read(name, offset, min(_PIECE_BYTES, length - offset))
            await self._target.write(name, offset, [data])

    async def _put_parts(self, name: str, length: int, put: PutRanges) -> None:
        """Create or replace the object in one step, from pieces of which no more than one is in memory."""
        parts: list[ChunkRange] = []
        for offset in range(0, length, _PIECE_BYTES):
            data = await self._read(name, offset, min(_PIECE_BYTES, length - offset))
            part = f"{_PARTS}{self._record.name}/{name.replace('/', '.')}-{offset:016x}"
            with suppress(ChunkNotFound):
                await self._target.delete(part)  # left by a call that was killed
            await self._target.create_with_content(part, [data])
            parts.append(ChunkRange(part, 0, len(data)))
        await put(name, parts)
        for part_range in parts:
            await self._target.delete(part_range.name)

    async def _put(self, name: str, parts: Sequence[bytes]) -> None:
        """Create an object that is never changed. Raises ``DataCorruption`` if there is another one."""
        try:
            await self._target.create_with_content(name, parts)
        except ChunkExists:
            data = b"".join(parts)
            if await self._target.read(name, 0, len(data) + 1) != data:
                raise DataCorruption(
                    "there is another object of this name: copy the backup to another place", file=name
                ) from None


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Say what an error of the storage that is copied to means."""
    try:
        yield
    except StorageFull as error:
        raise StorageFull(
            f"no room for {name} where the backup is copied to: free space there and run the command again, "
            f"which goes on with what is missing"
        ) from error
    except (ChunkExists, ChunkNotFound, BadChunkOffset) as error:
        raise Unavailable(
            f"{name} changed where the backup is copied to, so another process is copying into that place: "
            f"wait until it has ended, then run the command again"
        ) from error


def _reader(chunks: ChunkStorage) -> RunReader:
    return RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))


def _chunk_of(row: Row) -> ChunkRecord | None:
    """None if the record was removed."""
    if row.value is None:
        return None
    return decode_record(ChunkRecord, row.key.decode("utf-8", "replace"), row.value)


def _is_chunk_name(name: str, container: int) -> bool:
    """Imported chunks have names of the earlier layout (rule S14)."""
    return name.startswith(f"{OWN_CHUNKS}{container:04d}/") or not name.startswith((OWN_CHUNKS, SYSTEM_SCOPE))


async def _chunk_damage(chunk: ChunkRecord, chunks: ChunkStorage) -> DataCorruption | None:
    flaws = await find_flaws(chunks, chunk, lambda size: None)
    return DataCorruption(flaws[0].message, file=chunk.name, offset=flaws[0].offset) if flaws else None

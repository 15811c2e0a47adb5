"""What a place of copies has already, and whether backups of a store may be copied there (rule P8).

Owns: the store and the history that a place is of, and what its records say of the objects there. Does not
own: what is copied (``backup_copy.py``).

Histories differ in the ids of their logs. A recovery or a restore begins a log with a new id, or that of one
container with the same, and notes the one before, with the number of its last element and its own epoch
(``lost_histories.py``). So an element is of the history of a store if the store had its log, at least up to
its number, when the epoch of the element was. Nothing here writes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial

import attrs

from ...journal.manifest.chain import (
    StoredElement,
    element_name,
    list_elements,
    read_element,
    read_newest,
    read_owners,
)
from ...journal.manifest.pin_record import (
    PINS,
    PinRecord,
    read_pin_record,
    read_pinned,
    require_pin_record,
)
from ...journal.manifest.store_record import read_store_record
from ...storage_backends.base.checksum import BLOCK
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    BackupExists,
    BackupNotFound,
    ChunkNotFound,
    DataCorruption,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.segments.records import ChunkRecord
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.segments.verify import bad_blocks, find_flaws
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.reader import RunReader, StoredRuns
from ...storage_backends.sorted_runs.rows import Row
from ...storage_backends.sorted_runs.table import Table
from ..container.lts_boot import read_logs
from .copied_objects import Known, Needed
from .tables import object_damage

_CACHE_BYTES = 16 << 20


async def check_target(source: ChunkStorage, target: ChunkStorage, name: str) -> None:
    """Raise what keeps ``target`` from having a copy of the backup ``name`` of the store whose long-term
    storage is ``source``, before it is made: ``StoreMismatch``, ``BackupExists``, ``DataCorruption``."""
    own, there = await read_store_record(source), await read_store_record(target)
    if own is None:
        return  # Nothing was flushed yet.
    if there is not None and there.store != own.store:
        raise _other_place(there.store, own.store)
    record: PinRecord | None = None
    with suppress(BackupNotFound, DataCorruption):
        record = await require_pin_record(source, name)
    await check_name(target, name, record)
    await PlaceOfCopies(target, own.containers).check_history(source)


async def check_name(target: ChunkStorage, name: str, record: PinRecord | None) -> None:
    """Raises ``BackupExists`` if there is a backup ``name`` that is not that of ``record``."""
    with suppress(ChunkNotFound, DataCorruption):
        there = await read_pin_record(target, name)
        if record is None or there.elements != record.elements:
            raise BackupExists(
                f"there is another backup {name!r} in that place, with other data: make one of another name, "
                f"or copy to another place"
            )


async def check_store(target: ChunkStorage, record: PinRecord) -> bool:
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


# --- the history --------------------------------------------------------------------------------------


@attrs.frozen(eq=False, repr=False)
class _Newest:
    """The newest element of a container in the place."""

    name: str
    n: int
    crc: int
    epoch: int
    log: bytes


class PlaceOfCopies:
    def __init__(
        self,
        target: ChunkStorage,
        containers: int,
        rewritten: PinRecord | None = None,
        elements: Sequence[StoredElement] = (),
    ) -> None:
        """``rewritten``: the backup whose record, and ``elements``, are copied again if they are damaged in
        the place; so it does not matter here that they are."""
        self._target = target
        self._containers = containers
        self._rewritten = rewritten
        self._elements = elements

    async def records(self) -> AsyncGenerator[PinRecord, None]:
        """Those in the place, one at a time: there may be any number. Raises ``DataCorruption``."""
        rewritten = self._rewritten
        async with aclosing(self._target.list(PINS)) as infos:
            async for info in infos:
                name = info.name.removeprefix(PINS)
                try:
                    yield await read_pin_record(self._target, name)
                except DataCorruption as error:
                    if rewritten is not None and name == rewritten.name:
                        yield rewritten
                        continue
                    raise DataCorruption(
                        f"{error.reason}: copy that backup to the place again with --verify, or remove the "
                        f"object",
                        file=error.file,
                        offset=error.offset,
                    ) from error

    async def check_history(self, source: ChunkStorage) -> None:
        """Raises ``StoreMismatch`` if a store lives in the place, whose chain a copied element would break,
        or if the newest element there is not of the history of ``source``: numbers of both would mix, and
        who reads the place would find either of them."""
        newest = [await self._newest(index) for index in range(self._containers)]
        backups: list[PinRecord | None] = [None] * self._containers
        async with aclosing(self.records()) as records:
            async for record in records:
                for index, (there, (_, crc)) in enumerate(zip(newest, record.elements, strict=False)):
                    if there is not None and there.crc == crc:
                        backups[index] = record
        for index, (there, backup) in enumerate(zip(newest, backups, strict=True)):
            if there is not None:
                await _check_newest(source, index, there, backup)

    async def _newest(self, index: int) -> _Newest | None:
        numbers = await list_elements(self._target, index)
        if numbers and numbers[-1] in [element.n for element in self._elements[index : index + 1]]:
            with suppress(DataCorruption):
                return await self._read_newest(index, numbers)
            numbers.pop()
        return await self._read_newest(index, numbers)

    async def _read_newest(self, index: int, numbers: list[int]) -> _Newest | None:
        there = await read_newest(self._target, index, numbers)
        if there is None:
            return None
        element = there.element
        name = element_name(index, there.n)
        return _Newest(name, there.n, there.position.crc, element.epoch, element.owner.log)


async def _check_newest(source: ChunkStorage, index: int, there: _Newest, backup: PinRecord | None) -> None:
    own = await read_newest(source, index, await list_elements(source, index))
    if backup is None or (own is not None and there.epoch > own.element.epoch):
        raise StoreMismatch(
            f"{there.name} there is of no backup that was copied from here: somebody recovered or opened the "
            f"store in that place, or removed a backup. Copy to another place"
        )
    with suppress(BackupNotFound, DataCorruption):
        # What the store keeps is of its history, whichever folders it was in.
        if (await require_pin_record(source, backup.name)).elements == backup.elements:
            return
    if not (await _History.of(source, index, there.n)).has(there):
        raise StoreMismatch(
            f"backup {backup.name!r} there is not of the history that this store has: an earlier backup was "
            f"restored elsewhere, long-term storage was put back, or one of the two is a clone. Copy to "
            f"another place, and keep that one for what is only there"
        )


@attrs.frozen(eq=False, repr=False)
class _History:
    """What a container's chain shows of its history, though older elements are deleted."""

    ends: list[tuple[bytes, int, int]]
    """Of each log that it had, the number of an element, and an epoch in which that was there."""
    recoveries: set[int]
    """Their epochs, as far as they are known."""
    crcs: dict[int, int]
    """Of the elements with these numbers that were read, and of those before them."""

    @classmethod
    async def of(cls, source: ChunkStorage, container: int, number: int) -> _History:
        """As far as it decides about the element ``number`` of a place."""
        elements = (await read_owners(source, container)).elements
        known = {each.n: each for each in elements}
        for n in number, number + 1:
            # No element, or deleted: then nothing is known of it.
            with suppress(ChunkNotFound):
                known[n] = await read_element(source, container, n)
        crcs = {each.n: each.position.crc for each in known.values()}
        for each in known.values():
            crcs.setdefault(*each.element.predecessor)
        ended = await read_logs(elements, reader_of(source))
        ends = [(each.element.owner.log, each.n, each.element.epoch) for each in elements]
        ends += [(log, n, until - 1) for log, n, until in ended]
        return cls(ends, {each.until for each in ended}, crcs)

    def has(self, there: _Newest) -> bool:
        if self.crcs.get(there.n, there.crc) != there.crc:
            return False
        return any(
            log == there.log and there.n <= n and not self._has_recovery(there.epoch, epoch)
            for log, n, epoch in self.ends
        )

    def _has_recovery(self, after: int, to: int) -> bool:
        """Whether one came between these epochs: then logs with the same id are two (rule R11)."""
        return any(after < recovery <= to for recovery in self.recoveries)


# --- what was verified --------------------------------------------------------------------------------


class VerifiedObjects:
    """What records in the place name: all of it was verified before they were created (rule P7). Those of
    the backup itself and of the newest one: others know little besides, and reading them takes long."""

    def __init__(self, target: ChunkStorage) -> None:
        self._target = target
        self._records: list[PinRecord] = []
        self._runs = reader_of(target)
        self._container = -1
        self._elements: list[StoredElement] = []

    async def choose(self, records: AsyncGenerator[PinRecord, None], name: str) -> None:
        async with aclosing(records):
            async for record in records:
                kept = [*self._records, record]
                self._records = sorted(kept, key=lambda each: (each.name == name, each.time_ms))[-2:]

    async def _elements_of(self, container: int) -> list[StoredElement]:
        if container != self._container:
            self._container, self._elements = container, []
            for record in self._records:
                # Otherwise all is verified once more.
                with suppress(DataCorruption):
                    self._elements.append(await read_pinned(self._target, record, container))
        return self._elements

    async def runs(self, container: int) -> dict[str, Known]:
        entries = [run for element in await self._elements_of(container) for run in element.element.runs]
        return {run.name: Known(0, partial(object_damage, run)) for run in entries}

    async def chunks(self, container: int, chunks: Sequence[ChunkRecord]) -> dict[str, Known]:
        """What is known of these chunks."""
        found: dict[str, Known] = {}
        for element in await self._elements_of(container):
            try:
                with Table(element.element.runs).view() as view:
                    rows = await find_rows(view, self._runs, [chunk.key.encode() for chunk in chunks])
                known = [chunk for row in rows.values() if (chunk := chunk_of_row(row)) is not None]
            except (DataCorruption, Unavailable):
                continue  # then they are verified once more
            for each in known:
                if each.name not in found or found[each.name].length < each.length:
                    found[each.name] = Known(each.length, partial(chunk_damage, each))
        return found


def reader_of(chunks: ChunkStorage) -> RunReader:
    return RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))


def chunk_of_row(row: Row) -> ChunkRecord | None:
    """None if the record was removed."""
    if row.value is None:
        return None
    return decode_record(ChunkRecord, row.key.decode("utf-8", "replace"), row.value)


async def chunk_damage(chunk: ChunkRecord, chunks: ChunkStorage) -> DataCorruption | None:
    flaws = await find_flaws(chunks, chunk, lambda size: None)
    return DataCorruption(flaws[0].message, file=chunk.name, offset=flaws[0].offset) if flaws else None


def needed_chunk(chunk: ChunkRecord) -> Needed:
    def find_bad_byte(offset: int, data: bytes) -> int | None:
        bad = next(bad_blocks(memoryview(data), chunk.crcs[offset // BLOCK :]), None)
        return None if bad is None else offset + bad

    return Needed(chunk.name, chunk.length, partial(chunk_damage, chunk), find_bad_byte)

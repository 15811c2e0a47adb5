"""What long-term storage alone has, at random moments: one consistent state of each container (rule F10).

At each cut of a flush cycle the state of the container is noted, as it is in memory in that step. Later
the objects of long-term storage are copied in one step, past all faults, and the newest element of each chain
is read from the copy as a recovery reads it. It must boot; each chunk that its rows name must be there; and
every row must be the one of the cut. Rows of segments that the element says are held back may be those of an
earlier cut, together with those of the segments that are published with them.

Owners are not disturbed, and take no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import attrs

from tierlog.actors.container.closures import ClosureLog, is_record
from tierlog.actors.container.cycle_cut import CycleCut
from tierlog.actors.container.ended_rows import TRANSACTION_PREFIX, transaction_of_row
from tierlog.actors.container.listed_chain import list_chain
from tierlog.actors.container.lts_boot import LtsBoot, read_boot
from tierlog.actors.container.published_check import pages_of_rows
from tierlog.actors.container.segment_rows import IMAGE_PREFIX, load_of_row
from tierlog.actors.container.state import ContainerState
from tierlog.actors.store.lts_view import LtsContainer
from tierlog.journal.manifest.element import CONSISTENT, Element
from tierlog.journal.manifest.store_record import STORE_RECORD, require_store_record
from tierlog.journal.operations.segment_image import SegmentStatus
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.sorted_dict import SortedDict
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records import ChunkRecord
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.storage_backends.segments.transaction import decode_record
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.table import Table

from .invariants import Broken
from .published import is_truncated

_CACHE_BYTES = 1 << 20


@attrs.frozen(eq=False)
class _AtCut:
    """One container in the step of a cut."""

    images: dict[int, bytes | None]
    """Of segments in memory; None for one that is no segment any more."""
    rows: dict[bytes, Row]
    """Of those in memory the newest, tombstones included, without records and images."""
    open: dict[tuple[str, str], int]
    """Open transactions, and their targets' ids."""
    closures: ClosureLog

    @classmethod
    def of(cls, state: ContainerState) -> _AtCut:
        closures = ClosureLog()
        closures.restore(state.closures.changes())
        images = {
            sid: segment.image(is_flushed=True) if segment.status is SegmentStatus.LIVE else None
            for sid, segment in state.segments.by_id.items()
            if segment.fits_flushed_row
        }
        rows = (row for row in state.table.unpublished_rows() if row is not None)
        return cls(
            images,
            {row.key: row for row in rows if not is_record(row.key)},
            {key: record.sid for key, record in state.transactions.records.items()},
            closures,
        )


class CutNotes:
    """Notes the state at every cut while ``noting`` lasts."""

    def __init__(self) -> None:
        self.cuts: dict[tuple[int, int], list[_AtCut]] = {}
        """By container and sequence: an owner may give a sequence again that its predecessor lost."""
        self.images: dict[tuple[int, int], set[bytes | None]] = {}
        """By container and segment: what its image was at any cut."""

    def and_of(self, *others: CutNotes) -> CutNotes:
        """What is noted up to now, and what ``others`` have."""
        both = CutNotes()
        for notes in (self, *others):
            for cut, noted in notes.cuts.items():
                both.cuts.setdefault(cut, []).extend(noted)
            for segment, images in notes.images.items():
                both.images.setdefault(segment, set()).update(images)
        return both

    @contextmanager
    def noting(self) -> Iterator[None]:
        original: Callable[[CycleCut, ContainerState], None] = CycleCut.__init__

        def begin(cut: CycleCut, state: ContainerState) -> None:
            original(cut, state)
            self._note(state)

        setattr(CycleCut, "__init__", begin)  # noqa: B010
        try:
            yield
        finally:
            setattr(CycleCut, "__init__", original)  # noqa: B010

    def _note(self, state: ContainerState) -> None:
        noted = _AtCut.of(state)
        self.cuts.setdefault((state.container, state.sequence), []).append(noted)
        for sid, image in noted.images.items():
            self.images.setdefault((state.container, sid), set()).add(image)


async def check_alone(
    containers: int,
    contents: Mapping[str, bytes],
    notes: CutNotes,
    truncated_to: Callable[[int, int], int] = lambda container, segment: 0,
) -> int:
    """Check long-term storage with these ``contents``; returns how many containers have published a cycle.
    ``truncated_to`` as for ``PublishedChunks``."""
    if STORE_RECORD not in contents:
        return 0

    kept = SortedDict[str, MemoryChunk]()
    for name, data in contents.items():
        kept[name] = MemoryChunk(bytearray(data))
    chunks = MemoryChunkStorage(MemoryChunkState(kept))
    await chunks.open()
    found = index = 0
    try:
        record = await require_store_record(chunks)
        for index in range(containers):
            listed = (await list_chain(chunks, index)).newest
            if listed is not None and _has_no_rows(index, listed.element, notes):
                continue

            newest = await LtsContainer(index, chunks, record.store).newest()
            if newest is not None and newest.element.runs.schema >= CONSISTENT:
                runs = RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))
                boot = await read_boot(index, newest, newest.element, runs)
                rows = await _rows(newest.element.runs, runs)
                before = await _rows(_earlier(newest.element), runs) if newest.element.runs.held else {}
                _check(boot, rows, before, contents, notes, partial(truncated_to, index))
                found += 1
    except TierlogError as error:
        raise _broken(index, f"it cannot be read: {error!r}") from error
    finally:
        await chunks.close()
    return found


def _has_no_rows(container: int, element: Element, notes: CutNotes) -> bool:
    """Whether no cycle has published a row, because none is complete or there was no room (rule M12)."""
    at_cut = notes.cuts.get((container, element.progress.cut), [])
    lacked_room = any(noted.images or noted.rows for noted in at_cut)
    return not element.runs.schema and (not element.progress.cycle or lacked_room)


def _earlier(element: Element) -> RunList:
    """The runs that have rows of cycles before the newest one."""
    runs = element.runs
    earlier = tuple(each for each in runs.runs if each.first_cycle < element.progress.cycle)
    return attrs.evolve(runs, runs=earlier)


async def _rows(listed: RunList, runs: RunReader) -> dict[bytes, Row]:
    table, found = Table(), dict[bytes, Row]()
    table.use(listed)
    with table.view() as view:
        async for rows in pages_of_rows(view, runs, b""):
            found |= {row.key: row for row in rows}
    return found


def _broken(container: int, breach: str) -> Broken:
    return Broken(
        f"it does not hold that long-term storage alone has one consistent state\ncontainer {container}: "
        f"{breach}"
    )


def _check(
    boot: LtsBoot,
    rows: Mapping[bytes, Row],
    before: Mapping[bytes, Row],
    contents: Mapping[str, bytes],
    notes: CutNotes,
    truncated_to: Callable[[int], int],
) -> None:
    container, runs = boot.container, boot.chosen.runs
    for each in boot.published.inconsistencies:
        raise _broken(container, f"{each.segment or 'the container'}: {each.message}")
    for key, row in rows.items():
        if key.startswith(CHUNK_PREFIX.encode()):
            assert row.value is not None
            chunk = decode_record(ChunkRecord, key.decode(), row.value)
            is_there = len(contents.get(chunk.name, b"")) >= chunk.length
            if not is_there and not is_truncated([rows], chunk.name, truncated_to):
                raise _broken(container, f"{chunk.name} is named with {chunk.length} bytes, and is not there")
        if not is_record(key) and row.version > runs.rows_to:
            raise _broken(container, f"{row} is later than the cut {runs.rows_to}")
    noted = notes.cuts.get((container, runs.rows_to), [])
    breaches = [next(_breaches(boot, rows, before, at_cut, notes), "") for at_cut in noted]
    if not noted or all(breaches):
        raise _broken(container, breaches[-1] if noted else f"no cycle had the cut {runs.rows_to}")


def _breaches(
    boot: LtsBoot,
    rows: Mapping[bytes, Row],
    before: Mapping[bytes, Row],
    at_cut: _AtCut,
    notes: CutNotes,
) -> Iterator[str]:
    """How the element differs from the state at its cut. ``before``: what earlier cycles had published."""
    held = set(boot.chosen.runs.held)
    images = {
        int(key[len(IMAGE_PREFIX) :], 16): load.image
        for key, row in rows.items()
        if key.startswith(IMAGE_PREFIX) and (load := load_of_row(row)) is not None
    }
    for sid, image in at_cut.images.items():
        found = images.get(sid)
        earlier = notes.images[boot.container, sid]
        if found != image and not (sid in held and (found is None or found in earlier)):
            yield f"segment {sid:#x} has the image {found!r}, and at the cut it was {image!r}; held: {held}"
    for key, row in at_cut.rows.items():
        shown = rows.get(key)
        is_same = shown is None if row.value is None else shown == row
        if not is_same and not at_cut.closures.is_held(held, row):
            yield f"{row} was there at the cut, and there is {shown}; held: {held}"
        # Not by the closures of the product: they say whose row it is.
        record = transaction_of_row(row) if key.startswith(TRANSACTION_PREFIX) else None
        # Replay brings rows to memory again that were published before the segment was late.
        is_new = is_same and before.get(key) != row
        if is_new and record is not None and record.sid in held:
            yield f"{record} is published, and its target is held back; held: {held}"
    published = {(record.target, record.id) for record in boot.open}
    for transaction, sid in at_cut.open.items():
        if transaction not in published and sid not in held:
            yield f"the transaction {transaction} was open at the cut, and is not known"
    for _, segment, other in at_cut.closures.changes():
        if other and (segment in held) != (other in held):
            yield f"{segment:#x} and {other:#x} are published together, and one is held back; held: {held}"

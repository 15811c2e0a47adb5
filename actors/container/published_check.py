"""Whether the rows that one element publishes are one state of each segment: what a boot from long-term
storage alone may begin with. The check itself is pure.

A full cycle publishes each segment as of one moment (rule F10), so this finds damage, and what earlier
versions published: images as of a later moment than records and other rows. Each image must agree with its
record, no merge may be pending, staged segments need their open transaction, names and ids must match, and
each chain of chunks must be as long as its record says. In runs of earlier versions an image that is later
than the rows which were frozen for the run has their greatest version: with such a version it may lack what
is in no run (``may_be_later``)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import attrs
from anyio.lowlevel import checkpoint

from ...journal.manifest.element import CONSISTENT
from ...journal.operations.segment_image import SegmentImage, SegmentStatus, decode_image
from ...journal.operations.transaction_image import TransactionStatus
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import DataCorruption
from ...storage_backends.base.transactions import is_staged, split_staged
from ...storage_backends.segments.records import (
    DEFERRED_WORK_PREFIX,
    SEGMENT_PREFIX,
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    SegmentRecord,
)
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX
from ...storage_backends.segments.records.deferred_work import is_of_newer_kind
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, label_of, prefix_end
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .ended_rows import TRANSACTION_PREFIX, transaction_of_row
from .segment_rows import IMAGE_PREFIX, NAME_PREFIX, load_of_row, name_of_key, sid_of_row
from .segments import SegmentState

_PAGE = PageLimits(8192, 4 << 20)
"""Large: each page begins with short reads."""
_STEP = 256
"""Rows, segments and chunks that are checked in one step."""
OWN_CHAIN = (DeferredWorkKind.DELETE, DeferredWorkKind.ADOPT)
"""Work on chunks that are in no segment's chain any more, or not yet."""


@attrs.frozen
class Inconsistency:
    segment: str
    """Its name, or its id in brackets, or empty if none is known."""
    message: str


@attrs.frozen
class Published:
    segments: int
    """How many segments there are."""
    inconsistencies: Sequence[Inconsistency]


class _Image(NamedTuple):
    """What is checked of an image: 100,000 of them are held."""

    name: str
    length: int
    start_offset: int
    sealed: bool
    problem: str
    """What is wrong with the image alone."""


class _Chunk(NamedTuple):
    length: int
    next_chunk: str


class PublishedCheck:
    """Takes all rows of a table as of one element, in any order; then says what does not fit together."""

    def __init__(self, runs: RunList) -> None:
        """``runs``: those that have the rows."""
        self._runs = runs
        self._images: dict[int, _Image] = {}
        self._names: dict[int, list[str]] = {}
        self._records: dict[int, SegmentRecord] = {}
        self._chunks: dict[str, _Chunk] = {}
        self._work: list[DeferredWorkRecord] = []
        self._open: dict[tuple[str, str], int] = {}
        """Of open transactions, the ids of their targets."""
        self._found: list[Inconsistency] = []
        self._kinds: dict[bytes, Callable[[Row, bytes], None]] = {
            IMAGE_PREFIX: self._add_image,
            NAME_PREFIX: self._add_name,
            SEGMENT_PREFIX.encode(): self._add_record,
            CHUNK_PREFIX.encode(): self._add_chunk,
            DEFERRED_WORK_PREFIX.encode(): self._add_work,
            TRANSACTION_PREFIX: self._add_transaction,
        }

    @property
    def prefixes(self) -> Iterable[bytes]:
        """Of the keys of the rows that are checked."""
        return self._kinds

    @property
    def segments(self) -> int:
        return len(self._images)

    def add(self, rows: Iterable[Row]) -> None:
        """Take live rows; those of other kinds are passed over."""
        for row in rows:
            add = self._kinds.get(row.key[:2])
            if add is not None and row.value is not None:
                try:
                    add(row, row.value)
                except (DecodeError, DataCorruption) as error:
                    self._found.append(Inconsistency("", f"{label_of(row.key)} is damaged: {error}"))

    def _add_image(self, row: Row, value: bytes) -> None:
        load = load_of_row(row)
        assert load is not None
        image = decode_image(load.image)
        problem = _problem_of(image)
        if not problem and may_be_later(image, row.version, self._runs):
            problem = "its image may be as of a later moment than its rows"
        self._images[image.sid] = _Image(image.name, image.length, image.start_offset, image.sealed, problem)

    def _add_name(self, row: Row, value: bytes) -> None:
        sid = sid_of_row(row)
        assert sid is not None
        self._names.setdefault(sid, []).append(name_of_key(row.key))

    def _add_record(self, row: Row, value: bytes) -> None:
        record = decode_record(SegmentRecord, _text(row.key), value)
        self._records[record.segment] = record

    def _add_chunk(self, row: Row, value: bytes) -> None:
        record = decode_record(ChunkRecord, _text(row.key), value)
        self._chunks[record.name] = _Chunk(record.length, record.next_chunk)

    def _add_work(self, row: Row, value: bytes) -> None:
        if is_of_newer_kind(value):
            message = f"{label_of(row.key)} is deferred work of a kind that only a newer version knows"
            self._found.append(Inconsistency("", message))
            return

        work = decode_record(DeferredWorkRecord, _text(row.key), value)
        if work.kind in OWN_CHAIN:
            self._work.append(work)

    def _add_transaction(self, row: Row, value: bytes) -> None:
        record = transaction_of_row(row)
        assert record is not None
        if record.status is TransactionStatus.OPEN:
            self._open[record.target, record.id] = record.sid

    def finish(self) -> Iterator[Inconsistency | None]:
        """What does not fit together, in no order; None after each step. Once."""
        yield from self._found
        for number, (sid, image) in enumerate(self._images.items(), 1):
            yield from (Inconsistency(image.name, message) for message in self._check_image(sid, image))
            if number % _STEP == 0:
                yield None
        for sid, names in self._names.items():
            if sid not in self._images:
                yield from (Inconsistency(name, "it has a name and no image") for name in names)
        for sid, record in self._records.items():
            known = self._images.get(sid)
            shown = f"({sid:016x})" if known is None else known.name
            if known is None:
                yield Inconsistency(shown, "it has a record in long-term storage and no image")
            start = record.first_chunk_start
            yield from self._walk(shown, record.first_chunk, record.chunk_count, record.length - start)
        for (target, transaction), sid in self._open.items():
            if sid not in self._images:
                yield Inconsistency(target, f"its transaction {transaction!r} is open, and it has no image")
        for work in self._work:
            yield from self._walk(f"({work.segment:016x})", work.chunk, work.chunks)
        for number, name in enumerate(self._chunks, 1):
            yield Inconsistency("", f"the chunk {name} is in no segment's chain, and in no deferred work")
            if number % _STEP == 0:
                yield None

    def _check_image(self, sid: int, image: _Image) -> Iterator[str]:
        if image.problem:
            yield image.problem
        if is_staged(image.name) and split_staged(image.name) not in self._open:
            yield "it is staged for a transaction that is not open"
        names = self._names.get(sid, [])
        if names != [image.name]:
            yield f"its image has this name, and the names of its id are {names}"
        record = self._records.get(sid)
        flushed = (0, 0, False) if record is None else (record.length, record.start_offset, record.sealed)
        shown = image.length, image.start_offset, image.sealed
        for what, ours, theirs in zip(("length", "start", "seal"), shown, flushed, strict=True):
            if ours != theirs:
                yield f"its image has {what} {ours}, its record in long-term storage {theirs}"

    def _walk(
        self, segment: str, first: str, count: int, size: int | None = None
    ) -> Iterator[Inconsistency | None]:
        """Follow a chain of ``count`` chunks that have ``size`` bytes, and take them away."""
        name, walked, length = first, 0, 0
        while name and walked < count:
            chunk = self._chunks.pop(name, None)
            if chunk is None:
                yield Inconsistency(segment, f"its chunk {name} has no record, or is in another chain too")
                return

            walked, length, name = walked + 1, length + chunk.length, chunk.next_chunk
            if walked % _STEP == 0:
                yield None
        if walked != count or (size is not None and (name or length != size)):
            more, expected = " and goes on" if name else "", "" if size is None else f" with {size}"
            yield Inconsistency(
                segment,
                f"its chain has {walked} chunks with {length} bytes{more}, not {count}{expected}",
            )


def may_be_later(image: SegmentImage | SegmentState, version: int, runs: RunList) -> bool:
    """Whether an image with a row of that ``version`` may be as of a later moment than other rows of the
    segment: those of a table, or those that were in the image (rules M13, M19, M20). Those of consistent
    cycles are all as of the cut."""
    has_rows = image.is_table or image.spilled or image.has_ids or image.has_writer_rows
    return has_rows and version >= runs.rows_to and runs.schema < CONSISTENT


def _problem_of(image: SegmentImage) -> str:
    if image.status is not SegmentStatus.LIVE:
        return f"it is {image.status.name.lower()}, and that is not complete in long-term storage"
    if image.merges:
        return f"of {len(image.merges)} merges its record in long-term storage has nothing yet"
    return ""


def _text(key: bytes) -> str:
    return key.decode("utf-8", "replace")


async def check_published(view: TableView, runs: RunReader) -> Published:
    """Check the rows of ``view``, all of which are in its runs. Raises ``Unavailable``, ``DataCorruption`` if
    a run cannot be read."""
    check = PublishedCheck(view.runs)
    for prefix in check.prefixes:
        async with aclosing(pages_of_rows(view, runs, prefix)) as pages:
            async for rows in pages:
                check.add(rows)
    found: list[Inconsistency] = []
    for each in check.finish():
        if each is None:
            await checkpoint()
        else:
            found.append(each)
    found.sort(key=lambda each: (each.segment, each.message))
    return Published(check.segments, found)


async def pages_of_rows(view: TableView, runs: RunReader, prefix: bytes) -> AsyncGenerator[list[Row], None]:
    """The live rows whose keys begin with ``prefix``. Raises as ``check_published``."""
    start: bytes | None = prefix
    while start is not None:
        page = await scan_rows(view, runs, KeyRange(start, prefix_end(prefix)), _PAGE)
        for rows in in_slices(page.rows, _STEP):
            yield rows
            await checkpoint()
        start = page.resume

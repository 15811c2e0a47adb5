"""Whether the rows that one element publishes are one state of each segment: what a boot from long-term
storage alone may begin with. The check itself is pure.

A full cycle publishes each segment as of one moment (rule F10), so this finds damage, and what earlier
versions published: images as of a later moment than records and other rows. Each image must agree with its
record, no merge may be pending, staged segments need their open transaction, names and ids must match, and
each chain of chunks must be as long as its record says. In runs of earlier versions an image that is later
than the rows which were frozen for the run has their greatest version: with such a version it may lack what
is in no run (``may_be_later``).

Memory does not grow with the number of segments. A page of images is compared with the records and chunks
that have the same ids in their keys, so what belongs together is in memory at the same time. Chunks that
follow each other in their chain and in the order of names are held as one. Chains that pass over chunks of
later segments, as after merges, wait until the end. Names have an order of their own: a fingerprint of all
names and ids is compared with that of all images, in a few thousand parts, and only parts that differ are
read again."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import suppress
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
from ...storage_backends.segments.records.chunk import CHUNK_PREFIX, chunk_key
from ...storage_backends.segments.records.deferred_work import is_of_newer_kind
from ...storage_backends.segments.transaction import decode_record
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, label_of, prefix_end
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.scan import KeyRange, Page, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .ended_rows import TRANSACTION_PREFIX, transaction_of_row
from .segment_rows import (
    IMAGE_PREFIX,
    NAME_PREFIX,
    image_key,
    load_of_row,
    name_key,
    name_of_key,
    sid_of_row,
)
from .segments import SegmentState

_PAGE = PageLimits(8192, 4 << 20)
"""Large: each page begins with short reads."""
_STEP = 256
"""Rows, segments and chunks that are checked in one step."""
_PARTS = 4096
"""Of the fingerprint of all names."""
_U64 = (1 << 64) - 1
OWN_CHAIN = (DeferredWorkKind.DELETE, DeferredWorkKind.ADOPT)
"""Work on chunks that are in no segment's chain any more, or not yet."""
_Add = Callable[[Row, bytes], None]
_Steps = Generator[KeyRange | None, Page, None]
"""Each yields the keys of which it is sent the next page, or None at the end of a step."""


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


class _Chain(NamedTuple):
    segment: str
    first_chunk: str
    chunks: int
    length: int | None
    """None if any will do."""


@attrs.define(eq=False)
class _Stretch:
    """Chunks that follow each other in their chain and in the order of names."""

    chunks: int
    length: int
    next_chunk: str


class PublishedCheck:
    """Compares all rows of a table as of one element. ``steps`` reads them."""

    def __init__(self, runs: RunList, container: int) -> None:
        """``runs``: those that have the rows of ``container``."""
        self._runs = runs
        self._own_chunks = chunk_key(f"containers/{container:04d}/").encode()
        self._open: dict[tuple[str, str], int] = {}
        """Of open transactions, the ids of their targets."""
        self._targets: set[int] = set()
        """Those whose image did not come yet."""
        self._names = array("Q", bytes(8 * _PARTS))
        """For each part, the exclusive or of the hashes of names and images: 0 if they are the same."""
        self._records: dict[int, SegmentRecord] = {}
        """Of this page of images."""
        self._chains: list[_Chain] = []
        """Of this page of images."""
        self._waiting: list[_Chain] = []
        """Whose chunks did not all come with their page."""
        self._stretches: dict[str, _Stretch] = {}
        """By their first chunk, those that are in no chain yet."""
        self._last: _Stretch | None = None
        self._segments = 0
        self._found: list[Inconsistency] = []

    def steps(self) -> Generator[KeyRange | None, Page, Published]:
        """Yields a range of keys, and is to be sent a page of its live rows, from its beginning on and not
        empty unless it is the last; or None after each step, and is sent anything."""
        yield from self._scan(_under(TRANSACTION_PREFIX), self._add_transaction)
        self._targets.update(self._open.values())
        yield from self._scan(_under(NAME_PREFIX), self._add_name)
        yield from self._check_segments()
        for (target, transaction), sid in self._open.items():
            if sid in self._targets:
                self._report(target, f"its transaction {transaction!r} is open, and it has no image")
        yield from self._scan(_under(DEFERRED_WORK_PREFIX.encode()), self._add_work)
        yield from self._walk_chains(self._waiting, is_last=True)
        for number, (name, stretch) in enumerate(self._stretches.items(), 1):
            more = f" and {stretch.chunks - 1} behind it are" if stretch.chunks > 1 else " is"
            self._report("", f"the chunk {name}{more} in no segment's chain, and in no deferred work")
            if number % _STEP == 0:
                yield None
        if any(self._names):
            yield from self._compare_names()
        return Published(self._segments, sorted(self._found, key=lambda each: (each.segment, each.message)))

    def _report(self, segment: str, message: str) -> None:
        self._found.append(Inconsistency(segment, message))

    def _scan(self, keys: KeyRange, add: _Add) -> _Steps:
        start: bytes | None = keys.start
        while start is not None:
            page = yield KeyRange(start, keys.end)
            yield from self._add_page(page, add)
            start = page.resume

    def _add_page(self, page: Page, add: _Add) -> _Steps:
        for rows in in_slices(page.rows, _STEP):
            for row in rows:
                assert row.value is not None
                try:
                    add(row, row.value)
                except (DecodeError, DataCorruption) as error:
                    self._report("", f"{label_of(row.key)} is damaged: {error}")
            yield None

    # --- segments ---------------------------------------------------------------------------------

    def _check_segments(self) -> _Steps:
        """Take the images in pages, each with the records and chunks of its ids."""
        images: bytes | None = IMAGE_PREFIX
        prefixes = SEGMENT_PREFIX.encode(), CHUNK_PREFIX.encode()
        records, chunks = prefixes
        while images is not None:
            page = yield KeyRange(images, prefix_end(IMAGE_PREFIX))
            images = page.resume
            records_end, chunks_end = map(prefix_end, prefixes)
            if images is not None:
                # Behind all keys with the last id: it is followed by nothing, or by "/".
                end = page.rows[-1].key.removeprefix(IMAGE_PREFIX) + b"0"
                records_end, chunks_end = prefixes[0] + end, self._own_chunks + end
            yield from self._scan(KeyRange(records, records_end), self._add_record)
            yield from self._add_page(page, self._check_image)
            for sid, record in self._records.items():
                self._report(f"({sid:016x})", "it has a record in long-term storage and no image")
                self._add_chain(f"({sid:016x})", record)
            self._records.clear()
            yield from self._scan(KeyRange(chunks, chunks_end), self._add_chunk)
            yield from self._walk_chains(self._chains, is_last=False)
            self._chains.clear()
            assert records_end is not None
            assert chunks_end is not None
            records, chunks = records_end, chunks_end

    def _add_record(self, row: Row, value: bytes) -> None:
        record = decode_record(SegmentRecord, _text(row.key), value)
        self._records[record.segment] = record

    def _add_chain(self, shown: str, record: SegmentRecord) -> None:
        size = record.length - record.first_chunk_start
        self._chains.append(_Chain(shown, record.first_chunk, record.chunk_count, size))

    def _check_image(self, row: Row, value: bytes) -> None:
        load = load_of_row(row)
        assert load is not None
        image = decode_image(load.image)
        sid, name = image.sid, image.name
        if row.key != image_key(sid):
            raise DecodeError(f"the row of an image has that of segment {sid:#x}")
        self._segments += 1
        self._targets.discard(sid)
        self._note_name(sid, name_key(name))
        if problem := _problem_of(image):
            self._report(name, problem)
        elif may_be_later(image, row.version, self._runs):
            self._report(name, "its image may be as of a later moment than its rows")
        if is_staged(name) and split_staged(name) not in self._open:
            self._report(name, "it is staged for a transaction that is not open")
        record = self._records.pop(sid, None)
        flushed = (0, 0, False)
        if record is not None:
            flushed = record.length, record.start_offset, record.sealed
            self._add_chain(name, record)
        shown = image.length, image.start_offset, image.sealed
        if shown != flushed:
            for what, ours, theirs in zip(("length", "start", "seal"), shown, flushed, strict=True):
                if ours != theirs:
                    self._report(
                        name, f"its image has {what} {ours}, its record in long-term storage {theirs}"
                    )

    # --- transactions and names -------------------------------------------------------------------

    def _add_transaction(self, row: Row, value: bytes) -> None:
        record = transaction_of_row(row)
        assert record is not None
        if record.status is TransactionStatus.OPEN:
            self._open[record.target, record.id] = record.sid

    def _add_name(self, row: Row, value: bytes) -> None:
        sid = sid_of_row(row)
        assert sid is not None
        name_of_key(row.key)
        self._note_name(sid, row.key)

    def _note_name(self, sid: int, key: bytes) -> None:
        # Each pair comes once from the names and once from the images. What differs stays, but for one of
        # 2^64 cases: the hash of bytes is as good as random.
        self._names[sid % _PARTS] ^= hash(key + sid.to_bytes(8, "big")) & _U64

    def _compare_names(self) -> _Steps:
        """Read the names and images again, of the parts that differ."""
        names: dict[int, list[str]] = {}
        images: dict[int, str] = {}

        def add_name(row: Row, value: bytes) -> None:
            with suppress(DecodeError):  # It is reported.
                sid = sid_of_row(row)
                if sid is not None and self._names[sid % _PARTS]:
                    names.setdefault(sid, []).append(name_of_key(row.key))

        def add_image(row: Row, value: bytes) -> None:
            with suppress(DecodeError):
                load = load_of_row(row)
                image = None if load is None else decode_image(load.image)
                if image is not None and self._names[image.sid % _PARTS]:
                    images[image.sid] = image.name

        yield from self._scan(_under(NAME_PREFIX), add_name)
        yield from self._scan(_under(IMAGE_PREFIX), add_image)
        for sid, name in images.items():
            found = names.pop(sid, [])
            if found != [name]:
                self._report(name, f"its image has this name, and the names of its id are {found}")
        for found in names.values():
            for name in found:
                self._report(name, "it has a name and no image")

    # --- chunks -----------------------------------------------------------------------------------

    def _add_work(self, row: Row, value: bytes) -> None:
        if is_of_newer_kind(value):
            self._report(
                "", f"{label_of(row.key)} is deferred work of a kind that only a newer version knows"
            )
            return

        work = decode_record(DeferredWorkRecord, _text(row.key), value)
        if work.kind in OWN_CHAIN:
            self._waiting.append(_Chain(f"({work.segment:016x})", work.chunk, work.chunks, None))

    def _add_chunk(self, row: Row, value: bytes) -> None:
        record = decode_record(ChunkRecord, _text(row.key), value)
        last = self._last
        if last is not None and last.next_chunk == record.name:
            last.chunks += 1
            last.length += record.length
            last.next_chunk = record.next_chunk
        else:
            self._last = _Stretch(1, record.length, record.next_chunk)
            self._stretches[record.name] = self._last

    def _walk_chains(self, chains: Iterable[_Chain], *, is_last: bool) -> _Steps:
        """Take the chunks of chains away. Chains that are not whole wait for more chunks, if more come."""
        for number, chain in enumerate(chains, 1):
            problem = yield from self._walk(chain, is_last=is_last)
            if problem and is_last:
                self._report(chain.segment, problem)
            elif problem:
                self._waiting.append(chain)
            if number % _STEP == 0:
                yield None

    def _walk(self, chain: _Chain, *, is_last: bool) -> Generator[KeyRange | None, Page, str]:
        """What is wrong with the chain."""
        name, walked, length = chain.first_chunk, 0, 0
        taken: list[tuple[str, _Stretch]] = []
        problem = ""
        while name and walked < chain.chunks and not problem:
            stretch = self._stretches.pop(name, None)
            if stretch is None:
                problem = f"its chunk {name} has no record, or is in another chain too"
            else:
                taken.append((name, stretch))
                name, walked, length = stretch.next_chunk, walked + stretch.chunks, length + stretch.length
                if len(taken) % _STEP == 0:
                    yield None
        is_whole = walked == chain.chunks and (chain.length is None or (not name and length == chain.length))
        if not problem and not is_whole:
            more, expected = (
                " and goes on" if name else "",
                "" if chain.length is None else f" with {chain.length}",
            )
            problem = f"its chain has {walked} chunks with {length} bytes{more}, not {chain.chunks}{expected}"
        if problem and not is_last:
            self._stretches.update(taken)
        return problem


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


def _under(prefix: bytes) -> KeyRange:
    return KeyRange(prefix, prefix_end(prefix))


async def check_published(view: TableView, runs: RunReader, container: int) -> Published:
    """Check the rows of ``view``, all of which are in its runs. Raises ``Unavailable``, ``DataCorruption`` if
    a run cannot be read."""
    steps = PublishedCheck(view.runs, container).steps()
    page = Page([], None)
    try:
        keys = next(steps)
        while True:
            if keys is None:
                await checkpoint()
            else:
                page = await scan_rows(view, runs, keys, _PAGE)
            keys = steps.send(page)
    except StopIteration as end:
        published: Published = end.value
        return published


async def pages_of_rows(view: TableView, runs: RunReader, prefix: bytes) -> AsyncGenerator[list[Row], None]:
    """The live rows whose keys begin with ``prefix``. Raises as ``check_published``."""
    start: bytes | None = prefix
    while start is not None:
        page = await scan_rows(view, runs, KeyRange(start, prefix_end(prefix)), _PAGE)
        for rows in in_slices(page.rows, _STEP):
            yield rows
            await checkpoint()
        start = page.resume

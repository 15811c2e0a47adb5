"""Whether rows that an element publishes are one state: each row of a sound one is needed, and each way in
which images, records and chains can disagree is found."""

from __future__ import annotations

import re
import tracemalloc
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import attrs
import pytest
from msgspec.structs import replace

from support.published_rows import check_pages, check_rows
from tierlog.actors.container.ended_rows import open_row
from tierlog.actors.container.published_check import Inconsistency, Published
from tierlog.actors.container.segment_rows import encode_image_row, image_key, name_row
from tierlog.journal.manifest.element import CONSISTENT
from tierlog.journal.operations.segment_image import (
    MergedRange,
    MergedRanges,
    SegmentImage,
    SegmentStatus,
    encode_image,
)
from tierlog.journal.operations.transaction_image import TransactionImage, TransactionStatus
from tierlog.storage_backends.base.transactions import staged_prefix
from tierlog.storage_backends.segments.records import (
    ChunkRecord,
    DeferredWorkKind,
    DeferredWorkRecord,
    SegmentRecord,
)
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.scan import KeyRange, Page

EMPTY, CHAIN, CUT, TABLE, DELETED, ADOPTED, STAGED = range(1, 8)
VERSION, CLEAN_TO = 9, 10
RUNS = RunList(schema=2, rows_to=CLEAN_TO)
IMAGES = {
    sid: SegmentImage(sid, SegmentStatus.LIVE, sealed, length, start, 1 << 20, name, (), (), ())
    for sid, name, length, start, sealed in (
        (EMPTY, "empty", 0, 0, False),
        (CHAIN, "chain", 60, 0, False),
        (CUT, "cut", 50, 25, True),
        (TABLE, "table", 0, 0, False),
        (STAGED, f"{staged_prefix('chain', 'a')}0", 0, 0, False),
    )
}
IMAGES[TABLE] = IMAGES[TABLE]._replace(is_table=True)
RECORDS = {
    CHAIN: SegmentRecord(CHAIN, 60, 0, "c1", "c3", 0, 30, 3),
    CUT: SegmentRecord(CUT, 50, 25, "d1", "d2", 20, 30, 2, sealed=True),
}
CHUNKS = {
    name: ChunkRecord(name, length, following, bytes(4))
    for name, length, following in (
        ("c1", 10, "c2"),
        ("c2", 20, "c3"),
        ("c3", 30, ""),
        ("d1", 10, "d2"),
        ("d2", 20, ""),
        ("e1", 5, "e2"),
        ("e2", 5, ""),
        ("f1", 5, "f2"),
    )
}
WORK = (
    DeferredWorkRecord(DeferredWorkKind.DELETE, DELETED, end=10, chunk="e1", chunks=2),
    # The next piece of an import was not written.
    DeferredWorkRecord(DeferredWorkKind.ADOPT, ADOPTED, end=5, chunk="f1", chunks=1),
    DeferredWorkRecord(DeferredWorkKind.TRUNCATE, CUT),
    # Counts chunks that are in the segment's chain.
    DeferredWorkRecord(DeferredWorkKind.DEFRAG, CHAIN, chunks=2),
)


def transaction_row(target: int, name: str) -> Row:
    return open_row(TransactionImage(target, name, "a", TransactionStatus.OPEN, None, 1000), 5)


def image_row(image: SegmentImage) -> Row:
    record = RECORDS.get(image.sid)
    found = (7, record.encode()) if record is not None else (0, b"")
    return Row(image_key(image.sid), VERSION, encode_image_row(encode_image(image), *found))


def record_row(record: SegmentRecord | ChunkRecord | DeferredWorkRecord) -> Row:
    return Row(record.key.encode(), 7, record.encode())


def sound() -> dict[bytes, Row]:
    rows = [
        *(image_row(image) for image in IMAGES.values()),
        *(name_row(image.name, 3, image.sid) for image in IMAGES.values()),
        *map(record_row, RECORDS.values()),
        *map(record_row, CHUNKS.values()),
        *map(record_row, WORK),
        transaction_row(CHAIN, "chain"),
        Row(b"h:0000000000000005target\0id", 5, b"of another kind"),
    ]
    return {row.key: row for row in rows}


def check(rows: Iterable[Row], page: int = 2) -> Sequence[Inconsistency]:
    return check_rows(rows, RUNS, page=page).inconsistencies


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_a_sound_state_passes_however_it_is_divided_into_pages(page: int) -> None:
    assert check(sound().values(), page) == []
    assert check([], page) == []


NOT_NEEDED = {b"h:0000000000000005target\0id", *(work.key.encode() for work in WORK[2:])}


@pytest.mark.parametrize("key", sorted(sound().keys() - NOT_NEEDED))
def test_a_row_that_is_missing_is_noticed(key: bytes) -> None:
    rows = sound()
    removed = rows.pop(key)
    assert check(rows.values())
    # A tombstone is no row.
    assert check([*rows.values(), removed._replace(value=None)])


@pytest.mark.parametrize("key", sorted(sound().keys() - NOT_NEEDED))
def test_a_row_that_does_not_decode_is_reported(key: bytes) -> None:
    rows = sound()
    value = rows[key].value
    assert value is not None
    rows[key] = rows[key]._replace(value=value[:-1])
    assert any("is damaged" in each.message for each in check(rows.values()))


def with_image(sid: int, change: Callable[[SegmentImage], SegmentImage]) -> list[Row]:
    return [*({**sound(), image_key(sid): image_row(change(IMAGES[sid]))}).values()]


def with_record(record: SegmentRecord | ChunkRecord) -> list[Row]:
    return [*({**sound(), record.key.encode(): record_row(record)}).values()]


@pytest.mark.parametrize(
    ("rows", "segment", "message"),
    [
        (with_image(CHAIN, lambda i: i._replace(length=70)), "chain", "has length 70, its record in .* 60"),
        (with_image(CHAIN, lambda i: i._replace(start_offset=5)), "chain", "has start 5, its record in .* 0"),
        (
            with_image(CHAIN, lambda i: i._replace(sealed=True)),
            "chain",
            "has seal True, its record in .* Fal",
        ),
        (with_image(EMPTY, lambda i: i._replace(length=1)), "empty", "has length 1, its record in .* 0"),
        (with_image(EMPTY, lambda i: i._replace(sealed=True)), "empty", "has seal True"),
        (
            with_image(CHAIN, lambda i: i._replace(merges=MergedRanges.of([MergedRange(60, 9, 5)]))),
            "chain",
            "of 1 merges its record in long-term storage has nothing yet",
        ),
        (with_image(CHAIN, lambda i: i._replace(status=SegmentStatus.MERGED)), "chain", "it is merged, and"),
        (
            with_image(CHAIN, lambda i: i._replace(status=SegmentStatus.DELETED)),
            "chain",
            "it is deleted, and",
        ),
        (with_image(CHAIN, lambda i: i._replace(name="other")), "other", r"names of its id are \['chain'\]"),
        ([*sound().values(), name_row("twice", 3, CHAIN)], "chain", r"its id are \['chain', 'twice'\]"),
        (
            [*sound().values(), image_row(IMAGES[EMPTY]._replace(sid=8, name="t#txn.a.0"))],
            "t#txn.a.0",
            "it is staged for a transaction that is not open",
        ),
        (
            [*sound().values(), transaction_row(9, "gone")],
            "gone",
            "its transaction 'a' is open, and it has no image",
        ),
        (
            with_record(replace(CHUNKS["c2"], length=19)),
            "chain",
            "its chain has 3 chunks with 59 bytes, not 3 with 60",
        ),
        (
            with_record(replace(CHUNKS["c1"], next_chunk="c3")),
            "chain",
            "its chunk c3 has no record, or is in another chain too",
        ),
        (
            with_record(replace(CHUNKS["c3"], next_chunk="c4")),
            "chain",
            "its chain has 3 chunks with 60 bytes and goes on, not 3 with 60",
        ),
        (with_record(replace(CHUNKS["d2"], next_chunk="c1")), "cut", "and goes on"),
        (with_record(replace(CHUNKS["d1"], next_chunk="c2")), "cut", "chunk c2 has no record, or is in"),
        (
            with_record(ChunkRecord("lost", 1, "", bytes(4))),
            "",
            "the chunk lost is in no segment's chain, and in no deferred work",
        ),
        (
            [
                *with_record(ChunkRecord("l1", 1, "l2", bytes(4))),
                record_row(ChunkRecord("l2", 1, "", bytes(4))),
            ],
            "",
            "the chunk l1 and 1 behind it are in no segment's chain",
        ),
        (
            with_record(replace(RECORDS[CHAIN], segment=9)),
            "(0000000000000009)",
            "it has a record in long-term storage and no image",
        ),
    ],
)
def test_what_does_not_fit_together_is_reported(rows: list[Row], segment: str, message: str) -> None:
    assert [each for each in check(rows) if each.segment == segment and re.search(message, each.message)]


@pytest.mark.parametrize(
    "changed",
    [
        IMAGES[TABLE],
        IMAGES[CHAIN]._replace(spilled=True),
        IMAGES[CHAIN]._replace(has_ids=True),
        IMAGES[CHAIN]._replace(has_writer_rows=True),
    ],
)
def test_an_image_that_may_be_later_than_the_rows_of_its_segment_is_reported(changed: SegmentImage) -> None:
    """It has the greatest version that the cycle froze."""
    image = image_row(changed)
    rows = {**sound(), image.key: image}
    assert check(rows.values()) == []
    rows[image.key] = image._replace(version=CLEAN_TO)
    (found,) = check(rows.values())
    assert found.message == "its image may be as of a later moment than its rows"
    assert check_rows(rows.values(), attrs.evolve(RUNS, schema=CONSISTENT)).inconsistencies == []


def test_names_whose_ids_are_exchanged_are_noticed() -> None:
    """However far apart the ids are: the fingerprint of names has a few thousand parts."""
    ids = 8, 8 + 4096
    images = [IMAGES[EMPTY]._replace(sid=sid, name=f"e{sid}") for sid in ids]
    rows = [*sound().values(), *map(image_row, images)]
    assert check([*rows, *(name_row(each.name, 3, each.sid) for each in images)]) == []
    exchanged = zip(images, reversed(ids), strict=True)
    assert len(check([*rows, *(name_row(each.name, 3, sid) for each, sid in exchanged)])) == 2


def test_an_image_in_the_row_of_another_segment_is_damage() -> None:
    """Also beside its own row: two of the same image hid that its name is missing."""
    rows = sound()
    own, elsewhere = image_row(IMAGES[EMPTY]), image_key(8)
    rows[elsewhere] = own._replace(key=elsewhere)
    for missing in (name_row("empty", 3, EMPTY).key, own.key):
        found = check(row for key, row in rows.items() if key != missing)
        assert any("has that of segment 0x1" in each.message for each in found)


def test_bytes_of_the_same_length_are_of_the_same_moment() -> None:
    rows = sound()
    rows[image_key(CHAIN)] = rows[image_key(CHAIN)]._replace(version=CLEAN_TO)
    assert check(rows.values()) == []


def test_work_of_a_newer_version_is_not_passed_over() -> None:
    row = record_row(WORK[0])
    assert row.value is not None
    newer = row._replace(value=row.value[:2] + b"\xff" + row.value[3:])
    assert any(
        "only a newer version knows" in each.message for each in check({**sound(), row.key: newer}.values())
    )


def chunk_name(sid: int, number: int) -> str:
    return f"containers/0000/{sid:016x}/{number:016x}"


def many(chain_of: Callable[[int], list[str]]) -> list[Row]:
    """Five hundred segments, with these chunks."""
    rows: list[Row] = []
    for sid in range(100, 600):
        names = chain_of(sid)
        pairs = zip(names, [*names[1:], ""], strict=True) if names else ()
        rows += [record_row(ChunkRecord(name, 1, following, bytes(4))) for name, following in pairs]
        image = IMAGES[EMPTY]._replace(sid=sid, name=f"e{sid}", length=len(names))
        rows += [image_row(image), name_row(image.name, 1, sid)]
        if names:
            ends = names[0], names[-1], 0, len(names) - 1, len(names)
            rows.append(record_row(SegmentRecord(sid, len(names), 0, *ends)))
    return rows


def record_and_image(record: SegmentRecord, image: SegmentImage) -> list[Row]:
    encoded = encode_image_row(encode_image(image), 7, record.encode())
    return [record_row(record), Row(image_key(image.sid), VERSION, encoded)]


CHAINS: dict[str, Callable[[int], list[str]]] = {
    "none": lambda sid: [],
    "in the order of names": lambda sid: [chunk_name(sid, n) for n in range(3)],
    "in another order": lambda sid: [chunk_name(sid, n) for n in (2, 0, 1)],
    "of earlier segments": lambda sid: [chunk_name(sid - 50, 0), chunk_name(sid - 50, 1)],
    "of later segments": lambda sid: [chunk_name(sid, 0), chunk_name(sid + 1000, 1)],
    "with foreign names": lambda sid: [f"legacy/{sid}", f"other/{5000 - sid}"],
}


@pytest.mark.parametrize("chain_of", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("page", [7, 8192])
def test_chunks_may_be_anywhere(page: int, chain_of: Callable[[int], list[str]]) -> None:
    rows = many(chain_of)
    assert check(rows, page) == []
    chunks = [row for row in rows if row.key.startswith(b"c:")]
    if chunks:
        assert check([row for row in rows if row is not chunks[77]], page)


def test_long_chains_and_many_segments_are_checked_in_steps() -> None:
    names = [f"x{number}" for number in range(1000)]
    names = names[::2] + names[1::2]
    rows = [
        record_row(ChunkRecord(name, 1, following, bytes(4)))
        for name, following in zip(names, [*names[1:], ""], strict=True)
    ]
    image = IMAGES[CHAIN]._replace(length=1000)
    record = SegmentRecord(CHAIN, 1000, 0, names[0], names[-1], 0, 999, 1000)
    rows += [*record_and_image(record, image), name_row(image.name, 1, CHAIN), *many(CHAINS["none"])]
    steps: list[None] = []
    assert check_rows(rows, RUNS, page=8192, steps=steps) == Published(501, [])
    assert len(steps) > 10


def test_memory_does_not_grow_with_the_number_of_segments() -> None:
    """Each has a chunk, and a name that comes elsewhere in the order of names."""

    def peak(count: int) -> int:
        runs = SortedRows(count)
        tracemalloc.start()
        try:
            assert check_pages(runs.page, RUNS) == Published(count, [])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many_more = peak(500), peak(4000)
    assert many_more < few + 50_000, "bytes"


class SortedRows:
    """Rows of ``count`` segments that are made when they are read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def page(self, keys: KeyRange) -> Page:
        made = {b"g:": self._image, b"s:": self._record, b"c:": self._chunk, b"n:": self._name}
        make = made.get(keys.start[:2])
        if make is None:
            return Page([], None)

        numbers = range(self._count)
        first = bisect_left(numbers, keys.start, key=lambda number: make(number).key)
        end = bisect_left(numbers, keys.end or b"\xff", key=lambda number: make(number).key)
        rows = [make(number) for number in range(first, min(end, first + 100))]
        return Page(rows, make(first + 100).key if end > first + 100 else None)

    def _image(self, sid: int) -> Row:
        image = IMAGES[EMPTY]._replace(sid=sid, name=f"e{self._count - sid:06}", length=1)
        return record_and_image(self._record_of(sid), image)[1]

    def _record_of(self, sid: int) -> SegmentRecord:
        return SegmentRecord(sid, 1, 0, chunk_name(sid, 0), chunk_name(sid, 0), 0, 0, 1)

    def _record(self, sid: int) -> Row:
        return record_row(self._record_of(sid))

    def _chunk(self, sid: int) -> Row:
        return record_row(ChunkRecord(chunk_name(sid, 0), 1, "", bytes(4)))

    def _name(self, number: int) -> Row:
        return name_row(f"e{number + 1:06}", 1, self._count - number - 1)

"""What the cut of a cycle captures, and what the run of the cycle has (rules F1 and F10)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from support.container_parts import NAME, Parts, append, record_of
from tierlog.actors.container.cycle_cut import CycleCut
from tierlog.actors.container.ended_rows import ended_key, transaction_of_row
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.transactions import (
    AbortTransactionRequest,
    BeginTransactionRequest,
    CommitTransactionRequest,
    TransactionRequest,
)
from tierlog.actors.container.segment_rows import encode_image_row, image_key, load_of_row, name_key
from tierlog.journal.manifest.element import CONSISTENT
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.import_segment import ImportSegment
from tierlog.journal.operations.segment_image import WriterState, decode_image
from tierlog.journal.operations.transaction_image import TransactionStatus
from tierlog.storage_backends.segments.records import segment_key
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_list import RunList


def rows_of(cut: CycleCut) -> dict[bytes, Row]:
    rows = [row for row in cut.rows() if row is not None]
    assert [row.key for row in rows] == sorted({row.key for row in rows}), "one row per key, in order"
    return {row.key: row for row in rows}


def finish(cut: CycleCut, unreached: Iterable[int]) -> None:
    """The cycle ends."""
    cut.finish(unreached)
    list(cut.hold_back())


def count(cut: CycleCut, parts: Parts) -> None:
    """The run of the cycle counts."""
    cut.close()
    parts.state.table.use(
        RunList(schema=CONSISTENT, rows_to=cut.cut, records_to=cut.end, held=tuple(cut.held))
    )
    list(parts.state.hold_back())


def length_in(row: Row) -> int:
    load = load_of_row(row)
    assert load is not None
    return decode_image(load.image).length


def test_f1_an_image_is_as_of_the_cut_and_its_record_as_of_the_end() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    image, touched = segment.image(), segment.touched
    cut = CycleCut(parts.state)
    parts.do(append(NAME, b"later"))
    flush = cut.flush_of(segment)
    assert flush is not None
    assert (flush.length, flush.cut) == (3, cut.cut)
    parts.flush(NAME, length=3)
    version, record = parts.state.find_segment_record(segment.sid)
    finish(cut, ())
    parts.flush(NAME, length=8)
    row = rows_of(cut)[image_key(segment.sid)]
    assert row == (image_key(segment.sid), version, encode_image_row(image, version, record))
    assert touched <= cut.cut < version <= cut.end
    assert segment.sid in parts.state.segments.unpublished, "the next cycle has what came later"


def test_f1_names_and_records_are_published_up_to_the_cut_and_the_end() -> None:
    parts = Parts()
    early = parts.create("early")
    cut = CycleCut(parts.state)
    late = parts.create("late")
    parts.flush("early", length=0)
    finish(cut, ())
    parts.flush("late", length=0)
    assert set(rows_of(cut)) == {
        name_key("early"),
        image_key(early.sid),
        segment_key(early.sid).encode(),
    }
    count(cut, parts)
    cut = CycleCut(parts.state)
    finish(cut, ())
    rows = rows_of(cut)
    assert {name_key("late")} == {key for key in rows if key.startswith(b"n:")}
    assert late.sid in parts.state.segments


def test_m13_a_segment_whose_record_changes_during_the_cycle_is_published_with_it() -> None:
    """Chunks are joined while it is clean: its image had an old record, with which it was loaded later."""
    parts = Parts()
    segment = parts.create()
    cut = CycleCut(parts.state)
    parts.flush(NAME, length=0)
    finish(cut, ())
    rows_of(cut)
    count(cut, parts)
    assert parts.state.is_published(segment)
    cut = CycleCut(parts.state)
    parts.flush(NAME, length=0)
    record = parts.state.find_segment_record(segment.sid)
    finish(cut, ())
    load = load_of_row(rows_of(cut)[image_key(segment.sid)])
    assert load is not None
    assert (load.record_version, load.record) == record


def test_f10_a_published_segment_that_changes_before_its_record_does_is_held_back() -> None:
    parts = Parts()
    segment = parts.create()
    cut = CycleCut(parts.state)
    parts.flush(NAME, length=0)
    finish(cut, ())
    rows_of(cut)
    count(cut, parts)
    cut = CycleCut(parts.state)
    parts.do(append(NAME, b"later"))
    parts.flush(NAME, length=0)
    finish(cut, ())
    assert set(cut.held) == {segment.sid}
    assert not rows_of(cut)


def test_f10_what_is_not_flushed_to_the_cut_is_held_back() -> None:
    parts = Parts()
    parts.create("a", "b")
    parts.do(append("a", b"1"), append("b", b"2"))
    a, b = parts.segment("a"), parts.segment("b")
    cut = CycleCut(parts.state)
    parts.flush("a", length=1)
    finish(cut, [b.sid])
    assert set(cut.held) == {b.sid}
    assert set(rows_of(cut)) == {name_key("a"), image_key(a.sid), segment_key(a.sid).encode()}
    count(cut, parts)
    assert parts.state.table.find_in_memory(name_key("b")) is not None, "it stays in memory"
    assert parts.state.table.find_in_memory(name_key("a")) is None
    assert not parts.state.is_published(b)

    cut = CycleCut(parts.state)
    parts.flush("b", length=1)
    finish(cut, ())
    assert set(rows_of(cut)) == {name_key("b"), image_key(b.sid), segment_key(b.sid).encode()}
    count(cut, parts)
    assert parts.state.table.rows == 0
    assert parts.state.is_published(b)


@pytest.mark.parametrize("unreached", ["target", "source"])
def test_f10_a_target_and_its_sources_are_held_back_together(unreached: str) -> None:
    parts = Parts()
    parts.create("target", "source", "other")
    parts.do(append("source", b"s"), SealRequest("source"))
    source, target = parts.segment("source"), parts.segment("target")
    first = CycleCut(parts.state)
    for name, length in (("source", 1), ("target", 0), ("other", 0)):
        parts.flush(name, length=length)
    finish(first, ())
    rows_of(first)
    count(first, parts)

    parts.do(MergeRequest("target", ["source"], []))
    cut = CycleCut(parts.state)
    finish(cut, [parts.segment("target").sid if unreached == "target" else source.sid])
    assert set(cut.held) == {source.sid, target.sid}
    assert not rows_of(cut), "long-term storage has both as they were"
    count(cut, parts)
    tombstone = parts.state.table.find_in_memory(name_key("source"))
    assert tombstone is not None
    assert tombstone.value is None

    cut = CycleCut(parts.state)
    parts.commit({segment_key(source.sid): None})
    parts.flush("target", length=1)
    finish(cut, ())
    rows = rows_of(cut)
    assert rows[name_key("source")].value is rows[image_key(source.sid)].value is None
    assert length_in(rows[image_key(target.sid)]) == 1


def test_f10_segments_of_one_name_are_held_back_together() -> None:
    """Otherwise long-term storage alone would have both of them, or none."""
    parts = Parts()
    first = parts.create()
    cut = CycleCut(parts.state)
    parts.flush(NAME, length=0)
    finish(cut, ())
    rows_of(cut)
    count(cut, parts)
    parts.do(DeleteRequest(NAME), CreateRequest(NAME, 1 << 20))
    second = parts.segment(NAME)
    cut = CycleCut(parts.state)
    finish(cut, [first.sid])
    assert set(cut.held) == {first.sid, second.sid}
    assert not rows_of(cut)


def test_f10_an_import_during_a_cycle_is_held_back() -> None:
    """Its records are published up to the end of the cycle, and its image only if it was there at the cut."""
    parts = Parts()
    cut = CycleCut(parts.state)
    elsewhere = Parts()
    imported = elsewhere.create("imported")
    parts.log(ImportSegment(decode_image(imported.image()), tuple(record_of(imported).items())))
    finish(cut, ())
    assert set(cut.held) == {imported.sid}
    assert not rows_of(cut)
    count(cut, parts)
    cut = CycleCut(parts.state)
    finish(cut, ())
    expected = {name_key("imported"), image_key(imported.sid), segment_key(imported.sid).encode()}
    assert set(rows_of(cut)) == expected


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (CommitTransactionRequest(NAME, "txn", (), None), TransactionStatus.COMMITTED),
        (AbortTransactionRequest(NAME, "txn", ""), TransactionStatus.ABORTED),
    ],
    ids=["commit", "abort"],
)
def test_f10_the_end_of_a_transaction_without_parts_is_held_back_with_its_target(
    end: TransactionRequest, status: TransactionStatus
) -> None:
    """A driver that looks it up after a recovery finds it open, as its target was then."""
    parts = Parts()
    parts.create()
    parts.do(BeginTransactionRequest(NAME, "txn", None, 60_000))
    cut = CycleCut(parts.state)
    parts.flush(NAME, length=0)
    finish(cut, ())
    key = ended_key(NAME, "txn")
    begun = transaction_of_row(rows_of(cut)[key])
    assert begun is not None
    assert begun.status is TransactionStatus.OPEN
    count(cut, parts)

    parts.do(append(NAME, b"abc"), end)
    cut = CycleCut(parts.state)
    finish(cut, [parts.segment().sid])
    assert not rows_of(cut)
    count(cut, parts)
    cut = CycleCut(parts.state)
    parts.flush()
    finish(cut, ())
    ended = transaction_of_row(rows_of(cut)[key])
    assert ended is not None
    assert ended.status is status


def test_f10_a_segment_that_is_deleted_during_its_flush_keeps_its_earlier_rows() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abc"))
    cut = CycleCut(parts.state)
    parts.do(DeleteRequest(NAME))
    flush = cut.flush_of(segment)
    assert flush is not None
    assert not flush.deleted, "it is flushed as of the cut"
    finish(cut, [segment.sid])
    assert not rows_of(cut)
    count(cut, parts)
    cut = CycleCut(parts.state)
    flush = cut.flush_of(segment)
    assert flush is not None
    assert flush.deleted
    parts.log(ForgetSegment(segment.sid))
    finish(cut, ())
    assert {key for key, row in rows_of(cut).items() if row.value is None} == {
        name_key(NAME),
        image_key(segment.sid),
    }


def test_f10_rows_of_a_cycle_whose_flushes_have_not_ended_are_a_bug() -> None:
    parts = Parts()
    parts.create()
    cut = CycleCut(parts.state)
    with pytest.raises(RuntimeError, match="F10"):
        rows_of(cut)
    parts.flush(NAME, length=0)
    finish(cut, ())
    assert name_key(NAME) in rows_of(cut)


def test_a_cycle_that_is_not_published_gives_its_segments_back() -> None:
    parts = Parts()
    segment, gone = parts.create(), parts.create("gone")
    cut = CycleCut(parts.state)
    assert not parts.state.segments.unpublished
    parts.do(DeleteRequest("gone"))
    parts.log(ForgetSegment(gone.sid))
    list(cut.give_back())
    assert parts.state.segments.unpublished.keys() == {segment.sid}


def test_m13_an_image_with_very_many_entries_is_no_row() -> None:
    """To encode it takes a long step."""
    parts = Parts()
    segment = parts.create()
    segment.writers.update((b"%d" % number, WriterState(1, 1, 0)) for number in range(3200))
    cut = CycleCut(parts.state)
    finish(cut, ())
    assert image_key(segment.sid) not in rows_of(cut)
    assert segment.sid in parts.state.segments.unpublished


def test_m13_thousands_of_images_come_in_the_order_of_their_keys() -> None:
    parts = Parts()
    for number in range(2500):
        parts.create(f"{number}")
    order = list(parts.state.segments.ids())
    parts.state.segments.unpublished.clear()
    parts.state.segments.unpublished.update((sid, None) for sid in reversed(order))
    cut = CycleCut(parts.state)
    finish(cut, ())
    assert [key for key in rows_of(cut) if key.startswith(b"g:")] == sorted(map(image_key, order))


def test_a_checkpoint_has_no_rows_of_what_left_memory_while_others_are_held_back() -> None:
    """Recovery would keep their records in memory for good."""
    parts = Parts()
    idle, late = parts.create("idle"), parts.create("late")
    parts.flush("idle", length=0)
    cut = CycleCut(parts.state)
    finish(cut, {late.sid})
    parts.state.table.use(
        RunList(schema=CONSISTENT, rows_to=cut.cut, records_to=cut.end, held=tuple(cut.held))
    )
    cut.close()
    parts.state.unload_segment(idle.sid)
    records = parts.state.begin_snapshot().take(1000, 1 << 20)

    assert name_key("late") in {row.key for row in records.rows}
    assert segment_key(idle.sid).encode() not in {row.key for row in records.rows}


def test_f10_thousands_of_held_segments_are_named_in_order() -> None:
    parts = Parts()
    names = [f"{number:04d}" for number in range(5000)]
    parts.create(*names)
    sids = [parts.segment(name).sid for name in names]
    cut = CycleCut(parts.state)
    finish(cut, reversed(sids))
    assert list(cut.held) == sorted(sids)
    assert all(sid in cut.held for sid in sids)
    assert not any(sid in cut.held for sid in (0, max(sids) + 1))

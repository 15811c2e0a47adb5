"""What each operation does to a container's state, and the copy-on-write snapshot of a checkpoint."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.container_parts import NAME, ROLLING, Parts, append, by_writer
from support.table_rows import records_in_memory
from tierlog.actors.container.operations.attributes import AttributesRequest
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.truncate import TruncateRequest
from tierlog.actors.container.operations.writers import ExpireWritersRequest
from tierlog.actors.container.requests import Request
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.snapshot import Snapshot
from tierlog.actors.container.state import NO_CYCLE, ContainerState
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.checkpoint import CheckpointBegin, CheckpointEnd, CheckpointPart
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.merge_segments import MergeSegments
from tierlog.journal.operations.operation import Operation
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.segment_image import MergedRange, SegmentStatus, decode_image
from tierlog.journal.operations.update_attributes import UpdateAttributes
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.ids import segment_id
from tierlog.storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind
from tierlog.storage_backends.segments.records.segment import SEGMENT_PREFIX
from tierlog.storage_backends.sorted_runs.memtable import SLICE_KEYS
from tierlog.storage_backends.sorted_runs.rows import Row

# --- one operation -------------------------------------------------------------------------------


def test_every_operation_takes_one_sequence() -> None:
    state = ContainerState(epoch=1)
    sid = segment_id(1, 1)
    ops: list[Operation] = [
        CreateSegment(sid, NAME, 10),
        Append(sid, 0, b"x", b"", 0, 0),
        Barrier(),
        RelogData(sid, 0, b"x"),
    ]
    for number, op in enumerate(ops, 1):
        state.apply(op)
        assert state.sequence == number

    assert state.client_sequence == 2


@pytest.mark.parametrize(
    "op",
    [
        Barrier(),
        CheckpointBegin(1),
        CheckpointPart(1, (), ()),
        CheckpointEnd(1, 1, 1, NO_CYCLE),
        RelogData(99, 0, b"x"),
    ],
    ids=repr,
)
def test_operations_without_an_effect_have_none(op: Operation) -> None:
    parts = Parts()
    segment = parts.create()
    before = segment.image(), segment.touched
    parts.state.apply(op)

    assert (segment.image(), segment.touched) == before


def test_merges_nested_deeper_than_the_stack_are_deleted_with_their_target() -> None:
    """An exception here would come again in each replay of the operation (rule C5)."""
    parts = Parts()
    depth = sys.getrecursionlimit()
    parts.create("app/0")
    parts.do(append("app/0", b"x"))
    for level in range(depth):
        target = f"app/{level + 1}"
        parts.do(SealRequest(f"app/{level}"), CreateRequest(target, ROLLING))
        parts.do(MergeRequest(target, [f"app/{level}"], ()))
    segments = list(parts.state.segments.by_id.values())
    parts.do(DeleteRequest(f"app/{depth}"))

    assert len(segments) == depth + 1
    assert {segment.status for segment in segments} == {SegmentStatus.DELETED}
    assert not any(segment.sid in parts.cache for segment in segments)


def test_attributes_take_results_not_conditions() -> None:
    """Applying the logged result again leads to the same value, accumulated or not."""
    parts = Parts()
    segment = parts.create()
    parts.do(AttributesRequest(NAME, [AttributeUpdate("n", 2, AttributeUpdateKind.ACCUMULATE)]))
    parts.log(UpdateAttributes(segment.sid, (("n", 2),)))

    assert segment.attributes == {"n": 2}


def test_the_newest_complete_cycle_is_kept() -> None:
    state = ContainerState(epoch=1)
    state.apply(CycleComplete(1, 1, 0, False))
    state.apply(CycleComplete(1, 2, 1, True))

    assert state.cycle == CycleComplete(1, 2, 1, True)


def test_the_metadata_commit_is_the_flush_position() -> None:
    """F3: replay neither reads long-term storage nor compares bytes; the record is the flush position."""
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abcdef"))
    parts.flush(length=4)

    assert (segment.has_record, segment.flushed, segment.is_flushed) == (True, 4, False)
    parts.flush()
    assert segment.is_flushed


def test_a_merge_above_the_flush_position_stays() -> None:
    parts = Parts()
    target = parts.create("t")
    parts.create("s")
    parts.do(append("t", b"tt"), append("s", b"sss"), SealRequest("s"), MergeRequest("t", ["s"], []))
    parts.flush("t", length=2)

    assert list(target.merges) == [MergedRange(2, segment_id(1, 2), 3)]
    assert not target.is_flushed


def test_ids_count_on_from_what_this_epoch_created() -> None:
    """C2: replayed creations of earlier owners do not move this owner's counter."""
    state = ContainerState(epoch=2)
    state.apply(CreateSegment(segment_id(1, 900), "old", 10))
    assert state.next_segment_id() == segment_id(2, 1)
    state.apply(CreateSegment(state.next_segment_id(), "new", 10))
    assert state.next_segment_id() == segment_id(2, 2)


@pytest.mark.parametrize(
    "op",
    [
        Append(1 << 32 | 1, 7, b"x", b"", 0, 0),
        Append(99, 0, b"x", b"", 0, 0),
        MergeSegments(1 << 32 | 1, 7, (), ()),
        MergeSegments(1 << 32 | 1, 0, ((99, 1),), ()),
        CreateSegment(1 << 32 | 1, "other", 10),
        CreateSegment(1 << 32 | 9, NAME, 10),
        ForgetSegment(99),
    ],
    ids=repr,
)
def test_an_impossible_operation_is_not_applied_silently(op: Operation) -> None:
    """C5: live this poisons the container, in replay it is corruption."""
    parts = Parts()
    parts.create()
    with pytest.raises((ValueError, KeyError)):
        parts.state.apply(op)


# --- recovery's way in --------------------------------------------------------------------------


def test_a_restored_segment_takes_its_flush_position_from_the_metadata() -> None:
    parts = Parts()
    segment = parts.create()
    parts.do(append(NAME, b"abcdef"), TruncateRequest(NAME, 2), SealRequest(NAME))
    parts.flush(length=4)
    state = ContainerState(epoch=2)
    for key, (version, value) in records_in_memory(parts.state).items():
        state.restore_row(Row(key.encode(), version, value))
    state.restore(SegmentState.from_image(decode_image(segment.image())))
    restored = state.segments.find(NAME)

    assert restored is not None
    assert (restored.flushed, restored.flushed_start, restored.flushed_sealed, restored.has_record) == (
        4,
        2,
        True,
        True,
    )


@pytest.mark.parametrize(("dirty", "due"), [(True, 50), (False, 30)])
def test_after_a_restore_only_unflushed_work_makes_a_cycle_due(dirty: bool, due: int) -> None:
    """F5: opening a store that is flushed makes no cycle due."""
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"x"))
    if not dirty:
        parts.flush()
    parts.state.restored(50, CycleComplete(1, 1, 30, True), 1000)

    assert parts.state.sequence == 50
    assert parts.state.client_sequence == due


# --- snapshots (C7) -----------------------------------------------------------------------------


def take_all(snapshot: Snapshot, limit: int = 2) -> tuple[set[bytes], dict[str, tuple[int, bytes]]]:
    images: list[tuple[int, bytes]] = []
    rows: list[Row] = []
    while not snapshot.is_complete:
        part = snapshot.take(limit, 1 << 20)
        assert len(part.images) + len(part.rows) <= limit
        images += part.images
        rows += part.rows

    assert len(images) == len(set(images)), "each segment is taken once"
    return {image for _, image in images}, {
        row.key.decode(): (row.version, row.value) for row in rows if row.value is not None
    }


def test_records_that_do_not_belong_to_a_snapshot_count_as_work() -> None:
    """C7: those written after it, and the resident ones that are dirty. No step visits many at once."""
    state = ContainerState(epoch=1)
    dirty = {f"{SEGMENT_PREFIX}{number:016x}": bytes(8) for number in range(100)}
    state.sequence = 1
    state.write_records([*dirty.items(), ("z", b"")])
    snapshot = state.begin_snapshot()
    state.sequence = 2
    state.write_records([(f"a{number:04d}", b"") for number in range(1000)])

    steps, rows = 0, []
    while not snapshot.is_complete:
        rows += snapshot.take(20, 1 << 20).rows
        steps += 1
    assert {row.key.decode(): row.value for row in rows} == {**dirty, "z": b""}
    assert steps > (100 + 1000 - SLICE_KEYS) // 20


def all_images(state: ContainerState) -> set[bytes]:
    return {segment.image() for segment in state.segments.by_id.values()}


def test_one_snapshot_at_a_time() -> None:
    state = ContainerState(epoch=1)
    state.begin_snapshot()
    with pytest.raises(RuntimeError, match="in progress"):
        state.begin_snapshot()

    state.end_snapshot()
    state.begin_snapshot()


def test_a_snapshot_has_sequence_and_cycle() -> None:
    parts = Parts()
    parts.create()
    parts.log(CycleComplete(1, 1, 1, True))
    snapshot = parts.state.begin_snapshot()
    parts.log(CycleComplete(1, 2, 2, True))

    assert snapshot.sequence == 2
    assert snapshot.cycle == CycleComplete(1, 1, 1, True)


names = st.sampled_from(["a", "b", "c"])
changes: st.SearchStrategy[Request | str] = st.one_of(
    st.builds(CreateRequest, names, st.just(ROLLING)),
    st.builds(append, names, st.binary(max_size=3)),
    st.builds(lambda name, first: by_writer(b"x", first, name=name), names, st.integers(0, 3)),
    st.builds(SealRequest, names),
    st.builds(TruncateRequest, names, st.integers(0, 3)),
    st.builds(DeleteRequest, names),
    st.builds(
        lambda name: AttributesRequest(name, [AttributeUpdate("n", 1, AttributeUpdateKind.ACCUMULATE)]), names
    ),
    st.builds(lambda target, source: MergeRequest(target, [source], []), names, names),
    st.builds(lambda name: ExpireWritersRequest(name, [b"w"]), names),
    st.sampled_from(["flush a", "flush b", "forget", "take"]),
)


def change(parts: Parts, step: Request | str, snapshot: Snapshot | None, taken: list[bytes]) -> None:
    table = parts.state.segments
    if isinstance(step, Request):
        try:
            parts.do(step)
        except TierlogError:
            return
    elif step.startswith("flush"):
        if (segment := table.find(step[-1])) and not segment.merges:
            parts.flush(step[-1])
    elif step == "take":
        taken += [image for _, image in snapshot.take(1, 1 << 20).images] if snapshot else ()
    elif deleted := next((s for s in table.by_id.values() if s.status is SegmentStatus.DELETED), None):
        parts.log(ForgetSegment(deleted.sid))


@given(st.lists(changes, max_size=30))
def test_what_is_not_flushed_is_dirty(steps: list[Request | str]) -> None:
    """F1: a flush cycle, a checkpoint and a recovery look at dirty segments only."""
    parts = Parts()
    table = parts.state.segments
    unflushed: set[int] = set()
    for step in steps:
        change(parts, step, None, [])
        unflushed = {sid for sid, segment in table.by_id.items() if not segment.is_clean}
        assert unflushed <= table.dirty.keys() <= table.by_id.keys()

    assert {segment.sid for segment in table.dirty_segments()} == unflushed == table.dirty.keys()


@given(st.lists(changes, max_size=20), st.lists(changes, max_size=20))
def test_a_snapshot_is_the_state_at_its_begin(
    before: list[Request | str], after: list[Request | str]
) -> None:
    """C7: copy-on-write, so an operation on more than one segment is in it as a whole or not at all."""
    parts = Parts()
    for step in before:
        change(parts, step, None, [])
    images, entries = all_images(parts.state), records_in_memory(parts.state)
    snapshot = parts.state.begin_snapshot()

    taken: list[bytes] = []
    for step in after:
        change(parts, step, snapshot, taken)
    rest, found_entries = take_all(snapshot)

    # A "take" step of one record may have taken an entry instead of an image; those are the ones missing
    # here.
    assert rest | set(taken) == images
    assert found_entries.items() <= entries.items()
    if "take" not in after:
        assert found_entries == entries

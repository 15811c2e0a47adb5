"""Each kind of lie that a store can tell about a family: the checker must notice every one."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from simulation.linearize import Violation
from simulation.model_calls import Create, Delete, ExpireWriters, Info, ListNames, Merge, Read, Seal, Truncate
from simulation.view import SegmentView, View

from support.checker_bench import READ, Bench, adding, append, bench_with_abc, f, impossible, info, written
from tierlog import AttributeUpdate
from tierlog.storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
    SegmentTruncated,
    Unavailable,
    Unsupported,
)


@pytest.fixture
def bench() -> Bench:
    return bench_with_abc()


def test_a_lost_ack_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.fence(f(b""))


def test_an_append_that_is_there_twice_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(READ, b"abcabc")


def test_an_append_in_doubt_that_is_there_twice_is_noticed(bench: Bench) -> None:
    bench.doubtful(append(b"d"))

    with impossible():
        bench.fence(f(b"abcdd"))


def test_calls_out_of_their_order_in_time_are_noticed(bench: Bench) -> None:
    bench.returns(append(b"1"), 3)
    bench.doubtful(append(b"2"))

    with impossible():
        bench.returns(READ, b"abc21")


def test_a_stale_read_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(READ, b"")


def test_a_read_that_hides_the_tail_from_a_later_one_is_noticed(bench: Bench) -> None:
    bench.doubtful(append(b"d"))
    bench.returns(READ, b"abcd")

    with impossible():
        bench.returns(Read("f", 3, 9), b"")


def test_bytes_that_were_read_and_vanish_at_a_fence_are_noticed(bench: Bench) -> None:
    bench.begin(append(b"d"))
    bench.returns(READ, b"abcd")

    with impossible():
        bench.fence(f(b"abc"))


def test_bytes_that_nobody_wrote_are_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(READ, b"abX")


def test_an_offset_that_is_returned_twice_is_noticed(bench: Bench) -> None:
    one, two = bench.begin(append(b"1")), bench.begin(append(b"2"))
    bench.checker.answered(one, 3)

    with impossible():
        bench.checker.answered(two, 3)


def test_a_gap_before_an_append_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(append(b"d"), 4)


@pytest.mark.parametrize("offset", [None, 4])
def test_a_repeat_with_another_offset_is_noticed(bench: Bench, offset: int | None) -> None:
    bench.returns(written(0, b"d"), 3)

    with impossible():
        bench.returns(written(0, b"d"), offset)


def test_an_earlier_event_with_an_offset_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)
    bench.returns(written(1, b"e"), 4)

    with impossible():
        bench.returns(written(0, b"d"), 3)


def test_a_predecessor_that_was_skipped_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)

    with impossible():
        bench.returns(written(2, b"f"), 4)


def test_out_of_order_with_another_number_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)

    with impossible():
        bench.refused(written(2, b"f"), OutOfOrder("no", segment="f", last_event_number=1))


def test_a_batch_that_was_split_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)
    bench.refused(written(0, b"d", b"e"), InvalidArgument("partly applied"))

    with impossible():
        bench.returns(written(0, b"d", b"e"), 4)


def test_half_a_batch_is_noticed(bench: Bench) -> None:
    bench.doubtful(append(b"d", b"e"))

    with impossible():
        bench.fence(f(b"abcd"))


def test_an_expired_writer_that_starts_afresh_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)
    bench.returns(ExpireWriters("f", ("w",)), 1)

    with impossible():
        bench.returns(written(0, b"d"), 4)


def test_a_writer_whose_number_went_back_is_noticed(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)
    bench.returns(written(1, b"e"), 4)

    with impossible():
        bench.fence(f(b"abcde", last_numbers={"w": 0}))


def test_a_conditional_append_at_another_offset_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(append(b"d", at=2), 3)


def test_a_bad_offset_with_another_length_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(append(b"d", at=2), BadOffset("no", segment="f", expected=4, given=2))


def test_a_conditional_append_that_was_refused_and_done_is_noticed(bench: Bench) -> None:
    bench.refused(append(b"d", at=2), BadOffset("no", segment="f", expected=3, given=2))

    with impossible():
        bench.returns(READ, b"abcd")


def test_a_seal_that_is_ignored_is_noticed(bench: Bench) -> None:
    bench.returns(Seal("f"), 3)

    with impossible():
        bench.returns(append(b"d"), 3)


def test_a_seal_that_is_lost_is_noticed(bench: Bench) -> None:
    bench.returns(Seal("f"), 3)

    with impossible():
        bench.fence(f())


def test_a_segment_that_seems_sealed_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(append(b"d"), SegmentSealed("no", segment="f"))


def test_a_truncation_that_is_lost_is_noticed(bench: Bench) -> None:
    bench.returns(Truncate("f", 2))

    with impossible():
        bench.returns(READ, b"abc")


def test_a_truncation_too_far_is_noticed(bench: Bench) -> None:
    bench.returns(Truncate("f", 1))
    bench.refused(READ, SegmentTruncated("no", segment="f", start_offset=1))

    with impossible():
        bench.refused(READ, SegmentTruncated("no", segment="f", start_offset=2))


def test_a_deleted_segment_that_comes_back_is_noticed(bench: Bench) -> None:
    bench.returns(Delete("f"))

    with impossible():
        bench.fence(f())


def test_a_deleted_segment_that_is_still_listed_is_noticed(bench: Bench) -> None:
    bench.returns(Delete("f"))
    bench.returns(ListNames("f"), [])

    with impossible():
        bench.returns(ListNames("f"), ["f"])


def test_bytes_of_a_deleted_segment_in_its_successor_are_noticed(bench: Bench) -> None:
    bench.returns(Delete("f"))
    bench.returns(Create("f"))

    with impossible():
        bench.returns(READ, b"abc")


def test_a_recreated_segment_with_the_old_id_is_noticed(bench: Bench) -> None:
    bench.returns(Info("f"), info(7))
    bench.returns(Delete("f"))
    bench.returns(Create("f"))

    with impossible():
        bench.returns(Info("f"), info(7, 0))


def test_a_segment_whose_id_changes_is_noticed(bench: Bench) -> None:
    bench.returns(Info("f"), info(7))

    with impossible():
        bench.fence(f(segment_id=8))


def test_an_id_of_another_segment_is_fine_where_the_name_may_have_been_created_again(bench: Bench) -> None:
    bench.returns(Truncate("f", 3))
    bench.returns(Info("f"), info(7, start_offset=3))
    for op in (Delete("f"), Create("f"), append(b"abc")):
        bench.doubtful(op)

    bench.checker.observe(f(segment_id=8))


@pytest.mark.parametrize(
    "change",
    [{"length": 4}, {"sealed": True}, {"start_offset": 1}, {"attributes": {"a": 1}}, {"flushed_length": 4}],
)
def test_an_info_that_is_wrong_anywhere_is_noticed(bench: Bench, change: dict[str, Any]) -> None:
    bench.returns(Info("f"), info(7))

    with impossible():
        bench.returns(Info("f"), attrs.evolve(info(7), **change))


def test_an_existing_segment_that_is_not_found_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(READ, SegmentNotFound("no", segment="f"))


def test_a_name_that_seems_taken_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(Create("f#1"), SegmentExists("no", segment="f#1"))


@pytest.fixture
def merging(bench: Bench) -> Bench:
    bench.returns(Create("f#1"))
    bench.returns(append(b"de", name="f#1"), 0)
    bench.returns(Seal("f#1"), 2)
    return bench


MERGE = Merge("f", ("f#1",), (AttributeUpdate("m", 1),))
SOURCE = {"f#1": SegmentView(data=b"de", sealed=True)}


@pytest.mark.parametrize(
    "view",
    [
        f(b"abc", attributes={"m": 1}),
        f(b"abcde"),
        f(b"abcd", attributes={"m": 1}),
        f(b"abcde", attributes={"m": 1}) | SOURCE,
        f(b"abc", attributes={"m": 1}) | SOURCE,
        f(),
    ],
    ids=[
        "bytes lost",
        "attribute lost",
        "half the bytes",
        "source still there",
        "attribute only",
        "source lost",
    ],
)
def test_half_a_merge_is_noticed(merging: Bench, view: View) -> None:
    merging.doubtful(MERGE)

    with impossible():
        merging.fence(view)


@pytest.mark.parametrize("view", [f() | SOURCE, f(b"abcde", attributes={"m": 1})], ids=["not done", "done"])
def test_a_merge_in_doubt_is_whole_or_absent(merging: Bench, view: View) -> None:
    merging.doubtful(MERGE)
    merging.fence(view)


def test_an_attribute_that_is_lost_is_noticed(bench: Bench) -> None:
    bench.returns(adding(2), {"a": 2})

    with impossible():
        bench.fence(f())


def test_an_accumulation_that_is_applied_twice_is_noticed(bench: Bench) -> None:
    bench.returns(adding(2), {"a": 2})

    with impossible():
        bench.returns(adding(1), {"a": 5})


def test_a_condition_that_holds_and_is_refused_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(adding(1), AttributeConflict("no", segment="f"))


def test_a_call_of_an_earlier_owner_that_is_applied_after_the_fence_is_noticed(bench: Bench) -> None:
    bench.doubtful(append(b"d"))
    bench.fence(f())

    with impossible():
        bench.returns(READ, b"abcd")


def test_an_ack_of_a_zombie_that_no_later_owner_shows_is_noticed(bench: Bench) -> None:
    late = bench.begin(append(b"d"))
    bench.fence(f())

    with impossible():
        bench.checker.answered(late, 3)


def test_a_zombie_that_answers_what_it_is_asked_after_the_fence_is_noticed(bench: Bench) -> None:
    bench.fence(f())
    late = bench.checker.begin(READ, owner=0)

    with impossible():
        bench.checker.answered(late, b"abc")


def test_a_zombie_that_reads_what_the_new_owner_wrote_is_noticed(bench: Bench) -> None:
    late = bench.begin(READ)
    bench.fence(f())
    bench.returns(append(b"d"), 3)

    with impossible():
        bench.checker.answered(late, b"abcd")


def test_a_refusal_that_promised_nothing_but_was_done_is_noticed(bench: Bench) -> None:
    call = bench.begin(append(b"d"))
    bench.returns(READ, b"abcd")

    with pytest.raises(Violation, match="promises that nothing was done"):
        bench.checker.refused(call, Unavailable("not now"))


def test_an_error_that_no_call_may_raise_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.refused(READ, Unsupported("cannot"))


def test_an_answer_of_another_kind_is_noticed(bench: Bench) -> None:
    with impossible():
        bench.returns(READ, None)


def test_two_pending_calls_cannot_both_have_been_first(bench: Bench) -> None:
    one, two = bench.begin(append(b"1", at=3)), bench.begin(append(b"2", at=3))
    bench.checker.answered(one, 3)

    with impossible():
        bench.checker.answered(two, 3)


def test_two_readers_that_saw_different_orders_are_noticed(bench: Bench) -> None:
    bench.doubtful(append(b"1"))
    bench.doubtful(append(b"2"))
    one, two = bench.begin(READ), bench.begin(READ)
    bench.checker.answered(one, b"abc1")

    with impossible():
        bench.checker.answered(two, b"abc2")

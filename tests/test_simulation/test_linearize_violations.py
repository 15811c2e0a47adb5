"""Each kind of lie that a store can tell about a family: the checker must notice every one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any

import pytest
from msgspec.structs import replace
from simulation.linearize import Violation
from simulation.model import Block
from simulation.model_calls import (
    Create,
    Delete,
    ExpireWriters,
    Info,
    ListNames,
    Merge,
    NextBlock,
    Read,
    Seal,
    Truncate,
)
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


returns, refused, doubtful, fence = (
    partial(methodcaller, step) for step in ("returns", "refused", "doubtful", "fence")
)
"""The steps of a history, for a bench with a segment ``f`` of the bytes ``abc``."""

LIES: dict[str, list[Callable[[Bench], object]]] = {
    "a lost ack": [fence(f(b""))],
    "an append that is there twice": [returns(READ, b"abcabc")],
    "an append in doubt that is there twice": [doubtful(append(b"d")), fence(f(b"abcdd"))],
    "calls out of their order in time": [
        returns(append(b"1"), 3),
        doubtful(append(b"2")),
        returns(READ, b"abc21"),
    ],
    "a stale read": [returns(READ, b"")],
    "a read that hides the tail from a later one": [
        doubtful(append(b"d")),
        returns(READ, b"abcd"),
        returns(Read("f", 3, 9), b""),
    ],
    "bytes that nobody wrote": [returns(READ, b"abX")],
    "a gap before an append": [returns(append(b"d"), 4)],
    "an earlier event with an offset": [
        returns(written(0, b"d"), 3),
        returns(written(1, b"e"), 4),
        returns(written(0, b"d"), 3),
    ],
    "a predecessor that was skipped": [returns(written(0, b"d"), 3), returns(written(2, b"f"), 4)],
    "out of order with another number": [
        returns(written(0, b"d"), 3),
        refused(written(2, b"f"), OutOfOrder("no", segment="f", last_event_number=1)),
    ],
    "a batch that was split": [
        returns(written(0, b"d"), 3),
        refused(written(0, b"d", b"e"), InvalidArgument("partly applied")),
        returns(written(0, b"d", b"e"), 4),
    ],
    "half a batch": [doubtful(append(b"d", b"e")), fence(f(b"abcd"))],
    "an expired writer that starts afresh": [
        returns(written(0, b"d"), 3),
        returns(ExpireWriters("f", ("w",)), 1),
        returns(written(0, b"d"), 4),
    ],
    "a writer whose number went back": [
        returns(written(0, b"d"), 3),
        returns(written(1, b"e"), 4),
        fence(f(b"abcde", last_numbers={"w": 0})),
    ],
    "a conditional append at another offset": [returns(append(b"d", at=2), 3)],
    "a bad offset with another length": [
        refused(append(b"d", at=2), BadOffset("no", segment="f", expected=4, given=2))
    ],
    "a conditional append that was refused and done": [
        refused(append(b"d", at=2), BadOffset("no", segment="f", expected=3, given=2)),
        returns(READ, b"abcd"),
    ],
    "a seal that is ignored": [returns(Seal("f"), 3), returns(append(b"d"), 3)],
    "a seal that is lost": [returns(Seal("f"), 3), fence(f())],
    "a segment that seems sealed": [refused(append(b"d"), SegmentSealed("no", segment="f"))],
    "a truncation that is lost": [returns(Truncate("f", 2)), returns(READ, b"abc")],
    "a truncation too far": [
        returns(Truncate("f", 1)),
        refused(READ, SegmentTruncated("no", segment="f", start_offset=1)),
        refused(READ, SegmentTruncated("no", segment="f", start_offset=2)),
    ],
    "a deleted segment that comes back": [returns(Delete("f")), fence(f())],
    "a deleted segment that is still listed": [
        returns(Delete("f")),
        returns(ListNames("f"), []),
        returns(ListNames("f"), ["f"]),
    ],
    "bytes of a deleted segment in its successor": [
        returns(Delete("f")),
        returns(Create("f")),
        returns(READ, b"abc"),
    ],
    "a recreated segment with the old id": [
        returns(Info("f"), info(7)),
        returns(Delete("f")),
        returns(Create("f")),
        returns(Info("f"), info(7, 0)),
    ],
    "a segment whose id changes": [returns(Info("f"), info(7)), fence(f(segment_id=8))],
    "an existing segment that is not found": [refused(READ, SegmentNotFound("no", segment="f"))],
    "a name that seems taken": [refused(Create("f#1"), SegmentExists("no", segment="f#1"))],
    "a tail that goes on in a later segment of the name": [
        returns(NextBlock("f", 0, 2), Block(b"ab", 7)),
        returns(Delete("f")),
        returns(Create("f")),
        returns(append(b"xyz"), 0),
        returns(NextBlock("f", 2, 2, 7), Block(b"z", 7)),
    ],
    "a tail that ends although its segment exists": [
        returns(NextBlock("f", 0, 2), Block(b"ab", 7)),
        refused(NextBlock("f", 2, 2, 7), SegmentNotFound("replaced", segment="f")),
    ],
    "an attribute that is lost": [returns(adding(2), {"a": 2}), fence(f())],
    "an accumulation that is applied twice": [returns(adding(2), {"a": 2}), returns(adding(1), {"a": 5})],
    "a condition that holds and is refused": [refused(adding(1), AttributeConflict("no", segment="f"))],
    "a call of an earlier owner that is applied after the fence": [
        doubtful(append(b"d")),
        fence(f()),
        returns(READ, b"abcd"),
    ],
    "an error that no call may raise": [refused(READ, Unsupported("cannot"))],
    "an answer of another kind": [returns(READ, None)],
}


@pytest.mark.parametrize("history", LIES.values(), ids=LIES)
def test_a_lie_at_the_end_of_a_history_is_noticed(
    bench: Bench, history: list[Callable[[Bench], object]]
) -> None:
    for step in history[:-1]:
        step(bench)

    with impossible():
        history[-1](bench)


def test_bytes_that_were_read_and_vanish_at_a_fence_are_noticed(bench: Bench) -> None:
    bench.begin(append(b"d"))
    bench.returns(READ, b"abcd")

    with impossible():
        bench.fence(f(b"abc"))


def test_an_offset_that_is_returned_twice_is_noticed(bench: Bench) -> None:
    one, two = bench.begin(append(b"1")), bench.begin(append(b"2"))
    bench.checker.answered(one, 3)

    with impossible():
        bench.checker.answered(two, 3)


@pytest.mark.parametrize("offset", [None, 4])
def test_a_repeat_with_another_offset_is_noticed(bench: Bench, offset: int | None) -> None:
    bench.returns(written(0, b"d"), 3)

    with impossible():
        bench.returns(written(0, b"d"), offset)


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
        bench.returns(Info("f"), replace(info(7), **change))


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


def test_an_ack_of_a_zombie_that_no_later_owner_shows_is_noticed(bench: Bench) -> None:
    late = bench.begin(append(b"d"))
    bench.fence(f())

    with impossible():
        bench.checker.answered(late, 3)


def test_a_zombie_that_answers_queries_after_the_fence_is_noticed(bench: Bench) -> None:
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

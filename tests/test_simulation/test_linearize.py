"""What the checker lets pass, and how it speaks."""

from __future__ import annotations

import pytest
from simulation.configuration import TooManyConfigurations
from simulation.linearize import Checker, Violation
from simulation.model import Block
from simulation.model_calls import (
    Create,
    Delete,
    ExpireWriters,
    LastEventNumber,
    NextBlock,
    Read,
    Seal,
    Truncate,
)

from support.checker_bench import READ, Bench, adding, append, bench_with_abc, f, impossible, written
from tierlog.storage_backends.base.errors import (
    ClosedError,
    DataCorruption,
    NotOwner,
    SegmentNotFound,
    StorageFull,
    Throttled,
    TierlogError,
    Unavailable,
)


@pytest.fixture
def bench() -> Bench:
    return bench_with_abc()


def test_a_repeat_of_a_write_in_doubt_takes_effect_once(bench: Bench) -> None:
    bench.doubtful(written(0, b"d"))
    bench.returns(written(0, b"d"), 3)

    bench.checker.observe(f(b"abcd", last_numbers={"w": 0}))
    assert len(bench.checker.states) == 1


def test_a_tail_ends_when_its_segment_is_replaced(bench: Bench) -> None:
    bench.returns(NextBlock("f", 0, 2), Block(b"ab", 7))
    bench.returns(Delete("f"))
    bench.returns(Create("f"))
    bench.refused(NextBlock("f", 2, 2, 7), SegmentNotFound("replaced", segment="f"))
    bench.returns(append(b"xyz"), 0)
    bench.returns(Truncate("f", 3))
    bench.refused(NextBlock("f", 2, 2, 7), SegmentNotFound("replaced", segment="f"))


def test_a_call_of_the_present_owner_is_not_settled_by_a_fence_of_earlier_ones(bench: Bench) -> None:
    bench.owner = 5
    bench.doubtful(append(b"d"))
    bench.checker.fence(5, f(b"abc"))

    bench.returns(READ, b"abcd")


@pytest.mark.parametrize("tail, other", [(b"", b"d"), (b"d", b"")])
def test_a_fence_without_an_observation_settles_earlier_calls(
    bench: Bench, tail: bytes, other: bytes
) -> None:
    bench.doubtful(append(b"d"))
    bench.fence(None)
    bench.returns(Read("f", 3, 9), tail)

    with impossible():
        bench.returns(Read("f", 3, 9), other)


def test_equal_calls_in_doubt_cost_little() -> None:
    bench = Bench(limit=100)
    bench.returns(Create("f"))
    for _ in range(12):
        bench.doubtful(adding(1))

    bench.returns(adding(0), {"a": 7})
    assert len(bench.checker.states) == 1


def test_many_appends_in_doubt_cost_nothing_once_an_offset_is_known() -> None:
    bench = Bench(limit=50)
    bench.returns(Create("f"))
    for number in range(30):
        bench.doubtful(append(b"%02d" % number))
        bench.returns(append(b"x"), number)

    bench.returns(Read("f", 29, 9), b"x")
    assert len(bench.checker.states) == 1


def test_too_many_explanations_are_an_error_of_their_own(bench: Bench) -> None:
    bench.checker = Checker("f", limit=30)
    bench.returns(Create("f"))
    for number in range(6):
        bench.doubtful(append(b"%d" % number))

    with pytest.raises(TooManyConfigurations, match="in doubt"):
        bench.returns(Seal("f"), 6)


@pytest.mark.parametrize("error", [Unavailable, Throttled, StorageFull, ClosedError, NotOwner])
def test_a_refusal_that_promises_that_nothing_was_done_is_kept(
    bench: Bench, error: type[TierlogError]
) -> None:
    bench.refused(append(b"d"), error("not now"))

    with impossible():
        bench.returns(READ, b"abcd")


def test_damage_is_no_answer_unless_it_was_done(bench: Bench) -> None:
    call = bench.begin(READ)
    bench.checker.refused(call, DataCorruption("broken"), corruption_expected=True)

    with impossible():
        bench.refused(READ, DataCorruption("broken"))


def test_the_checker_knows_which_segments_to_query(bench: Bench) -> None:
    bench.returns(written(0, b"d"), 3)
    bench.returns(LastEventNumber("f", "v"), None)
    bench.returns(ExpireWriters("f", ("u", "w")), 1)

    assert bench.checker.writers == {"f": ("w", "v", "u")}


def test_a_violation_names_the_answer_and_what_was_possible(bench: Bench) -> None:
    bench.doubtful(append(b"defg"))

    with pytest.raises(Violation) as caught:
        bench.returns(append(b"x"), 5)

    text = str(caught.value)
    for piece in (
        "returned 5",
        "Returned(value=3)",
        "(in doubt): Append(name='f', events=[b'defg']",
        "#2 returned 0",
        "pending calls",
    ):
        assert piece in text

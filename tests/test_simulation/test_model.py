"""How answers and views are compared with the model's. That a store gives the model's answers is shown in
``tests/actors/store/test_model.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from simulation.model import Outcome, State, refusal, staged_names
from simulation.model_calls import (
    Append,
    Create,
    Delete,
    Op,
    Read,
    UpdateAttributes,
)
from simulation.model_transactions import Begin, LookUp, ReturnedTransaction
from simulation.view import SegmentView, difference, shows, view_for

from support.random_calls import LEASE
from tierlog import AttributeUpdate
from tierlog.storage_backends.base.errors import (
    BadOffset,
    SegmentSealed,
)
from tierlog.storage_backends.base.transactions import StagedPart, TransactionInfo, TransactionState

Script = Sequence[tuple[Op, Any]]
"""Calls, and what each returns: a value, or a refusal."""

ABC = [(Create("f"), None), (Append("f", (b"abc",)), 0)]


def attributes(*updates: AttributeUpdate) -> UpdateAttributes:
    return UpdateAttributes("f", updates)


ONE = AttributeUpdate("a", 1)


def play(script: Script) -> State:
    state = State()
    for op, given in script:
        state, outcome = op.apply(state)
        assert outcome == given if isinstance(given, Outcome) else outcome.accepts(given), (
            f"{op}: {outcome}, not {given!r}"
        )

    return state


def test_another_class_or_other_fields_are_another_refusal() -> None:
    expected = refusal(BadOffset, segment="f", expected=3, given=2)

    assert expected.accepts(BadOffset("at 3", segment="f", expected=3, given=2))
    assert not expected.accepts(BadOffset("at 3", segment="f", expected=4, given=2))
    assert not expected.accepts(SegmentSealed("sealed", segment="f"))
    assert not expected.accepts(3)


def test_a_read_may_be_short_but_not_empty_below_the_tail() -> None:
    _, outcome = Read("f", 1, 9).apply(play(ABC))

    assert [data for data in (b"bc", b"b", b"", b"bcd", b"c") if outcome.accepts(data)] == [b"bc", b"b"]


def test_a_segment_that_was_created_again_is_another_segment() -> None:
    once, again = (
        play([(Create("f"), None)]),
        play([(Create("f"), None), (Delete("f"), None), (Create("f"), None)]),
    )

    assert once != again
    assert view_for(once, {}) == view_for(again, {})


def test_two_ways_to_the_same_segments_lead_to_one_state() -> None:
    one = play(
        [
            (Create("f#1"), None),
            (Create("f"), None),
            (Append("f", (b"ab", b"c")), 0),
            (attributes(ONE), {"a": 1}),
        ]
    )
    two = play(
        [
            (Create("f"), None),
            (attributes(ONE), {"a": 1}),
            (Append("f", (b"a",)), 0),
            (Create("f#1"), None),
            (Append("f", (b"bc",)), 1),
        ]
    )

    assert (one, hash(one)) == (two, hash(two))


@pytest.mark.parametrize(
    "shown",
    [
        SegmentView(0, b"abc", sealed=True),
        SegmentView(1, b"bc"),
        SegmentView(0, b"abd"),
        SegmentView(0, b"abcd"),
        SegmentView(0, b"abc", attributes={"a": 1}),
        SegmentView(0, b"abc", last_numbers={"w": 0}),
    ],
    ids=repr,
)
def test_a_snapshot_that_differs_anywhere_is_noticed(shown: SegmentView) -> None:
    state = play(ABC)

    assert shows(state, {"f": SegmentView(0, b"abc", last_numbers={"w": None})})
    assert not shows(state, {"f": shown})
    assert difference(state, {"f": shown})
    assert not shows(state, {})
    assert not shows(State(), {"f": SegmentView()})


def test_the_answer_about_a_transaction_is_compared_in_full() -> None:
    begun, _ = Begin("f", "t3", None, LEASE).apply(play(ABC))
    _, outcome = LookUp("f", "t3").apply(begun)
    assert isinstance(outcome, ReturnedTransaction)
    right = TransactionInfo("t3", "f", TransactionState.OPEN, None, LEASE, 10.0, "", None, 0)

    assert outcome.accepts(right)
    for wrong in (
        {"state": TransactionState.ABORTED},
        {"lease": 1.0},
        {"expires_in": LEASE + 1},
        {"reason": "x"},
        {"length": 1},
    ):
        assert not outcome.accepts(attrs.evolve(right, **wrong))
    assert not outcome.accepts(attrs.evolve(right, staged=(StagedPart(staged_names("f", "t3")[0], 0),)))

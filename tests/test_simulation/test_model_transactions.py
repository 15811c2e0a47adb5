"""The model's answers about transactions: a script and any calls are played to it and to a real store, and
both must say the same."""

from __future__ import annotations

from random import Random
from typing import Any

import attrs
import pytest
from simulation.model import Outcome, State, refusal, staged_names
from simulation.model_calls import (
    Append,
    Create,
    Delete,
    ListNames,
    Op,
    Read,
    Seal,
    not_found,
)
from simulation.model_transactions import Abort, Begin, Commit, LookUp, ReturnedTransaction, Stage
from simulation.view import difference, observe, shows

from support.container_world import ContainerWorld
from support.random_calls import LEASE, TARGETS, random_transaction_call
from tierlog import SegmentStore
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    SegmentSealed,
    TierlogError,
    TransactionEnded,
    TransactionNotFound,
)
from tierlog.storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
)

pytestmark = pytest.mark.anyio


P0, P1, _ = staged_names("f", "t0")
TOKEN = TransactionToken("q", 3)
BEGIN = Begin("f", "t0", TOKEN, LEASE)
ENDED = refusal(TransactionEnded, segment="f", state="committed")
SCRIPT: list[tuple[Op, Any]] = [
    (BEGIN, not_found(State(), "f")),
    (Create("f"), None),
    (Append("f", (b"a",)), 0),
    (Stage("f", "t0", "p0"), refusal(TransactionNotFound, segment="f")),
    (BEGIN, TransactionState.OPEN),
    (Begin("f", "t0", TransactionToken("q", 4), LEASE), refusal(InvalidArgument)),
    (Append(P0, (b"x",)), not_found(State(), P0)),
    (Stage("f", "t0", "p0"), P0),
    (Stage("f", "t0", "p1"), P1),
    (Append(P0, (b"bc",)), 0),
    (Append(P1, (b"zz",)), 0),
    (ListNames("f"), ["f"]),
    (Read(P0, 0, 9), b"bc"),
    (Seal(P0), refusal(InvalidArgument)),
    (Commit("f", "t0", (StagedPart(P0, 1),)), refusal(BadOffset, segment=P0, expected=2, given=1)),
    (Commit("f", "t0", (StagedPart(P0, 2), StagedPart(P0, 2))), refusal(InvalidArgument)),
    (Commit("f", "t0", (StagedPart(P0, 2),)), CommitResult(True, 1, 2)),
    (Commit("f", "t0", (StagedPart(P0, 2),)), CommitResult(False, 1, 2)),
    (Read("f", 1, 9), b"bc"),
    (Append(P1, (b"late",)), ENDED),
    (Stage("f", "t0", "p2"), ENDED),
    (Abort("f", "t0", "too late"), TransactionState.COMMITTED),
    (Begin("f", "t1", TOKEN, LEASE), TransactionState.COMMITTED),
    (LookUp("f", "t1"), refusal(TransactionNotFound, segment="f")),
    (Abort("f", "t2", "early"), TransactionState.ABORTED),
    (Begin("f", "t2", None, LEASE), refusal(TransactionEnded, segment="f", state="aborted")),
    (Begin("f", "t3", None, LEASE), TransactionState.OPEN),
    (Seal("f"), 3),
    (Commit("f", "t3", ()), refusal(SegmentSealed, segment="f")),
    (Delete("f"), None),
    (LookUp("f", "t3"), TransactionState.ABORTED),
    (Create("f"), None),
    (LookUp("f", "t3"), refusal(TransactionNotFound, segment="f")),
    (BEGIN, TransactionState.OPEN),
]
"""Calls, and what each returns: a value, a refusal, or the state of a transaction."""


def is_returned(expected: Any, given: object) -> bool:
    if isinstance(expected, Outcome):
        return expected.accepts(given)
    return given.state is expected if isinstance(given, TransactionInfo) else given == expected


async def ask(store: SegmentStore, op: Op) -> object:
    try:
        return await op.send(store)
    except TierlogError as error:
        return error


async def test_model_and_store_give_the_same_answers() -> None:
    state = State()
    async with ContainerWorld().owner() as owner:
        for op, expected in SCRIPT:
            state, outcome = op.apply(state)
            answer = await ask(owner.store, op)
            assert is_returned(expected, answer), f"{op} returned {answer!r}"
            assert outcome.accepts(answer), f"{op} returned {answer!r}, the model says {outcome}"
        view = await observe(owner.store, "f", {}, ("f",))

    assert shows(state, view), difference(state, view)


@pytest.mark.parametrize("seed", range(10))
async def test_model_and_store_agree_on_any_calls(seed: int) -> None:
    random, state = Random(seed), Create("f").apply(State())[0]
    async with ContainerWorld().owner() as owner:
        await owner.store.create_segment("f")
        for number in range(200):
            op = random_transaction_call(random, state, number)
            state, outcome = op.apply(state)
            answer = await ask(owner.store, op)
            assert outcome.accepts(answer), f"{op} returned {answer!r}, not {outcome}"
        view = await observe(owner.store, "f", {}, TARGETS)

    assert shows(state, view), difference(state, view)


def test_the_answer_about_a_transaction_is_compared_in_full() -> None:
    _, outcome = LookUp("f", "t3").apply(play(SCRIPT[:27]))
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
    assert not outcome.accepts(attrs.evolve(right, staged=(StagedPart(P0, 0),)))


def play(script: list[tuple[Op, Any]]) -> State:
    state = State()
    for op, _ in script:
        state, _ = op.apply(state)
    return state

"""Transactions: decisions and their table, rules T1 to T9, without a clock, a log or an event loop."""

from __future__ import annotations

from typing import Any

import pytest

from support.container_parts import NAME, ROLLING, Parts, append, refused
from tierlog.actors.container.operations.attributes import AttributesRequest
from tierlog.actors.container.operations.cold import UnloadRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.transactions import (
    AbortTransactionRequest,
    BeginTransactionRequest,
    CommitTransactionRequest,
    ExpireTransactionRequest,
    ForgetTransactionsRequest,
    StageSegmentRequest,
    TransactionInfoRequest,
)
from tierlog.actors.container.requests import Request
from tierlog.actors.container.state import ContainerState
from tierlog.journal.manifest.element import TRANSACTIONS
from tierlog.journal.operations.abort_transaction import AbortTransaction
from tierlog.journal.operations.begin_transaction import BeginTransaction
from tierlog.journal.operations.commit_transaction import CommitTransaction
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.delete_segment import DeleteSegment
from tierlog.journal.operations.ended_transactions import TransactionEnd
from tierlog.journal.operations.forget_transactions import ForgetTransactions
from tierlog.journal.operations.load_segment import UnloadSegments
from tierlog.journal.operations.operation import Operation
from tierlog.journal.operations.transaction_image import decode_transaction
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    SegmentNotFound,
    TierlogError,
    TransactionEnded,
    TransactionNotFound,
)
from tierlog.storage_backends.base.segments import AttributeUpdate
from tierlog.storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionState,
    TransactionToken,
    staged_name,
)
from tierlog.storage_backends.sorted_runs.run_list import RunList

TOKEN = TransactionToken("q", 7)
LEASE = 60_000


def begin(
    transaction: str = "t", token: TransactionToken | None = None, target: str = NAME
) -> BeginTransactionRequest:
    return BeginTransactionRequest(target, transaction, token, LEASE)


def stage(part: str = "p", transaction: str = "t", target: str = NAME) -> StageSegmentRequest:
    return StageSegmentRequest(target, transaction, staged_name(target, transaction, part), ROLLING, 10)


def to(part: str, data: bytes, transaction: str = "t") -> Request:
    return append(staged_name(NAME, transaction, part), data)


def commit(
    *parts: tuple[str, int], transaction: str = "t", token: TransactionToken | None = None, target: str = NAME
) -> CommitTransactionRequest:
    chosen = [StagedPart(staged_name(target, transaction, part), length) for part, length in parts]
    return CommitTransactionRequest(target, transaction, chosen, token)


def abort(transaction: str = "t", reason: str = "why not", target: str = NAME) -> AbortTransactionRequest:
    return AbortTransactionRequest(target, transaction, reason)


def ask(transaction: str = "t", target: str = NAME) -> TransactionInfoRequest:
    return TransactionInfoRequest(target, transaction)


def staged_parts(token: TransactionToken | None = None) -> Parts:
    """A target of 4 bytes with one open transaction that staged ``p`` (3 bytes) and ``q`` (5)."""
    parts = Parts()
    parts.create()
    parts.do(
        append(NAME, b"base"), begin(token=token), stage("p"), stage("q"), to("p", b"ppp"), to("q", b"qqqqq")
    )
    return parts


# --- what each verb means in each state ---------------------------------------------------------

SETUPS: dict[str, list[Request]] = {
    "unknown": [],
    "open": [begin()],
    "committed": [begin(), commit()],
    "aborted": [begin(), abort(reason="first")],
    "abort before begin": [abort(reason="first")],
}
OPEN, COMMITTED, ABORTED = TransactionState.OPEN, TransactionState.COMMITTED, TransactionState.ABORTED
TABLE: list[tuple[str, Request, Any]] = [
    ("unknown", begin(), OPEN),
    ("open", begin(), OPEN),
    ("committed", begin(), TransactionEnded),
    ("aborted", begin(), TransactionEnded),
    ("abort before begin", begin(), TransactionEnded),
    ("unknown", stage(), TransactionNotFound),
    ("open", stage(), staged_name(NAME, "t", "p")),
    ("committed", stage(), TransactionEnded),
    ("aborted", stage(), TransactionEnded),
    ("unknown", to("p", b"x"), TransactionNotFound),
    ("open", to("p", b"x"), SegmentNotFound),
    ("committed", to("p", b"x"), TransactionEnded),
    ("aborted", to("p", b"x"), TransactionEnded),
    ("unknown", commit(), TransactionNotFound),
    ("open", commit(), CommitResult(True, 4, 0)),
    ("committed", commit(), CommitResult(False, 4, 0)),
    ("aborted", commit(), TransactionEnded),
    ("abort before begin", commit(), TransactionEnded),
    ("unknown", abort(), ABORTED),
    ("open", abort(), ABORTED),
    ("committed", abort(), COMMITTED),
    ("aborted", abort(), ABORTED),
    ("unknown", ask(), TransactionNotFound),
    ("open", ask(), OPEN),
    ("committed", ask(), COMMITTED),
    ("aborted", ask(), ABORTED),
]


@pytest.mark.parametrize(
    ("setup", "request_", "outcome"), TABLE, ids=[f"{type(r).__name__} when {s}" for s, r, _ in TABLE]
)
def test_what_a_verb_means_in_a_state(setup: str, request_: Request, outcome: Any) -> None:
    """T2, T5, T6: get or create, refusals by tombstones, and an abort that overtook its begin."""
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"base"))
    for step in SETUPS[setup]:
        parts.do(step)

    if isinstance(outcome, type):
        error = refused(parts, request_, outcome)
        if outcome is TransactionEnded:
            assert error.state == ("committed" if setup == "committed" else "aborted")
    else:
        answer = parts.do(request_)
        assert (answer.state if isinstance(outcome, TransactionState) else answer) == outcome


def test_the_first_reason_of_an_abort_stays() -> None:
    parts = staged_parts()
    parts.do(abort(reason="first"))

    assert parts.do(abort(reason="second")).reason == "first"
    assert "first" in str(refused(parts, stage(), TransactionEnded))


# --- names (T1) ---------------------------------------------------------------------------------


# --- commits (T2, T3, T4) -----------------------------------------------------------------------


def test_t2_an_empty_part_is_committed_and_leaves_nothing() -> None:
    parts = staged_parts()
    parts.do(stage("empty"))

    assert parts.do(commit(("p", 3), ("empty", 0))).length == 3
    assert len(parts.segment().merges) == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (commit(("p", 3), ("q", 4)), BadOffset),
        (commit(("p", 3), ("q", 6)), BadOffset),
        (commit(("p", 3), ("never", 0)), SegmentNotFound),
        (commit(("p", 3), ("p", 3)), InvalidArgument),
        (CommitTransactionRequest(NAME, "t", [StagedPart(NAME, 4)], None), InvalidArgument),
        (
            CommitTransactionRequest(NAME, "t", [StagedPart(staged_name(NAME, "other", "p"), 3)], None),
            InvalidArgument,
        ),
    ],
)
def test_t3_one_wrong_part_keeps_all_of_them(wrong: Request, error: type[TierlogError]) -> None:
    parts = staged_parts()
    parts.do(begin("other"), stage("p", "other"), to("p", b"ooo", "other"))
    refused(parts, wrong, error)

    assert parts.do(ask()).staged == (
        StagedPart(staged_name(NAME, "t", "p"), 3),
        StagedPart(staged_name(NAME, "t", "q"), 5),
    )


def test_t4_the_second_commit_under_one_token_applies_nothing_and_ends_its_transaction() -> None:
    parts = staged_parts(TOKEN)
    parts.do(begin("again", TOKEN), stage("p", "again"), to("p", b"twice", "again"))
    parts.do(commit(("p", 3)))

    assert parts.do(begin("again", TOKEN)).state is COMMITTED
    assert parts.do(commit(("p", 5), transaction="again")) == CommitResult(False, None, 0)
    assert parts.segment().length == 7
    assert "had been committed before" in parts.do(ask("again")).reason
    assert parts.state.segments.names() == [NAME]


def test_t4_the_token_may_come_with_the_commit_alone() -> None:
    parts = staged_parts()
    parts.do(commit(("p", 3), token=TOKEN))

    assert parts.segment().attributes == {"txn:q": 7}
    assert parts.do(ask()).token == TOKEN


@pytest.mark.parametrize("verb", [begin, lambda token: commit(token=token)])
def test_t4_a_transaction_has_one_token(verb: Any) -> None:
    parts = staged_parts(TOKEN)
    request = begin(token=TransactionToken("q", 8)) if verb is begin else verb(TransactionToken("q", 8))
    assert "epoch 7" in str(refused(parts, request, InvalidArgument))


def test_t4_without_a_token_no_attribute_is_kept() -> None:
    parts = staged_parts()
    parts.do(commit(("p", 3)))
    assert not parts.segment().attributes


def test_t4_a_token_is_kept_and_found_where_an_image_has_no_room_for_it() -> None:
    """M19: then it is a row."""
    parts = staged_parts(TOKEN)
    parts.state.image_entries = 1
    parts.do(AttributesRequest(NAME, [AttributeUpdate("a", 1)]))
    assert parts.do(commit(("p", 3))).applied
    assert list(parts.segment().attributes) == ["a"]
    again = BeginTransactionRequest(NAME, "other", TOKEN, 60_000)
    assert parts.do(again).state is TransactionState.COMMITTED


# --- the target's own life (T8) -----------------------------------------------------------------


def test_t8_a_commit_that_is_repeated_after_the_seal_is_answered() -> None:
    parts = staged_parts()
    parts.do(commit(("p", 3)), SealRequest(NAME))
    assert parts.do(commit(("p", 3))) == CommitResult(False, 4, 3)


# --- what the clock asks (T5, T7) ---------------------------------------------------------------


def test_t7_an_expiry_that_an_append_overtook_does_nothing() -> None:
    parts = staged_parts()
    record = parts.state.transactions.records[NAME, "t"]

    assert parts.do(ExpireTransactionRequest(record, (2, 7))) is False
    assert parts.do(ExpireTransactionRequest(record, (1, 8))) is False
    assert parts.do(ask()).state is OPEN
    assert parts.do(ExpireTransactionRequest(record, (2, 8))) is True
    assert parts.do(ask()).reason == "its lease of 60 s expired"
    assert parts.do(ExpireTransactionRequest(record, (0, 0))) is False


def test_t5_only_the_very_tombstone_is_forgotten() -> None:
    parts = staged_parts()
    parts.do(begin("u"), abort("u"))
    other = TransactionEnd(parts.state.sequence, True, NAME, "u")
    parts.do(abort())
    old = TransactionEnd(parts.state.sequence, True, NAME, "t")
    parts.do(DeleteRequest(NAME))
    parts.create()
    parts.do(begin(), abort(reason="again"), begin("v"))
    assert parts.state.transactions.ends == 3

    assert parts.do(ForgetTransactionsRequest([other, old], 0)) is True
    assert parts.do(ask()).reason == "again"
    refused(parts, ask("u"), TransactionNotFound)
    assert parts.do(ask("v")).state is OPEN
    assert parts.state.transactions.ends == 1


def test_t5_nothing_is_forgotten_if_a_later_end_may_have_left_memory() -> None:
    parts = staged_parts()
    parts.do(abort())
    end = TransactionEnd(parts.state.sequence, True, NAME, "t")
    parts.state.table.use(RunList((), 1, TRANSACTIONS))
    assert parts.operations(ForgetTransactionsRequest([end], 0)) == ([], False)


# --- the table ----------------------------------------------------------------------------------


def test_m4_staged_segments_and_targets_of_open_transactions_stay_in_memory() -> None:
    """Their decisions need whether the target is live, and how long the parts are."""
    parts = staged_parts()
    for name in parts.state.segments.names():
        parts.flush(name)
    parts.state.table.use(RunList((), parts.state.sequence, TRANSACTIONS))
    sids = list(parts.state.segments.by_id)
    assert len(sids) == 3
    assert parts.operations(UnloadRequest(sids)) == ([], None)
    assert parts.do(commit(("p", 3), ("q", 5))) == CommitResult(True, 4, 8)
    assert parts.operations(UnloadRequest(sids)) == ([], None)


@pytest.mark.parametrize("end", [commit(), abort()], ids=["commit", "abort"])
def test_m21_a_target_may_go_cold_once_the_end_of_its_transactions_is_published(end: Request) -> None:
    """Before, the target is asked for when the end is durable."""
    parts = Parts()
    sid = parts.create().sid
    parts.do(begin())
    parts.state.table.use(RunList((), parts.state.sequence, TRANSACTIONS))
    parts.do(end)
    assert parts.operations(UnloadRequest([sid])) == ([], None)

    parts.state.table.use(RunList((), parts.state.sequence, TRANSACTIONS))
    assert parts.operations(UnloadRequest([sid])) == ([UnloadSegments((sid,))], None)


SID, STAGED = 1 << 32 | 1, staged_name(NAME, "t", "p")
BEGUN: list[Operation] = [
    CreateSegment(SID, NAME, ROLLING),
    BeginTransaction(SID, "t", None, LEASE),
    CreateSegment(SID + 1, STAGED, ROLLING),
]


@pytest.mark.parametrize(
    "op",
    [
        BeginTransaction(SID, "t", None, LEASE),
        BeginTransaction(SID + 1, "u", None, LEASE),
        CreateSegment(SID + 2, staged_name(NAME, "u", "p"), ROLLING),
        CommitTransaction(SID, 0, "u", (), (), ()),
        CommitTransaction(SID, 1, "t", ((SID + 1, 0),), (), ()),
        CommitTransaction(SID, 0, "t", ((SID + 1, 9),), (), ()),
        ForgetTransactions(((NAME, "t"),)),
        DeleteSegment(SID),
    ],
    ids=repr,
)
def test_an_operation_that_no_decision_logs_is_damage(op: Operation) -> None:
    """C5: replay raises on it; live, the container would be poisoned."""
    state = ContainerState(epoch=1)
    for before in BEGUN:
        state.apply(before)
    with pytest.raises(ValueError):
        state.apply(op)


def test_a_second_end_is_damage() -> None:
    state = ContainerState(epoch=1)
    for op in (*BEGUN, AbortTransaction(SID, "t", "", (SID + 1,))):
        state.apply(op)
    with pytest.raises(ValueError, match="not open"):
        state.apply(CommitTransaction(SID, 0, "t", (), (), ()))


def test_a_snapshot_has_the_transactions_of_its_sequence() -> None:
    """C7: records are immutable, so later changes are not in it."""
    parts = staged_parts(TOKEN)
    expected = dict(parts.state.transactions.records)
    snapshot = parts.state.begin_snapshot()
    parts.do(commit(("p", 3)), begin("later"))

    found = {}
    while not snapshot.is_complete:
        part = snapshot.take(1, 1 << 20)
        assert len(part.images) + len(part.rows) + len(part.transactions) <= 1
        found.update(
            {(record.target, record.id): record for record in map(decode_transaction, part.transactions)}
        )
    assert found == expected

"""Rules H1, H8 and H17: what travels of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import pytest

from tierlog.actors.gateway.wire import paths, transactions
from tierlog.actors.gateway.wire.documents import dump
from tierlog.actors.gateway.wire.transactions import COMMIT_BYTES_MAX, Begin, Commit
from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.base.names import NAME_BYTES_MAX
from tierlog.storage_backends.base.transactions import (
    LEASE_DEFAULT,
    PARTS_MAX,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
)

TOKEN = TransactionToken("query größe", 7)
PARTS = (StagedPart("app/events#txn.t-1.p0", 5), StagedPart("app/events#txn.t-1.p1", 0))
OPEN = TransactionInfo("t-1", "app/events", TransactionState.OPEN, TOKEN, 60.5, 12.25, "", None, 5, PARTS)
COMMITTED = TransactionInfo("t:2", "a", TransactionState.COMMITTED, None, 1.0, 86_400.0, "", 9, 5)
ABORTED = TransactionInfo("t_3", "a", TransactionState.ABORTED, None, 1.0, 0.0, "its lease was over", None, 0)


# --- paths --------------------------------------------------------------------------------------


def test_h1_the_verb_is_the_last_component_of_the_target_s_path() -> None:
    path = paths.segment_path("app/events", paths.Verb.COMMIT_TRANSACTION)

    assert path == "/v1/segments/app/events/commit-transaction"
    assert (paths.Verb.COMMIT_TRANSACTION.method, paths.Verb.TRANSACTION_INFO.method) == ("POST", "GET")


def test_h1_a_transaction_s_id_and_a_prefix_survive_their_queries() -> None:
    path, _, query = paths.transaction_info_path("a#b", "t.1:2_-").partition("?")

    assert paths.split_segment_path(unquote(path)) == ("a#b", "transaction-info")
    assert paths.query_transaction(paths.parse_query(query.encode(), {"transaction_id": ""})) == "t.1:2_-"
    assert paths.transactions_path() == "/v1/transactions"
    prefix = paths.parse_query(paths.transactions_path("a#ä&").partition("?")[2].encode(), {"prefix": ""})[
        "prefix"
    ]
    assert paths.query_text(prefix) == "a#ä&"


def test_h1_a_query_without_its_id_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="transaction_id"):
        paths.query_transaction({})


# --- requests -----------------------------------------------------------------------------------


def test_h8_requests_of_transactions_survive() -> None:
    for begin in (Begin("t", TOKEN, 5.5), Begin("t")):
        assert transactions.parse_begin(transactions.begin_document(begin)) == begin
    for commit in (Commit("t", PARTS, TOKEN), Commit("t", ())):
        assert transactions.parse_commit(transactions.commit_document(commit)) == commit
    assert transactions.parse_stage(transactions.stage_document("t", "p0")) == ("t", "p0")
    assert transactions.parse_abort(transactions.abort_document("t", "größe")) == ("t", "größe")


def test_h17_what_may_be_left_out_has_its_default() -> None:
    assert transactions.parse_begin(b'{"transaction_id":"t"}') == Begin("t", None, LEASE_DEFAULT)
    assert transactions.parse_abort(b'{"transaction_id":"t"}') == ("t", "")
    assert transactions.parse_begin(b'{"transaction_id":"t","lease":60}').lease == 60.0


BEGIN, STAGE, COMMIT, ABORT = (
    transactions.parse_begin,
    transactions.parse_stage,
    transactions.parse_commit,
    transactions.parse_abort,
)


@pytest.mark.parametrize(
    "parse, body",
    [
        (BEGIN, b""),
        (BEGIN, b"{}"),
        (BEGIN, b'{"transaction_id":"t","tokens":1}'),
        (BEGIN, b'{"transaction_id":7}'),
        (BEGIN, b'{"transaction_id":""}'),
        (BEGIN, b'{"transaction_id":"a b"}'),
        (BEGIN, b'{"transaction_id":"t","transaction_id":"t"}'),
        (BEGIN, b'{"transaction_id":"t","token":null}'),
        (BEGIN, b'{"transaction_id":"t","token":{}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"w"}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"w","epoch":1,"x":1}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"w","epoch":true}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"w","epoch":-1}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"w","epoch":9223372036854775808}}'),
        (BEGIN, b'{"transaction_id":"t","token":{"writer":"\\ud800","epoch":1}}'),
        (BEGIN, b'{"transaction_id":"t","token":["w",1]}'),
        (BEGIN, b'{"transaction_id":"t","lease":true}'),
        (BEGIN, b'{"transaction_id":"t","lease":"60"}'),
        (BEGIN, b'{"transaction_id":"t","lease":0}'),
        (BEGIN, b'{"transaction_id":"t","lease":NaN}'),
        (BEGIN, b'{"transaction_id":"t","lease":1e999}'),
        (BEGIN, b'{"transaction_id":"t","lease":' + b"9" * 400 + b"}"),
        (STAGE, b'{"transaction_id":"t"}'),
        (STAGE, b'{"transaction_id":"t","part":7}'),
        (COMMIT, b'{"transaction_id":"t"}'),
        (COMMIT, b'{"transaction_id":"t","parts":{}}'),
        (COMMIT, b'{"transaction_id":"t","parts":["a"]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a"}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a","length":1,"x":1}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":7,"length":1}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a","length":"1"}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a","length":1.0}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a","length":-1}]}'),
        (COMMIT, b'{"transaction_id":"t","parts":[{"name":"a","length":9223372036854775808}]}'),
        (ABORT, b'{"transaction_id":"t","reason":null}'),
        (ABORT, b'{"transaction_id":"t","why":"x"}'),
    ],
)
def test_h8_a_request_of_another_form_is_refused(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        parse(body)


def test_h17_the_largest_commit_fits_into_its_bound() -> None:
    name = "\u4e2d" * (NAME_BYTES_MAX // 3)
    largest = Commit(
        "t" * 96, [StagedPart(name, (1 << 63) - 1)] * PARTS_MAX, TransactionToken("ä" * 62, (1 << 63) - 1)
    )

    assert COMMIT_BYTES_MAX / 2 < len(transactions.commit_document(largest)) <= COMMIT_BYTES_MAX


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("info", [OPEN, COMMITTED, ABORTED], ids=lambda info: info.state.value)
def test_h8_a_transaction_survives_and_may_have_more_members(info: TransactionInfo) -> None:
    document = transactions.transaction_document(info)

    assert transactions.parse_transaction(dump({**document, "new": 1})) == info
    assert transactions.parse_transactions(dump({"transactions": [document, document]})) == [info, info]


def test_h8_other_answers_of_transactions_survive() -> None:
    for result in (CommitResult(True, 5, 7), CommitResult(False, None, 0)):
        assert (
            transactions.parse_commit_result(dump({**transactions.commit_result_document(result), "new": 1}))
            == result
        )
    assert transactions.parse_staged(b'{"segment":"a#txn.t.p"}') == "a#txn.t.p"


@pytest.mark.parametrize(
    "member, value",
    [
        ("state", "unknown"),
        ("state", None),
        ("token", ["w", 1]),
        ("token", {"writer": "w"}),
        ("token", {"writer": "", "epoch": 1}),
        ("lease", None),
        ("lease", True),
        ("lease", -1),
        ("expires_in", float("nan")),
        ("expires_in", float("inf")),
        ("expires_in", 10**400),
        ("offset", "5"),
        ("length", 5.0),
        ("reason", None),
        ("staged", [7]),
        ("staged", [{"name": "a"}]),
        ("staged", None),
    ],
)
def test_h8_a_transaction_that_makes_no_sense_is_a_value_error(member: str, value: Any) -> None:
    document = {**transactions.transaction_document(OPEN), member: value}

    with pytest.raises(ValueError):
        transactions.parse_transaction(dump(document))
    del document[member]
    with pytest.raises(ValueError):
        transactions.parse_transaction(dump(document))


@pytest.mark.parametrize(
    "parse, body",
    [
        (transactions.parse_transactions, b'{"transactions":{}}'),
        (transactions.parse_transactions, b'{"transactions":[[]]}'),
        (transactions.parse_staged, b'{"segment":null}'),
        (transactions.parse_commit_result, b'{"applied":1,"offset":5,"length":5}'),
        (transactions.parse_commit_result, b'{"applied":true,"length":5}'),
    ],
)
def test_h8_an_answer_of_another_form_is_a_value_error(parse: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(ValueError):
        parse(body)

"""Who writes: every task, attempt and replay of one write says the same name, and nothing is guessed where
Spark says nothing."""

from __future__ import annotations

import pytest

from tierlog.spark_bridge.identity import (
    BATCH_ID,
    QUERY_ID,
    RUN_ID,
    Identity,
    batch_identity,
    common_identity,
    next_try,
    stream_identity,
)
from tierlog.spark_bridge.options import Options, parse_options
from tierlog.storage_backends.base.errors import InvalidArgument, Unsupported
from tierlog.storage_backends.base.transactions import TransactionInfo, TransactionState, TransactionToken

TASK = {
    QUERY_ID: "11111111-aaaa-4444-8888-000000000001",
    BATCH_ID: "7",
    RUN_ID: "22222222-aaaa-4444-8888-000000000002",
}


def options(**given: str) -> Options:
    return parse_options({"endpoint": "http://127.0.0.1:1", "path": "t", **given})


def info(name: str, state: TransactionState, target: str = "t") -> TransactionInfo:
    return TransactionInfo(name, target, state, None, 1.0, 1.0, "", None, 0)


def batch(given: Options, *known: TransactionInfo) -> Identity:
    return batch_identity(given, "t", lambda: "id", lambda: known)


def test_a_batch_is_named_by_chance_and_needs_no_token() -> None:
    assert batch(options()) == Identity("t", "spark-id", None, 3600.0)


def test_a_batch_with_a_version_has_it_for_a_token() -> None:
    """The name stays by chance: a second try after an abort is another transaction with the same token."""
    assert batch(options(txnAppId="app", txnVersion="3")) == Identity(
        "t", "spark-id", TransactionToken("app", 3), 3600.0
    )


def test_a_named_batch_is_retried_under_the_next_number() -> None:
    aborted = info("load:1", TransactionState.ABORTED)

    assert batch(options(txnId="load")).transaction_id == "load:1"
    assert batch(options(txnId="load"), aborted).transaction_id == "load:2"
    assert (
        batch(options(txnId="load"), aborted, info("load:2", TransactionState.OPEN)).transaction_id
        == "load:2"
    )


def test_a_named_batch_that_was_committed_is_found_among_all_its_tries() -> None:
    known = [
        info("load:1", TransactionState.ABORTED),
        info("load:2", TransactionState.COMMITTED),
        info("load:3", TransactionState.OPEN),
    ]

    assert next_try("load", "t", known) == "load:2"


def test_other_targets_and_names_are_not_taken_for_tries() -> None:
    known = [
        info("load:1", TransactionState.COMMITTED, target="t/2"),
        info("reload:4", TransactionState.COMMITTED),
        info("load:x", TransactionState.COMMITTED),
        info("load:2:1", TransactionState.COMMITTED),
        info("load", TransactionState.COMMITTED),
    ]

    assert next_try("load", "t", known) == "load:1"


def test_a_micro_batch_is_named_by_its_query_and_number_and_run() -> None:
    found = stream_identity(options(), "t", TASK.get)

    assert found.token == TransactionToken(TASK[QUERY_ID], 7)
    assert found.transaction_id == f"{TASK[QUERY_ID]}:7:{TASK[RUN_ID]}"


def test_a_replay_has_the_same_token_and_another_name() -> None:
    """So that what an old driver still aborts is not what the new one writes."""
    first, again = (
        stream_identity(options(), "t", TASK.get),
        stream_identity(options(), "t", {**TASK, RUN_ID: "33"}.get),
    )

    assert first.token == again.token
    assert first.transaction_id != again.transaction_id


def test_an_application_of_ones_own_survives_a_new_checkpoint() -> None:
    assert stream_identity(options(txnAppId="mine"), "t", TASK.get).token == TransactionToken("mine", 7)


@pytest.mark.parametrize("name", [QUERY_ID, BATCH_ID, RUN_ID])
def test_a_property_that_is_missing_fails_the_write(name: str) -> None:
    given = {key: value for key, value in TASK.items() if key != name}

    with pytest.raises(Unsupported, match=rf"no local property {name}; .*foreachBatch"):
        stream_identity(options(), "t", given.get)


@pytest.mark.parametrize(
    ("name", "value"), [(BATCH_ID, "-1"), (BATCH_ID, "9" * 19), (QUERY_ID, "a b"), (RUN_ID, "x" * 40)]
)
def test_a_property_that_is_something_else_fails_the_write(name: str, value: str) -> None:
    with pytest.raises(Unsupported, match="foreachBatch"):
        stream_identity(options(), "t", {**TASK, name: value}.get)


def test_the_tasks_of_one_write_agree() -> None:
    one, other = Identity("t", "a", None, 1.0), Identity("t", "b", None, 1.0)

    assert common_identity([one, one]) == one
    with pytest.raises(InvalidArgument, match="2 transactions"):
        common_identity([one, other])

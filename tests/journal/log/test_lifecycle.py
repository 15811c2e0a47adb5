"""The states of a log object (rule W6)."""

from __future__ import annotations

import pytest

from support.state_tables import check_table
from tierlog.journal.log.lifecycle import STATES, LogEvent, LogLifecycle, LogState
from tierlog.storage_backends.base.errors import ClosedError, NotOwner, Unavailable


def test_the_table() -> None:
    check_table(STATES, LogState.NEW, LogEvent)


def test_w6_only_close_follows_a_failure() -> None:
    assert STATES.reachable(LogState.BROKEN) == {LogState.BROKEN, LogState.CLOSED}
    assert STATES.reachable(LogState.FENCED) == {LogState.FENCED, LogState.CLOSED}


@pytest.mark.parametrize(
    ("failure", "refusal", "message"),
    [
        (OSError("no answer"), Unavailable, "stopped after a failure .no answer."),
        (NotOwner("epoch 2 was fenced"), NotOwner, "epoch 2 was fenced"),
    ],
)
def test_a_call_after_a_failure_names_the_failure(
    failure: Exception, refusal: type[Exception], message: str
) -> None:
    log = LogLifecycle("wal/0001")
    log.step(LogEvent.BEGIN_OPEN)
    log.failed(failure)
    with pytest.raises(refusal, match=message):
        log.require("append", LogState.OPEN)
    log.step(LogEvent.CLOSE)
    with pytest.raises(ClosedError, match="wal/0001 is closed"):
        log.require("append", LogState.OPEN)


def test_a_call_out_of_order_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="append is not possible while it is new"):
        LogLifecycle("wal/0001").step(LogEvent.BEGIN_APPEND)

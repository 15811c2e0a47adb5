"""The registration of verbs: each record and each request has one handler."""

from __future__ import annotations

from collections import Counter

from tierlog.actors.container.operations import APPLY, CLIENT_OPERATIONS, HANDLERS
from tierlog.actors.container.operations.handlers import OperationHandler, RequestHandler
from tierlog.actors.container.requests import Request
from tierlog.journal.operations.operation import NUMBERS


def test_every_record_that_can_be_in_a_log_is_applied_by_one_handler() -> None:
    handled = Counter(handler.record for handler in HANDLERS if isinstance(handler, OperationHandler))

    assert handled == Counter(list(NUMBERS))


def test_every_request_is_decided_by_one_handler() -> None:
    decided = Counter(handler.request for handler in HANDLERS if isinstance(handler, RequestHandler))

    assert all(issubclass(request, Request) for request in decided)
    assert set(decided.values()) == {1}


def test_internal_operations_never_make_a_flush_cycle_due() -> None:
    """F5: otherwise each cycle would make the next one due."""
    assert {record.__name__ for record in APPLY.keys() - CLIENT_OPERATIONS} == {
        "Barrier",
        "CheckpointBegin",
        "CheckpointEnd",
        "CheckpointPart",
        "CommitMetadata",
        "CycleComplete",
        "ForgetSegment",
        "ForgetTransactions",
        "ImportSegment",
        "RelogData",
    }

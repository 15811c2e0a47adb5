"""The registration of verbs: each record and each request has one handler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import ModuleType

import pytest

from tierlog.actors.container.operations import APPLY, CLIENT_OPERATIONS, HANDLERS
from tierlog.actors.container.operations.handlers import OperationHandler, RequestHandler, collect_handlers
from tierlog.actors.container.operations.seal import HANDLERS as SEAL
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.transactions import TransactionRequest
from tierlog.actors.container.requests import LogRequest, NameRequest, Request, SnapshotRequest
from tierlog.journal.operations.operation import NUMBERS
from tierlog.journal.operations.seal_segment import SealSegment


def test_every_record_that_can_be_in_a_log_is_applied_by_one_handler() -> None:
    handled = Counter(handler.record for handler in HANDLERS if isinstance(handler, OperationHandler))

    assert handled == Counter(list(NUMBERS))


def test_every_request_is_decided_by_one_handler() -> None:
    decided = Counter(handler.request for handler in HANDLERS if isinstance(handler, RequestHandler))

    assert all(issubclass(request, Request) for request in decided)
    assert set(decided.values()) == {1}


def test_every_request_has_a_handler() -> None:
    """Without one the container would fail when the first such request arrives."""
    decided = {handler.request for handler in HANDLERS if isinstance(handler, RequestHandler)}
    of_pipeline: set[type[Request]] = {LogRequest, SnapshotRequest}

    assert set(_requests(Request)) - {NameRequest, TransactionRequest} == decided | of_pipeline


def _requests(base: type[Request]) -> Iterator[type[Request]]:
    for request in base.__subclasses__():
        if request.__module__.startswith("tierlog."):
            yield request
        yield from _requests(request)


def _module(name: str, **members: object) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    return module


@pytest.mark.parametrize("module", [_module("forgetful"), _module("forgetful", HANDLERS=())])
def test_a_verb_that_registers_nothing_is_refused_at_import(module: ModuleType) -> None:
    with pytest.raises(TypeError, match="forgetful defines no HANDLERS"):
        collect_handlers([_module("seal", HANDLERS=SEAL), module])


@pytest.mark.parametrize(("handler", "kind"), [(SEAL[0], "SealRequest"), (SEAL[1], "SealSegment")])
def test_a_second_handler_is_refused_at_import(
    handler: RequestHandler[SealRequest] | OperationHandler[SealSegment], kind: str
) -> None:
    with pytest.raises(TypeError, match=f"again registers a second handler for {kind}"):
        collect_handlers([_module("seal", HANDLERS=SEAL), _module("again", HANDLERS=(handler,))])


def test_internal_operations_never_make_a_flush_cycle_due() -> None:
    """F5: otherwise each cycle would make the next one due."""
    assert {record.__name__ for record in APPLY.keys() - CLIENT_OPERATIONS} == {
        "Barrier",
        "BeginHistory",
        "CheckpointBegin",
        "CheckpointCounters",
        "CheckpointEnd",
        "CheckpointClosures",
        "CheckpointEnds",
        "CheckpointImages",
        "CheckpointManifest",
        "CheckpointPart",
        "CheckpointRows",
        "CheckpointPiece",
        "CommitMetadata",
        "CycleComplete",
        "ElementCreated",
        "ForgetEnds",
        "ForgetRows",
        "ForgetSegment",
        "ForgetTransactions",
        "ImportSegment",
        "LogElement",
        "LoadSegment",
        "LogElementChange",
        "RelogData",
        "SpillAttributes",
        "SpillWriters",
        "UnloadSegments",
    }

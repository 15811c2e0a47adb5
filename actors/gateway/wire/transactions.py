"""JSON bodies of transactions, of requests and of answers, as values and as documents (rules H8, H17).

Owns: their shape. Does not own: how bodies are read (``documents.py``), nor what a transaction may do next
(the store).

Requests are read strictly, as all are: a token, a part and a lease of another form than their nouns allow is
``InvalidArgument``, and nothing is done. Answers may have more members than are known here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import attrs

from ....storage_backends.base.errors import InvalidArgument, shown
from ....storage_backends.base.transactions import (
    LEASE_DEFAULT,
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    check_lease,
    check_transaction_id,
)
from .documents import (
    answer_member,
    answer_optional,
    check_members,
    dump,
    load_answer,
    read_request,
    request_items,
    request_member,
)
from .headers import NUMBER_MAX

COMMIT_BYTES_MAX = 10 << 20
"""Of the body of a commit: room for as many parts as one may take, whatever their names are."""
_STATES = {state.value: state for state in TransactionState}


# --- requests -----------------------------------------------------------------------------------


class Begin(NamedTuple):
    transaction_id: str
    token: TransactionToken | None = None
    lease: float = LEASE_DEFAULT


class Commit(NamedTuple):
    transaction_id: str
    parts: Sequence[StagedPart]
    token: TransactionToken | None = None


def begin_document(begin: Begin) -> bytes:
    return dump({"transaction_id": begin.transaction_id, "lease": begin.lease, **_with_token(begin.token)})


def parse_begin(body: bytes) -> Begin:
    document = read_request(body, ("transaction_id",), ("token", "lease"))
    return Begin(_id(document), _token(document), check_lease(document.get("lease", LEASE_DEFAULT)))


def stage_document(transaction_id: str, part: str) -> bytes:
    return dump({"transaction_id": transaction_id, "part": part})


def parse_stage(body: bytes) -> tuple[str, str]:
    """The transaction's id, and the part's name."""
    document = read_request(body, ("transaction_id", "part"))
    return _id(document), request_member(document, "part", str)


def commit_document(commit: Commit) -> bytes:
    parts = [{"name": part.name, "length": part.length} for part in commit.parts]
    return dump({"transaction_id": commit.transaction_id, "parts": parts, **_with_token(commit.token)})


def parse_commit(body: bytes) -> Commit:
    document = read_request(body, ("transaction_id", "parts"), ("token",))
    return Commit(_id(document), tuple(map(_part, request_items(document, "parts", dict))), _token(document))


def abort_document(transaction_id: str, reason: str) -> bytes:
    return dump({"transaction_id": transaction_id, "reason": reason})


def parse_abort(body: bytes) -> tuple[str, str]:
    """The transaction's id, and why; empty if nothing is said."""
    document = read_request(body, ("transaction_id",), ("reason",))
    return _id(document), request_member(document, "reason", str) if "reason" in document else ""


def _id(document: dict[str, Any]) -> str:
    return check_transaction_id(document["transaction_id"])


def _with_token(token: TransactionToken | None) -> dict[str, Any]:
    return {} if token is None else {"token": attrs.asdict(token)}


def _token(document: dict[str, Any]) -> TransactionToken | None:
    if "token" not in document:
        return None

    return TransactionToken(**check_members("a token", document["token"], ("writer", "epoch")))


def _part(item: dict[str, Any]) -> StagedPart:
    return check_part(StagedPart(**check_members("a part", item, ("name", "length"))))


def check_part(part: StagedPart) -> StagedPart:
    """``part``, if its members are of their types; which part it is, only the store can tell."""
    if type(part.name) is not str or type(part.length) is not int or not 0 <= part.length <= NUMBER_MAX:
        raise InvalidArgument(
            f"a part has the name of a staged segment and a length from 0 to {NUMBER_MAX}, not {shown(part)}"
        )

    return part


# --- answers ------------------------------------------------------------------------------------


def transaction_document(info: TransactionInfo) -> dict[str, Any]:
    return {**attrs.asdict(info), "state": info.state.value}


def parse_transaction(body: bytes) -> TransactionInfo:
    return _transaction(load_answer(body))


def parse_transactions(body: bytes) -> list[TransactionInfo]:
    return [_transaction(item) for item in answer_member(load_answer(body), "transactions", list)]


def parse_staged(body: bytes) -> str:
    """The name of a staged segment."""
    return answer_member(load_answer(body), "segment", str)


def commit_result_document(result: CommitResult) -> dict[str, Any]:
    return attrs.asdict(result)


def parse_commit_result(body: bytes) -> CommitResult:
    document = load_answer(body)
    return CommitResult(
        answer_member(document, "applied", bool),
        answer_optional(document, "offset", int),
        answer_member(document, "length", int),
    )


def _transaction(document: object) -> TransactionInfo:
    told = _object(document)
    state = _STATES.get(answer_member(told, "state", str))
    if state is None:
        raise ValueError(f"no state of a transaction: {shown(told['state'])}")

    token = answer_optional(told, "token", dict)
    return TransactionInfo(
        transaction_id=answer_member(told, "transaction_id", str),
        target=answer_member(told, "target", str),
        state=state,
        token=None
        if token is None
        else TransactionToken(answer_member(token, "writer", str), answer_member(token, "epoch", int)),
        lease=_seconds(told, "lease"),
        expires_in=_seconds(told, "expires_in"),
        reason=answer_member(told, "reason", str),
        offset=answer_optional(told, "offset", int),
        length=answer_member(told, "length", int),
        staged=tuple(map(_staged, answer_member(told, "staged", list))),
    )


def _staged(item: object) -> StagedPart:
    told = _object(item)
    return StagedPart(answer_member(told, "name", str), answer_member(told, "length", int))


def _seconds(document: dict[str, Any], name: str) -> float:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} is a number of seconds, not {shown(value)}")

    return float(value)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a transaction and a part are objects")  # noqa: TRY004 - a body of the wrong form, whichever member it is

    return value

"""Decisions about transactions: what each verb means in the present state (rules T1 to T9). Pure and
synchronous.

Owns: get-or-create, tokens, the checks of a commit, and what ends with a target. Does not own: the records
(``transaction_table.py``), applying (``state.py``), time (``leases.py`` fills in what is left of it:
decisions have no clock), nor argument checks (the store's door).

As for every decision: a refusal is raised as the error that the caller gets, and whatever is returned can be
applied (rule C5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.create_segment import CreateSegment
from ...journal.operations.forget_transactions import ForgetTransactions
from ...journal.operations.transaction_image import TransactionImage, TransactionStatus
from ...storage_backends.base.errors import BadOffset, InvalidArgument, SegmentNotFound, SegmentSealed
from ...storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind
from ...storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    is_staged,
    split_staged,
)
from .decisions import Decision, refuse_staged, require, resolve_updates
from .segments import SegmentState
from .state import ContainerState
from .transaction_requests import (
    AbortTransactionRequest,
    BeginTransactionRequest,
    CommitTransactionRequest,
    ExpireTransactionRequest,
    ForgetTransactionsRequest,
    ListTransactionsRequest,
    StageSegmentRequest,
    TransactionRequest,
)
from .transaction_table import begun, ended, unbegun, unknown

TARGET_GONE = "its target was deleted"
_STATES = {status: TransactionState[status.name] for status in TransactionStatus}


# --- verbs --------------------------------------------------------------------------------------


def decide_begin(state: ContainerState, request: BeginTransactionRequest) -> Decision:
    """Its ``TransactionInfo``: new, open already, or committed if its token's epoch is reached (rule T4)."""
    refuse_staged(request.target, "a transaction is begun on the segment that shall get the bytes")
    target, record = _look(state, request)
    if record is not None:
        _check_token(record, request.token)
    token = request.token or _token(record)
    if target is not None and token is not None and _is_reached(target, token):
        mine = record is not None and record.status is TransactionStatus.COMMITTED
        return None, _info(state, record) if record is not None and mine else _settled(request, token)

    if record is not None:
        return None, _info(state, _open(request, record))

    target = require(state, request.target)
    op = BeginTransaction(
        target.sid, request.transaction, None if token is None else (token.writer, token.epoch), request.lease
    )
    return op, _info(state, begun(target.name, op))


def decide_stage(state: ContainerState, request: StageSegmentRequest) -> Decision:
    """The staged segment's name, made if it is missing."""
    _, record = _look(state, request)
    record = _open(request, record)
    staged = state.transactions.staged(record)
    if request.name in staged:
        return None, request.name

    if len(staged) >= request.staged_max:  # rule T9
        raise InvalidArgument(
            f"transaction {record.id!r} on {record.target!r} has {len(staged)} staged segments, and "
            f"transactions.staged_max allows no "
            "more: write fewer and larger parts, or raise it"
        )

    return CreateSegment(state.next_segment_id(), request.name, request.rolling_size), request.name


def decide_commit_transaction(state: ContainerState, request: CommitTransactionRequest) -> Decision:
    """A ``CommitResult``; what was committed before is said so and done no second time (rules T2 to T4)."""
    target, record = _look(state, request)
    if record is not None:
        _check_token(record, request.token)
        if record.status is TransactionStatus.COMMITTED:
            return None, CommitResult(False, record.offset, record.length)

    token = request.token or _token(record)
    if target is not None and token is not None and _is_reached(target, token):
        return _superseded(state, record, token), CommitResult(False, None, 0)

    if target is None and record is None:
        require(state, request.target)
    record = _open(request, record)
    target = require(state, request.target)
    if target.sealed:
        raise SegmentSealed(f"{target.name!r} is sealed: nothing can be committed to it", segment=target.name)

    return _commit(state, target, record, request.parts, token)


def decide_abort(state: ContainerState, request: AbortTransactionRequest) -> Decision:
    """Its ``TransactionInfo`` afterwards: aborted, unless it was committed before (rule T6)."""
    refuse_staged(request.target, "name the transaction's target")
    _, record = _look(state, request)
    if record is None:
        op = AbortTransaction(require(state, request.target).sid, request.transaction, request.reason, ())
        return op, _info(state, unbegun(request.target, op))

    if record.status is not TransactionStatus.OPEN:
        return None, _info(state, record)

    aborted = record._replace(status=TransactionStatus.ABORTED, reason=request.reason)
    return abort_of(state, record, request.reason), _info(state, aborted)


def decide_transaction(state: ContainerState, request: TransactionRequest) -> Decision:
    """Its ``TransactionInfo``."""
    _, record = _look(state, request)
    if record is None:
        raise unknown(request.target, request.transaction)

    return None, _info(state, record)


def decide_list_transactions(state: ContainerState, request: ListTransactionsRequest) -> Decision:
    """The ``TransactionInfo`` of every known one whose target has the prefix, by target and id."""
    found = [
        record
        for (target, transaction), record in sorted(state.transactions.records.items())
        if target.startswith(request.prefix)
        and state.transactions.find(target, transaction, state.segments.sid_of(target)) is record
    ]
    return None, [_info(state, record) for record in found]


# --- what ends by itself ------------------------------------------------------------------------


def decide_expire(state: ContainerState, request: ExpireTransactionRequest) -> Decision:
    """Whether it was aborted: not if it ended meanwhile, or if something came that was not seen yet (rule
    T7)."""
    record = request.record
    if state.transactions.records.get((record.target, record.id)) is not record:
        return None, False

    staged = state.transactions.staged(record).values()
    if (len(staged), sum(state.segments.by_id[sid].length for sid in staged)) != request.staged:
        return None, False

    return abort_of(state, record, f"its lease of {record.lease / 1000:g} s was over"), True


def decide_forget(state: ContainerState, request: ForgetTransactionsRequest) -> Decision:
    """How many tombstones were over: a record that took the place of one has a time of its own (rule T5)."""
    records = state.transactions.records
    keys = tuple(
        (record.target, record.id)
        for record in request.records
        if records.get((record.target, record.id)) is record
    )
    return (ForgetTransactions(keys) if keys else None), len(keys)


def ended_with(state: ContainerState, targets: Sequence[str]) -> list[AbortTransaction]:
    """The aborts that come in one step with the end of these segments (rule T8)."""
    table = state.transactions
    gone = ((target, state.segments.sid_of(target)) for target in targets) if table.open_of else ()
    return [
        abort_of(state, table.records[target, transaction], TARGET_GONE)
        for target, sid in gone
        if sid is not None
        for transaction in table.open_of.get(sid, ())
    ]


def abort_of(state: ContainerState, record: TransactionImage, reason: str) -> AbortTransaction:
    """The abort of an open transaction, with all that it staged."""
    return AbortTransaction(record.sid, record.id, reason, tuple(state.transactions.staged(record).values()))


# --- inside -------------------------------------------------------------------------------------


def _look(
    state: ContainerState, request: TransactionRequest
) -> tuple[SegmentState | None, TransactionImage | None]:
    """The live target, and what it knows of the transaction; of a deleted target the record is all that is
    left (rule T8)."""
    target = state.segments.find(request.target)
    return target, state.transactions.find(
        request.target, request.transaction, None if target is None else target.sid
    )


def _open(request: TransactionRequest, record: TransactionImage | None) -> TransactionImage:
    if record is None:
        raise unknown(request.target, request.transaction)

    if record.status is not TransactionStatus.OPEN:
        raise ended(record)

    return record


def _token(record: TransactionImage | None) -> TransactionToken | None:
    return None if record is None or record.token is None else TransactionToken(*record.token)


def _check_token(record: TransactionImage, token: TransactionToken | None) -> None:
    if token is not None and record.token is not None and record.token != (token.writer, token.epoch):
        writer, epoch = record.token
        raise InvalidArgument(
            f"transaction {record.id!r} on {record.target!r} has the token of {writer!r} at epoch {epoch}, "
            f"not of {token.writer!r} at "
            f"{token.epoch}: each token needs a transaction of its own"
        )


def _is_reached(target: SegmentState, token: TransactionToken) -> bool:
    newest = target.attributes.get(token.attribute)
    return newest is not None and newest >= token.epoch


def _superseded(
    state: ContainerState, record: TransactionImage | None, token: TransactionToken
) -> AbortTransaction | None:
    """Another transaction committed this epoch: what an open one has staged can never be committed, so it
    ends now (rule T9)."""
    if record is None or record.status is not TransactionStatus.OPEN:
        return None

    return abort_of(state, record, f"epoch {token.epoch} of {token.writer!r} had been committed before")


def _commit(
    state: ContainerState,
    target: SegmentState,
    record: TransactionImage,
    parts: Iterable[StagedPart],
    token: TransactionToken | None,
) -> Decision:
    left = dict(state.transactions.staged(record))
    sources = []
    for part in parts:
        sid = left.pop(part.name, None)
        if sid is None:
            _refuse_part(record, part, state)
        segment = state.segments.by_id[sid]
        if segment.length != part.length:
            raise BadOffset(  # rule T3
                f"{part.name!r} is {segment.length} bytes long, the commit of {record.id!r} expects "
                f"{part.length}",
                segment=part.name,
                expected=segment.length,
                given=part.length,
            )
        sources.append((sid, segment.length))

    updates = (
        ()
        if token is None
        else (AttributeUpdate(token.attribute, token.epoch, AttributeUpdateKind.REPLACE_IF_GREATER),)
    )
    values = resolve_updates(target, updates)
    op = CommitTransaction(target.sid, target.length, record.id, tuple(sources), tuple(left.values()), values)
    return op, CommitResult(True, target.length, sum(length for _, length in sources))


def _refuse_part(record: TransactionImage, part: StagedPart, state: ContainerState) -> NoReturn:
    if part.name in state.transactions.staged(record):
        raise InvalidArgument(f"{part.name!r} is named twice: a part is committed once")

    if is_staged(part.name) and split_staged(part.name) == (record.target, record.id):
        raise SegmentNotFound(f"{part.name!r} was never staged", segment=part.name)

    raise InvalidArgument(
        f"{part.name!r} is no staged segment of transaction {record.id!r} on {record.target!r}"
    )


def _info(state: ContainerState, record: TransactionImage) -> TransactionInfo:
    """Without ``expires_in``, which the container's clock knows."""
    names = state.transactions.staged(record) if record.status is TransactionStatus.OPEN else {}
    staged = tuple(StagedPart(name, state.segments.by_id[sid].length) for name, sid in names.items())
    committed = record.status is TransactionStatus.COMMITTED
    return TransactionInfo(
        transaction_id=record.id,
        target=record.target,
        state=_STATES[record.status],
        token=_token(record),
        lease=record.lease / 1000,
        expires_in=0.0,
        reason=record.reason,
        offset=record.offset if committed else None,
        length=record.length if committed else sum(part.length for part in staged),
        staged=staged,
    )


def _settled(request: BeginTransactionRequest, token: TransactionToken) -> TransactionInfo:
    """The answer when only the token is known: its bytes came with an earlier commit (rule T4)."""
    return TransactionInfo(
        request.transaction,
        request.target,
        TransactionState.COMMITTED,
        token,
        request.lease / 1000,
        0.0,
        "",
        None,
        0,
    )

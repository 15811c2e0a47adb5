"""Transactions: begin, stage, commit, abort, and their end by lease or tombstone (rules T1 to T9).

Decisions have no clock: ``leases.py`` asks for what is due and fills in the time that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from ....journal.operations.abort_transaction import AbortTransaction
from ....journal.operations.begin_transaction import BeginTransaction
from ....journal.operations.commit_transaction import CommitTransaction
from ....journal.operations.create_segment import CreateSegment
from ....journal.operations.ended_transactions import ForgetEnds, TransactionEnd
from ....journal.operations.forget_transactions import ForgetTransactions
from ....journal.operations.transaction_image import TransactionImage, TransactionStatus
from ....storage_backends.base.errors import BadOffset, InvalidArgument, SegmentNotFound, SegmentSealed
from ....storage_backends.base.segments import AttributeUpdate, AttributeUpdateKind
from ....storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    is_staged,
    split_staged,
)
from ....storage_backends.sorted_runs.memtable import version_of
from ..ended_rows import ended_key, index_key
from ..lost_histories import check_position
from ..requests import Request
from ..segments import NotLoaded, SegmentState
from ..transaction_table import begun, ended, never_begun, refuse_staged, unknown
from .attributes import resolve_updates
from .delete import delete_segment, publish_delete
from .handlers import Decision, OperationHandler, RequestHandler
from .merge import merge_sources, publish_merge

if TYPE_CHECKING:
    from ..publish import Publisher
    from ..state import ContainerState

_STATES = {status: TransactionState[status.name] for status in TransactionStatus}


# --- requests -----------------------------------------------------------------------------------


class TransactionRequest(Request):
    """A verb about one transaction."""

    __slots__ = ("target", "transaction")

    def __init__(self, target: str, transaction: str) -> None:
        self.target = target
        self.transaction = transaction

    def named(self) -> Sequence[str]:
        return (self.target,)

    def is_new(self, state: ContainerState) -> bool:
        """Whether no transaction of that id is known, open or ended, as far as memory has it: then to begin
        or to abort it makes a record."""
        sid = state.segments.sid_of(self.target)
        try:
            return state.find_transaction(self.target, self.transaction, sid) is None
        except NotLoaded:
            return True


class TransactionInfoRequest(TransactionRequest):
    """Answered with the ``TransactionInfo``."""

    __slots__ = ()
    is_read = True


class BeginTransactionRequest(TransactionRequest):
    """Answered with the ``TransactionInfo``: new, open already, or committed if its token's epoch is reached
    (rule T4). The lease is in milliseconds."""

    __slots__ = ("lease", "token")

    def __init__(self, target: str, transaction: str, token: TransactionToken | None, lease: int) -> None:
        super().__init__(target, transaction)
        self.token = token
        self.lease = lease

    def takes_room(self, state: ContainerState) -> bool:
        return self.is_new(state)


class StageSegmentRequest(TransactionRequest):
    """Answered with the staged segment's name; creates the segment if it is missing."""

    __slots__ = ("name", "rolling_size", "staged_max")

    def __init__(self, target: str, transaction: str, name: str, rolling_size: int, staged_max: int) -> None:
        super().__init__(target, transaction)
        self.name = name
        self.rolling_size = rolling_size
        self.staged_max = staged_max

    def needed(self) -> Sequence[str]:
        return self.target, self.name

    def takes_room(self, state: ContainerState) -> bool:
        return state.segments.sid_of(self.name) is None


class CommitTransactionRequest(TransactionRequest):
    """Answered with a ``CommitResult``; a repeat is not applied again (rules T2 to T4)."""

    __slots__ = ("parts", "token")

    def __init__(
        self, target: str, transaction: str, parts: Sequence[StagedPart], token: TransactionToken | None
    ) -> None:
        super().__init__(target, transaction)
        self.parts = parts
        self.token = token


class AbortTransactionRequest(TransactionRequest):
    """Answered with the ``TransactionInfo`` afterwards: aborted, unless it was committed before (rule T6)."""

    __slots__ = ("reason",)

    def __init__(self, target: str, transaction: str, reason: str) -> None:
        super().__init__(target, transaction)
        self.reason = reason

    def takes_room(self, state: ContainerState) -> bool:
        # T6: one that never began is remembered; an open one makes room, and has its target in memory.
        return self.is_new(state)


class ExpireTransactionRequest(Request):
    """Internal: abort ``record`` if it is still open and its staged segments are as ``staged`` (number,
    bytes). Answered with whether it was aborted (rule T7)."""

    __slots__ = ("record", "staged")

    def __init__(self, record: TransactionImage, staged: tuple[int, int]) -> None:
        self.record = record
        self.staged = staged


class ForgetTransactionsRequest(Request):
    """Internal: remove the tombstones of ``ends``, as they were in a view whose runs had this
    ``records_to``. Answered with whether they are removed; False if they must be looked up again (rules T5,
    M21)."""

    __slots__ = ("ends", "records_to")

    def __init__(self, ends: Sequence[TransactionEnd], records_to: int) -> None:
        self.ends = ends
        self.records_to = records_to


# --- decisions ----------------------------------------------------------------------------------


def _decide_begin(state: ContainerState, request: BeginTransactionRequest) -> Decision:
    refuse_staged(request.target, "a transaction begins on the segment that receives the bytes")
    target, record = _find(state, request)
    if record is not None:
        _check_token(record, request.token)
    token = request.token or _token(record)
    # T4: a committed token answers for every transaction that carries it, whatever the state of this one.
    if target is not None and token is not None and _is_reached(state, target, token):
        is_ours = record is not None and record.status is TransactionStatus.COMMITTED
        return None, info_of(state, record) if record is not None and is_ours else _committed_info(
            request, token
        )

    if record is not None:
        return None, info_of(state, _require_open(request, record))

    target = state.segments.require_bytes(request.target)
    op = BeginTransaction(
        target.sid, request.transaction, None if token is None else (token.writer, token.epoch), request.lease
    )
    return op, info_of(state, begun(target.name, op))


def _decide_stage(state: ContainerState, request: StageSegmentRequest) -> Decision:
    _, record = _find(state, request)
    record = _require_open(request, record)
    staged = state.transactions.staged(record)
    if request.name in staged:
        return None, request.name

    if len(staged) >= request.staged_max:  # rule T9
        raise InvalidArgument(
            f"transaction {record.id!r} on {record.target!r} has {len(staged)} staged segments, and "
            f"transactions.staged_max allows no more: write fewer and larger parts, or raise it"
        )

    return CreateSegment(state.next_segment_id(), request.name, request.rolling_size), request.name


def _decide_commit(state: ContainerState, request: CommitTransactionRequest) -> Decision:
    target, record = _find(state, request)
    if record is not None:
        _check_token(record, request.token)
        if record.status is TransactionStatus.COMMITTED:
            return None, CommitResult(False, record.offset, record.length)

    token = request.token or _token(record)
    if target is not None and token is not None and _is_reached(state, target, token):
        return _abort_superseded(state, record, token), CommitResult(False, None, 0)

    # Neither is known: "no segment" says more than "no transaction".
    if target is None and record is None:
        state.segments.require(request.target)
    record = _require_open(request, record)
    # T8: the transaction first. If its target was deleted, it was aborted with that reason, which the caller
    # gets.
    target = state.segments.require(request.target)
    if target.sealed:
        raise SegmentSealed(
            f"{target.name!r} is sealed: abort the transaction, and write to another segment",
            segment=target.name,
        )

    return _commit(state, target, record, request.parts, token)


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
        # R10: what the writer of the part was acked is lost.
        check_position(state.histories, segment, part.length, segment.length, None)
        if segment.length != part.length:
            raise BadOffset(  # rule T3
                f"{part.name!r} ends at offset {segment.length}, the commit of {record.id!r} expects "
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
    # T2: resolved to values now, so that replay sets the same ones and compares nothing.
    changes = resolve_updates(state, target, updates)
    op = CommitTransaction(
        target.sid, target.length, record.id, tuple(sources), tuple(left.values()), changes.named
    )
    after = changes.after()
    result = CommitResult(True, target.length, sum(length for _, length in sources))
    return ([op, *after] if after else op), result


def _refuse_part(record: TransactionImage, part: StagedPart, state: ContainerState) -> NoReturn:
    if part.name in state.transactions.staged(record):
        raise InvalidArgument(f"{part.name!r} is named twice: a part is committed once")

    if is_staged(part.name) and split_staged(part.name) == (record.target, record.id):
        raise SegmentNotFound(f"{part.name!r} was never staged", segment=part.name)

    raise InvalidArgument(
        f"{part.name!r} is not a staged segment of transaction {record.id!r} on {record.target!r}"
    )


def _abort_superseded(
    state: ContainerState, record: TransactionImage | None, token: TransactionToken
) -> AbortTransaction | None:
    """Another transaction committed this epoch. What an open one has staged can never be committed, so it
    ends now (rule T9)."""
    if record is None or record.status is not TransactionStatus.OPEN:
        return None

    return state.transactions.abort_of(
        record, f"epoch {token.epoch} of {token.writer!r} had been committed before"
    )


def _decide_abort(state: ContainerState, request: AbortTransactionRequest) -> Decision:
    refuse_staged(request.target, "name the transaction's target")
    _, record = _find(state, request)
    if record is None:
        # T6: it is remembered without a begin too, so that a begin that arrives later is refused.
        sid = state.segments.require_bytes(request.target).sid
        op = AbortTransaction(sid, request.transaction, request.reason, ())
        return op, info_of(state, never_begun(request.target, op))

    if record.status is not TransactionStatus.OPEN:
        return None, info_of(state, record)

    aborted = record._replace(status=TransactionStatus.ABORTED, reason=request.reason)
    return state.transactions.abort_of(record, request.reason), info_of(state, aborted)


def _decide_info(state: ContainerState, request: TransactionInfoRequest) -> Decision:
    _, record = _find(state, request)
    if record is None:
        raise unknown(request.target, request.transaction)

    return None, info_of(state, record)


def _decide_expire(state: ContainerState, request: ExpireTransactionRequest) -> Decision:
    record = request.record
    # Records are immutable, so the same object means that nothing has happened to the transaction.
    if state.transactions.records.get((record.target, record.id)) is not record:
        return None, False

    staged = state.transactions.staged(record).values()
    # T7: an append has reached the container since the lease was checked, so the transaction is in use.
    if (len(staged), sum(state.segments.by_id[sid].length for sid in staged)) != request.staged:
        return None, False

    return state.transactions.abort_of(record, f"its lease of {record.lease / 1000:g} s expired"), True


def _decide_forget(state: ContainerState, request: ForgetTransactionsRequest) -> Decision:
    if state.table.runs.records_to != request.records_to:
        return None, False  # rows that came after the view may have left memory

    return ForgetEnds(tuple(_as_of_now(state, end) for end in request.ends)), True


def _as_of_now(state: ContainerState, end: TransactionEnd) -> TransactionEnd:
    """``end`` as of a view, since which the same id may have ended again."""
    row = state.table.find_in_memory(ended_key(end.target, end.id))
    if row is None:
        return end

    # The rows of one end have one version, and leave memory together.
    index = state.table.find_in_memory(index_key(end.version, end.target, end.id))
    return end._replace(is_newest=index is not None and index.version == row.version)


# --- parts of decisions -------------------------------------------------------------------------


def _find(
    state: ContainerState, request: TransactionRequest
) -> tuple[SegmentState | None, TransactionImage | None]:
    """The live target and its record of the transaction. The record outlives the target (rule T8). Raises
    ``NotLoaded``."""
    target = state.segments.find(request.target)
    return target, state.find_transaction(
        request.target, request.transaction, None if target is None else target.sid
    )


def _require_open(request: TransactionRequest, record: TransactionImage | None) -> TransactionImage:
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
            f"not of {token.writer!r} at {token.epoch}: each token needs a transaction of its own"
        )


def _is_reached(state: ContainerState, target: SegmentState, token: TransactionToken) -> bool:
    newest = state.find_attributes(target, (token.attribute,))[token.attribute]
    return newest is not None and newest >= token.epoch


def info_of(state: ContainerState, record: TransactionImage) -> TransactionInfo:
    """The transaction as a caller sees it, without ``expires_in``, for which a clock is needed."""
    # An ended transaction has no staged segments: they were merged or deleted with its end.
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


def _committed_info(request: BeginTransactionRequest, token: TransactionToken) -> TransactionInfo:
    """The token's epoch came with another transaction's commit, so only the token is known (rule T4)."""
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


# --- apply and publish --------------------------------------------------------------------------


def _apply_begin(state: ContainerState, op: BeginTransaction) -> None:
    state.begin_transaction(state.transactions.begin(state.segments.by_id[op.target].name, op))


def _apply_commit(state: ContainerState, op: CommitTransaction) -> None:
    state.end_transaction(state.transactions.commit(state.segments.by_id[op.target].name, op))
    for sid, _ in op.sources:
        # Merges take sealed sources only. An append to the part that comes later is refused (T3).
        state.change(sid).sealed = True

    merge_sources(state, op)
    for sid in op.dropped:
        delete_segment(state, sid, op.target)


def _apply_abort(state: ContainerState, op: AbortTransaction) -> None:
    # A change of the target: it stays in memory until its end is durable and published.
    state.end_transaction(state.transactions.abort(state.change(op.target).name, op))
    for sid in op.dropped:
        delete_segment(state, sid, op.target)


def _apply_forget(state: ContainerState, op: ForgetEnds) -> None:
    state.forget_ends(op.ends)


def _apply_forget_records(state: ContainerState, op: ForgetTransactions) -> None:
    """Logged by earlier versions, whose runs have no ended transactions."""
    for key in op.transactions:
        if key in state.transactions.records:
            raise ValueError(f"transaction {key} is open and cannot be forgotten")

        row = state.table.find_in_memory(ended_key(*key))
        state.forget_ends((TransactionEnd(version_of(row), True, *key),))


def _publish_begin(publisher: Publisher, op: BeginTransaction, group: int) -> None:
    publisher.listeners.transaction_changed(op)


def _publish_commit(publisher: Publisher, op: CommitTransaction, group: int) -> None:
    publish_merge(publisher, op, group)
    for sid in op.dropped:
        publish_delete(publisher, sid)

    publisher.listeners.transaction_changed(op)


def _publish_abort(publisher: Publisher, op: AbortTransaction, group: int) -> None:
    for sid in op.dropped:
        publish_delete(publisher, sid)

    publisher.listeners.transaction_changed(op)


HANDLERS = (
    RequestHandler(BeginTransactionRequest, _decide_begin),
    RequestHandler(StageSegmentRequest, _decide_stage),
    RequestHandler(CommitTransactionRequest, _decide_commit),
    RequestHandler(AbortTransactionRequest, _decide_abort),
    RequestHandler(TransactionInfoRequest, _decide_info),
    RequestHandler(ExpireTransactionRequest, _decide_expire),
    RequestHandler(ForgetTransactionsRequest, _decide_forget),
    OperationHandler(BeginTransaction, _apply_begin, _publish_begin, from_client=True),
    OperationHandler(CommitTransaction, _apply_commit, _publish_commit, from_client=True),
    OperationHandler(AbortTransaction, _apply_abort, _publish_abort, from_client=True),
    OperationHandler(ForgetEnds, _apply_forget),
    OperationHandler(ForgetTransactions, _apply_forget_records),
)

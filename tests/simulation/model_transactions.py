"""The calls of transactions: rules T1 to T9 in plain values.

As in ``model_calls.py``, each class is one call, with every refusal in the order in which the rules check.
Appends to staged segments are appends (``model_calls.py``); expiry is in ``lease_expiry.py``.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    SegmentSealed,
    TransactionNotFound,
)
from tierlog.storage_backends.base.names import placement_key
from tierlog.storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    staged_name,
)

from .model import (
    Cell,
    Outcome,
    Part,
    Refusal,
    Segment,
    State,
    Transaction,
    cells,
    ends_of,
    refusal,
    staged_names,
    transaction_cell,
    with_item,
)
from .model_calls import TimedOp, not_found, not_open

ABORTED, COMMITTED = TransactionState.ABORTED, TransactionState.COMMITTED


# --- what is returned ----------------------------------------------------------------------------


@attrs.frozen
class ReturnedTransaction(Outcome):
    transaction: str
    target: str
    known: Transaction
    staged: tuple[tuple[str, int], ...] = ()

    def accepts(self, given: object) -> bool:
        known = self.known
        if not isinstance(given, TransactionInfo) or not self._is_in_time(given):
            return False

        shown = (
            given.transaction_id,
            given.target,
            given.state,
            given.token,
            given.lease,
            given.offset,
            given.length,
        )
        length = sum(size for _, size in self.staged) if known.is_open else known.length
        if shown != (
            self.transaction,
            self.target,
            known.state,
            known.token,
            known.lease,
            known.offset,
            length,
        ):
            return False

        staged = tuple(sorted((part.name, part.length) for part in given.staged))
        return staged == self.staged and (
            bool(given.reason) if known.reason is None else given.reason == known.reason
        )

    def _is_in_time(self, given: TransactionInfo) -> bool:
        # The difference of two times may be a rounding more than the lease.
        return given.expires_in >= 0 and (
            not self.known.is_open or given.expires_in <= self.known.lease + 1e-6
        )


@attrs.frozen
class ReturnedCommit(Outcome):
    applied: bool
    offset: int | None
    length: int

    def accepts(self, given: object) -> bool:
        return given == CommitResult(self.applied, self.offset, self.length)


@attrs.frozen
class ReturnedName(Outcome):
    name: str

    def accepts(self, given: object) -> bool:
        return given == self.name


def returned_info(state: State, target: str, transaction: str, known: Transaction) -> ReturnedTransaction:
    staged = state.staged(target, transaction) if known.is_open else {}
    return ReturnedTransaction(
        transaction, target, known, tuple(sorted((name, segment.length) for name, segment in staged.items()))
    )


# --- the verbs ----------------------------------------------------------------------------------


@attrs.frozen
class TransactionOp(TimedOp):
    """A call about one transaction; ``name`` is its target."""

    ends: ClassVar[bool] = False
    """Whether it may end the transaction."""
    name: str
    transaction: str

    @property
    def cell(self) -> Cell:
        return transaction_cell(self.name, self.transaction)

    @property
    def reads(self) -> frozenset[Cell]:
        return cells(self.name) | {self.cell}

    @property
    def writes(self) -> frozenset[Cell]:
        return ends_of(self.name, self.transaction) if self.ends else frozenset({self.cell})

    @property
    def removes(self) -> tuple[str, ...]:
        return staged_names(self.name, self.transaction) if self.ends else ()

    def known(self, state: State) -> Transaction | None:
        return state.transaction(self.name, self.transaction)


def _other_token(known: Transaction | None, token: TransactionToken | None) -> bool:
    return known is not None and None not in (known.token, token) and known.token != token


def _is_reached(target: Segment | None, token: TransactionToken | None) -> bool:
    """Rule T4."""
    return (
        target is not None
        and token is not None
        and dict(target.attributes).get(token.attribute, -1) >= token.epoch
    )


@attrs.frozen
class Begin(TransactionOp):
    token: TransactionToken | None
    lease: float

    @property
    def reads(self) -> frozenset[Cell]:
        staged = (cells(name, Part.TAIL) for name in staged_names(self.name, self.transaction))
        return (cells(self.name, Part.ATTRIBUTES) | {self.cell}).union(*staged)

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if _other_token(known, self.token):
            return state, Refusal(InvalidArgument)

        token = self.token or (known.token if known else None)
        if _is_reached(target, token) and (known is None or known.state is not COMMITTED):
            return state, ReturnedTransaction(
                self.transaction, self.name, Transaction(0, COMMITTED, token, self.lease)
            )

        if known is not None:
            by_token = known.state is COMMITTED and _is_reached(target, token)
            refused = None if by_token else not_open(self.name, known)
            return state, refused or returned_info(state, self.name, self.transaction, known)

        if target is None:
            return state, not_found(state, self.name)

        made = Transaction(target.number, token=token, lease=self.lease, fresh=self.time)
        changed = state.remember(self.name, self.transaction, made)
        return changed, returned_info(changed, self.name, self.transaction, made)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.begin_transaction(self.name, self.transaction, self.token, self.lease)


@attrs.frozen
class Stage(TransactionOp):
    part: str

    @property
    def staged(self) -> str:
        return staged_name(self.name, self.transaction, self.part)

    @property
    def reads(self) -> frozenset[Cell]:
        return cells(self.name) | cells(self.staged) | {self.cell}

    @property
    def writes(self) -> frozenset[Cell]:
        return cells(self.staged) | {self.cell}

    def apply(self, state: State) -> tuple[State, Outcome]:
        refused = not_open(self.name, self.known(state))
        if refused is not None:
            return state, refused

        if state.find(self.staged) is not None:
            return state, ReturnedName(self.staged)

        return state.create(self.staged).touch(self.staged, self.time), ReturnedName(self.staged)

    async def send(self, store: SegmentStore) -> str:
        return await store.stage_segment(self.name, self.transaction, self.part)


@attrs.frozen
class Commit(TransactionOp):
    ends: ClassVar[bool] = True
    parts: tuple[StagedPart, ...]
    token: TransactionToken | None = None

    @property
    def reads(self) -> frozenset[Cell]:
        staged = (cells(name, Part.TAIL) for name in self.removes)
        return (cells(self.name, Part.SEAL, Part.TAIL, Part.ATTRIBUTES) | {self.cell}).union(*staged)

    @property
    def writes(self) -> frozenset[Cell]:
        return super().writes | {(self.name, Part.TAIL), (self.name, Part.ATTRIBUTES)}

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if _other_token(known, self.token):
            return state, Refusal(InvalidArgument)

        if known is not None and known.state is COMMITTED:
            return state, ReturnedCommit(False, known.offset, known.length)

        token = self.token or (known.token if known else None)
        if _is_reached(target, token):
            return self._superseded(state, known), ReturnedCommit(False, None, 0)

        if target is None and known is None:
            return state, not_found(state, self.name)

        refused = not_open(self.name, known)
        if refused is not None or known is None or target is None:
            return state, refused or not_found(state, self.name)

        wrong = self._wrong(state, target)
        return (
            (state, wrong)
            if wrong is not None
            else self._commit(state, target, attrs.evolve(known, token=token))
        )

    def _superseded(self, state: State, known: Transaction | None) -> State:
        """Another transaction committed this epoch, so what this one staged can never be committed (rule
        T9)."""
        if known is None or not known.is_open:
            return state

        aborted = attrs.evolve(known, state=ABORTED, reason=None, fresh=max(known.fresh, self.time))
        return state.end(self.name, self.transaction, aborted)

    def _wrong(self, state: State, target: Segment) -> Outcome | None:
        if target.sealed:
            return refusal(SegmentSealed, segment=self.name)

        staged = state.staged(self.name, self.transaction)
        for index, part in enumerate(self.parts):
            if part.name in [before.name for before in self.parts[:index]]:
                return Refusal(InvalidArgument)

            segment = staged.get(part.name)
            if segment is None:
                return not_found(state, part.name) if part.name in self.removes else Refusal(InvalidArgument)

            if segment.length != part.length:
                return refusal(BadOffset, segment=part.name, expected=segment.length, given=part.length)

        return None

    def _commit(self, state: State, target: Segment, known: Transaction) -> tuple[State, Outcome]:
        staged, token = state.staged(self.name, self.transaction), known.token
        data = b"".join(staged[part.name].data for part in self.parts)
        attributes = (
            target.attributes if token is None else with_item(target.attributes, token.attribute, token.epoch)
        )
        ended = attrs.evolve(
            known, state=COMMITTED, fresh=max(known.fresh, self.time), offset=target.length, length=len(data)
        )
        changed = state.put(self.name, attrs.evolve(target.appended(data), attributes=attributes))
        return changed.end(self.name, self.transaction, ended), ReturnedCommit(True, target.length, len(data))

    def is_impossible(self, segment: Segment, given: object) -> bool:
        return (
            isinstance(given, CommitResult)
            and given.applied
            and given.offset is not None
            and segment.length > given.offset
        )

    async def send(self, store: SegmentStore) -> CommitResult:
        return await store.commit_transaction(self.name, self.transaction, self.parts, self.token)


@attrs.frozen
class Abort(TransactionOp):
    ends: ClassVar[bool] = True
    reason: str = ""

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if known is None and target is None:
            return state, not_found(state, self.name)

        if known is None and target is not None:
            # It may have overtaken its begin (rule T6).
            known = Transaction(target.number, ABORTED, fresh=self.time, reason=self.reason)
            return state.remember(self.name, self.transaction, known), returned_info(
                state, self.name, self.transaction, known
            )

        assert known is not None
        if known.is_open:
            known = attrs.evolve(known, state=ABORTED, reason=self.reason, fresh=max(known.fresh, self.time))
            state = state.end(self.name, self.transaction, known)
        return state, returned_info(state, self.name, self.transaction, known)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.abort_transaction(self.name, self.transaction, self.reason)


# --- queries --------------------------------------------------------------------------------------


@attrs.frozen
class LookUp(TransactionOp):
    is_query: ClassVar[bool] = True

    @property
    def imports(self) -> tuple[str, ...]:
        return ()

    @property
    def reads(self) -> frozenset[Cell]:
        return super().reads.union(
            *(cells(name, Part.TAIL) for name in staged_names(self.name, self.transaction))
        )

    @property
    def writes(self) -> frozenset[Cell]:
        return frozenset()

    def apply(self, state: State) -> tuple[State, Outcome]:
        known = self.known(state)
        if known is None:
            return state, refusal(TransactionNotFound, segment=self.name)

        return state, returned_info(state, self.name, self.transaction, known)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.transaction_info(self.name, self.transaction)


async def listed(family: str, store: SegmentStore) -> list[TransactionInfo]:
    """All that are known of a family."""
    return [info for info in await store.list_transactions(family) if placement_key(info.target) == family]

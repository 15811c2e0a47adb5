"""The calls of transactions: rules T1 to T9 in plain values.

As in ``model_ops.py``, each class is one verb, with every refusal in the order in which the rules look. Does
not own: appends to staged segments, which are appends (``model_ops.py``), nor what an owner does by itself
once a time is over (``lapses.py``). Nothing here waits but ``send``, whose cancellation leaves the outcome to
the store.
"""

from __future__ import annotations

from typing import ClassVar, Self

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

from .model import Life, Outcome, Refusal, State, Transaction, refusal, with_item
from .model_calls import Op, Part, Place, ends_of, not_found, places, staged_names, transaction_place
from .model_ops import not_open

ABORTED, COMMITTED = TransactionState.ABORTED, TransactionState.COMMITTED


# --- what is told -------------------------------------------------------------------------------


@attrs.frozen
class ToldTransaction(Outcome):
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
class ToldCommit(Outcome):
    applied: bool
    offset: int | None
    length: int

    def accepts(self, given: object) -> bool:
        return given == CommitResult(self.applied, self.offset, self.length)


@attrs.frozen
class ToldName(Outcome):
    name: str

    def accepts(self, given: object) -> bool:
        return given == self.name


def told(state: State, target: str, transaction: str, known: Transaction) -> ToldTransaction:
    staged = state.staged(target, transaction) if known.is_open else {}
    return ToldTransaction(
        transaction, target, known, tuple(sorted((name, life.length) for name, life in staged.items()))
    )


# --- the verbs ----------------------------------------------------------------------------------


class TransactionOp(Op):
    """A call about one transaction; ``name`` is its target."""

    __slots__ = ()
    transaction: str

    @property
    def place(self) -> Place:
        return transaction_place(self.name, self.transaction)

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name) | {self.place}

    @property
    def writes(self) -> frozenset[Place]:
        return ends_of(self.name, self.transaction)

    @property
    def removes(self) -> tuple[str, ...]:
        return staged_names(self.name, self.transaction)

    def known(self, state: State) -> Transaction | None:
        return state.transaction(self.name, self.transaction)


def _other_token(known: Transaction | None, token: TransactionToken | None) -> bool:
    return known is not None and None not in (known.token, token) and known.token != token


def _is_reached(target: Life | None, token: TransactionToken | None) -> bool:
    """Rule T4."""
    return (
        target is not None
        and token is not None
        and dict(target.attributes).get(token.attribute, -1) >= token.epoch
    )


@attrs.frozen
class Begin(TransactionOp):
    name: str
    transaction: str
    token: TransactionToken | None
    lease: float
    time: float = attrs.field(default=0.0, eq=False, repr=False)

    @property
    def reads(self) -> frozenset[Place]:
        staged = (places(name, Part.TAIL) for name in staged_names(self.name, self.transaction))
        return (places(self.name, Part.ATTRIBUTES) | {self.place}).union(*staged)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset({self.place})

    @property
    def removes(self) -> tuple[str, ...]:
        return ()

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if _other_token(known, self.token):
            return state, Refusal(InvalidArgument)

        token = self.token or (known.token if known else None)
        if _is_reached(target, token) and (known is None or known.state is not COMMITTED):
            return state, ToldTransaction(
                self.transaction, self.name, Transaction(0, COMMITTED, token, self.lease)
            )

        if known is not None:
            by_token = known.state is COMMITTED and _is_reached(target, token)
            refused = None if by_token else not_open(self.name, known)
            return state, refused or told(state, self.name, self.transaction, known)

        if target is None:
            return state, not_found(state, self.name)

        made = Transaction(target.number, token=token, lease=self.lease, fresh=self.time)
        changed = state.remember(self.name, self.transaction, made)
        return changed, told(changed, self.name, self.transaction, made)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.begin_transaction(self.name, self.transaction, self.token, self.lease)


@attrs.frozen
class Stage(TransactionOp):
    name: str
    transaction: str
    part: str
    time: float = attrs.field(default=0.0, eq=False, repr=False)

    @property
    def staged(self) -> str:
        return staged_name(self.name, self.transaction, self.part)

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name) | places(self.staged) | {self.place}

    @property
    def writes(self) -> frozenset[Place]:
        return places(self.staged) | {self.place}

    @property
    def removes(self) -> tuple[str, ...]:
        return ()

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)

    def apply(self, state: State) -> tuple[State, Outcome]:
        refused = not_open(self.name, self.known(state))
        if refused is not None:
            return state, refused

        if state.find(self.staged) is not None:
            return state, ToldName(self.staged)

        return state.create(self.staged).touch(self.staged, self.time), ToldName(self.staged)

    async def send(self, store: SegmentStore) -> str:
        return await store.stage_segment(self.name, self.transaction, self.part)


@attrs.frozen
class Commit(TransactionOp):
    name: str
    transaction: str
    parts: tuple[StagedPart, ...]
    token: TransactionToken | None = None
    time: float = attrs.field(default=0.0, eq=False, repr=False)

    @property
    def reads(self) -> frozenset[Place]:
        staged = (places(name, Part.TAIL) for name in self.removes)
        return (places(self.name, Part.SEAL, Part.TAIL, Part.ATTRIBUTES) | {self.place}).union(*staged)

    @property
    def writes(self) -> frozenset[Place]:
        return super().writes | {(self.name, Part.TAIL), (self.name, Part.ATTRIBUTES)}

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if _other_token(known, self.token):
            return state, Refusal(InvalidArgument)

        if known is not None and known.state is COMMITTED:
            return state, ToldCommit(False, known.offset, known.length)

        token = self.token or (known.token if known else None)
        if _is_reached(target, token):
            return self._superseded(state, known), ToldCommit(False, None, 0)

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

    def _wrong(self, state: State, target: Life) -> Outcome | None:
        if target.sealed:
            return refusal(SegmentSealed, segment=self.name)

        staged = state.staged(self.name, self.transaction)
        for index, part in enumerate(self.parts):
            if part.name in [before.name for before in self.parts[:index]]:
                return Refusal(InvalidArgument)

            life = staged.get(part.name)
            if life is None:
                return not_found(state, part.name) if part.name in self.removes else Refusal(InvalidArgument)

            if life.length != part.length:
                return refusal(BadOffset, segment=part.name, expected=life.length, given=part.length)

        return None

    def _commit(self, state: State, target: Life, known: Transaction) -> tuple[State, Outcome]:
        staged, token = state.staged(self.name, self.transaction), known.token
        data = b"".join(staged[part.name].data for part in self.parts)
        attributes = (
            target.attributes if token is None else with_item(target.attributes, token.attribute, token.epoch)
        )
        ended = attrs.evolve(
            known, state=COMMITTED, fresh=max(known.fresh, self.time), offset=target.length, length=len(data)
        )
        changed = state.put(self.name, attrs.evolve(target.appended(data), attributes=attributes))
        return changed.end(self.name, self.transaction, ended), ToldCommit(True, target.length, len(data))

    def is_hopeless(self, life: Life, given: object) -> bool:
        return (
            isinstance(given, CommitResult)
            and given.applied
            and given.offset is not None
            and life.length > given.offset
        )

    async def send(self, store: SegmentStore) -> CommitResult:
        return await store.commit_transaction(self.name, self.transaction, self.parts, self.token)


@attrs.frozen
class Abort(TransactionOp):
    name: str
    transaction: str
    reason: str = ""
    time: float = attrs.field(default=0.0, eq=False, repr=False)

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)

    def apply(self, state: State) -> tuple[State, Outcome]:
        target, known = state.find(self.name), self.known(state)
        if known is None and target is None:
            return state, not_found(state, self.name)

        if known is None and target is not None:
            # It may have overtaken its begin (rule T6).
            known = Transaction(target.number, ABORTED, fresh=self.time, reason=self.reason)
            return state.remember(self.name, self.transaction, known), told(
                state, self.name, self.transaction, known
            )

        assert known is not None
        if known.is_open:
            known = attrs.evolve(known, state=ABORTED, reason=self.reason, fresh=max(known.fresh, self.time))
            state = state.end(self.name, self.transaction, known)
        return state, told(state, self.name, self.transaction, known)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.abort_transaction(self.name, self.transaction, self.reason)


# --- looks --------------------------------------------------------------------------------------


@attrs.frozen
class LookUp(TransactionOp):
    name: str
    transaction: str
    is_query: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return super().reads.union(
            *(places(name, Part.TAIL) for name in staged_names(self.name, self.transaction))
        )

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset()

    @property
    def removes(self) -> tuple[str, ...]:
        return ()

    def apply(self, state: State) -> tuple[State, Outcome]:
        known = self.known(state)
        if known is None:
            return state, refusal(TransactionNotFound, segment=self.name)

        return state, told(state, self.name, self.transaction, known)

    async def send(self, store: SegmentStore) -> TransactionInfo:
        return await store.transaction_info(self.name, self.transaction)


async def listed(family: str, store: SegmentStore) -> list[TransactionInfo]:
    """All that are known of a family."""
    return [info for info in await store.list_transactions(family) if placement_key(info.target) == family]

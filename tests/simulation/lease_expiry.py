"""What an owner does to transactions by itself: it aborts them when their lease expires, and forgets them
after their tombstone's time.

An owner may do either at any moment after its time, late, or never. So the checker treats both as calls in
doubt. They read the clock when they are applied, because what was too early at first may be due later. Times
in the state are the earliest possible, so nothing correct is ever rejected as too early.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, TypeAlias

import attrs

from .linearize import Checker
from .model import Cell, Key, Outcome, Returned, State
from .model_calls import Op
from .model_transactions import ABORTED, Abort, Begin, TransactionOp

Clock: TypeAlias = Callable[[], float]


@attrs.frozen
class Expire(TransactionOp):
    """Rule T7: the owner that began at ``since`` aborts it, never before a whole lease without an append is
    over."""

    ends: ClassVar[bool] = True
    since: float
    clock: Callable[[], float] = attrs.field(eq=False, repr=False)
    is_spontaneous: ClassVar[bool] = True

    def apply(self, state: State) -> tuple[State, Outcome]:
        known = self.known(state)
        if known is None or not known.is_open:
            return state, Returned(None)

        due = max(known.fresh, self.since) + known.lease
        if self.clock() < due:
            return state, Returned(None)

        return state.end(
            self.name, self.transaction, attrs.evolve(known, state=ABORTED, reason=None, fresh=due)
        ), Returned(None)


@attrs.frozen
class Forget(TransactionOp):
    """Rule T5: the owner that began at ``since`` forgets it, never before its tombstone's time is over."""

    since: float
    tombstone: float
    clock: Callable[[], float] = attrs.field(eq=False, repr=False)
    is_spontaneous: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Cell]:
        return frozenset({self.cell})

    def apply(self, state: State) -> tuple[State, Outcome]:
        known = dict(state.transactions).get((self.name, self.transaction))
        if known is None or known.is_open or self.clock() < max(known.fresh, self.since) + self.tombstone:
            return state, Returned(None)

        return state.forget(self.name, self.transaction), Returned(None)


class LeaseExpiries:
    """The lease expiries of one family. It must run before any answer or observation is reported to the
    checker."""

    def __init__(self, checker: Checker, tombstone: float, clock: Clock) -> None:
        self._checker = checker
        self._tombstone = tombstone
        self._clock = clock
        self._keys: dict[Key, float] = {}
        """Transactions that calls have named so that they may be known, and the shortest lease that was
        requested for."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """All transactions that there may have been."""
        return tuple(self._keys)

    def note(self, op: Op) -> None:
        """A call is about to begin."""
        if isinstance(op, (Begin, Abort)):
            lease = op.lease if isinstance(op, Begin) else self._tombstone
            key = (op.name, op.transaction)
            self._keys[key] = min(lease, self._keys.get(key, lease))

    def tell(self, owners: Iterable[tuple[int, float]]) -> None:
        """Report to the checker everything that these owners may have done by now: (number, when it began at
        the earliest)."""
        if not self._keys:
            return

        # One that took effect in some explanation may be needed a second time in it: the id can be begun
        # again. So it can by each begin in doubt, which no explanation may have needed so far.
        pending = Counter(
            (call.owner, call.op) for call in self._checker.unspent if isinstance(call.op, (Expire, Forget))
        )
        begins = Counter(
            (call.op.name, call.op.transaction)
            for call in self._checker.pending
            if isinstance(call.op, Begin)
        )
        # The owner that began first is never later than the others, which would only add ways to the same.
        for expiry in self._possible(list(owners)[:1]):
            owner, op = expiry
            for _ in range(pending[expiry], 1 + min(begins[op.name, op.transaction], 1)):
                self._checker.possible(op, owner)

    def _possible(self, owners: list[tuple[int, float]]) -> Iterator[tuple[int, Expire | Forget]]:
        states, now = self._checker.states, self._clock()
        begun = self._earliest_in_doubt()
        for key, lease in self._keys.items():
            known = [found for state in states if (found := dict(state.transactions).get(key)) is not None]
            times = [(found.fresh, found.lease) for found in known if found.is_open]
            times += [(begun[key], lease)] if key in begun else []
            ends = [found.fresh for found in known] + ([begun[key]] if key in begun else [])
            for number, since in owners:
                if any(now >= max(fresh, since) + lease for fresh, lease in times):
                    yield number, Expire(*key, since, self._clock)
                # Owners before the newest may have forgotten what is hidden, and no observation shows it.
                known_since = 0.0 if any(state.is_hidden(*key) for state in states) else since
                if any(now >= max(fresh, known_since) + self._tombstone for fresh in ends):
                    yield number, Forget(*key, known_since, self._tombstone, self._clock)

    def _earliest_in_doubt(self) -> dict[Key, float]:
        """When the begins and aborts began that are not settled yet: any of them may have taken effect."""
        found: dict[Key, float] = {}
        for call in self._checker.pending:
            if isinstance(call.op, (Begin, Abort)):
                key = (call.op.name, call.op.transaction)
                found[key] = min(call.op.time, found.get(key, call.op.time))
        return found

"""What every call of a family has: the segments and the parts of them that it depends on, its effect on a
model state, its way to a store.

``apply`` answers in every state, refusals included. ``send`` asks a real store with the very same arguments,
so a workload and the model cannot disagree about them. Every call is a frozen value.

``reads`` and ``writes`` say on which parts of which segments a call's outcome and effect depend: two calls of
which neither writes what the other reads can change places unnoticed. A part that is written without being
read (a seal, a start) takes the same value in any order.

Does not own: the calls themselves (``model_ops.py`` changes, ``model_queries.py`` looks). Cancelling ``send``
leaves the outcome to the store.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Self

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import InvalidArgument, SegmentNotFound
from tierlog.storage_backends.base.names import placement_key
from tierlog.storage_backends.base.transactions import is_staged, staged_name

from .model import Life, Outcome, Refusal, State, ToldNothing, refusal


class Part(Enum):
    """What of a segment a call can depend on."""

    LIFE = "life"
    TAIL = "tail"
    START = "start"
    SEAL = "seal"
    ATTRIBUTES = "attributes"
    WRITERS = "writers"
    NAMES = "names"
    """Which names the family has; it belongs to no single segment."""
    TRANSACTION = "transaction"
    """What is remembered of one; its place is named as its staged segments are, without their part."""


Place = tuple[str, Part]
NAMES: Place = ("", Part.NAMES)
TRANSACTION_IDS = tuple(f"t{number}" for number in range(5))
STAGED_PARTS = ("p0", "p1", "p2")
"""All that a target has in a simulation: so few that a call can name all that it may end."""


def places(name: str, *parts: Part) -> frozenset[Place]:
    return frozenset((name, part) for part in (Part.LIFE, *parts))


def transaction_place(target: str, transaction: str) -> Place:
    return f"{target}#{transaction}", Part.TRANSACTION


def staged_names(target: str, transaction: str) -> tuple[str, ...]:
    return tuple(staged_name(target, transaction, part) for part in STAGED_PARTS)


def ends_of(target: str, transaction: str) -> frozenset[Place]:
    """What the end of a transaction writes."""
    return frozenset({transaction_place(target, transaction)}).union(
        *map(places, staged_names(target, transaction))
    )


def all_ends_of(target: str) -> frozenset[Place]:
    """What the end of a segment that may be a target writes (rule T8)."""
    return places(target).union(*(ends_of(target, transaction) for transaction in TRANSACTION_IDS))


def all_staged_names(target: str) -> tuple[str, ...]:
    return tuple(name for transaction in TRANSACTION_IDS for name in staged_names(target, transaction))


def not_found(state: State, name: str) -> Outcome:
    return ToldNothing() if state.waits(name) else refusal(SegmentNotFound, segment=name)


class Op:
    """One call."""

    __slots__ = ()
    is_query: ClassVar[bool] = False
    is_lapse: ClassVar[bool] = False
    """Whether it is nobody's call: what an owner may do by itself once a time is over."""
    refuses_staged: ClassVar[bool] = False
    """Whether staged segments are out of its reach (rule T1)."""
    name: str

    @property
    def names(self) -> tuple[str, ...]:
        """The segments it touches."""
        return (self.name,)

    @property
    def removes(self) -> tuple[str, ...]:
        """The names that it may end."""
        return ()

    @property
    def family(self) -> str:
        return placement_key(self.names[0])

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset()

    def apply(self, state: State) -> tuple[State, Outcome]:
        """The state after it, and what its caller is told."""
        if self.refuses_staged and any(map(is_staged, self.names)):
            return state, Refusal(InvalidArgument)

        life = state.find(self.name)
        return (state, self.missing(state)) if life is None else self.change(state, life)

    def missing(self, state: State) -> Outcome:
        """``apply`` where the segment does not exist."""
        return not_found(state, self.name)

    def begun(self, time: float) -> Self:
        """The same call, begun at ``time``: what it does cannot be older."""
        return self

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        """``apply`` where the segment exists."""
        raise NotImplementedError

    def is_hopeless(self, life: Life, given: object) -> bool:
        """Whether ``given`` can no longer be told of ``life``, nor after any number of calls that do not end
        it."""
        return False

    async def send(self, store: SegmentStore) -> Any:
        """Ask ``store`` for it."""
        raise NotImplementedError

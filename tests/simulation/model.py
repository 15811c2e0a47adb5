"""What a family of segments should be: states in plain values, and the outcomes of calls. It knows nothing of
how a store works.

A *family* is the segments that share one placement key (the name up to its first ``#``): merges stay inside a
family, so families are checked one by one. A state is an immutable, hashable value; two ways that lead to the
same segments are one state. A staged segment is a segment like any other, beside its transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import attrs

from tierlog.storage_backends.base.errors import SegmentNotFound, TierlogError
from tierlog.storage_backends.base.segments import AttributeName, AttributePage, SegmentInfo
from tierlog.storage_backends.base.transactions import (
    TransactionState,
    TransactionToken,
    is_staged,
    split_staged,
    staged_name,
)

K = TypeVar("K")
V = TypeVar("V")


def brief(data: bytes) -> str:
    """Bytes for a report: whole if short, else both ends and the length."""
    return repr(data) if len(data) <= 24 else f"{data[:10]!r}..{data[-10:]!r}({len(data)} bytes)"


def with_item(items: tuple[tuple[str, V], ...], key: str, value: V) -> tuple[tuple[str, V], ...]:
    """A sorted map, kept as a tuple, with one item set."""
    return tuple(sorted({**dict(items), key: value}.items()))


ID_PREFIX = "#"


def plain(name: AttributeName) -> str:
    """The name of an attribute in states; for an id one that no call gives."""
    return name if isinstance(name, str) else ID_PREFIX + name.hex()


def plain_values(values: Mapping[AttributeName, int]) -> dict[str, int]:
    return {plain(name): value for name, value in values.items()}


def is_id(name: str) -> bool:
    return name.startswith(ID_PREFIX)


# --- states -------------------------------------------------------------------------------------


@attrs.frozen
class Events:
    """A writer's latest append in a segment."""

    first: int
    last: int
    offset: int


@attrs.frozen(cache_hash=True)
class Segment:
    """One segment: its bytes from ``start`` on, and what is known about it."""

    data: bytes = attrs.field(
        default=b"", hash=False, repr=brief
    )  # compared, but not hashed: the length stands for it
    start: int = 0
    sealed: bool = False
    attributes: tuple[tuple[str, int], ...] = ()
    writers: tuple[tuple[str, Events | None], ...] = ()
    """None: the writer was expired."""
    number: int = 0
    """How many segments of this name ended before it."""
    length: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.start + len(self.data), takes_self=True)
    )

    def writer(self, name: str) -> Events | None:
        return dict(self.writers).get(name)

    def is_expired(self, writer: str) -> bool:
        return (writer, None) in self.writers

    def last_event(self, writer: str) -> int | None:
        known = self.writer(writer)
        return None if known is None else known.last

    def appended(self, data: bytes, writer: str | None = None, events: Events | None = None) -> Segment:
        writers = self.writers if writer is None else with_item(self.writers, writer, events)
        return attrs.evolve(self, data=self.data + data, writers=writers)


@attrs.frozen
class Transaction:
    """What is remembered of one, open or ended."""

    number: int
    """Which segment of its target's name it belongs to (rule T8)."""
    state: TransactionState = TransactionState.OPEN
    token: TransactionToken | None = None
    lease: float = 0.0
    fresh: float = 0.0
    """Its begin, its latest append, or its end was no earlier than this; virtual time."""
    reason: str | None = ""
    """Why it was aborted; None: no caller gave a reason, so the store must. Any reason will do, so the
    ways to it are one state."""
    offset: int | None = None
    length: int = 0

    @property
    def is_open(self) -> bool:
        return self.state is TransactionState.OPEN


Key = tuple[str, str]
"""(target, transaction id)."""


@attrs.frozen(cache_hash=True)
class State:
    """All segments of a family at one moment."""

    segments: tuple[tuple[str, Segment], ...] = ()
    ended: tuple[tuple[str, int], ...] = ()
    """How many segments of a name were deleted or merged away."""
    transactions: tuple[tuple[Key, Transaction], ...] = ()
    legacy: tuple[tuple[str, Segment | None], ...] = ()
    """What the legacy layout holds under a name; None once that was imported."""
    imports_on_access: bool = False
    """Whether the legacy layout's segments are imported at first access."""

    def find(self, name: str) -> Segment | None:
        for known, segment in self.segments:
            if known == name:
                return segment
        return None

    def put(self, name: str, segment: Segment) -> State:
        return attrs.evolve(self, segments=with_item(self.segments, name, segment))

    def create(self, name: str) -> State:
        return self.put(name, Segment(number=dict(self.ended).get(name, 0)))

    def awaits_import(self, name: str) -> bool:
        """Whether the first access to that name imports it."""
        return bool(self.legacy) and self.imports_on_access and dict(self.legacy).get(name) is not None

    def bring(self, name: str, segment: Segment) -> State:
        """``segment``, which the legacy layout has, is a segment now, and never imported again (rule S14)."""
        brought = attrs.evolve(segment, number=dict(self.ended).get(name, 0))
        legacy = tuple((known, None if known == name else left) for known, left in self.legacy)
        return attrs.evolve(self.put(name, brought), legacy=legacy)

    def drop(self, *names: str) -> State:
        """Without these segments, and with their open transactions aborted (rule T8)."""
        state = self
        for (target, transaction), known in self.transactions:
            if target in names and known.is_open:
                state = state.end(
                    target, transaction, attrs.evolve(known, state=TransactionState.ABORTED, reason=None)
                )
        return state._without(*names)

    def _without(self, *names: str) -> State:
        ended = self.ended
        for name in names:
            ended = with_item(ended, name, dict(ended).get(name, 0) + 1)
        return attrs.evolve(
            self, segments=tuple(item for item in self.segments if item[0] not in names), ended=ended
        )

    # --- transactions ----------------------------------------------------------------------------

    def transaction(self, target: str, transaction: str) -> Transaction | None:
        """What the segment that has the target's name now knows of it; of a deleted one, what is left (rule
        T8)."""
        if not self.transactions:
            return None

        known, segment = dict(self.transactions).get((target, transaction)), self.find(target)
        return None if known is None or (segment is not None and segment.number != known.number) else known

    def is_hidden(self, target: str, transaction: str) -> bool:
        """Whether it was of an earlier segment than the newest of that name, so that no caller can have
        learned its end."""
        known, segment = dict(self.transactions).get((target, transaction)), self.find(target)
        newest = dict(self.ended).get(target, 0) - 1 if segment is None else segment.number
        return known is not None and known.number != newest

    def staged(self, target: str, transaction: str) -> dict[str, Segment]:
        """The staged segments of an open transaction."""
        return {
            name: segment
            for name, segment in self.segments
            if is_staged(name) and split_staged(name) == (target, transaction)
        }

    def remember(self, target: str, transaction: str, known: Transaction) -> State:
        items = {**dict(self.transactions), (target, transaction): known}
        return attrs.evolve(self, transactions=tuple(sorted(items.items(), key=lambda item: item[0])))

    def forget(self, target: str, transaction: str) -> State:
        return attrs.evolve(
            self, transactions=tuple(item for item in self.transactions if item[0] != (target, transaction))
        )

    def end(self, target: str, transaction: str, known: Transaction) -> State:
        """It is over as ``known`` says, and its staged segments are gone."""
        return self._without(*self.staged(target, transaction)).remember(target, transaction, known)

    def touch(self, staged: str, time: float) -> State:
        """Bytes came to a staged segment: its transaction's lease begins again (rule T7)."""
        key = split_staged(staged)
        known = self.transaction(*key)
        return (
            self
            if known is None or time <= known.fresh
            else self.remember(*key, attrs.evolve(known, fresh=time))
        )


# --- cells: what of a state a call depends on ------------------------------------------------------


class Part(Enum):
    """What of a segment a call can depend on."""

    EXISTENCE = "existence"
    TAIL = "tail"
    START = "start"
    SEAL = "seal"
    ATTRIBUTES = "attributes"
    WRITERS = "writers"
    NAMES = "names"
    """Which names the family has; it belongs to no single segment."""
    TRANSACTION = "transaction"
    """What is remembered of one; its place is named as its staged segments are, without their part."""


Cell = tuple[str, Part]
NAMES: Cell = ("", Part.NAMES)
TRANSACTION_IDS = tuple(f"t{number}" for number in range(5))
STAGED_PARTS = ("p0", "p1", "p2")
"""All that a target has in a simulation: so few that a call can name all that it may end."""


def cells(name: str, *parts: Part) -> frozenset[Cell]:
    return frozenset((name, part) for part in (Part.EXISTENCE, *parts))


def transaction_cell(target: str, transaction: str) -> Cell:
    return f"{target}#{transaction}", Part.TRANSACTION


def staged_names(target: str, transaction: str) -> tuple[str, ...]:
    return tuple(staged_name(target, transaction, part) for part in STAGED_PARTS)


def ends_of(target: str, transaction: str) -> frozenset[Cell]:
    """What the end of a transaction writes."""
    return frozenset({transaction_cell(target, transaction)}).union(
        *map(cells, staged_names(target, transaction))
    )


def all_ends_of(target: str) -> frozenset[Cell]:
    """What the end of a segment that may be a target writes (rule T8)."""
    return cells(target).union(*(ends_of(target, transaction) for transaction in TRANSACTION_IDS))


def all_staged_names(target: str) -> tuple[str, ...]:
    return tuple(name for transaction in TRANSACTION_IDS for name in staged_names(target, transaction))


# --- outcomes -----------------------------------------------------------------------------------


class Outcome(ABC):
    """What a call may return. ``given`` is the value that a store returned, or the error that it
    raised."""

    __slots__ = ()

    @abstractmethod
    def accepts(self, given: object) -> bool: ...

    def shown_incarnation(self, given: object) -> tuple[str, int, int] | None:
        """``(name, number of the segment, segment id)`` if the answer identifies its segment."""
        return None

    def denied_incarnation(self, given: object) -> tuple[str, int, int] | None:
        """The same if the answer says that this segment has another id."""
        return None


@attrs.frozen
class NotAnswered(Outcome):
    """No answer is possible: the segment is imported first."""

    def accepts(self, given: object) -> bool:
        return False


@attrs.frozen
class Returned(Outcome):
    """Exactly this value."""

    value: int | None

    def accepts(self, given: object) -> bool:
        return type(given) is type(self.value) and given == self.value


@attrs.frozen
class ReturnedNames(Outcome):
    names: tuple[str, ...]

    def accepts(self, given: object) -> bool:
        return isinstance(given, list) and tuple(given) == self.names


@attrs.frozen
class ReturnedValues(Outcome):
    """The new values of attributes."""

    values: tuple[tuple[str, int], ...]

    def accepts(self, given: object) -> bool:
        return isinstance(given, Mapping) and tuple(sorted(given.items())) == self.values


@attrs.frozen
class ReturnedPage(Outcome):
    """Attributes in order, and whether there are more."""

    values: tuple[tuple[str, int], ...]
    is_last: bool

    def accepts(self, given: object) -> bool:
        return (
            isinstance(given, AttributePage)
            and tuple(plain_values(given.attributes).items()) == self.values
            and (None if given.after is None else plain(given.after)) == self._after
        )

    @property
    def _after(self) -> str | None:
        return None if self.is_last else self.values[-1][0]


@attrs.frozen
class ReturnedBytes(Outcome):
    """These bytes, or fewer, but never none where there are some."""

    data: bytes = attrs.field(repr=brief)

    def accepts(self, given: object) -> bool:
        return isinstance(given, bytes) and self.data.startswith(given) and (bool(given) or not self.data)


@attrs.frozen
class ReturnedBlock(Outcome):
    """A part of these bytes; nothing only if there are none and there never will be."""

    data: bytes = attrs.field(repr=brief)
    is_end: bool

    def accepts(self, given: object) -> bool:
        return (
            isinstance(given, bytes)
            and self.data.startswith(given)
            and (bool(given) or (self.is_end and not self.data))
        )


@attrs.frozen
class Block:
    """What a tail yielded, and the id of the segment that it follows; 0 if that is not known."""

    data: bytes = attrs.field(repr=brief)
    segment_id: int

    def __len__(self) -> int:
        return len(self.data)


@attrs.frozen
class OfTail(Outcome):
    """``outcome`` for a tail that follows the segment, ``SegmentNotFound`` for one that follows an earlier
    segment of the name."""

    outcome: Outcome
    name: str
    number: int
    follows: int
    """The id of the segment that the tail follows; 0 before its first block."""

    def accepts(self, given: object) -> bool:
        if isinstance(given, Block):
            return self.outcome.accepts(given.data)

        return self._is_replaced(given) or self.outcome.accepts(given)

    def shown_incarnation(self, given: object) -> tuple[str, int, int] | None:
        segment_id = given.segment_id if isinstance(given, Block) else self.follows
        return (self.name, self.number, segment_id) if segment_id and not self._is_replaced(given) else None

    def denied_incarnation(self, given: object) -> tuple[str, int, int] | None:
        return (self.name, self.number, self.follows) if self._is_replaced(given) else None

    def _is_replaced(self, given: object) -> bool:
        return bool(self.follows) and isinstance(given, SegmentNotFound) and given.segment == self.name


@attrs.frozen
class ReturnedInfo(Outcome):
    name: str
    number: int
    start: int
    length: int
    sealed: bool
    attributes: tuple[tuple[str, int], ...]

    def accepts(self, given: object) -> bool:
        if not isinstance(given, SegmentInfo) or not 0 <= given.flushed_length <= given.length:
            return False

        shown = (given.name, given.start_offset, given.length, given.sealed)
        return shown == (self.name, self.start, self.length, self.sealed) and self._has_attributes(given)

    def _has_attributes(self, given: SegmentInfo) -> bool:
        """All of them, or it says that there are more."""
        if not given.more_attributes:
            return tuple(sorted(given.attributes.items())) == self.attributes

        return not given.attributes.items() - dict(self.attributes).items()

    def shown_incarnation(self, given: object) -> tuple[str, int, int] | None:
        return (self.name, self.number, given.segment_id) if isinstance(given, SegmentInfo) else None


@attrs.frozen
class Refusal(Outcome):
    """An error of exactly this class, with these fields; its message is free."""

    kind: type[TierlogError]
    fields: tuple[tuple[str, object], ...] = ()

    def accepts(self, given: object) -> bool:
        return type(given) is self.kind and all(
            getattr(given, field) == value for field, value in self.fields
        )

    def __str__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{field}={value!r}' for field, value in self.fields)})"


def refusal(kind: type[TierlogError], **fields: Any) -> Refusal:
    return Refusal(kind, tuple(sorted(fields.items())))

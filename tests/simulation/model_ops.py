"""The calls that change a family: the rules of ``docs/protocols/container.md`` in plain values, C3 above all.

Each class is one verb: ``apply`` gives the state after it and what its caller is told, with every refusal in
the order in which the rules look; a refused call changes nothing. Does not own: what looks only
(``model_queries.py``), nor which order of calls explains what was told (``linearize.py``). Nothing here waits
but ``send``, whose cancellation leaves the outcome to the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Self

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentNotSealed,
    SegmentSealed,
    TransactionEnded,
    TransactionNotFound,
    UnknownWriter,
)
from tierlog.storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    ATTRIBUTES_MAX,
    AttributeUpdate,
    AttributeUpdateKind,
)
from tierlog.storage_backends.base.transactions import is_staged, split_staged

from .model import (
    Events,
    Life,
    Outcome,
    Refusal,
    State,
    Told,
    ToldNothing,
    ToldValues,
    Transaction,
    brief,
    refusal,
)
from .model_calls import (
    NAMES,
    Op,
    Part,
    Place,
    all_ends_of,
    all_staged_names,
    not_found,
    places,
    transaction_place,
)


def not_open(target: str, known: Transaction | None) -> Refusal | None:
    """What somebody is told who wants more of a transaction than there is (rule T5)."""
    if known is None:
        return refusal(TransactionNotFound, segment=target)

    return None if known.is_open else refusal(TransactionEnded, segment=target, state=known.state.value)


@attrs.frozen
class Create(Op):
    name: str
    rolling_size: int | None = None
    refuses_staged: ClassVar[bool] = True

    @property
    def writes(self) -> frozenset[Place]:
        return places(self.name) | {NAMES}

    def missing(self, state: State) -> Outcome:
        return ToldNothing() if state.waits(self.name) else Told(None)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state, refusal(SegmentExists, segment=self.name)

    def apply(self, state: State) -> tuple[State, Outcome]:
        _, outcome = super().apply(state)
        return (state.create(self.name) if outcome == Told(None) else state), outcome

    async def send(self, store: SegmentStore) -> None:
        await store.create_segment(self.name, rolling_size=self.rolling_size)


@attrs.frozen
class Append(Op):
    """With a ``writer`` it is idempotent: its events have the numbers from ``first`` on (rule C3)."""

    name: str
    events: tuple[bytes, ...] = attrs.field(repr=lambda events: "[" + ", ".join(map(brief, events)) + "]")
    writer: str | None = None
    first: int = 0
    previous: int | None = None
    expected_offset: int | None = None
    time: float = attrs.field(default=0.0, eq=False, repr=False)

    @property
    def reads(self) -> frozenset[Place]:
        found = places(self.name, Part.SEAL, Part.TAIL, *([Part.WRITERS] if self.writer else []))
        if not is_staged(self.name):
            return found

        target, transaction = split_staged(self.name)
        return found | {transaction_place(target, transaction)} | places(target)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset(place for place in self.reads if place[1] not in (Part.LIFE, Part.SEAL))

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)

    def missing(self, state: State) -> Outcome:
        """Who writes to a staged segment that went with its transaction is told so (rule T5)."""
        if not is_staged(self.name):
            return not_found(state, self.name)

        key = split_staged(self.name)
        return not_open(key[0], state.transaction(*key)) or not_found(state, self.name)

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        early = self._by_number(life) if self.writer else None
        if early is not None:
            return state, early

        if life.sealed:
            return state, refusal(SegmentSealed, segment=self.name)

        if self.expected_offset not in (None, life.length):
            return state, refusal(
                BadOffset, segment=self.name, expected=life.length, given=self.expected_offset
            )

        events, data = (
            Events(self.first, self.last, life.length) if self.writer else None,
            b"".join(self.events),
        )
        changed = state.put(self.name, life.appended(data, self.writer, events))
        return (changed.touch(self.name, self.time) if data and is_staged(self.name) else changed), Told(
            life.length
        )

    def _by_number(self, life: Life) -> Outcome | None:
        """What the event numbers alone decide: a repeat is acked again, whatever became of the segment
        since."""
        assert self.writer is not None
        known = life.writer(self.writer)
        if known is None:
            unknown = life.is_expired(self.writer) or self.previous is not None
            return refusal(UnknownWriter, segment=self.name) if unknown else None

        if self.last <= known.last:
            return Told(known.offset if (self.first, self.last) == (known.first, known.last) else None)

        if self.first <= known.last:
            return Refusal(InvalidArgument)

        previous = self.first - 1 if self.previous is None else self.previous
        return (
            None
            if previous == known.last
            else refusal(OutOfOrder, segment=self.name, last_event_number=known.last)
        )

    def is_hopeless(self, life: Life, given: object) -> bool:
        # A repeat is told an offset below the length; whatever is still to be applied is told at least the
        # length.
        if isinstance(given, BadOffset):
            return life.length > given.expected

        known = life.writer(self.writer) if self.writer else None
        return isinstance(given, int) and life.length > given and (known is None or known.offset != given)

    async def send(self, store: SegmentStore) -> int | None:
        previous, offset = self.previous, self.expected_offset
        first = self.first if self.writer else None
        if len(self.events) == 1:
            data = self.events[0]
            return await store.append(
                self.name,
                data,
                writer_id=self.writer,
                event_number=first,
                previous_event_number=previous,
                expected_offset=offset,
            )

        return await store.append_many(
            self.name,
            self.events,
            writer_id=self.writer,
            first_event_number=first,
            previous_event_number=previous,
            expected_offset=offset,
        )


@attrs.frozen
class Seal(Op):
    name: str
    refuses_staged: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.TAIL)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset({(self.name, Part.SEAL)})

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state.put(self.name, attrs.evolve(life, sealed=True)), Told(life.length)

    def is_hopeless(self, life: Life, given: object) -> bool:
        return isinstance(given, int) and life.length > given

    async def send(self, store: SegmentStore) -> int:
        return await store.seal_segment(self.name)


@attrs.frozen
class Truncate(Op):
    name: str
    offset: int
    refuses_staged: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.TAIL)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset({(self.name, Part.START)})

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        if self.offset > life.length:
            return state, refusal(BadOffset, segment=self.name, expected=life.length, given=self.offset)

        if self.offset <= life.start:
            return state, Told(None)

        kept = attrs.evolve(life, start=self.offset, data=life.data[self.offset - life.start :])
        return state.put(self.name, kept), Told(None)

    async def send(self, store: SegmentStore) -> None:
        await store.truncate_segment(self.name, self.offset)


@attrs.frozen
class Delete(Op):
    name: str
    refuses_staged: ClassVar[bool] = True

    @property
    def removes(self) -> tuple[str, ...]:
        return (self.name,) if is_staged(self.name) else (self.name, *all_staged_names(self.name))

    @property
    def writes(self) -> frozenset[Place]:
        return places(self.name) | {NAMES} if is_staged(self.name) else all_ends_of(self.name) | {NAMES}

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state.drop(self.name), Told(None)

    async def send(self, store: SegmentStore) -> None:
        await store.delete_segment(self.name)


Values = dict[str, int]


def resolve(
    attributes: Values, updates: Iterable[AttributeUpdate]
) -> Values | type[AttributeConflict | InvalidArgument]:
    """The values that ``updates`` lead to, one after the other; or why none of them is done."""
    values: Values = {}
    for update in updates:
        value = _resolve_one(update, values.get(update.name, attributes.get(update.name)))
        if value is None:
            return AttributeConflict

        values[update.name] = value

    return InvalidArgument if len(attributes | values) > ATTRIBUTES_MAX else values


def _resolve_one(update: AttributeUpdate, current: int | None) -> int | None:
    if update.kind is AttributeUpdateKind.ACCUMULATE:
        total = (current or 0) + update.value
        return total if ATTRIBUTE_MIN <= total <= ATTRIBUTE_MAX else None

    holds = {
        AttributeUpdateKind.NONE: current is None,
        AttributeUpdateKind.REPLACE: True,
        AttributeUpdateKind.REPLACE_IF_GREATER: current is None or current < update.value,
        AttributeUpdateKind.REPLACE_IF_EQUALS: current == update.expected,
    }
    return update.value if holds[update.kind] else None


def _not_updated(kind: type[AttributeConflict | InvalidArgument], name: str) -> Refusal:
    return refusal(kind, segment=name) if kind is AttributeConflict else Refusal(kind)


@attrs.frozen
class UpdateAttributes(Op):
    name: str
    updates: tuple[AttributeUpdate, ...]

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.ATTRIBUTES)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset({(self.name, Part.ATTRIBUTES)})

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        attributes = dict(life.attributes)
        values = resolve(attributes, self.updates)
        if not isinstance(values, dict):
            return state, _not_updated(values, self.name)

        changed = attrs.evolve(life, attributes=tuple(sorted((attributes | values).items())))
        return state.put(self.name, changed), ToldValues(tuple(sorted(values.items())))

    async def send(self, store: SegmentStore) -> dict[str, int]:
        return await store.update_attributes(self.name, self.updates)


@attrs.frozen
class Merge(Op):
    """``name`` is the target."""

    name: str
    sources: tuple[str, ...]
    updates: tuple[AttributeUpdate, ...] = ()
    refuses_staged: ClassVar[bool] = True

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.sources)

    @property
    def removes(self) -> tuple[str, ...]:
        own = [name for source in self.sources if not is_staged(source) for name in all_staged_names(source)]
        return (*self.sources, *own)

    @property
    def reads(self) -> frozenset[Place]:
        found = places(self.name, Part.SEAL, Part.TAIL, *([Part.ATTRIBUTES] if self.updates else []))
        return found.union(*(places(source, Part.SEAL, Part.TAIL, Part.START) for source in self.sources))

    @property
    def writes(self) -> frozenset[Place]:
        target = {(self.name, Part.TAIL), *([(self.name, Part.ATTRIBUTES)] if self.updates else [])}
        ends = (places(source) if is_staged(source) else all_ends_of(source) for source in self.sources)
        return frozenset({NAMES, *target}).union(*ends)

    def apply(self, state: State) -> tuple[State, Outcome]:
        # Checked before anything of the state is looked at.
        if not self.sources or len(set(self.sources)) != len(self.sources):
            return state, Refusal(InvalidArgument)

        return super().apply(state)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        refused = self._refused(state, life)
        if refused is not None:
            return state, refused

        attributes = dict(life.attributes)
        values = resolve(attributes, self.updates)
        if not isinstance(values, dict):
            return state, _not_updated(values, self.name)

        lives = dict(state.lives)
        merged = life.appended(b"".join(lives[source].data for source in self.sources))
        merged = attrs.evolve(merged, attributes=tuple(sorted((attributes | values).items())))
        return state.drop(*self.sources).put(self.name, merged), Told(life.length)

    def _refused(self, state: State, target: Life) -> Outcome | None:
        if target.sealed:
            return refusal(SegmentSealed, segment=self.name)

        missing = [source for source in self.sources if state.find(source) is None]
        if missing:
            return not_found(state, missing[0])

        lives = dict(state.lives)
        for source in self.sources:
            if source == self.name:
                return Refusal(InvalidArgument)

            if not lives[source].sealed:
                return refusal(SegmentNotSealed, segment=source)

            if lives[source].start:
                return Refusal(InvalidArgument)

        return None

    def is_hopeless(self, life: Life, given: object) -> bool:
        return isinstance(given, int) and life.length > given

    async def send(self, store: SegmentStore) -> int:
        return await store.merge_segments(self.name, self.sources, attribute_updates=self.updates)


@attrs.frozen
class ExpireWriters(Op):
    name: str
    writers: tuple[str, ...]

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.WRITERS)

    @property
    def writes(self) -> frozenset[Place]:
        return frozenset({(self.name, Part.WRITERS)})

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        known = [writer for writer in dict.fromkeys(self.writers) if life.writer(writer) is not None]
        writers = tuple(sorted((dict(life.writers) | dict.fromkeys(known)).items()))
        return state.put(self.name, attrs.evolve(life, writers=writers)), Told(len(known))

    async def send(self, store: SegmentStore) -> int:
        return await store.expire_writers(self.name, self.writers)

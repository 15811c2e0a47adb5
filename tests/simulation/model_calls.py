"""The calls of a family of segments: the rules of ``docs/protocols/container.md`` in plain values, C3 above
all.

Each class is one call. ``apply`` gives the state after it and what it returns, with every refusal in the
order in which the rules check; a refused call changes nothing. ``send`` makes the same call to a real store,
so a workload and the model cannot disagree about its arguments. Every call is a frozen value.

``reads`` and ``writes`` say on which parts of which segments a call's outcome and effect depend: two calls of
which neither writes what the other reads commute. A part that is written without being read (a seal, a start)
takes the same value in any order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import attrs

from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.transfer import import_segment
from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import (
    AttributeConflict,
    BadOffset,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
    TransactionEnded,
    TransactionNotFound,
    UnknownWriter,
)
from tierlog.storage_backends.base.names import placement_key
from tierlog.storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    ATTRIBUTE_MIN,
    AttributeUpdate,
    AttributeUpdateKind,
    SegmentInfo,
)
from tierlog.storage_backends.base.transactions import is_staged, split_staged

from .model import (
    NAMES,
    Block,
    Cell,
    Events,
    NotAnswered,
    OfTail,
    Outcome,
    Part,
    Refusal,
    Returned,
    ReturnedBlock,
    ReturnedBytes,
    ReturnedInfo,
    ReturnedNames,
    ReturnedValues,
    Segment,
    State,
    Transaction,
    all_ends_of,
    all_staged_names,
    brief,
    cells,
    plain,
    plain_values,
    refusal,
    transaction_cell,
)


def not_found(state: State, name: str) -> Outcome:
    return NotAnswered() if state.awaits_import(name) else refusal(SegmentNotFound, segment=name)


class Op(ABC):
    """One call."""

    __slots__ = ()
    is_query: ClassVar[bool] = False
    is_spontaneous: ClassVar[bool] = False
    """Whether no client makes it: an owner may do it by itself once a time is over."""
    refuses_staged: ClassVar[bool] = False
    """Whether staged segments are out of its reach (rule T1)."""
    depends_on: ClassVar[tuple[Part, ...]] = ()
    """The parts of the segment that it reads, beside its existence."""
    changes: ClassVar[tuple[Part, ...]] = ()
    """The parts of the segment that it writes."""
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
    def imports(self) -> tuple[str, ...]:
        """The names that it may import from the legacy layout."""
        return self.names

    @property
    def family(self) -> str:
        return placement_key(self.names[0])

    @property
    def reads(self) -> frozenset[Cell]:
        return cells(self.name, *self.depends_on)

    @property
    def writes(self) -> frozenset[Cell]:
        return frozenset(NAMES if part is Part.NAMES else (self.name, part) for part in self.changes)

    @abstractmethod
    def apply(self, state: State) -> tuple[State, Outcome]:
        """The state after it, and what it returns."""

    def begun(self, time: float) -> Self:
        """The same call, begun at ``time``: its effect cannot be earlier."""
        return self

    def is_impossible(self, segment: Segment, given: object) -> bool:
        """Whether the call can no longer return ``given`` for ``segment``, nor after any number of calls that
        do not end it."""
        return False

    async def send(self, store: SegmentStore) -> Any:
        """Ask ``store`` for it."""
        raise TypeError(f"no client calls {type(self).__name__}: an owner does it by itself")


@attrs.frozen
class SegmentOp(Op):
    """A call whose effect depends on whether its segment exists."""

    def apply(self, state: State) -> tuple[State, Outcome]:
        if self.refuses_staged and any(map(is_staged, self.names)):
            return state, Refusal(InvalidArgument)

        segment = state.find(self.name)
        return (state, self.missing(state)) if segment is None else self.change(state, segment)

    def missing(self, state: State) -> Outcome:
        """``apply`` where the segment does not exist."""
        return not_found(state, self.name)

    @abstractmethod
    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        """``apply`` where the segment exists."""


@attrs.frozen
class TimedOp(Op):
    """A call whose effect is no earlier than ``time``."""

    time: float = attrs.field(default=0.0, eq=False, repr=False, kw_only=True)

    def begun(self, time: float) -> Self:
        return attrs.evolve(self, time=time)


# --- calls that change something ------------------------------------------------------------------


def not_open(target: str, known: Transaction | None) -> Refusal | None:
    """The refusal of a call that needs an open transaction (rule T5)."""
    if known is None:
        return refusal(TransactionNotFound, segment=target)

    return None if known.is_open else refusal(TransactionEnded, segment=target, state=known.state.value)


@attrs.frozen
class Create(SegmentOp):
    name: str
    rolling_size: int | None = None
    refuses_staged: ClassVar[bool] = True
    changes: ClassVar = (Part.EXISTENCE, Part.NAMES)

    def missing(self, state: State) -> Outcome:
        return NotAnswered() if state.awaits_import(self.name) else Returned(None)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state, refusal(SegmentExists, segment=self.name)

    def apply(self, state: State) -> tuple[State, Outcome]:
        _, outcome = super().apply(state)
        return (state.create(self.name) if outcome == Returned(None) else state), outcome

    async def send(self, store: SegmentStore) -> None:
        await store.create_segment(self.name, rolling_size=self.rolling_size)


@attrs.frozen
class Append(TimedOp, SegmentOp):
    """With a ``writer`` it is idempotent: its events have the numbers from ``first`` on (rule C3)."""

    name: str
    events: tuple[bytes, ...] = attrs.field(repr=lambda events: "[" + ", ".join(map(brief, events)) + "]")
    writer: str | None = None
    first: int = 0
    previous: int | None = None
    expected_offset: int | None = None

    @property
    def reads(self) -> frozenset[Cell]:
        found = cells(self.name, Part.SEAL, Part.TAIL, *([Part.WRITERS] if self.writer else []))
        if not is_staged(self.name):
            return found

        target, transaction = split_staged(self.name)
        return found | {transaction_cell(target, transaction)} | cells(target)

    @property
    def writes(self) -> frozenset[Cell]:
        return frozenset(cell for cell in self.reads if cell[1] not in (Part.EXISTENCE, Part.SEAL))

    def missing(self, state: State) -> Outcome:
        """An append to a staged segment that went with its transaction fails so (rule T5)."""
        if not is_staged(self.name):
            return not_found(state, self.name)

        key = split_staged(self.name)
        return not_open(key[0], state.transaction(*key)) or not_found(state, self.name)

    @property
    def last(self) -> int:
        return self.first + len(self.events) - 1

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        early = self._by_number(segment) if self.writer else None
        if early is not None:
            return state, early

        if segment.sealed:
            return state, refusal(SegmentSealed, segment=self.name)

        if self.expected_offset not in (None, segment.length):
            return state, refusal(
                BadOffset, segment=self.name, expected=segment.length, given=self.expected_offset
            )

        events, data = (
            Events(self.first, self.last, segment.length) if self.writer else None,
            b"".join(self.events),
        )
        changed = state.put(self.name, segment.appended(data, self.writer, events))
        return (changed.touch(self.name, self.time) if data and is_staged(self.name) else changed), Returned(
            segment.length
        )

    def _by_number(self, segment: Segment) -> Outcome | None:
        """What the event numbers alone decide: a repeat is acked again, whatever became of the segment
        since."""
        assert self.writer is not None
        known = segment.writer(self.writer)
        if known is None:
            unknown = segment.is_expired(self.writer) or self.previous is not None
            return refusal(UnknownWriter, segment=self.name) if unknown else None

        if self.last <= known.last:
            return Returned(known.offset if (self.first, self.last) == (known.first, known.last) else None)

        if self.first <= known.last:
            return Refusal(InvalidArgument)

        previous = self.first - 1 if self.previous is None else self.previous
        return (
            None
            if previous == known.last
            else refusal(OutOfOrder, segment=self.name, last_event_number=known.last)
        )

    def is_impossible(self, segment: Segment, given: object) -> bool:
        # A repeat returns an offset below the length; what is still to be applied returns at least the
        # length.
        if isinstance(given, BadOffset):
            return segment.length > given.expected

        known = segment.writer(self.writer) if self.writer else None
        return isinstance(given, int) and segment.length > given and (known is None or known.offset != given)

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
class Seal(SegmentOp):
    name: str
    refuses_staged: ClassVar[bool] = True
    depends_on: ClassVar = (Part.TAIL,)
    changes: ClassVar = (Part.SEAL,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state.put(self.name, attrs.evolve(segment, sealed=True)), Returned(segment.length)

    def is_impossible(self, segment: Segment, given: object) -> bool:
        return isinstance(given, int) and segment.length > given

    async def send(self, store: SegmentStore) -> int:
        return await store.seal_segment(self.name)


@attrs.frozen
class Truncate(SegmentOp):
    name: str
    offset: int
    refuses_staged: ClassVar[bool] = True
    depends_on: ClassVar = (Part.TAIL,)
    changes: ClassVar = (Part.START,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        if self.offset > segment.length:
            return state, refusal(BadOffset, segment=self.name, expected=segment.length, given=self.offset)

        if self.offset <= segment.start:
            return state, Returned(None)

        kept = attrs.evolve(segment, start=self.offset, data=segment.data[self.offset - segment.start :])
        return state.put(self.name, kept), Returned(None)

    async def send(self, store: SegmentStore) -> None:
        await store.truncate_segment(self.name, self.offset)


@attrs.frozen
class Delete(SegmentOp):
    name: str
    refuses_staged: ClassVar[bool] = True

    @property
    def removes(self) -> tuple[str, ...]:
        return (self.name,) if is_staged(self.name) else (self.name, *all_staged_names(self.name))

    @property
    def writes(self) -> frozenset[Cell]:
        return cells(self.name) | {NAMES} if is_staged(self.name) else all_ends_of(self.name) | {NAMES}

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state.drop(self.name), Returned(None)

    async def send(self, store: SegmentStore) -> None:
        await store.delete_segment(self.name)


Values = dict[str, int]


def resolve(attributes: Values, updates: Iterable[AttributeUpdate]) -> Values | type[AttributeConflict]:
    """The values that ``updates`` lead to, one after the other; or why none of them is done."""
    values: Values = {}
    for update in updates:
        name = plain(update.name)
        value = _resolve_one(update, values.get(name, attributes.get(name)))
        if value is None:
            return AttributeConflict

        values[name] = value

    return values


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


@attrs.frozen
class UpdateAttributes(SegmentOp):
    name: str
    updates: tuple[AttributeUpdate, ...]
    depends_on: ClassVar = (Part.ATTRIBUTES,)
    changes: ClassVar = (Part.ATTRIBUTES,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        attributes = dict(segment.attributes)
        values = resolve(attributes, self.updates)
        if not isinstance(values, dict):
            return state, refusal(values, segment=self.name)

        changed = attrs.evolve(segment, attributes=tuple(sorted((attributes | values).items())))
        return state.put(self.name, changed), ReturnedValues(tuple(sorted(values.items())))

    async def send(self, store: SegmentStore) -> dict[str, int]:
        return plain_values(await store.update_attributes(self.name, self.updates))


@attrs.frozen
class Merge(SegmentOp):
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
    def reads(self) -> frozenset[Cell]:
        found = cells(self.name, Part.SEAL, Part.TAIL, *([Part.ATTRIBUTES] if self.updates else []))
        return found.union(*(cells(source, Part.SEAL, Part.TAIL, Part.START) for source in self.sources))

    @property
    def writes(self) -> frozenset[Cell]:
        target = {(self.name, Part.TAIL), *([(self.name, Part.ATTRIBUTES)] if self.updates else [])}
        ends = (cells(source) if is_staged(source) else all_ends_of(source) for source in self.sources)
        return frozenset({NAMES, *target}).union(*ends)

    def apply(self, state: State) -> tuple[State, Outcome]:
        # Checked before the state.
        if not self.sources or len(set(self.sources)) != len(self.sources):
            return state, Refusal(InvalidArgument)

        return super().apply(state)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        refused = self._refused(state, segment)
        if refused is not None:
            return state, refused

        attributes = dict(segment.attributes)
        values = resolve(attributes, self.updates)
        if not isinstance(values, dict):
            return state, refusal(values, segment=self.name)

        segments = dict(state.segments)
        merged = segment.appended(b"".join(segments[source].data for source in self.sources))
        merged = attrs.evolve(merged, attributes=tuple(sorted((attributes | values).items())))
        return state.drop(*self.sources).put(self.name, merged), Returned(segment.length)

    def _refused(self, state: State, target: Segment) -> Outcome | None:
        if target.sealed:
            return refusal(SegmentSealed, segment=self.name)

        missing = [source for source in self.sources if state.find(source) is None]
        if missing:
            return not_found(state, missing[0])

        segments = dict(state.segments)
        for source in self.sources:
            if source == self.name:
                return Refusal(InvalidArgument)

            if not segments[source].sealed:
                return refusal(SegmentNotSealed, segment=source)

            if segments[source].start:
                return Refusal(InvalidArgument)

        return None

    def is_impossible(self, segment: Segment, given: object) -> bool:
        return isinstance(given, int) and segment.length > given

    async def send(self, store: SegmentStore) -> int:
        return await store.merge_segments(self.name, self.sources, attribute_updates=self.updates)


@attrs.frozen
class ExpireWriters(SegmentOp):
    name: str
    writers: tuple[str, ...]
    depends_on: ClassVar = (Part.WRITERS,)
    changes: ClassVar = (Part.WRITERS,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        known = [writer for writer in dict.fromkeys(self.writers) if segment.writer(writer) is not None]
        writers = tuple(sorted((dict(segment.writers) | dict.fromkeys(known)).items()))
        return state.put(self.name, attrs.evolve(segment, writers=writers)), Returned(len(known))

    async def send(self, store: SegmentStore) -> int:
        return await store.expire_writers(self.name, self.writers)


# --- the legacy layout ----------------------------------------------------------------------------


@attrs.frozen
class Import(SegmentOp):
    """On demand. A name is imported once: what was deleted or merged since does not come back."""

    name: str
    changes: ClassVar = (Part.EXISTENCE, Part.NAMES)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state, refusal(SegmentExists, segment=self.name)

    def apply(self, state: State) -> tuple[State, Outcome]:
        legacy = dict(state.legacy)
        if state.find(self.name) is not None:
            return super().apply(state)

        segment = legacy.get(self.name)
        if segment is not None:
            return state.bring(self.name, segment), Returned(segment.length)

        return state, Refusal(InvalidArgument) if self.name in legacy else refusal(
            SegmentNotFound, segment=self.name
        )

    async def send(self, store: SegmentStore) -> int:
        return (await import_segment(store, self.name, no_progress)).length


@attrs.frozen
class ImplicitImport(Op):
    """What any call may do before it does what it is about, and whatever becomes of it then."""

    name: str
    changes: ClassVar = (Part.EXISTENCE, Part.NAMES)

    def apply(self, state: State) -> tuple[State, Outcome]:
        segment = dict(state.legacy).get(self.name)
        return (
            state if segment is None or not state.imports_on_access else state.bring(self.name, segment)
        ), Returned(None)


# --- queries --------------------------------------------------------------------------------------


@attrs.frozen
class Read(SegmentOp):
    name: str
    offset: int
    size: int
    is_query: ClassVar[bool] = True
    depends_on: ClassVar[tuple[Part, ...]] = (Part.TAIL, Part.START)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        if self.offset < segment.start:
            return state, refusal(SegmentTruncated, segment=self.name, start_offset=segment.start)

        return state, ReturnedBytes(self._held(segment))

    def _held(self, segment: Segment) -> bytes:
        position = self.offset - segment.start
        return segment.data[position : position + self.size]

    def is_impossible(self, segment: Segment, given: object) -> bool:
        if not isinstance(given, bytes):
            return False

        if self.offset < segment.start:
            return True

        held = self._held(segment)
        return bool(held) and not (given and (held.startswith(given) or given.startswith(held)))

    async def send(self, store: SegmentStore) -> bytes:
        return await store.read(self.name, self.offset, self.size)


@attrs.frozen
class NextBlock(Read):
    """A read that waits for bytes: it returns none only at the end of a sealed segment. All reads of a tail
    are of one segment, not of a later one of the name."""

    segment_id: int = 0
    """The segment of the tail's earlier blocks; 0 for the first one."""
    depends_on: ClassVar = (Part.TAIL, Part.START, Part.SEAL)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        if self.offset < segment.start:
            outcome = super().change(state, segment)[1]
        else:
            outcome = ReturnedBlock(self._held(segment), segment.sealed)
        return state, OfTail(outcome, self.name, segment.number, self.segment_id)

    def is_impossible(self, segment: Segment, given: object) -> bool:
        return super().is_impossible(segment, given.data if isinstance(given, Block) else given)


@attrs.frozen
class Info(SegmentOp):
    name: str
    is_query: ClassVar[bool] = True
    depends_on: ClassVar = (Part.TAIL, Part.START, Part.SEAL, Part.ATTRIBUTES)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state, ReturnedInfo(
            self.name, segment.number, segment.start, segment.length, segment.sealed, segment.attributes
        )

    def is_impossible(self, segment: Segment, given: object) -> bool:
        return isinstance(given, SegmentInfo) and segment.length > given.length

    async def send(self, store: SegmentStore) -> SegmentInfo:
        return await store.segment_info(self.name)


@attrs.frozen
class ListNames(Op):
    """The names of ``name``'s family that begin with it; staged ones are not shown (rule T1)."""

    name: str
    is_query: ClassVar[bool] = True

    @property
    def imports(self) -> tuple[str, ...]:
        return ()

    @property
    def reads(self) -> frozenset[Cell]:
        return frozenset({NAMES})

    def apply(self, state: State) -> tuple[State, Outcome]:
        return state, ReturnedNames(
            tuple(name for name, _ in state.segments if name.startswith(self.name) and not is_staged(name))
        )

    async def send(self, store: SegmentStore) -> list[str]:
        return [name for name in await store.list_segments(self.name) if placement_key(name) == self.family]


@attrs.frozen
class LastEventNumber(SegmentOp):
    name: str
    writer: str
    is_query: ClassVar[bool] = True
    depends_on: ClassVar = (Part.WRITERS,)

    def change(self, state: State, segment: Segment) -> tuple[State, Outcome]:
        return state, Returned(segment.last_event(self.writer))

    async def send(self, store: SegmentStore) -> int | None:
        return await store.last_event_number(self.name, self.writer)

"""From an action to calls: what a client with limited, perhaps stale knowledge asks for.

``Memory`` is what one client knows; ``calls_of`` turns an action into calls. Pure: the same action and memory
give the same calls. A client keeps its promises: it sends an append of unknown outcome again with the same
numbers and bytes, unless the action breaks that rule on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random

import attrs

from tierlog.storage_backends.base.errors import (
    BadOffset,
    OutcomeUnknown,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentTruncated,
    TierlogError,
    TransactionEnded,
    UnknownWriter,
)
from tierlog.storage_backends.base.segments import (
    ATTRIBUTE_MAX,
    AttributeName,
    AttributeUpdate,
    AttributeUpdateKind,
    SegmentInfo,
)
from tierlog.storage_backends.base.transactions import TransactionInfo, TransactionToken, is_staged

from .intents_transactions import Transacting
from .model import Key, Segment, plain
from .model_attributes import ListAttributes
from .model_calls import (
    Append,
    Create,
    Delete,
    ExpireWriters,
    Import,
    Info,
    LastEventNumber,
    ListNames,
    Merge,
    Op,
    Read,
    Seal,
    Truncate,
    UpdateAttributes,
)
from .model_transactions import Begin, Commit, Stage, TransactionOp
from .plan import OF_TRANSACTIONS, Action, Verb

ATTRIBUTES = ("a", "b", "c")
"""Of which each means three: a name, a longer one, and an id."""
SOURCES_MAX = 3
ROLLING_SIZES = (None, None, 200, 900)
EVENTS_MAX = 5


@attrs.define
class _Events:
    """What a client knows of its own events in one segment."""

    last: int | None = None
    doubtful: Append | None = None


class Memory:
    """What one client knows."""

    def __init__(self, client: int, legacy: Mapping[str, Segment] | None = None) -> None:
        """``legacy``: what it knows to be in the legacy layout."""
        self.writer = f"w{client}"
        self.lengths = {name: segment.length for name, segment in (legacy or {}).items()}
        self.starts = {name: segment.start for name, segment in (legacy or {}).items()}
        self.updates = 0
        """Of attributes that were asked for."""
        self.values: dict[str, int] = {}
        """Values of attributes, by segment and name."""
        self.known = set(self.lengths)
        """Segments that existed by the latest answer about them."""
        self.epochs: dict[str, int] = {}
        """The newest that was committed, by target and token's writer."""
        self.tokens: dict[Key, TransactionToken | None] = {}
        """The tokens that transactions were begun with."""
        self.over: set[Key] = set()
        """Transactions that have ended by an answer."""
        self.newest_doubt: Op | None = None
        """The newest call, if its outcome is unknown."""
        self._events: dict[str, _Events] = {}

    def events(self, name: str) -> _Events:
        return self._events.setdefault(name, _Events())

    def answered(self, op: Op, value: object) -> None:
        self.newest_doubt = None
        self.known.add(op.name)
        if isinstance(op, Append) and isinstance(value, int):
            self.lengths[op.name] = value + sum(map(len, op.events))
        if isinstance(op, Append) and op.writer:
            self._events[op.name] = _Events(max(op.last, self.events(op.name).last or 0))
        for name in (*op.removes, *([op.name] if isinstance(op, Create) else [])):
            self._forget(name)
        if isinstance(op, Create):
            self.known.add(op.name)
        if isinstance(op, Import) and isinstance(value, int):
            self.lengths[op.name] = value
        if isinstance(value, SegmentInfo):
            self.lengths[op.name], self.starts[op.name] = value.length, value.start_offset
        if isinstance(op, Truncate):
            self.starts[op.name] = max(op.offset, self.starts.get(op.name, 0))
        if isinstance(op, UpdateAttributes) and isinstance(value, dict):
            self.values.update({f"{op.name} {name}": number for name, number in value.items()})
        if isinstance(op, TransactionOp):
            self._answered_transaction(op, value)

    def _answered_transaction(self, op: TransactionOp, value: object) -> None:
        key = (op.name, op.transaction)
        if isinstance(op, Stage):
            self.known.add(op.staged)
        if isinstance(op, Begin):
            self.over.discard(key)
            self.tokens[key] = op.token
        if isinstance(op, Commit) and op.token is not None:
            writer = f"{op.name} {op.token.writer}"
            self.epochs[writer] = max(op.token.epoch, self.epochs.get(writer, -1))
        if isinstance(value, TransactionInfo):
            self.known.update(part.name for part in value.staged)
            self.lengths.update((part.name, part.length) for part in value.staged)

    def refused(self, op: Op, error: TierlogError) -> None:
        self.newest_doubt = op if isinstance(error, OutcomeUnknown) else None
        if isinstance(op, TransactionOp) and isinstance(error, TransactionEnded):
            self.over.add((op.name, op.transaction))
        if isinstance(error, BadOffset) and is_staged(error.segment):
            self.lengths[error.segment] = error.expected
        if isinstance(error, SegmentTruncated):
            self.starts[op.name] = error.start_offset
        if isinstance(error, SegmentExists):
            self.known.add(op.name)
        if isinstance(error, SegmentNotFound):
            self._forget(error.segment)
        if isinstance(error, OutOfOrder):
            self._events[op.name] = _Events(error.last_event_number)
        if isinstance(error, UnknownWriter):
            self._events[op.name] = _Events()

    def doubtful(self, op: Op) -> None:
        self.newest_doubt = op
        if isinstance(op, Append) and op.writer == self.writer:
            self.events(op.name).doubtful = op

    def _forget(self, name: str) -> None:
        self.known.discard(name)
        for facts in (self.lengths, self.starts, self._events):
            facts.pop(name, None)


def calls_of(action: Action, names: Sequence[str], memory: Memory, clients: int) -> Iterator[Op]:
    """The calls of an action, one after the other; what it remembers meanwhile counts."""
    return _Intent(action, names, memory, clients).calls()


class _Intent:
    def __init__(self, action: Action, names: Sequence[str], memory: Memory, clients: int) -> None:
        self._action = action
        self._names = names
        self._name = names[action.segment]
        self._memory = memory
        self._clients = clients
        self._random = Random(f"intent {action.chance}")

    @property
    def _length(self) -> int:
        return self._memory.lengths.get(self._name, 0)

    @property
    def _start(self) -> int:
        return self._memory.starts.get(self._name, 0)

    def calls(self) -> Iterator[Op]:
        name, random, action = self._name, self._random, self._action
        if (
            name not in self._memory.known
            and action.verb not in (Verb.CREATE, Verb.LIST, Verb.IMPORT)
            and self._is_likely(0.6)
        ):
            yield Create(name, random.choice(ROLLING_SIZES))
        if action.verb in OF_TRANSACTIONS:
            yield from Transacting(action, self._names, self._memory, self._data, random).calls(action.verb)
            return

        match action.verb:
            case Verb.CREATE:
                yield Create(name, random.choice(ROLLING_SIZES))
            case Verb.APPEND:
                yield Append(name, (self._data(action.size),))
            case Verb.APPEND_AT:
                off = random.choice((0, 0, 0, 0, 1, -1, 50))
                yield Append(name, (self._data(action.size),), expected_offset=max(0, self._length + off))
            case Verb.APPEND_EVENT:
                yield self._event((self._data(action.size),))
            case Verb.APPEND_MANY:
                events = tuple(
                    self._data(action.size // 2, f".{index}")
                    for index in range(random.randint(1, EVENTS_MAX))
                )
                yield self._event(events) if self._is_likely(0.6) else Append(name, events)
            case Verb.READ:
                yield Read(name, self._offset(), random.choice((1, 10, 100, 1000, 10_000)))
            case Verb.IMPORT:
                yield Import(name)
            case Verb.SEAL:
                yield Seal(name)
            case Verb.TRUNCATE:
                yield Truncate(name, self._offset())
            case Verb.MERGE:
                yield from self._merge()
            case Verb.WATCH:
                yield from self._bring_bytes()
            case Verb.DELETE:
                yield Delete(name)
            case Verb.ATTRIBUTES:
                yield UpdateAttributes(name, self._updates(random.randint(1, 3)))
                yield from self._pages()
            case Verb.EXPIRE:
                yield ExpireWriters(
                    name, tuple(f"w{random.randrange(self._clients)}" for _ in range(random.randint(1, 2)))
                )
            case Verb.LAST_NUMBER:
                yield LastEventNumber(name, f"w{random.randrange(self._clients)}")
            case Verb.INFO:
                yield Info(name)
            case Verb.LIST:
                yield ListNames(random.choice((self._names[0], name)))
            case _:
                raise ValueError(f"{action.verb} is not a matter of calls that are known beforehand")

    def _is_likely(self, share: float) -> bool:
        return self._random.random() < share

    def _data(self, size: int, part: str = "") -> bytes:
        """Bytes that name their action."""
        tag = f"<{self._action.number}{part}>".encode()
        return (tag * (size // len(tag) + 1))[:size]

    def _offset(self) -> int:
        """Mostly where there is something."""
        start, end = self._start, self._length
        return max(
            0,
            self._random.choice(
                (
                    start,
                    end,
                    end,
                    start - 1,
                    end + 7,
                    *(self._random.randint(start, max(start, end)) for _ in range(5)),
                )
            ),
        )

    def _event(self, events: tuple[bytes, ...]) -> Append:
        known = self._memory.events(self._name)
        if known.doubtful is not None and self._is_likely(0.9):
            return known.doubtful

        if known.last is None:
            return Append(
                self._name,
                events,
                self._memory.writer,
                self._random.choice((0, 0, 1, 7)),
                self._random.choice((None, None, None, -1)),
            )

        last = known.last
        first, previous = self._random.choice(
            (
                *((last + 1, None),) * 8,
                (last + 5, last),  # numbers may be left out if the one before is named
                (last + 3, None),  # a gap: refused
                (last, None),  # an old number: acked, not applied
                (max(0, last - 2), None),
            )
        )
        return Append(self._name, events, self._memory.writer, first, previous)

    def _merge(self) -> Iterator[Op]:
        others = [name for name in self._names if name != self._name]
        sources = tuple(self._random.sample(others, self._random.randint(1, min(SOURCES_MAX, len(others)))))
        if self._is_likely(0.1):
            sources = (*sources, self._name)
        if self._is_likely(0.8):
            for source in dict.fromkeys(sources):
                if source != self._name:
                    yield Seal(source)
        yield Merge(self._name, sources, self._updates(1) if self._is_likely(0.2) else ())

    def _bring_bytes(self) -> Iterator[Op]:
        """Bring bytes to the tail in one step: by a transaction, or by a merge."""
        if self._is_likely(0.4):
            yield from Transacting(self._action, self._names, self._memory, self._data, self._random).calls(
                Verb.JOB
            )
            return

        source = self._random.choice([name for name in self._names if name != self._name])
        if source not in self._memory.known:
            yield Create(source)
        yield Append(source, (self._data(max(1, self._action.size)),))
        yield Seal(source)
        yield Merge(self._name, (source,))

    def _pages(self) -> Iterator[ListAttributes]:
        """Some pages of the attributes, as the last update has it."""
        prefix: AttributeName = ("", b"", "b")[self._memory.updates % 3]
        after: AttributeName | None = None
        for limit in (1, 2):
            yield ListAttributes(self._name, prefix, after, limit)
            after = b"a" * 16 if isinstance(prefix, bytes) else "a2"

    def _updates(self, count: int) -> tuple[AttributeUpdate, ...]:
        return tuple(self._update() for _ in range(count))

    def _update(self) -> AttributeUpdate:
        letter = self._random.choice(ATTRIBUTES)
        # Not drawn, so that seeds go on to mean the calls that they meant.
        self._memory.updates += 1
        name = (letter, letter + "2", letter.encode() * 16)[self._memory.updates % 3]
        value = self._random.choice((1, 2, 5, -3, 100, ATTRIBUTE_MAX))
        kind = self._random.choice(tuple(AttributeUpdateKind))
        known = self._memory.values.get(f"{self._name} {plain(name)}")
        expected = (
            self._random.choice((known, known, known, None, 1))
            if kind is AttributeUpdateKind.REPLACE_IF_EQUALS
            else None
        )
        return AttributeUpdate(name, value, kind, expected)

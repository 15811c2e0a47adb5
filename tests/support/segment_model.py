"""What segments should be: a model in plain values, and the operations on it. It imports nothing of the store
but its verbs.

A *family* is the segments that one client works on, name by name. Operations are pure functions from one
family to the next; each also knows how to ask a real store for the same thing, and what the store must
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.segments import AttributeUpdate
from tierlog.storage_backends.base.transactions import (
    CommitResult,
    StagedPart,
    TransactionState,
    TransactionToken,
    split_staged,
    staged_name,
)


@attrs.frozen
class Events:
    """What a writer did last in a segment."""

    first: int
    last: int
    offset: int


@attrs.frozen
class Life:
    """One segment: its bytes from ``start`` on, and what is known about it."""

    data: bytes = b""
    start: int = 0
    sealed: bool = False
    attributes: Mapping[str, int] = attrs.field(factory=dict)
    writers: Mapping[str, Events] = attrs.field(factory=dict)

    @property
    def length(self) -> int:
        return self.start + len(self.data)

    def shown(self) -> tuple[object, ...]:
        """What can be seen from outside."""
        return (
            self.start,
            self.data,
            self.sealed,
            dict(self.attributes),
            {name: events.last for name, events in self.writers.items()},
        )


Family = Mapping[str, Life]


class Op:
    """One call. ``apply`` is only asked where it is legal."""

    __slots__ = ()
    is_idempotent = False

    def apply(self, family: Family) -> Family:
        raise NotImplementedError

    def answer(self, family: Family) -> object:
        """What the store must answer when the family is ``family`` before the call."""
        return None

    async def send(self, store: SegmentStore) -> Any:
        raise NotImplementedError


def _change(family: Family, name: str, **changes: Any) -> Family:
    return {**family, name: attrs.evolve(family[name], **changes)}


@attrs.frozen
class Create(Op):
    name: str
    rolling_size: int = 900

    def apply(self, family: Family) -> Family:
        return {**family, self.name: Life()}

    async def send(self, store: SegmentStore) -> Any:
        await store.create_segment(self.name, rolling_size=self.rolling_size)


@attrs.frozen
class Append(Op):
    """``writer`` makes it idempotent, with the numbers from ``first`` on, one for each event."""

    name: str
    events: tuple[bytes, ...]
    writer: str = ""
    first: int = 0
    conditional: bool = False
    """Sent with ``expected_offset``."""
    at: int = 0

    @property
    def is_idempotent(self) -> bool:  # type: ignore[override]
        return bool(self.writer)

    @property
    def _last(self) -> int:
        return self.first + len(self.events) - 1

    def _known(self, family: Family) -> Events | None:
        return family[self.name].writers.get(self.writer)

    def apply(self, family: Family) -> Family:
        known, life = self._known(family), family[self.name]
        if known is not None and self._last <= known.last:
            return family

        writers = dict(life.writers)
        if self.writer:
            writers[self.writer] = Events(self.first, self._last, life.length)
        return _change(family, self.name, data=life.data + b"".join(self.events), writers=writers)

    def answer(self, family: Family) -> object:
        known = self._known(family)
        if known is None or self._last > known.last:
            return family[self.name].length

        return known.offset if (known.first, known.last) == (self.first, self._last) else None

    async def send(self, store: SegmentStore) -> Any:
        numbers: dict[str, Any] = {"expected_offset": self.at} if self.conditional else {}
        if len(self.events) == 1:
            if self.writer:
                numbers |= {"writer_id": self.writer, "event_number": self.first}
            return await store.append(self.name, self.events[0], **numbers)

        if self.writer:
            numbers |= {"writer_id": self.writer, "first_event_number": self.first}
        return await store.append_many(self.name, self.events, **numbers)


@attrs.frozen
class Seal(Op):
    name: str

    def apply(self, family: Family) -> Family:
        return _change(family, self.name, sealed=True)

    def answer(self, family: Family) -> object:
        return family[self.name].length

    async def send(self, store: SegmentStore) -> Any:
        return await store.seal_segment(self.name)


@attrs.frozen
class Truncate(Op):
    name: str
    offset: int

    def apply(self, family: Family) -> Family:
        life = family[self.name]
        offset = max(self.offset, life.start)
        return _change(family, self.name, start=offset, data=life.data[offset - life.start :])

    async def send(self, store: SegmentStore) -> Any:
        await store.truncate_segment(self.name, self.offset)


@attrs.frozen
class Delete(Op):
    name: str

    def apply(self, family: Family) -> Family:
        return {name: life for name, life in family.items() if name != self.name}

    async def send(self, store: SegmentStore) -> Any:
        await store.delete_segment(self.name)


@attrs.frozen
class Merge(Op):
    """``mark`` is an attribute that the target gets in the same step."""

    target: str
    sources: tuple[str, ...]
    mark: tuple[str, int] | None = None

    def apply(self, family: Family) -> Family:
        life = family[self.target]
        data = life.data + b"".join(family[source].data for source in self.sources)
        attributes = dict(life.attributes) | (dict([self.mark]) if self.mark else {})
        merged = _change(family, self.target, data=data, attributes=attributes)
        return {name: life for name, life in merged.items() if name not in self.sources}

    def answer(self, family: Family) -> object:
        return family[self.target].length

    async def send(self, store: SegmentStore) -> Any:
        updates = [AttributeUpdate(*self.mark)] if self.mark else []
        return await store.merge_segments(self.target, self.sources, attribute_updates=updates)


@attrs.frozen
class Begin(Op):
    """A transaction begins; only what is staged for it can be seen."""

    target: str
    transaction: str
    token: TransactionToken | None = None

    def apply(self, family: Family) -> Family:
        return family

    def answer(self, family: Family) -> object:
        return TransactionState.OPEN

    async def send(self, store: SegmentStore) -> Any:
        return (await store.begin_transaction(self.target, self.transaction, self.token)).state


@attrs.frozen
class Stage(Op):
    target: str
    transaction: str
    part: str

    def apply(self, family: Family) -> Family:
        return {**family, staged_name(self.target, self.transaction, self.part): Life()}

    def answer(self, family: Family) -> object:
        return staged_name(self.target, self.transaction, self.part)

    async def send(self, store: SegmentStore) -> Any:
        return await store.stage_segment(self.target, self.transaction, self.part)


def _without_staged(family: Family, target: str, transaction: str) -> Family:
    return {name: life for name, life in family.items() if split_staged(name) != (target, transaction)}


@attrs.frozen
class Commit(Op):
    """``parts``: the part's name and its length, in order."""

    target: str
    transaction: str
    parts: tuple[tuple[str, int], ...]
    token: TransactionToken | None = None

    def _staged(self) -> list[StagedPart]:
        return [
            StagedPart(staged_name(self.target, self.transaction, part), length)
            for part, length in self.parts
        ]

    def apply(self, family: Family) -> Family:
        life = family[self.target]
        data = life.data + b"".join(family[part.name].data for part in self._staged())
        attributes = dict(life.attributes) | (
            {} if self.token is None else {self.token.attribute: self.token.epoch}
        )
        return _without_staged(
            _change(family, self.target, data=data, attributes=attributes), self.target, self.transaction
        )

    def answer(self, family: Family) -> object:
        return CommitResult(True, family[self.target].length, sum(length for _, length in self.parts))

    async def send(self, store: SegmentStore) -> Any:
        return await store.commit_transaction(self.target, self.transaction, self._staged(), self.token)


@attrs.frozen
class Abort(Op):
    target: str
    transaction: str

    def apply(self, family: Family) -> Family:
        return _without_staged(family, self.target, self.transaction)

    def answer(self, family: Family) -> object:
        return TransactionState.ABORTED

    async def send(self, store: SegmentStore) -> Any:
        return (await store.abort_transaction(self.target, self.transaction)).state


@attrs.frozen
class SetAttribute(Op):
    name: str
    key: str
    value: int

    def apply(self, family: Family) -> Family:
        return _change(
            family, self.name, attributes=dict(family[self.name].attributes) | {self.key: self.value}
        )

    def answer(self, family: Family) -> object:
        return {self.key: self.value}

    async def send(self, store: SegmentStore) -> Any:
        return await store.update_attributes(self.name, [AttributeUpdate(self.key, self.value)])


@attrs.frozen
class Flush(Op):
    """Changes nothing that can be seen."""

    def apply(self, family: Family) -> Family:
        return family

    async def send(self, store: SegmentStore) -> Any:
        await store.flush()

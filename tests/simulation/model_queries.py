"""The calls that look at a family and change nothing.

Each is told what is true at one moment between its beginning and its answer. Does not own: looks that take
many calls (``view.py``). Nothing here waits but ``send``; cancelling that leaves nothing behind.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.errors import SegmentTruncated
from tierlog.storage_backends.base.names import placement_key
from tierlog.storage_backends.base.segments import SegmentInfo
from tierlog.storage_backends.base.transactions import is_staged

from .model import Life, Outcome, State, Told, ToldBlock, ToldBytes, ToldInfo, ToldNames, refusal
from .model_calls import NAMES, Op, Part, Place, places


@attrs.frozen
class Read(Op):
    name: str
    offset: int
    size: int
    is_query: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.TAIL, Part.START)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        if self.offset < life.start:
            return state, refusal(SegmentTruncated, segment=self.name, start_offset=life.start)

        return state, ToldBytes(self._held(life))

    def _held(self, life: Life) -> bytes:
        position = self.offset - life.start
        return life.data[position : position + self.size]

    def is_hopeless(self, life: Life, given: object) -> bool:
        if not isinstance(given, bytes):
            return False

        if self.offset < life.start:
            return True

        held = self._held(life)
        return bool(held) and not (given and (held.startswith(given) or given.startswith(held)))

    async def send(self, store: SegmentStore) -> bytes:
        return await store.read(self.name, self.offset, self.size)


@attrs.frozen
class NextBlock(Read):
    """A read that waits for bytes: it is told that there are none only at the end of a sealed segment."""

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.TAIL, Part.START, Part.SEAL)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        if self.offset < life.start:
            return super().change(state, life)

        return state, ToldBlock(self._held(life), life.sealed)


@attrs.frozen
class Info(Op):
    name: str
    is_query: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.TAIL, Part.START, Part.SEAL, Part.ATTRIBUTES)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state, ToldInfo(self.name, life.number, life.start, life.length, life.sealed, life.attributes)

    def is_hopeless(self, life: Life, given: object) -> bool:
        return isinstance(given, SegmentInfo) and life.length > given.length

    async def send(self, store: SegmentStore) -> SegmentInfo:
        return await store.segment_info(self.name)


@attrs.frozen
class ListNames(Op):
    """The names of ``name``'s family that begin with it; staged ones are not shown (rule T1)."""

    name: str
    is_query: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return frozenset({NAMES})

    def apply(self, state: State) -> tuple[State, Outcome]:
        return state, ToldNames(
            tuple(name for name, _ in state.lives if name.startswith(self.name) and not is_staged(name))
        )

    async def send(self, store: SegmentStore) -> list[str]:
        return [name for name in await store.list_segments(self.name) if placement_key(name) == self.family]


@attrs.frozen
class LastEventNumber(Op):
    name: str
    writer: str
    is_query: ClassVar[bool] = True

    @property
    def reads(self) -> frozenset[Place]:
        return places(self.name, Part.WRITERS)

    def change(self, state: State, life: Life) -> tuple[State, Outcome]:
        return state, Told(life.last_event(self.writer))

    async def send(self, store: SegmentStore) -> int | None:
        return await store.last_event_number(self.name, self.writer)

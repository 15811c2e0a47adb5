"""One attempt of one task: its events, packed into appends, in a place of its own.

Owns: the packing of frames into appends, the steps of an attempt, its message, and the two places that it can
write to. Does not own: who writes (``identity.py``), nor what Spark calls when (``writer.py``).

Order: begin (get or create the transaction; one that is committed needs nothing more, so the rows are only
drained), then at the first bytes stage a part, then conditional appends of whole frames. The message names
the part and its length; the driver's commit takes exactly that. A few appends are under way at once, each at
the offset where the one before will end: nobody else appends there, so it is known. One that overtakes the
one before is refused by its offset and sent again; behind one that fails for good none is applied.

Crash: an attempt that ends anywhere leaves a part that no message names; the commit drops it, and so does an
abort or the end of the lease. An attempt that goes on after its transaction has ended is refused with
``TransactionEnded`` (rule T5) and fails, as it must. Attempts share nothing: each has a part of a new name,
because Spark numbers attempts twice and runs two of them at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import attrs

from ..storage_backends.base.arguments import WriterId
from ..storage_backends.base.checksum import Buffer, crc32c
from ..storage_backends.base.errors import BadOffset, OutcomeUnknown, TransactionEnded
from ..storage_backends.base.segments import SegmentInfo
from ..storage_backends.base.transactions import (
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
)
from .events import Frames
from .identity import Identity
from .window import Window

REPEATS_MAX = 3
"""How often an append whose outcome stayed unknown for a whole call is settled by looking."""
WIDTH = 2
"""Appends of one attempt under way at once: one that is made durable, and one that travels."""


class Store(Protocol):
    """What an attempt needs of a client; ``SyncClient`` has it."""

    def begin_transaction(
        self, target: str, transaction_id: str, token: TransactionToken | None = None, lease: float = ...
    ) -> TransactionInfo: ...
    def stage_segment(self, target: str, transaction_id: str, part: str) -> str: ...
    def append(
        self,
        name: str,
        data: Buffer,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        expected_offset: int | None = None,
    ) -> int | None: ...
    def segment_info(self, name: str) -> SegmentInfo: ...


@attrs.frozen
class Staged:
    """What one attempt tells the driver."""

    identity: Identity
    segment: str
    """The staged one; empty if there was nothing to write, or nothing to be done any more."""
    length: int
    crc: int
    """CRC32C of the part, for whoever looks for a difference."""

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        return (StagedPart(self.segment, self.length),) if self.segment else ()


# --- packing ------------------------------------------------------------------------------------


def pack(batches: Iterable[Frames], size: int) -> Iterator[bytes]:
    """The frames of all batches in appends of about ``size`` bytes, each of whole frames: as many as fit, or
    a single larger one."""
    waiting: list[memoryview] = []
    waiting_bytes = 0
    for batch in batches:
        position = 0
        for end in cuts(batch.ends, size, waiting_bytes):
            yield b"".join((*waiting, batch.data[position:end]))
            waiting, waiting_bytes, position = [], 0, end
        if position < len(batch.data):
            waiting.append(batch.data[position:])
            waiting_bytes += len(batch.data) - position
    if waiting:
        yield b"".join(waiting)


def cuts(ends: Sequence[int], size: int, waiting: int) -> Iterator[int]:
    """Where to cut a batch with frames that end at ``ends``, when ``waiting`` bytes go before it; what is
    behind the last cut waits."""
    begin, last = 0, ends[-1] if ends else 0
    while waiting + last - begin >= size:
        fitting = bisect_right(ends, begin + size - waiting)
        cut = ends[fitting - 1] if fitting else 0
        if cut <= begin:
            # Not one more frame fits: what waits goes alone, and a frame that is too large goes alone.
            cut = begin if waiting else ends[fitting]
        yield cut
        begin, waiting = cut, 0


# --- an attempt ---------------------------------------------------------------------------------


def stage(store: Store, identity: Identity, part: str, batches: Iterable[Frames], size: int) -> Staged:
    """Write everything to a staged segment of the transaction, or nothing if it is committed already."""
    if is_committed(store, identity):
        for _ in batches:
            pass
        return Staged(identity, "", 0, 0)

    place: StagedPlace | None = None
    with Window(WIDTH) as window:
        for data in pack(batches, size):
            if place is None:
                place = StagedPlace(
                    store, store.stage_segment(identity.target, identity.transaction_id, part), window
                )
            place.append(data)
        window.finish()
    return (
        Staged(identity, "", 0, 0) if place is None else Staged(identity, place.name, place.length, place.crc)
    )


def is_committed(store: Store, identity: Identity) -> bool:
    """Begin the transaction. ``TransactionEnded`` if it was aborted: this task belongs to a write that is
    over."""
    try:
        info = store.begin_transaction(
            identity.target, identity.transaction_id, token=identity.token, lease=identity.lease
        )
    except TransactionEnded as ended:
        if ended.state == TransactionState.COMMITTED.value:
            return True
        raise

    if info.state is TransactionState.ABORTED:
        message = f"the write {identity.transaction_id!r} was aborted: {info.reason or 'no reason was given'}"
        raise TransactionEnded(message, segment=identity.target, state=info.state.value)

    return info.state is TransactionState.COMMITTED


class StagedPlace:
    """A staged segment. Only this attempt knows its name, so its length says what was applied."""

    def __init__(self, store: Store, name: str, window: Window) -> None:
        self._store = store
        self._window = window
        self.name = name
        self.length = 0
        """With what is under way."""
        self.crc = 0

    def append(self, data: bytes) -> None:
        offset = self.length
        self._window.put(lambda before: self._append(data, offset, before))
        self.length += len(data)
        self.crc = crc32c(data, self.crc)

    def _append(self, data: bytes, offset: int, before: Callable[[], None]) -> None:
        for repeat in range(REPEATS_MAX + 1):
            try:
                self._store.append(self.name, data, expected_offset=offset)
                return
            except (OutcomeUnknown, BadOffset):
                # Perhaps it overtook the one before. When that is applied, the length tells what became of
                # this one; the offset makes a second try harmless.
                self._window.overtaken()
                before()
                if self._store.segment_info(self.name).length >= offset + len(data):
                    return
                if repeat == REPEATS_MAX or self._window.is_over:
                    raise


class DirectPlace:
    """The target itself. Numbered appends of a writer of its own: a repeat over HTTP adds nothing, a second
    attempt adds all again."""

    def __init__(self, store: Store, target: str, writer_id: str) -> None:
        self._store = store
        self._target = target
        self._writer_id = writer_id
        self._number = 0

    def append(self, data: bytes) -> None:
        self._store.append(self._target, data, writer_id=self._writer_id, event_number=self._number)
        self._number += 1


def append_directly(place: DirectPlace, batches: Iterable[Frames], size: int) -> None:
    """One at a time, while the next is made ready: a writer's numbers must come in order."""
    with Window(1) as window:
        for data in pack(batches, size):
            window.put(partial(_append_to, place, data))
        window.finish()


def _append_to(place: DirectPlace, data: bytes, before: Callable[[], None]) -> None:
    place.append(data)

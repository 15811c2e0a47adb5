"""One attempt of one task: its events, packed into appends, to a staged segment of its own or directly to the
target.

An attempt begins the write's transaction (creates it or joins it; if it is committed already, the rows are
only drained) while Spark produces the first rows, stages a part at the first bytes, and appends whole frames
conditionally. Its result names the part and its length; the driver's commit takes exactly that. A few
requests are in flight at once: the one that stages the part, and behind it appends, each at the offset where
the one before will end; no other writer appends there. A request that overtakes its predecessor is rejected,
because the part does not exist yet or is shorter, and retried; after one that fails for good none is applied.

On a crash an attempt leaves a part that no result names. The commit drops it, and so does an abort or the end
of the lease. An attempt that goes on after its transaction has ended fails with ``TransactionEnded`` (rule
T5). Attempts share nothing: each part has a new name, because Spark restarts attempt numbers and runs two
attempts at once."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

import attrs

from ..storage_backends.base.arguments import WriterId
from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.errors import (
    BadOffset,
    HistoryLost,
    OutcomeUnknown,
    SegmentNotFound,
    TransactionEnded,
)
from ..storage_backends.base.segments import AttributeName, AttributePage, SegmentInfo
from ..storage_backends.base.transactions import (
    StagedPart,
    TransactionInfo,
    TransactionState,
    TransactionToken,
    staged_name,
)
from .events import Frames
from .identity import Identity

T = TypeVar("T")

REPEATS_MAX = 3
"""How often an append with an unknown outcome is checked against the segment's length and retried."""
IN_FLIGHT_MAX = 2
"""Appends of one attempt in flight: one is made durable while the next one travels."""


class Store(Protocol):
    """The verbs of ``SyncClient`` that an attempt uses."""

    def create_segment(self, name: str, *, exist_ok: bool = False) -> None: ...
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
class TaskResult:
    """What one attempt reports to the driver."""

    identity: Identity
    segment: str
    """The staged segment; empty if there were no rows, or if the write was committed already."""
    length: int

    @property
    def parts(self) -> tuple[StagedPart, ...]:
        return (StagedPart(self.segment, self.length),) if self.segment else ()


# --- packing ------------------------------------------------------------------------------------


def pack(batches: Iterable[Frames], size: int) -> Iterator[bytes]:
    """The frames of all batches in appends of up to ``size`` bytes, each of whole frames, or of one larger
    frame."""
    waiting: list[memoryview] = []
    waiting_bytes = 0
    for batch in batches:
        position = 0
        for end in cuts(batch.ends, size, waiting_bytes):
            # The only copy of the frames: batches and what waits are views.
            yield b"".join((*waiting, batch.data[position:end]))
            waiting, waiting_bytes, position = [], 0, end
        if position < len(batch.data):
            waiting.append(batch.data[position:])
            waiting_bytes += len(batch.data) - position
    if waiting:
        yield b"".join(waiting)


def cuts(ends: Sequence[int], size: int, waiting: int) -> Iterator[int]:
    """Where to cut a batch with frames that end at ``ends``, when ``waiting`` bytes precede it. The bytes
    after the last cut wait for the next batch."""
    begin, last = 0, ends[-1] if len(ends) else 0
    while waiting + last - begin >= size:
        fitting = bisect_right(ends, begin + size - waiting)
        cut = ends[fitting - 1] if fitting else 0
        if cut <= begin:
            # No more frame fits: the waiting bytes go alone, and so does a frame that is too large.
            cut = begin if waiting else ends[fitting]
        yield cut
        begin, waiting = cut, 0


# --- appends in flight --------------------------------------------------------------------------

Append = Callable[[Callable[[], None]], None]
"""``append(before)`` makes one append. ``before()`` returns when its predecessor is done, and raises if that
failed."""


class InFlight:
    """Several appends of one attempt in flight, each in a thread; what stages their segment is the first.

    They start in the order in which they are submitted, over connections of their own, so one may overtake
    another. It reports that with ``reordered()``, and the next append starts only when all before it are
    done; otherwise that one would overtake the retried one in turn. The first failure in order is raised, by
    the next ``submit`` or by ``finish``; the outcomes of later appends are ignored.

    When the body fails or is interrupted, running appends are waited for, the others never start, and
    ``is_over`` stops retries. No thread is left after the ``with`` block."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._threads = ThreadPoolExecutor(most, "tierlog-append")
        self._running: deque[Future[None]] = deque()
        self._is_reordered = False
        self.is_over = False
        """The body failed: retries are pointless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over = kind is not None
        self._threads.shutdown(cancel_futures=True)

    def beside(self, call: Callable[[], T]) -> Future[T]:
        """Start something that is not an append, before all of them."""
        return self._threads.submit(call)

    def submit(self, append: Append) -> None:
        """Start an append, when fewer than the maximum are in flight."""
        if len(self._running) >= self._most:
            # The oldest one, so that the first failure in order is the one that is raised.
            self._running.popleft().result()
        if self._is_reordered:
            self.finish()
            self._is_reordered = False
        before = self._running[-1].result if self._running else _first
        self._running.append(self._threads.submit(append, before))

    def reordered(self) -> None:
        """Called by an append that may have arrived before its predecessor."""
        self._is_reordered = True

    def finish(self) -> None:
        """Wait for all appends."""
        while self._running:
            self._running.popleft().result()


def _first() -> None:
    """The first append has no predecessor to wait for."""


# --- an attempt ---------------------------------------------------------------------------------


def stage(
    store: Store, identity: Identity, part: str, batches: Iterable[Frames], size: int, *, create: bool = False
) -> TaskResult:
    """Write everything to a staged segment of the transaction, or nothing if it is committed already.

    ``part`` names the staged segment, ``size`` is the bytes of one append; with ``create`` a target that does
    not exist is created.
    """
    staged: StagedSegment | None = None
    with InFlight(IN_FLIGHT_MAX) as in_flight:
        is_done = in_flight.beside(lambda: is_committed(store, identity, create))
        for data in pack(batches, size):
            if is_done.result():
                continue  # the rows are drained
            if staged is None:
                staged = StagedSegment(store, identity, part, in_flight)
            staged.append(data)
        # Without rows too, a task of a write that has ended fails.
        is_done.result()
        # Before the result: the driver commits what it names, so all of it must be acked.
        in_flight.finish()
    return TaskResult(identity, "", 0) if staged is None else TaskResult(identity, staged.name, staged.length)


def is_committed(store: Store, identity: Identity, create: bool) -> bool:
    """Begin the transaction. Raises ``TransactionEnded`` if it was aborted: this task belongs to a write that
    has ended."""
    try:
        info = _begin(store, identity, create)
    except TransactionEnded as ended:
        # Its tombstone answers (T5): an earlier attempt of the driver has committed it.
        if ended.state == TransactionState.COMMITTED.value:
            return True
        raise

    if info.state is TransactionState.ABORTED:
        message = f"the write {identity.transaction_id!r} was aborted: {info.reason or 'no reason was given'}"
        raise TransactionEnded(message, segment=identity.target, state=info.state.value)

    return info.state is TransactionState.COMMITTED


def _begin(store: Store, identity: Identity, create: bool) -> TransactionInfo:
    begin = partial(
        store.begin_transaction,
        identity.target,
        identity.transaction_id,
        token=identity.token,
        lease=identity.lease,
    )
    try:
        return begin()
    except SegmentNotFound:
        if not create:
            raise
        store.create_segment(identity.target, exist_ok=True)  # other tasks do so too
        return begin()


class Attributes(Protocol):
    """The verbs of ``SyncClient`` that show which micro-batches were committed."""

    def segment_info(self, name: str) -> SegmentInfo: ...
    def list_attributes(
        self, name: str, prefix: AttributeName = "", *, after: AttributeName | None = None, limit: int = ...
    ) -> AttributePage: ...


def check_batches(store: Attributes, identity: Identity) -> None:
    """Raise ``HistoryLost`` if the target was recovered from long-term storage alone, without the commits of
    micro-batches before this one: Spark does not replay what it knows to be committed."""
    token = identity.token
    if token is None or not token.epoch:
        return

    info = store.segment_info(identity.target)
    if not info.history:
        return

    page = store.list_attributes(identity.target, token.attribute, limit=1)
    last = page.attributes.get(token.attribute, -1)
    if last >= token.epoch - 1:
        return

    first = last + 1
    raise HistoryLost(
        f"{identity.target!r} lacks the micro-batches {first} to {token.epoch - 1} of this query: the store "
        f"was recovered from long-term storage without them, and Spark does not write them again by itself. "
        f"To have them written again, stop the query and remove from its checkpoint what is above {first} in "
        f"offsets/ and above {last} in commits/; to go on without them, start it with a new checkpoint",
        segment=identity.target,
        history=info.history,
        recovered_length=info.length,
    )


class StagedSegment:
    """A staged segment. Only this attempt appends to it, so its length shows what was applied.

    The first append does not wait until the segment is there: its name is known before (rule T1)."""

    def __init__(self, store: Store, identity: Identity, part: str, in_flight: InFlight) -> None:
        self._store = store
        self._in_flight = in_flight
        self.name = staged_name(identity.target, identity.transaction_id, part)
        self.length = 0
        """Its length in bytes, including the appends in flight."""
        in_flight.submit(lambda before: self._stage(identity, part))

    def append(self, data: bytes) -> None:
        offset = self.length
        self._in_flight.submit(lambda before: self._append(data, offset, before))
        self.length += len(data)

    def _stage(self, identity: Identity, part: str) -> None:
        self._store.stage_segment(identity.target, identity.transaction_id, part)

    def _append(self, data: bytes, offset: int, before: Callable[[], None]) -> None:
        for repeat in range(REPEATS_MAX + 1):
            try:
                self._store.append(self.name, data, expected_offset=offset)
                return
            except (OutcomeUnknown, BadOffset, SegmentNotFound):
                # It may have overtaken its predecessor. Once that is applied, the length shows whether this
                # one was; the offset makes a retry harmless.
                self._in_flight.reordered()
                before()
                if self._store.segment_info(self.name).length >= offset + len(data):
                    return
                if repeat == REPEATS_MAX or self._in_flight.is_over:
                    raise


class DirectAppender:
    """Appends to the target itself, with a writer id of its own and numbers: a retry over HTTP adds nothing,
    a second attempt of the task adds everything again."""

    def __init__(self, store: Store, target: str, writer_id: str) -> None:
        self._store = store
        self._target = target
        self._writer_id = writer_id
        self._number = 0

    def append(self, data: bytes) -> None:
        self._store.append(self._target, data, writer_id=self._writer_id, event_number=self._number)
        self._number += 1


def append_directly(appender: DirectAppender, batches: Iterable[Frames], size: int) -> None:
    """One append at a time, while the next one is packed: a writer's numbers must arrive in order."""
    with InFlight(1) as in_flight:
        for data in pack(batches, size):
            in_flight.submit(partial(_append_to, appender, data))
        in_flight.finish()


def _append_to(appender: DirectAppender, data: bytes, before: Callable[[], None]) -> None:
    appender.append(data)

"""The mailbox: an actor's bounded channel, drained in batches.

Rules: A1 (bounds), A2 (lanes; C6), A3 (a cancelled put leaves nothing), A4 (close answers everybody), C9
(every item is charged a fixed overhead). Throttling of clients happens before the mailbox (C6).

Ordering: items of one lane leave in the order in which their puts began. The internal lane goes first, but
while normal items wait at most ``internal_burst`` internal ones pass before a normal one.

Cancellation: a putter that waited is granted room first and puts its item in when it runs again. A
cancellation in between returns the room, so no item of a cancelled put is ever drained. A cancelled ``drain``
has taken nothing. Crash: nothing here is durable.

Hot path: ``offer``, ``put`` with room and ``drain`` with items never suspend and make no event.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from msgspec import Struct

from ...storage_backends.base.errors import InvalidArgument
from .event_source import EventSource, OneShot

if TYPE_CHECKING:
    from .statistics import LaneStatistics, MailboxStatistics

T = TypeVar("T")

ITEM_OVERHEAD = 256
"""Bytes charged for an item besides its payload: about the size of the message, its reply and their slots."""


class Lane(enum.Enum):
    NORMAL = 0
    """Work that clients cause."""
    INTERNAL = 1
    """Work that relieves pressure (metadata commits, collection, checkpoints). It has its own capacity and
    goes first."""


_NORMAL = Lane.NORMAL


class LaneBounds(Struct, frozen=True):
    """The bounds of one lane, at least 1 each. An item larger than ``size_bytes`` is admitted alone, to an
    empty lane."""

    count: int
    size_bytes: int
    """Charged bytes: payload and ``ITEM_OVERHEAD`` for each item."""


class MailboxOptions(Struct, frozen=True):
    normal: LaneBounds = LaneBounds(count=4096, size_bytes=64 << 20)
    internal: LaneBounds = LaneBounds(count=1024, size_bytes=16 << 20)
    internal_burst: int = 32
    """Internal items drained in a row while normal ones wait; at least 1."""


class _Putter(Generic[T]):
    """One put that had to wait: granted room first, then confirmed by its own task."""

    __slots__ = ("charge", "confirmed", "error", "event", "item")

    def __init__(self, item: T, charge: int, event: OneShot) -> None:
        self.item = item
        self.charge = charge
        self.event = event
        self.confirmed = False
        self.error: BaseException | None = None


class _LaneQueue(Generic[T]):
    """One lane. ``charged`` and ``held`` cover the items and the granted putters."""

    __slots__ = ("accepted", "bounds", "charged", "charges", "granted", "held", "items", "refused", "waiting")

    def __init__(self, bounds: LaneBounds) -> None:
        if bounds.count < 1 or bounds.size_bytes < 1:
            raise InvalidArgument(f"a mailbox lane holds at least one item and one byte, not {bounds}")

        self.bounds = bounds
        self.items: deque[T] = deque()
        self.charges: deque[int] = deque()
        self.granted: deque[_Putter[T]] = deque()
        self.waiting: deque[_Putter[T]] = deque()
        self.held = 0
        self.charged = 0
        self.accepted = 0
        self.refused = 0

    def has_room(self, charge: int) -> bool:
        held = self.held
        # An item larger than the bound is admitted alone; otherwise it would wait forever (A1).
        return not held or (held < self.bounds.count and self.charged + charge <= self.bounds.size_bytes)

    def add(self, item: T, charge: int) -> bool:
        """Put ``item`` if there is room and no putter waits. It makes no other call, because every append
        comes through here."""
        held = self.held
        # Behind putters that wait or were granted room: a new item must not pass them (A2).
        if held and (
            held >= self.bounds.count
            or self.charged + charge > self.bounds.size_bytes
            or self.waiting
            or self.granted
        ):
            return False

        self.items.append(item)
        self.charges.append(charge)
        self.held = held + 1
        self.charged += charge
        self.accepted += 1
        return True

    def add_all(self, items: Sequence[T], charges: Sequence[int]) -> bool:
        """``add`` of all, or of none."""
        held, charged = self.held + len(items), self.charged + sum(charges)
        if held > self.bounds.count or charged > self.bounds.size_bytes or self.waiting or self.granted:
            return False

        self.items.extend(items)
        self.charges.extend(charges)
        self.held, self.charged = held, charged
        self.accepted += len(items)
        return True

    def release(self, count: int, charge: int) -> None:
        self.held -= count
        self.charged -= charge
        if self.waiting:
            self.grant()

    def grant(self) -> None:
        """Grant room to putters, oldest first, as far as it goes."""
        while self.waiting and self.has_room(self.waiting[0].charge):
            putter = self.waiting.popleft()
            self.held += 1
            self.charged += putter.charge
            self.granted.append(putter)
            putter.event.set()

    def admit(self) -> bool:
        """Move in the items of confirmed putters, up to the first whose task has not run yet. Returns whether
        there was one."""
        before = self.accepted
        while self.granted and self.granted[0].confirmed:
            putter = self.granted.popleft()
            self.items.append(putter.item)
            self.charges.append(putter.charge)
            self.accepted += 1

        return self.accepted > before

    def abandon(self, putter: _Putter[T]) -> bool:
        """Forget a cancelled putter and pass its room on. Returns whether items behind it moved in."""
        if putter in self.granted:
            self.granted.remove(putter)
            self.release(1, putter.charge)
            return self.admit()

        if putter in self.waiting:
            self.waiting.remove(putter)
            self.grant()  # the one behind it may be smaller and fit
        return False

    def close(self, error: BaseException) -> list[T]:
        """Fail all waiting putters, and return the items inside."""
        remaining = list(self.items)
        for putter in (*self.granted, *self.waiting):
            # Its ``put`` has returned; the item only waits behind a putter whose task has not run yet.
            if putter.confirmed:
                remaining.append(putter.item)
            putter.error = error
            putter.event.set()

        for queue in (self.items, self.charges, self.granted, self.waiting):
            queue.clear()
        self.held = self.charged = 0
        return remaining

    def statistics(self) -> LaneStatistics:
        from .statistics import LaneStatistics

        return LaneStatistics(
            count=len(self.items),
            size_bytes=self.charged,
            waiting=len(self.waiting),
            accepted=self.accepted,
            refused=self.refused,
        )


class Mailbox(Generic[T]):
    """Many putters, one consumer, one event loop."""

    __slots__ = (
        "_batches",
        "_burst",
        "_closed",
        "_internal",
        "_normal",
        "_overhead",
        "_streak",
        "_wake",
        "events",
    )

    def __init__(
        self,
        options: MailboxOptions | None = None,
        *,
        overhead: int = ITEM_OVERHEAD,
        events: EventSource | None = None,
    ) -> None:
        options = options or MailboxOptions()
        if options.internal_burst < 1 or overhead < 0:
            raise InvalidArgument(
                f"internal_burst is at least 1 and overhead at least 0, not {options.internal_burst} and "
                f"{overhead}"
            )

        self._normal: _LaneQueue[T] = _LaneQueue(options.normal)
        self._internal: _LaneQueue[T] = _LaneQueue(options.internal)
        self._burst = options.internal_burst
        self._overhead = overhead
        self.events = EventSource() if events is None else events
        self._streak = 0
        self._wake: OneShot | None = None
        self._closed: BaseException | None = None
        self._batches = 0

    def __len__(self) -> int:
        return len(self._normal.items) + len(self._internal.items)

    def __repr__(self) -> str:
        lanes = (
            f"{name} {len(q.items)}/{q.bounds.count} {q.charged} B"
            for name, q in (("normal", self._normal), ("internal", self._internal))
        )
        return f"<Mailbox {', '.join(lanes)}{', closed' if self._closed is not None else ''}>"

    # --- putting ---------------------------------------------------------------------------------

    def offer(self, item: T, size: int, lane: Lane = Lane.NORMAL) -> bool:
        """Put ``item`` of ``size`` payload bytes if there is room and no putter waits. Returns whether it
        did. Raises the close reason after ``close``."""
        if self._closed is not None:
            self._raise_closed(self._closed)

        queue = self._normal if lane is _NORMAL else self._internal
        if not queue.add(item, size + self._overhead):
            queue.refused += 1
            return False

        wake = self._wake
        if wake is not None:
            self._wake = None
            wake.set()
        return True

    def offer_all(self, items: Sequence[T], sizes: Sequence[int]) -> bool:
        """Put ``items``, of ``sizes`` payload bytes, into the normal lane if all of them have room and no
        putter waits. Returns whether it did; never after ``close``."""
        overhead = self._overhead
        if self._closed is not None or not self._normal.add_all(items, [size + overhead for size in sizes]):
            return False

        if self._wake is not None:
            self._wake_consumer()
        return True

    async def put(self, item: T, size: int, lane: Lane = Lane.NORMAL) -> None:
        """Put ``item``, waiting for room behind earlier putters. Raises the close reason after ``close``.
        Does not suspend if there is room."""
        if self._closed is not None:
            self._raise_closed(self._closed)

        queue = self._normal if lane is _NORMAL else self._internal
        charge = size + self._overhead
        if queue.add(item, charge):
            self._wake_consumer()
        else:
            await self._put_later(queue, _Putter(item, charge, self.events.new()))

    async def _put_later(self, queue: _LaneQueue[T], putter: _Putter[T]) -> None:
        queue.waiting.append(putter)
        try:
            await putter.event.wait()
        except BaseException:
            # A3: a cancelled put leaves no trace, and those behind it may have room now.
            if queue.abandon(putter):
                self._wake_consumer()
            raise

        if putter.error is not None:
            self._raise_closed(putter.error)

        # Not when room was granted: a cancellation up to this line must leave nothing inside (A3).
        putter.confirmed = True
        if queue.admit():
            self._wake_consumer()

    def _wake_consumer(self) -> None:
        wake = self._wake
        if wake is not None:
            self._wake = None
            wake.set()

    # --- draining --------------------------------------------------------------------------------

    async def drain(self, count_max: int, bytes_max: int) -> list[T]:
        """Wait for at least one item, then take up to ``count_max`` items and ``bytes_max`` charged bytes,
        but at least one item.

        One consumer only. Raises the close reason once closed. Does not suspend if there are items.
        """
        while True:
            if self._normal.items or self._internal.items:
                return self.drain_nowait(count_max, bytes_max)

            if self._closed is not None:
                self._raise_closed(self._closed)

            if self._wake is not None:
                raise RuntimeError(f"{self!r} has a consumer already")

            wake = self._wake = self.events.new()
            try:
                await wake.wait()
            finally:
                # Only after a cancellation: who wakes the consumer clears it.
                if self._wake is wake:
                    self._wake = None

    def drain_nowait(self, count_max: int, bytes_max: int) -> list[T]:
        """Like ``drain``, but returns ``[]`` if there is no item."""
        normal = self._normal
        if not (normal.items or self._internal.items):
            return []

        if self._internal.items:
            batch = self._drain_lanes(count_max, bytes_max)
        # Everything at once, unless room was granted to putters: their charge is not that of the items.
        elif len(normal.items) <= count_max and normal.charged <= bytes_max and not normal.granted:
            batch = list(normal.items)
            normal.items.clear()
            normal.charges.clear()
            normal.release(len(batch), normal.charged)
            self._streak = 0
        else:
            batch = self._drain_lanes(count_max, bytes_max)

        self._batches += 1
        return batch

    def _drain_lanes(self, count_max: int, bytes_max: int) -> list[T]:
        """Item by item: internal ones first, but every ``internal_burst + 1``-th is a normal one while there
        are any."""
        batch: list[T] = []
        taken = {self._normal: [0, 0], self._internal: [0, 0]}
        total = 0
        while len(batch) < count_max:
            queue = self._next_lane()
            if not queue.items or (batch and total + queue.charges[0] > bytes_max):
                break

            charge = queue.charges.popleft()
            total += charge
            batch.append(queue.items.popleft())
            taken[queue][0] += 1
            taken[queue][1] += charge
            self._streak = self._streak + 1 if queue is self._internal else 0

        # Once for each lane: each release offers the room to the lane's putters.
        for queue, (count, charge) in taken.items():
            queue.release(count, charge)
        return batch

    def _next_lane(self) -> _LaneQueue[T]:
        if not self._internal.items:
            return self._normal

        # Counted across batches: short ones must not put normal items off forever (A2).
        normal_is_due = self._normal.items and self._streak >= self._burst
        return self._normal if normal_is_due else self._internal

    # --- closing -------------------------------------------------------------------------------

    def close(self, reason: BaseException) -> list[T]:
        """Refuse everything from now on with ``reason``, which waiting putters and the consumer get too.

        Returns the items inside, internal ones first; the caller must answer each of their waiters (rule A4).
        Later calls keep the first reason and return ``[]``.
        """
        if self._closed is not None:
            return []

        # First: what the steps below wake must find it closed.
        self._closed = reason
        remaining = self._internal.close(reason) + self._normal.close(reason)
        self._wake_consumer()
        return remaining

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def _raise_closed(self, reason: BaseException) -> NoReturn:
        # One reason is raised in many tasks: without this its traceback would grow with each of them.
        raise reason.with_traceback(None)

    def statistics(self) -> MailboxStatistics:
        from .statistics import MailboxStatistics

        return MailboxStatistics(
            normal=self._normal.statistics(),
            internal=self._internal.statistics(),
            batches=self._batches,
            closed=self.closed,
        )

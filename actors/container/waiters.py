"""The waiters of a container's segments: readers at a tail, who go on when there is more.

A segment has the waiter that its watches share only while there are any; ``SegmentState.wake`` calls them
when more is durable (rule C1), and the end of the container calls all. A watch is a small record: thousands
of readers wait without a task each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import SegmentNotFound, Unavailable
from .segments import SegmentState, SegmentWaiter

if TYPE_CHECKING:
    from .container import Container

Wake = Callable[[], None]


class Watch:
    """One that is called once when its segment changes, unless it is cancelled before."""

    __slots__ = ("_segment", "_waiter", "_waiters", "_wake")

    def __init__(
        self, waiters: SegmentWaiters, segment: SegmentState, waiter: SegmentWaiter, wake: Wake
    ) -> None:
        self._waiters = waiters
        # Strong, so that a cold segment stays the object that its readers share.
        self._segment = segment
        self._waiter = waiter
        self._wake = wake

    def cancel(self) -> None:
        """It is not called any more. Also due once it was called."""
        self._waiter.discard(self._wake)
        self._waiters.forget(self._segment.sid, self._waiter)


class SegmentWaiters:
    def __init__(self, container: Container) -> None:
        self._container = container
        # Weak, so that ``SegmentState.wake`` need not know of it.
        self._waiters: WeakValueDictionary[int, SegmentWaiter] = WeakValueDictionary()

    def wake_all(self) -> None:
        """Have all of them look again: the container's mailbox is closed."""
        for waiter in list(self._waiters.values()):
            waiter.set()

    async def wait_beyond(self, name: str, offset: int, sid: int = 0, history: int | None = None) -> int:
        """Return the segment's id when it has bytes past ``offset``, 0 when it is sealed and has none.

        Raises ``SegmentNotFound`` if it is deleted meanwhile, ``Unavailable`` if the container stops,
        ``HistoryLost`` if it would wait for bytes that others replace.
        """
        container = self._container
        segment: SegmentState | None = await container.find_kind(name, sid)
        assert segment is not None
        container.check_position(segment, offset, history)
        sid = segment.sid
        while (has_more := await self._has_more(segment, offset)) is None:
            event = anyio.Event()
            watch = self._watch(segment, event.set)
            try:
                await event.wait()
            finally:
                watch.cancel()
            # Find it again: a cold segment may have been loaded as a new object.
            segment = container.segments.readable(sid)
            if segment is None or segment.is_gone:
                await container.wait_durable()  # its end may not be durable yet
                raise SegmentNotFound(f"segment {name!r} is gone", segment=name)
        return sid if has_more else 0

    async def read_or_watch(
        self, name: str, sid: int, offset: int, size: int, wake: Wake
    ) -> Buffer | Watch | None:
        """Bytes of the segment at ``offset``; where there are none yet, a watch that calls ``wake``, once, to
        ask again; None if it is sealed and has none. Raises as ``wait_beyond``."""
        container = self._container
        segment = await container.find_kind(name, sid)
        container.check_position(segment, offset, None)
        has_more = await self._has_more(segment, offset)
        if has_more is None:
            return self._watch(segment, wake)
        return await container.read(name, offset, size, sid) if has_more else None

    async def _has_more(self, segment: SegmentState, offset: int) -> bool | None:
        """Whether the segment has bytes past ``offset``; None if only time shows, in the same step."""
        if segment.durable_length > offset:
            return True

        if self._container.mailbox.closed:
            raise Unavailable(f"container {self._container.index} stopped")

        if not segment.sealed:
            return None

        # The seal and the last appends may not be durable yet (C1).
        await self._container.wait_durable()
        return segment.durable_length > offset

    def _watch(self, segment: SegmentState, wake: Wake) -> Watch:
        if segment.waiter is None:
            segment.waiter = self._waiters[segment.sid] = SegmentWaiter()
        segment.waiter.add(wake)
        return Watch(self, segment, segment.waiter, wake)

    def forget(self, sid: int, waiter: SegmentWaiter) -> None:
        """M5: a segment that nobody waits for any more can be unloaded."""
        current = self._container.segments.readable(sid)
        if current is not None and current.waiter is waiter and not waiter:
            current.waiter = None

"""The waiters of a container's segments: readers at a tail, who go on when there is more.

A segment has the event that its waiters share only while there are any; ``SegmentState.wake`` sets it when
more is durable (rule C1), and the end of the container sets them all."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio

from ...storage_backends.base.errors import SegmentNotFound, Unavailable
from .segments import SegmentState

if TYPE_CHECKING:
    from .container import Container


class SegmentWaiters:
    def __init__(self, container: Container) -> None:
        self._container = container
        # Weak, so that ``SegmentState.wake`` need not know of it.
        self._events: WeakValueDictionary[int, anyio.Event] = WeakValueDictionary()

    def wake_all(self) -> None:
        """Have all of them look again: the container's mailbox is closed."""
        for event in list(self._events.values()):
            event.set()

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
        while True:
            if segment.durable_length > offset:
                return sid

            if container.mailbox.closed:
                raise Unavailable(f"container {container.index} stopped")

            # The seal and the last appends may not be durable yet (C1).
            if segment.sealed:
                await container.wait_durable()
                return sid if segment.durable_length > offset else 0

            if segment.waiter is None:
                segment.waiter = self._events[sid] = anyio.Event()
            waiter = segment.waiter
            try:
                await waiter.wait()
            finally:
                # M5: a segment that nobody waits for any more can be unloaded.
                current = container.segments.readable(sid)
                if current is not None and current.waiter is waiter and not waiter.statistics().tasks_waiting:
                    current.waiter = None
            # Find it again: a cold segment may have been loaded as a new object.
            segment = container.segments.readable(sid)
            if segment is None or segment.is_gone:
                await container.wait_durable()  # its end may not be durable yet
                raise SegmentNotFound(f"segment {name!r} is gone", segment=name)

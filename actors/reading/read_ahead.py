"""Read-ahead: sequential readers of long-term storage find the next bytes already there.

Owns: a few streams (one for each segment that is read in sequence), each with windows that were read or are being read ahead.
Does not own: what may be read (the reader asks only below the flushed offset), nor the tail cache.

A read that continues where the last one of its segment ended makes a stream; from then on ``depth`` windows are kept on their way, so that
fetching and checking one overlaps with using another. Random reads pass through. Bytes at an offset never change, so nothing is ever
invalidated; a stream goes when newer ones need its place. Memory is bounded by ``streams * (depth + 1) * window_bytes``.

Cancellation of a reader leaves its windows to the next one. A window that failed is dropped, and the reader that needs it reads for
itself and gets the error. Stopping cancels what is under way.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable

import anyio
import attrs

from ...storage_backends.base.errors import TierlogError
from ...storage_backends.base.statistics import counter, gauge
from ..core.reply import Reply

Fetch = Callable[[int, int, int], Awaitable[bytes]]
"""``fetch(sid, offset, size)``: bytes of long-term storage, checked."""


@attrs.frozen
class ReadAheadOptions:
    window_bytes: int = 4 << 20
    depth: int = 2
    """Windows on their way ahead of a reader."""
    streams: int = 4


@attrs.frozen
class ReadAheadStatistics:
    streams: int = attrs.field(metadata=gauge("Segments that are read in sequence."))
    windows: int = attrs.field(metadata=counter("Windows fetched ahead."))
    hits: int = attrs.field(metadata=counter("Reads answered by a window."))
    misses: int = attrs.field(metadata=counter("Reads that went to long-term storage themselves."))


class _Window:
    __slots__ = ("data", "end", "failed", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.data: Reply[bytes] = Reply()
        self.failed = False


class _Stream:
    __slots__ = ("next_offset", "windows")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.windows: deque[_Window] = deque()


class ReadAhead:
    def __init__(self, fetch: Fetch, options: ReadAheadOptions) -> None:
        self._fetch = fetch
        self._options = options
        self._streams: OrderedDict[int, _Stream] = OrderedDict()
        self._queue: deque[tuple[int, _Window]] = deque()
        self._unanswered: dict[_Window, None] = {}
        """Windows that somebody may wait for."""
        self._wake = anyio.Event()
        self._running = False
        self._windows = self._hits = self._misses = 0

    async def run(self) -> None:
        """Fetch windows until cancelled. Without it every read goes to storage itself."""
        self._running = True
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._wake = anyio.Event()
                    while self._queue:
                        tasks.start_soon(self._fill, *self._queue.popleft())
                    await self._wake.wait()
        finally:
            self._running = False
            self._give_up()

    def _give_up(self) -> None:
        """Nobody fetches any more, and a window's task may not even have begun: who waits for one reads for itself."""
        self._queue.clear()
        for window in list(self._unanswered):
            self._answer(window, b"", failed=True)

    def _answer(self, window: _Window, data: bytes, *, failed: bool = False) -> None:
        self._unanswered.pop(window, None)
        window.failed = failed
        window.data.resolve(data)

    async def _fill(self, sid: int, window: _Window) -> None:
        try:
            self._answer(window, await self._fetch(sid, window.start, window.end - window.start))
            self._windows += 1
        except BaseException as error:
            self._answer(window, b"", failed=True)
            if not isinstance(error, TierlogError):
                raise

    async def read(self, sid: int, offset: int, size: int, limit: int) -> bytes:
        """Bytes at ``offset``, at most ``size``, at least one; ``limit`` is the end of what long-term storage has."""
        stream = self._streams.get(sid)
        if stream is None or stream.next_offset != offset or not self._running:
            self._misses += 1
            data = await self._fetch(sid, offset, size)
            self._note(sid, offset + len(data))
            return data

        self._streams.move_to_end(sid)
        self._extend(sid, stream, offset, limit)
        data = await self._take(stream, offset, size)
        if data:
            self._hits += 1
        else:
            self._misses += 1
            data = await self._fetch(sid, offset, size)
        stream.next_offset = offset + len(data)
        return data

    def _note(self, sid: int, next_offset: int) -> None:
        """A read that was not in sequence: from its end on it may become one."""
        self._streams[sid] = _Stream(next_offset)
        self._streams.move_to_end(sid)
        while len(self._streams) > self._options.streams:
            self._streams.popitem(last=False)

    def _extend(self, sid: int, stream: _Stream, offset: int, limit: int) -> None:
        """Keep ``depth`` windows beyond the one that holds ``offset`` on their way."""
        windows = stream.windows
        while windows and windows[0].end <= offset:
            windows.popleft()

        if windows and (windows[0].failed or windows[0].start > offset):
            # Begin again at the offset: no window holds it, because one failed or several readers share the stream.
            windows.clear()

        while len(windows) <= self._options.depth:
            start = windows[-1].end if windows else offset
            if start >= limit:
                return

            window = _Window(start, min(limit, start + self._options.window_bytes))
            windows.append(window)
            self._unanswered[window] = None
            self._queue.append((sid, window))
            self._wake.set()

    async def _take(self, stream: _Stream, offset: int, size: int) -> bytes:
        """From the window at ``offset``; empty if there is none or it failed."""
        if not stream.windows:
            return b""

        window = stream.windows[0]
        data = await window.data.wait()
        start = offset - window.start
        if start == 0 and size >= len(data):
            return data

        return data[start : start + size]

    def statistics(self) -> ReadAheadStatistics:
        return ReadAheadStatistics(len(self._streams), self._windows, self._hits, self._misses)

"""Read-ahead: sequential readers of long-term storage find the next bytes already in memory.

Each reader that continues where its last read ended has a stream with windows, fetched or being fetched. The
reader asks only for bytes below the flushed offset.

A read that begins where an earlier one ended, or inside it, shows a sequential reader: its stream gets one
window. Each window that is read to its end doubles how far the stream reads ahead, up to ``ahead_bytes`` or
the reader's share of the budget. Windows of small reads grow to ``window_bytes``; large reads get windows of
their own size. A reader gets a view of a window, not a copy. Windows end at whole blocks, because long-term
storage verifies whole blocks. Every other read passes through as it is.

Nothing waits for room: a window that the budget refuses is not made, and its reader reads for itself. Bytes
at an offset never change, so nothing is invalidated: a read of truncated or deleted bytes is refused before
it comes here, and a window whose bytes vanish while it is fetched fails.

Cancellation: a cancelled read drops its stream and cancels its windows, unless another read waits for one of
them. A reader that left between two reads is noticed after ``idle`` seconds. A window that failed is dropped;
the reader that needs it reads for itself and gets the error. Stopping cancels every fetch and leaves no read
waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import attrs
from msgspec import Struct

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import InvalidArgument, TierlogError
from ...storage_backends.base.values import Value
from ..kernel.reply import Reply

if TYPE_CHECKING:
    from .statistics import ReadAheadStatistics

Fetch = Callable[[int, int, int], Awaitable[Buffer]]
"""``fetch(sid, offset, size)``: bytes of long-term storage, checked."""


class ReadAheadOptions(Struct, frozen=True):
    block_bytes: int = 1 << 20
    """Windows end at multiples of it, and are at least as large."""
    window_bytes: int = 4 << 20
    """The largest window."""
    ahead_bytes: int = 32 << 20
    """How far one reader's windows reach beyond its read, at most; 0 turns read-ahead off."""
    streams: int = 256
    """Readers that are remembered; most have no window."""
    idle: float = 10.0
    """Seconds after which a reader with windows counts as gone."""


@attrs.define(eq=False, repr=False)
class ReadAheadBudget(Value):
    """What all read-aheads of a store share: memory, and how many fetches run at a time.

    No call waits: a read-ahead that is refused reads without a window. So read-ahead slows no reader down,
    and the memory of all readers together stays below the limit, however many there are."""

    limit_bytes: int = 128 << 20
    """The memory of all windows, fetched or being fetched."""
    fetches_max: int = 8
    """Windows fetched at a time. Keep it below the number of reads that long-term storage serves at a time,
    so that other reads are served too."""
    held_bytes: int = attrs.field(default=0, init=False)
    fetching: int = attrs.field(default=0, init=False)
    streams: int = attrs.field(default=0, init=False)
    """Readers that have a window."""

    def __attrs_post_init__(self) -> None:
        if self.limit_bytes < 1 or self.fetches_max < 1:
            raise InvalidArgument(f"limit_bytes and fetches_max are at least 1: {self}")

    @property
    def share_bytes(self) -> int:
        """The memory that one reader may have, so that all get the same."""
        return self.limit_bytes // max(1, self.streams)

    def begin(self, size: int) -> bool:
        """Reserve the memory and the fetch of a window of ``size`` bytes; returns False if there is no
        room."""
        if self.fetching >= self.fetches_max or self.held_bytes + size > self.limit_bytes:
            return False

        self.fetching += 1
        self.held_bytes += size
        return True

    def fetched(self) -> None:
        """The fetch has ended in any way; its memory stays reserved."""
        self.fetching -= 1

    def release(self, size: int) -> None:
        """The window was dropped."""
        self.held_bytes -= size


class _Window:
    __slots__ = ("data", "end", "failed", "is_dropped", "scope", "start", "waiting")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.data: Reply[Buffer] = Reply()
        self.failed = False
        self.is_dropped = False
        self.waiting = 0
        """Reads that wait for its bytes."""
        self.scope = anyio.CancelScope()

    @property
    def size(self) -> int:
        return self.end - self.start


class _Stream:
    """One reader. Invariant: its windows have no gap between them."""

    __slots__ = ("ahead", "last_offset", "last_used", "sid", "window_bytes", "windows")

    def __init__(self, sid: int) -> None:
        self.sid = sid
        self.ahead = 0
        self.window_bytes = 0
        self.last_offset = 0
        self.last_used = 0.0
        self.windows: deque[_Window] = deque()

    @property
    def is_waiting(self) -> bool:
        return any(window.waiting for window in self.windows)


class ReadAhead:
    def __init__(
        self, fetch: Fetch, options: ReadAheadOptions, budget: ReadAheadBudget | None = None
    ) -> None:
        self._fetch = fetch
        self._options = options
        self._budget = budget or ReadAheadBudget()
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()
        """By segment and expected offset; the least recent reader first."""
        self._fetching: dict[_Window, None] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._windowed = anyio.Event()
        self._held = self._windows = self._unread = self._hits = self._misses = 0

    async def run(self) -> None:
        """Fetch windows until cancelled. Without it every read goes to storage itself."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await self._watch_for_idle()
            finally:
                # Nothing is fetched from here on, and a window's task may not even have begun: reads that
                # wait for one read for themselves.
                self._tasks = None
                for stream in self._streams.values():
                    self._drop_windows(stream)
                for window in list(self._fetching):
                    self._fetched(window, None)

    async def _watch_for_idle(self) -> None:
        while True:
            await self._windowed.wait()
            while self._held:
                await anyio.sleep(self._options.idle / 2)
                # A reader that left holds windows that others could have.
                before = anyio.current_time() - self._options.idle
                for stream in self._streams.values():
                    if stream.last_used <= before and not stream.is_waiting:
                        self._drop_windows(stream)
            self._windowed = anyio.Event()

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, sid: int, offset: int, size: int, limit: int) -> Buffer:
        """Bytes at ``offset``, at most ``size``, at least one; ``limit`` is the end of the flushed bytes."""
        if not self._options.ahead_bytes:
            self._misses += 1
            return await self._fetch(sid, offset, min(size, limit - offset))

        stream = self._stream_of(sid, offset)
        window = None
        if stream is None:
            stream = _Stream(sid)
        else:
            window = self._window_at(stream, offset, size, limit)

        # The reader is expected at the end of this read before it is done: one with several reads under way
        # is sequential too.
        end = min(offset + size, limit if window is None else window.end)
        self._expect(stream, offset, end)
        if window is not None:
            data = await self._take(stream, window, offset, end)
            if data:
                self._hits += 1
                return data

        self._misses += 1
        return await self._fetch(sid, offset, end - offset)

    def _stream_of(self, sid: int, offset: int) -> _Stream | None:
        """The stream that goes on at ``offset``: at the end of its last read, or a little before that, for
        bytes that it could not use yet."""
        stream = self._streams.pop((sid, offset), None)
        if stream is not None:
            return stream

        for key, other in reversed(self._streams.items()):
            # The most recent readers first: two readers of one segment may both fit.
            if key[0] == sid and other.last_offset < offset < key[1]:
                return self._streams.pop(key)
        return None

    def _expect(self, stream: _Stream, offset: int, end: int) -> None:
        """Remember where the reader will go on. Of two streams that meet there, the one with windows
        stays."""
        stream.last_used, stream.last_offset = anyio.current_time(), offset
        key = (stream.sid, end)
        other = self._streams.pop(key, None)
        if other is not None and other.windows and not stream.windows:
            # Its windows are what this reader needs next.
            stream = other
        elif other is not None:
            self._drop_windows(other)
        self._streams[key] = stream
        # No call reports that a reader has left; the least recent one is the likeliest.
        if len(self._streams) > self._options.streams:
            _, oldest = self._streams.popitem(last=False)
            self._drop_windows(oldest)

    async def _take(self, stream: _Stream, window: _Window, offset: int, end: int) -> Buffer:
        """``offset .. end`` of the window; empty if it failed."""
        # While a read waits, the window is neither cancelled nor counted as idle.
        window.waiting += 1
        try:
            data = await window.data.wait()
        except anyio.get_cancelled_exc_class():
            window.waiting -= 1
            self._reader_left(stream, window)
            raise

        window.waiting -= 1
        if window.failed:
            # Long-term storage may be failing: begin small again.
            self._drop_windows(stream)
            return b""

        if end == window.end:
            # The window stays until the next read, which may begin a little before the end of this one.
            stream.ahead = min(2 * stream.ahead, self._options.ahead_bytes)
        return (
            data
            if end - offset == len(data)
            else memoryview(data)[offset - window.start : end - window.start]
        )

    def _reader_left(self, stream: _Stream, window: _Window) -> None:
        if window.is_dropped:
            self._cancel(window)
        elif not stream.is_waiting:
            self._drop_windows(stream)

    # --- windows ---------------------------------------------------------------------------------

    def _window_at(self, stream: _Stream, offset: int, size: int, limit: int) -> _Window | None:
        """The window with ``offset``, after beginning those behind it that the stream may have; None if there
        is no room for the first."""
        windows = stream.windows
        while windows and windows[0].end <= offset:
            self._drop_first(stream)
        if windows and windows[0].failed:
            self._drop_windows(stream)

        self._size_up(stream, size)
        ahead = min(stream.ahead, self._budget.share_bytes)
        start = windows[-1].end if windows else offset
        while start < min(limit, offset + size + ahead) and self._begin(stream, start, limit):
            start = windows[-1].end
        return windows[0] if windows and windows[0].start <= offset else None

    def _size_up(self, stream: _Stream, size: int) -> None:
        """How large the next window is."""
        block = self._options.block_bytes
        if not stream.ahead:
            stream.ahead = stream.window_bytes = max(
                block, min(size, self._options.window_bytes) // block * block
            )
        elif size < 2 * block:
            stream.window_bytes = min(
                2 * stream.window_bytes, self._options.window_bytes, max(block, stream.ahead // 2)
            )

    def _begin(self, stream: _Stream, start: int, limit: int) -> bool:
        """Begin to fetch one more window."""
        block = self._options.block_bytes
        size = max(block, min(stream.window_bytes, self._budget.share_bytes // 2))
        # Windows end at blocks, so that no block is fetched and verified twice.
        window = _Window(start, min(limit, (start + size) // block * block))
        if self._tasks is None or not self._budget.begin(window.size):
            return False

        # A reader counts from its first window on, so that those without leave their share to others.
        self._budget.streams += not stream.windows
        self._held += window.size
        stream.windows.append(window)
        self._fetching[window] = None
        self._windowed.set()
        self._tasks.start_soon(self._fill, stream.sid, window)
        return True

    async def _fill(self, sid: int, window: _Window) -> None:
        data: Buffer | None = None
        try:
            # A dropped window cancels its own fetch only; the data stays None then.
            with window.scope:
                data = await self._fetch(sid, window.start, window.size)
            self._windows += data is not None
        except TierlogError:
            data = None  # the reader that needs these bytes gets the error of its own read
        finally:
            self._fetched(window, data)

    def _fetched(self, window: _Window, data: Buffer | None) -> None:
        """Its fetch has ended, or will never begin. The first call counts."""
        if window not in self._fetching:
            return

        del self._fetching[window]
        self._budget.fetched()
        window.failed = data is None or len(data) != window.size
        window.data.resolve(data or b"")
        if window.is_dropped:
            self._release(window)

    def _drop_windows(self, stream: _Stream) -> None:
        self._unread += len(stream.windows)
        while stream.windows:
            self._drop_first(stream)
        stream.ahead = 0

    def _drop_first(self, stream: _Stream) -> None:
        window = stream.windows.popleft()
        self._budget.streams -= not stream.windows
        window.is_dropped = True
        if window in self._fetching:
            self._cancel(window)
        else:
            self._release(window)

    def _cancel(self, window: _Window) -> None:
        """Cancel the fetch unless a read waits for it; its memory stays reserved until the fetch has
        ended."""
        if not window.waiting:
            window.scope.cancel()

    def _release(self, window: _Window) -> None:
        self._held -= window.size
        self._budget.release(window.size)

    def statistics(self) -> ReadAheadStatistics:
        from .statistics import ReadAheadStatistics

        return ReadAheadStatistics(
            len(self._streams), self._held, self._windows, self._unread, self._hits, self._misses
        )

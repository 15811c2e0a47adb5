"""The removal of the rows that removed segments leave in the system table (rule M17), in the background.

Cancellation and crash: the next owner goes on from the marks that it finds."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable

import anyio

from ...storage_backends.base.errors import DataCorruption, TierlogError, Unavailable
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded, prefix_end
from ...storage_backends.sorted_runs.scan import KeyRange, Page, PageLimits, scan_rows
from ..telemetry.logging import get_logger
from .left_rows import MARK_PREFIX, left_prefixes, marked_sid
from .operations.forget_rows import ForgetRowsRequest
from .requests import WORK_CHARGE, Request
from .state import ContainerState

_log = get_logger("container")
_LIMITS = PageLimits(256)
"""Rows that one operation removes, at least while there are as many."""
_ROW_BYTES_MAX = 64 << 20
"""Bytes of rows in memory above which the removal waits for a flush cycle: tombstones are rows too."""
_PAUSE = 0.01
_HELD_MAX = 65_536
"""Marks that are remembered until the next attempt; others are tried with each new mark."""
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 30.0, 3600.0


class RowRemoval:
    def __init__(
        self,
        state: ContainerState,
        runs: RunReader,
        ask: Callable[[Request, int], Awaitable[object]],
        wait_progress: Callable[[], Awaitable[None]],
    ) -> None:
        """``ask`` sends an internal request of a size in bytes; ``wait_progress`` returns after the next
        flush cycle, or another step that freed memory."""
        self._state = state
        self._runs = runs
        self._ask = ask
        self._wait_progress = wait_progress
        self._due = anyio.Event()
        self.removed = 0
        """Rows that this owner removed, with marks."""
        self._held: set[bytes] = set()
        """Marks that stay until the next attempt, because not all of their rows could be read."""
        self._unread: dict[str, TierlogError] = {}
        """Runs that are not read before the next attempt, because that would only take time."""
        self._has_failed = False
        """Whether something could not be read since the last attempt began."""
        state.on_rows_left = self._wake

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Remove rows until cancelled. What fails is tried again after pauses that double; new marks do not
        wait for that."""
        pause, retry_at = _RETRY_SECONDS, math.inf
        while True:
            self._due = anyio.Event()
            await self._remove_all()
            if not self._has_failed:
                pause, retry_at = _RETRY_SECONDS, math.inf
            elif retry_at == math.inf:
                retry_at = anyio.current_time() + pause
                pause = min(2 * pause, _RETRY_SECONDS_MAX)
            with anyio.CancelScope(deadline=retry_at) as waiting:
                await self._due.wait()
            if waiting.cancelled_caught:
                retry_at = math.inf
                self._has_failed = False
                self._held.clear()
                self._unread.clear()

    async def _remove_all(self) -> None:
        start: bytes | None = MARK_PREFIX
        try:
            while start is not None:
                # Marks in runs that are not read are found later.
                marks, _ = await self._page(MARK_PREFIX, start)
                await self._remove_left(mark for mark in marks.rows if mark.key not in self._held)
                start = marks.resume
        except (Unavailable, DataCorruption) as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        self._has_failed = True
        _log.warning("rows_not_removed", container=self._state.container, error=str(error))

    async def _remove_left(self, marks: Iterable[Row]) -> None:
        """Remove the rows of segments, each with its mark after them. Nobody adds any. A damaged mark, and
        one whose rows cannot all be read, hold up no others."""
        keys: list[bytes] = []
        for mark in marks:
            is_whole = True
            try:
                for prefix in left_prefixes(decoded(marked_sid, mark.key, mark.key)):
                    start: bytes | None = prefix
                    while start is not None:
                        page, is_page_whole = await self._page(prefix, start)
                        is_whole &= is_page_whole
                        keys += [row.key for row in page.rows]
                        start = page.resume
                        if len(keys) >= _LIMITS.rows:
                            await self._forget(keys)
                            keys = []
            except DataCorruption as error:
                self._report(error)
                is_whole = False
            if is_whole:
                keys.append(mark.key)
            elif len(self._held) < _HELD_MAX:
                self._held.add(mark.key)
        if keys:
            await self._forget(keys)

    async def _page(self, prefix: bytes, start: bytes) -> tuple[Page, bool]:
        """Of the rows that can be read, and whether those are all. A row that a newer one has removed already
        may be among them, if that one is in a run that cannot be read."""
        keys = KeyRange(start, prefix_end(prefix))
        unread = dict(self._unread)
        with self._state.table.view() as view:
            page = await scan_rows(view, self._runs, keys, _LIMITS, unread=unread)
            is_whole = not any(run.name in unread and keys.overlaps(run) for run in view.runs)
        for name in unread.keys() - self._unread.keys():
            error = unread[name]
            # A damaged run has other parts.
            if isinstance(error, Unavailable):
                self._unread[name] = error
            self._report(error)
        return page, is_whole

    async def _forget(self, keys: list[bytes]) -> None:
        await self._ask(ForgetRowsRequest(keys), sum(map(len, keys)) + WORK_CHARGE)
        self.removed += len(keys)
        await anyio.sleep(_PAUSE)
        while self._state.table.memory > _ROW_BYTES_MAX:
            await self._wait_progress()

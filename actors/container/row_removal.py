"""The removal of the rows that removed segments leave in the system table (rule M17), in the background.

Cancellation and crash: the next owner goes on from the marks that it finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from ...storage_backends.base.errors import DataCorruption, Unavailable
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
_PAUSE, _FAILURE_PAUSE = 0.01, 30.0


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
        state.on_rows_left = self._wake

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Remove rows until cancelled. What fails is tried again after a pause."""
        while True:
            self._due = anyio.Event()
            pause = float("inf")
            start: bytes | None = MARK_PREFIX
            try:
                while start is not None:
                    marks = await self._page(MARK_PREFIX, start)
                    if not await self._remove_left(marks.rows):
                        pause = _FAILURE_PAUSE
                    start = marks.resume
            except (Unavailable, DataCorruption) as error:
                self._report(error)
                pause = _FAILURE_PAUSE
            with anyio.move_on_after(pause):
                await self._due.wait()

    def _report(self, error: Exception) -> None:
        _log.warning("rows_not_removed", container=self._state.container, error=str(error))

    async def _remove_left(self, marks: Sequence[Row]) -> bool:
        """Remove the rows of segments, each with its mark after them. Nobody adds any. Returns whether all of
        them are removed: a damaged mark, and one whose rows cannot be read, hold up no others."""
        keys: list[bytes] = []
        damaged = 0
        for mark in marks:
            try:
                for prefix in left_prefixes(decoded(marked_sid, mark.key, mark.key)):
                    start: bytes | None = prefix
                    while start is not None:
                        page = await self._page(prefix, start)
                        keys += [row.key for row in page.rows]
                        start = page.resume
                        if len(keys) >= _LIMITS.rows:
                            await self._forget(keys)
                            keys = []
            except DataCorruption as error:
                self._report(error)
                damaged += 1
            else:
                keys.append(mark.key)
        if keys:
            await self._forget(keys)
        return not damaged

    async def _page(self, prefix: bytes, start: bytes) -> Page:
        with self._state.table.view() as view:
            return await scan_rows(view, self._runs, KeyRange(start, prefix_end(prefix)), _LIMITS)

    async def _forget(self, keys: list[bytes]) -> None:
        await self._ask(ForgetRowsRequest(keys), sum(map(len, keys)) + WORK_CHARGE)
        self.removed += len(keys)
        await anyio.sleep(_PAUSE)
        while self._state.table.memory > _ROW_BYTES_MAX:
            await self._wait_progress()

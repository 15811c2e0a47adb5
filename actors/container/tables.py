"""A container's tables: updates, reads, and the removal of what deleted ones leave (rules M14 to M17).

Owns: the lookups of conditions, and the background task that removes rows. Does not own: what reads show
(``table_pages.py``), decisions (``operations/table.py``), the rows (the system table, like all others).

Cancellation and crash: an update is in the log or has no effect. The removal of a deleted table's rows goes
on from its mark."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

import anyio
import attrs

from ...storage_backends.base.errors import DataCorruption, TableConflict, TierlogError, Unavailable
from ...storage_backends.base.statistics import counter
from ...storage_backends.base.tables import ChangesPage, TablePage, TableRow
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.rows import prefix_end
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ..telemetry.logging import get_logger
from .metadata_store import ATTEMPTS_MAX
from .operations.table import LOOK_UP, ForgetRowsRequest, UpdateTableRequest
from .requests import WORK_CHARGE
from .segments import SegmentState
from .table_pages import Position, page_of_changes, page_of_rows, rows_of_keys, within_table
from .table_rows import PREFIX_BYTES, REMOVAL_PREFIX, removed_sid, row_prefix

if TYPE_CHECKING:
    from .container import Container

T = TypeVar("T")
_log = get_logger("container")
_REMOVED = PageLimits(256)
_REMOVAL_BYTES_MAX = 64 << 20
"""Bytes of rows in memory above which the removal waits for a flush cycle."""
_REMOVAL_PAUSE, _FAILURE_PAUSE = 0.01, 30.0


@attrs.frozen
class TablesStatistics:
    updates: int = attrs.field(metadata=counter("Updates of tables."))
    rows: int = attrs.field(metadata=counter("Rows put and removed by updates of tables."))
    conflicts: int = attrs.field(metadata=counter("Updates of tables refused because of a condition."))
    removed_rows: int = attrs.field(metadata=counter("Rows of deleted tables removed."))


class Tables:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state
        self._runs = container.runs
        self._removal_due = anyio.Event()
        self._requested_at = -1
        self._updates = self._rows = self._conflicts = self._removed = 0

    # --- updates ---------------------------------------------------------------------------------

    async def update(self, request: UpdateTableRequest) -> int | None:
        """Apply ``request`` and return the version of its rows."""
        for _ in range(ATTEMPTS_MAX):
            if request.expected:
                await self._container.as_owner(self._look_up(request))
            try:
                answer = await self._container.ask_update(request)
            except TableConflict:
                self._conflicts += 1
                raise
            if answer is not LOOK_UP:
                self._updates += 1
                self._rows += len(request.rows)
                assert answer is None or isinstance(answer, int)
                return answer

        raise Unavailable("runs were published during each attempt of an update: try again")

    async def _look_up(self, request: UpdateTableRequest) -> None:
        """Note the versions of the keys of the conditions (rules M9, M15)."""
        request.sid, request.found = 0, {}
        segment = await self._container.cold.find(request.name)
        if segment is None:
            return  # the decision says so, unless the table is created before it

        prefix = row_prefix(segment.sid)
        with self._state.table.view() as view:
            request.sid, request.seen = segment.sid, view.version
            # Those in memory too: they may leave it before the decision.
            rows = await find_rows(view, self._runs, [prefix + key for key in request.expected])
            request.found = {key: version_of(rows.get(prefix + key)) for key in request.expected}

    # --- reads -----------------------------------------------------------------------------------

    async def _find(self, name: str, sid: int = 0) -> SegmentState:
        return await self._container.find_kind(name, sid, is_table=True)

    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]:
        """As ``rows_of_keys``, of the table ``name``."""
        segment = await self._find(name)
        return await self._durable(rows_of_keys(self._state, self._runs, segment, keys))

    async def page(self, name: str, keys: KeyRange, token: str | None, limits: PageLimits) -> TablePage:
        """As ``page_of_rows``, of the table ``name``."""
        position = Position.of(token)
        segment = await self._find(name, position.sid)
        return await self._durable(page_of_rows(self._state, self._runs, segment, keys, position, limits))

    async def changes(self, name: str, since: int, token: str | None, limits: PageLimits) -> ChangesPage:
        """As ``page_of_changes``, of the table ``name``."""
        position = Position.of(token, since)
        segment = await self._find(name, position.sid)
        return await self._durable(page_of_changes(self._state, self._runs, segment, position, limits))

    async def _durable(self, answer: Awaitable[T]) -> T:
        """The answer, or the refusal, once what it shows is durable (C1), given only while this is the
        owner."""
        return await self._container.as_owner(self._wait_durable(answer))

    async def _wait_durable(self, answer: Awaitable[T]) -> T:
        try:
            found = await answer
        except TierlogError:
            await self._container.wait_durable()
            raise

        # C1: after the view, so what it shows is durable, and what it does not is durably absent.
        await self._container.wait_durable()
        return found

    # --- bounds ----------------------------------------------------------------------------------

    def is_cycle_due(self, row_bytes: int) -> bool:
        """Whether so many rows have no run yet that a flush cycle shall publish them (rule M18). Once for
        each memtable: the cycle freezes it."""
        table = self._state.table
        if table.unfrozen_memory < row_bytes or table.frozen_to == self._requested_at:
            return False

        self._requested_at = table.frozen_to
        return True

    # --- what deleted tables leave ---------------------------------------------------------------

    def table_deleted(self) -> None:
        """A table was deleted, or may have been."""
        self._removal_due.set()

    async def run(self) -> None:
        """Remove the rows of deleted tables, until cancelled (rule M17)."""
        while True:
            self._removal_due = anyio.Event()
            pause = float("inf")
            try:
                while (sid := await self._first_removed()) is not None:
                    await self._remove_rows(sid)
            except (Unavailable, DataCorruption) as error:
                _log.warning("removal_of_rows_failed", container=self._container.index, error=str(error))
                pause = _FAILURE_PAUSE
            with anyio.move_on_after(pause):
                await self._removal_due.wait()

    async def _first_removed(self) -> int | None:
        """A deleted table that may have rows."""
        with self._state.table.view() as view:
            keys = KeyRange(REMOVAL_PREFIX, prefix_end(REMOVAL_PREFIX))
            page = await scan_rows(view, self._runs, keys, PageLimits(1))
        return removed_sid(page.rows[0].key) if page.rows else None

    async def _remove_rows(self, sid: int) -> None:
        start = b""
        is_last = False
        while not is_last:
            with self._state.table.view() as view:
                page = await scan_rows(view, self._runs, within_table(sid, KeyRange(), start), _REMOVED)
            is_last = page.resume is None
            keys = [row.key[PREFIX_BYTES:] for row in page.rows]
            size = sum(map(len, keys)) + WORK_CHARGE
            await self._container.ask_internal(ForgetRowsRequest(sid, keys, is_last=is_last), size)
            self._removed += len(keys)
            start = b"" if page.resume is None else page.resume[PREFIX_BYTES:]
            # Tombstones are rows too: they wait until the others of the container are published.
            await anyio.sleep(_REMOVAL_PAUSE)
            while self._state.table.memory > _REMOVAL_BYTES_MAX:
                await self._container.wait_progress()

    def statistics(self) -> TablesStatistics:
        return TablesStatistics(self._updates, self._rows, self._conflicts, self._removed)

"""A container's tables: updates and reads (rules M14 to M16).

Owns: the lookups of conditions. Does not own: what reads show (``table_pages.py``), decisions
(``operations/table.py``), the rows (the system table, like all others), their removal (``row_removal.py``).

Cancellation and crash: an update is in the log or has no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ...storage_backends.base.errors import TableConflict, TierlogError, Unavailable
from ...storage_backends.base.tables import ChangesPage, TablePage, TableRow
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits
from .metadata_store import ATTEMPTS_MAX
from .operations.table import LOOK_UP, UpdateTableRequest
from .segments import SegmentState
from .table_pages import Position, page_of_changes, page_of_rows, rows_of_keys
from .table_rows import row_prefix

if TYPE_CHECKING:
    from .container import Container
    from .statistics import TablesStatistics

T = TypeVar("T")


class Tables:
    def __init__(self, container: Container) -> None:
        self._container = container
        self._state = container.state
        self._runs = container.runs
        self._requested_at = -1
        self._updates = self._rows = self._conflicts = 0

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
        position = Position.of_rows(name, keys, token)
        segment = await self._find(name, position.sid)
        return await self._durable(page_of_rows(self._state, self._runs, segment, position, limits))

    async def changes(self, name: str, since: int, token: str | None, limits: PageLimits) -> ChangesPage:
        """As ``page_of_changes``, of the table ``name``."""
        position = Position.of_changes(name, since, token)
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

    def statistics(self, removed: int) -> TablesStatistics:
        from .statistics import TablesStatistics

        return TablesStatistics(self._updates, self._rows, self._conflicts, removed)

"""A container's tables: updates, reads, and the removal of what deleted ones leave (rules M14 to M17).

Owns: the lookups of conditions, pages and their tokens, and the background task that removes rows. Does not
own: decisions (``operations/table.py``), the rows (the system table, like all others).

Cancellation and crash: an update is in the log or has no effect. The removal of a deleted table's rows goes
on from its mark."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import (
    ChangesIncomplete,
    DataCorruption,
    InvalidArgument,
    TableConflict,
    TooLarge,
    Unavailable,
)
from ...storage_backends.base.statistics import counter
from ...storage_backends.base.tables import ChangesPage, TableChange, TablePage, TableRow
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.rows import Row, prefix_end
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .metadata_store import ATTEMPTS_MAX
from .operations.table import LOOK_UP, ForgetRowsRequest, UpdateTableRequest
from .segment_rows import name_key
from .segments import SegmentState
from .table_rows import PREFIX_BYTES, REMOVAL_PREFIX, removed_sid, row_prefix

if TYPE_CHECKING:
    from .container import Container

_log = get_logger("container")
_ROW_CHARGE = 4 << 10
"""Bytes for which a row counts in the mailbox, at least: of the pipeline's steps, which take bytes, one then
has about a thousand rows, 3 ms of work."""
GET_BYTES_MAX = 16 << 20
"""Of the values of one ``get_many``, which memory holds more than once."""
_GET_STEP = 16
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


@attrs.frozen
class Position:
    """Where the next page starts: what a token says."""

    sid: int
    since: int
    """Of changes: the version after which they are asked for; 0 for rows."""
    version: int
    """Of changes: the version of the first page's view."""
    start: bytes

    def encode(self) -> str:
        fields = Encoder().u8(1).u64(self.sid).u64(self.since).u64(self.version).raw(self.start)
        return urlsafe_b64encode(fields.finish()).decode()

    @classmethod
    def decode(cls, token: str) -> Position:
        try:
            fields = Decoder(urlsafe_b64decode(token.encode("ascii")))
            if fields.u8() != 1:
                raise DecodeError("another version")
            return cls(fields.u64(), fields.u64(), fields.u64(), fields.rest())
        except (DecodeError, Base64Error, UnicodeEncodeError) as error:
            raise InvalidArgument("the token is not one that a page of this table gave") from error


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
        # A row costs memory besides its bytes, and a step of the pipeline must not take too many.
        charge = max(request.size, _ROW_CHARGE * (len(request.rows) + len(request.expected)))
        for _ in range(ATTEMPTS_MAX):
            if request.expected:
                await self._look_up(request)
            try:
                answer = await self._container.ask_update(request, charge)
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
        """The rows of ``keys``, as of one moment. Raises ``TooLarge``."""
        segment = await self._find(name)
        prefix = row_prefix(segment.sid)
        with self._state.table.view() as view:
            rows: dict[bytes, Row] = {}
            size = 0
            for part in in_slices(keys, _GET_STEP):
                found = await find_rows(view, self._runs, [prefix + key for key in part])
                size += sum(len(row.value or b"") for row in found.values())
                if size > GET_BYTES_MAX:
                    raise TooLarge(
                        f"the rows of {len(keys)} keys have more than {GET_BYTES_MAX} bytes: ask for fewer"
                    )
                rows |= found
        # C1: after the view, so what it shows is durable, and what it does not is durably absent.
        await self._container.wait_durable()
        return [_shown(rows.get(prefix + key)) for key in keys]

    async def page(self, name: str, keys: KeyRange, token: str | None, limits: PageLimits) -> TablePage:
        """Rows whose keys are in ``keys``, as of one moment."""
        position = None if token is None else Position.decode(token)
        segment = await self._find(name, 0 if position is None else position.sid)
        wanted = _within(segment.sid, keys, b"" if position is None else position.start)
        with self._state.table.view() as view:
            page = await scan_rows(view, self._runs, wanted, limits)
        await self._container.wait_durable()
        return TablePage(
            [row for each in page.rows if (row := _shown(each)) is not None],
            _token(segment.sid, 0, 0, page.resume),
        )

    async def changes(self, name: str, since: int, token: str | None, limits: PageLimits) -> ChangesPage:
        """Rows changed after version ``since``, removed ones too."""
        position = None if token is None else Position.decode(token)
        if position is not None:
            since = position.since
        segment = await self._find(name, 0 if position is None else position.sid)
        wanted = _within(segment.sid, KeyRange(), b"" if position is None else position.start)
        with self._state.table.view() as view:
            oldest = view.runs.changes_from
            if since and position is None:
                # It may be of an earlier table of that name; the token of a later page has the table's id.
                oldest = max(oldest, await self._created(view, segment))
            # What has been removed is of no concern to who knows nothing yet. A version above all is of a
            # history that was put back.
            if since and not oldest <= since <= self._state.sequence:
                await self._container.wait_durable()
                raise ChangesIncomplete(
                    f"the changes of table {name!r} since version {since} are not complete any more, or that "
                    f"is no version of this table: forget its rows, and start over with version 0",
                    segment=name,
                    complete_since=oldest,
                )
            version = view.version if position is None else position.version
            page = await scan_rows(view, self._runs, wanted, limits, changed_after=since)
        await self._container.wait_durable()
        return ChangesPage(
            [TableChange(row.key[PREFIX_BYTES:], row.value, row.version) for row in page.rows],
            _token(segment.sid, since, version, page.resume),
            version,
        )

    async def _created(self, view: TableView, segment: SegmentState) -> int:
        """The version at which the table was created: that of its name."""
        key = name_key(segment.name)
        return version_of((await find_rows(view, self._runs, (key,))).get(key))

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
                page = await scan_rows(view, self._runs, _within(sid, KeyRange(), start), _REMOVED)
            is_last = page.resume is None
            keys = [row.key[PREFIX_BYTES:] for row in page.rows]
            size = sum(map(len, keys)) + _ROW_CHARGE
            await self._container.ask_internal(ForgetRowsRequest(sid, keys, is_last=is_last), size)
            self._removed += len(keys)
            start = b"" if page.resume is None else page.resume[PREFIX_BYTES:]
            # Tombstones are rows too: they wait until the others of the container are published.
            await anyio.sleep(_REMOVAL_PAUSE)
            while self._state.table.memory > _REMOVAL_BYTES_MAX:
                await self._container.wait_progress()

    def statistics(self) -> TablesStatistics:
        return TablesStatistics(self._updates, self._rows, self._conflicts, self._removed)


def _shown(row: Row | None) -> TableRow | None:
    if row is None or row.value is None:
        return None
    return TableRow(row.key[PREFIX_BYTES:], row.value, row.version)


def _within(sid: int, keys: KeyRange, start: bytes) -> KeyRange:
    """The rows of a table in ``keys``, from ``start`` on."""
    prefix = row_prefix(sid)
    end = prefix_end(prefix) if keys.end is None else prefix + keys.end
    return KeyRange(prefix + max(keys.start, start), end)


def _token(sid: int, since: int, version: int, resume: bytes | None) -> str | None:
    return None if resume is None else Position(sid, since, version, resume[PREFIX_BYTES:]).encode()

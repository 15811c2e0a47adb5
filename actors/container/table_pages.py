"""Reads of tables: rows by key, and pages of rows and of changes, each of one view (rule M16). They serve an
owner and a read-only view; an owner waits afterwards until what they show is durable."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import ChangesIncomplete, InvalidArgument, TooLarge
from ...storage_backends.base.page_tokens import decode_token, encode_token
from ...storage_backends.base.tables import (
    FOREIGN_PAGE,
    TABLE_BYTES_MAX,
    ChangesPage,
    TableChange,
    TablePage,
    TableRow,
)
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, prefix_end
from ...storage_backends.sorted_runs.scan import PAGE_CONSIDERED_MAX, KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .segment_rows import name_key
from .segments import SegmentState
from .state import ContainerState
from .table_rows import PREFIX_BYTES, row_prefix

_GET_STEP = 16


class Position(Struct, frozen=True):
    """Where the next page starts: what a token says."""

    name: str
    """Of the table."""
    keys: KeyRange | None = None
    """The range of the rows; None: these are pages of changes."""

    sid: int = 0
    """Of the table; 0: this is the first page, of whatever table has the name."""
    since: int = 0
    """Of changes: the version after which they are asked for; 0 for rows."""
    version: int = 0
    """Of changes: the version of the first page's view."""
    start: bytes = b""

    def encode(self) -> str:
        fields = Encoder().u64(self.sid)
        if self.keys is None:
            fields.u64(self.since).u64(self.version)
        return encode_token(self._asked(), fields.raw(self.start).finish())

    def after(self, token: str) -> Position:
        """The position that ``token`` says, if a page of the same table, kind and range gave it. Raises
        ``InvalidArgument``."""
        try:
            fields = Decoder(decode_token(self._asked(), token))
            sid = fields.u64()
            since, version = (fields.u64(), fields.u64()) if self.keys is None else (0, 0)
        except DecodeError as error:
            raise InvalidArgument(FOREIGN_PAGE) from error

        if self.since not in (0, since):
            raise InvalidArgument(f"the token is of changes since version {since}, not {self.since}")
        return replace(self, sid=sid, since=since, version=version, start=fields.rest())

    def _asked(self) -> bytes:
        """What a token must agree with, besides itself."""
        keys = self.keys or KeyRange()
        asked = Encoder().u8(self.keys is None).text(self.name).blob(keys.start).optional_blob(keys.end)
        return asked.finish()

    @classmethod
    def of_rows(cls, name: str, keys: KeyRange, token: str | None) -> Position:
        first = cls(name, keys)
        return first if token is None else first.after(token)

    @classmethod
    def of_changes(cls, name: str, since: int, token: str | None) -> Position:
        first = cls(name, since=since)
        return first if token is None else first.after(token)


async def rows_of_keys(
    state: ContainerState, runs: RunReader, segment: SegmentState, keys: Sequence[bytes]
) -> list[TableRow | None]:
    """The rows of ``keys``, as of one moment. Raises ``TooLarge``."""
    prefix = row_prefix(segment.sid)
    with state.table.view() as view:
        rows: dict[bytes, Row] = {}
        size = sum(map(len, keys))
        for part in in_slices(keys, _GET_STEP):
            found = await find_rows(view, runs, [prefix + key for key in part])
            size += sum(len(row.value or b"") for row in found.values())
            if size > TABLE_BYTES_MAX:
                raise TooLarge(
                    f"the rows of {len(keys)} keys have more than {TABLE_BYTES_MAX} bytes: ask for fewer"
                )
            rows |= found
    return [_shown(rows.get(prefix + key)) for key in keys]


async def page_of_rows(
    state: ContainerState,
    runs: RunReader,
    segment: SegmentState,
    position: Position,
    limits: PageLimits,
) -> TablePage:
    """Rows whose keys are in ``position.keys``, as of one moment."""
    wanted = within_table(segment.sid, position.keys or KeyRange(), position.start)
    with state.table.view() as view:
        page = await scan_rows(view, runs, wanted, replace(limits, considered=PAGE_CONSIDERED_MAX))
    return TablePage(
        [row for each in page.rows if (row := _shown(each)) is not None],
        _token(replace(position, sid=segment.sid), page.resume),
    )


async def page_of_changes(
    state: ContainerState, runs: RunReader, segment: SegmentState, position: Position, limits: PageLimits
) -> ChangesPage:
    """Rows changed after version ``position.since``, removed ones too. Raises ``ChangesIncomplete``."""
    wanted, since = within_table(segment.sid, KeyRange(), position.start), position.since
    with state.table.view() as view:
        oldest = max(view.runs.changes_from, state.history_from)
        if since and not position.sid:
            # It may be of an earlier table of that name; the token of a later page has the table's id.
            oldest = max(oldest, await _created(view, runs, segment))
        # What has been removed is of no concern to who knows nothing yet. A version above all is of a history
        # that was put back.
        if since and not oldest <= since <= state.sequence:
            raise ChangesIncomplete(
                f"the changes of table {segment.name!r} since version {since} are not complete any more, or "
                f"that is no version of this table: forget its rows, and start over with version 0",
                segment=segment.name,
                complete_since=oldest,
            )
        version = position.version if position.sid else view.version
        limits = replace(limits, considered=PAGE_CONSIDERED_MAX)
        page = await scan_rows(view, runs, wanted, limits, changed_after=since)
    return ChangesPage(
        [TableChange(row.key[PREFIX_BYTES:], row.value, row.version) for row in page.rows],
        _token(replace(position, sid=segment.sid, version=version), page.resume),
        version,
    )


async def _created(view: TableView, runs: RunReader, segment: SegmentState) -> int:
    """The version at which the table was created: that of its name."""
    key = name_key(segment.name)
    return version_of((await find_rows(view, runs, (key,))).get(key))


def within_table(sid: int, keys: KeyRange, start: bytes) -> KeyRange:
    """The rows of a table in ``keys``, from ``start`` on."""
    prefix = row_prefix(sid)
    end = prefix_end(prefix) if keys.end is None else prefix + keys.end
    return KeyRange(prefix + max(keys.start, start), end)


def _shown(row: Row | None) -> TableRow | None:
    if row is None or row.value is None:
        return None
    return TableRow(row.key[PREFIX_BYTES:], row.value, row.version)


def _token(position: Position, resume: bytes | None) -> str | None:
    return None if resume is None else replace(position, start=resume[PREFIX_BYTES:]).encode()

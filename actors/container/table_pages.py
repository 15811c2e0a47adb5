"""Reads of tables: rows by key, and pages of rows and of changes, each of one view (rule M16). They serve an
owner and a read-only view; an owner waits afterwards until what they show is durable."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence

import attrs

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import ChangesIncomplete, InvalidArgument, TooLarge
from ...storage_backends.base.tables import ChangesPage, TableChange, TablePage, TableRow
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, prefix_end
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .segment_rows import name_key
from .segments import SegmentState
from .state import ContainerState
from .table_rows import PREFIX_BYTES, row_prefix

GET_BYTES_MAX = 16 << 20
"""Of the values of one ``get_many``, which memory holds more than once."""
_GET_STEP = 16


@attrs.frozen
class Position:
    """Where the next page starts: what a token says."""

    sid: int = 0
    """0: this is the first page, of whatever table has the name."""
    since: int = 0
    """Of changes: the version after which they are asked for; 0 for rows."""
    version: int = 0
    """Of changes: the version of the first page's view."""
    start: bytes = b""

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

    @classmethod
    def of(cls, token: str | None, since: int = 0) -> Position:
        """``since``: of changes, without a token."""
        return cls(since=since) if token is None else cls.decode(token)


async def rows_of_keys(
    state: ContainerState, runs: RunReader, segment: SegmentState, keys: Sequence[bytes]
) -> list[TableRow | None]:
    """The rows of ``keys``, as of one moment. Raises ``TooLarge``."""
    prefix = row_prefix(segment.sid)
    with state.table.view() as view:
        rows: dict[bytes, Row] = {}
        size = 0
        for part in in_slices(keys, _GET_STEP):
            found = await find_rows(view, runs, [prefix + key for key in part])
            size += sum(len(row.value or b"") for row in found.values())
            if size > GET_BYTES_MAX:
                raise TooLarge(
                    f"the rows of {len(keys)} keys have more than {GET_BYTES_MAX} bytes: ask for fewer"
                )
            rows |= found
    return [_shown(rows.get(prefix + key)) for key in keys]


async def page_of_rows(
    state: ContainerState,
    runs: RunReader,
    segment: SegmentState,
    keys: KeyRange,
    position: Position,
    limits: PageLimits,
) -> TablePage:
    """Rows whose keys are in ``keys``, as of one moment."""
    wanted = within_table(segment.sid, keys, position.start)
    with state.table.view() as view:
        page = await scan_rows(view, runs, wanted, limits)
    return TablePage(
        [row for each in page.rows if (row := _shown(each)) is not None],
        _token(Position(segment.sid), page.resume),
    )


async def page_of_changes(
    state: ContainerState, runs: RunReader, segment: SegmentState, position: Position, limits: PageLimits
) -> ChangesPage:
    """Rows changed after version ``position.since``, removed ones too. Raises ``ChangesIncomplete``."""
    wanted, since = within_table(segment.sid, KeyRange(), position.start), position.since
    with state.table.view() as view:
        oldest = view.runs.changes_from
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
        page = await scan_rows(view, runs, wanted, limits, changed_after=since)
    return ChangesPage(
        [TableChange(row.key[PREFIX_BYTES:], row.value, row.version) for row in page.rows],
        _token(Position(segment.sid, since, version), page.resume),
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
    return None if resume is None else attrs.evolve(position, start=resume[PREFIX_BYTES:]).encode()

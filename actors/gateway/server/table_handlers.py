"""The verbs of tables (rule H19). Reads are POST requests too: their keys are in the body."""

from __future__ import annotations

from msgspec import UnsetType

from ....storage_backends.base.arguments import event_identity
from ....storage_backends.base.errors import (
    ChangesIncomplete,
    DataCorruption,
    HistoryLost,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentSealed,
    StorageFull,
    TableConflict,
    UnknownWriter,
)
from ....storage_backends.base.table import WriterEvent
from ....storage_backends.base.tables import TableRow, checked_rows
from ..wire.bodies import Empty
from ..wire.headers import parse_writer
from ..wire.paths import Verb
from ..wire.table_bodies import (
    PAGE_BYTES_MAX,
    ROW_BYTES_MAX,
    ROWS_BYTES_MAX,
    ChangedRow,
    Changes,
    CreateTable,
    FoundRow,
    FoundRows,
    GetRows,
    Page,
    PageOfChanges,
    PageOfRows,
    Updated,
    UpdateRows,
)
from .call import Call
from .endpoint import verb


@verb(Verb.CREATE_TABLE, SegmentExists, StorageFull, status=201)
async def create_table(call: Call, body: CreateTable) -> Empty:
    """Create an empty table. With `exist_ok` an existing one is left as it is."""
    await call.server.store.create_table(call.name, exist_ok=body.exist_ok)
    return Empty()


@verb(
    Verb.UPDATE_ROWS,
    TableConflict,
    SegmentSealed,
    OutOfOrder,
    UnknownWriter,
    HistoryLost,
    StorageFull,
    DataCorruption,
    body_limit="rows_bytes",
)
async def update_rows(call: Call, body: UpdateRows) -> Updated:
    """Put and remove rows, all or none, if all conditions hold. With a writer id and an event number a repeat
    changes nothing."""
    rows, expected = checked_rows(
        [(row.key, row.value) for row in body.rows], [(each.key, each.version) for each in body.conditions]
    )
    tables = call.server.store.tables
    return Updated(await tables.update(call.name, rows, expected, _event(body)))


def _event(body: UpdateRows) -> WriterEvent:
    number, previous = body.event_number, body.previous_event_number
    history = None if isinstance(body.history, UnsetType) else body.history
    if isinstance(body.writer_id, UnsetType):
        if not (isinstance(number, UnsetType) and isinstance(previous, UnsetType)):
            raise InvalidArgument("event numbers need a writer_id")
        return WriterEvent.of(None, None, None, history)

    writer, first = event_identity(
        parse_writer("writer_id", body.writer_id),
        None if isinstance(number, UnsetType) else number,
        "event_number",
    )
    return WriterEvent.of(writer, first, None if isinstance(previous, UnsetType) else previous, history)


@verb(Verb.GET_ROWS, DataCorruption, help="The answer.", body_limit="rows_bytes")
async def get_rows(call: Call, body: GetRows) -> FoundRows:
    """The rows of keys, in the order of the keys, as of one moment; null for a key without a row."""
    await call.take_room(min(len(body.keys) * ROW_BYTES_MAX, ROWS_BYTES_MAX))
    rows = await call.server.store.tables.get(call.name, body.keys)
    return FoundRows([None if row is None else _found(row) for row in rows])


@verb(Verb.PAGE_OF_ROWS, DataCorruption, help="The answer.")
async def page_of_rows(call: Call, body: PageOfRows) -> Page:
    """Rows in the order of their keys. With the `token` of a page the next one."""
    await call.take_room(min(body.limit * ROW_BYTES_MAX, PAGE_BYTES_MAX))
    page = await call.server.store.tables.page(call.name, body.start, body.end, body.token, body.limit)
    return Page([_found(row) for row in page.rows], page.token)


@verb(Verb.PAGE_OF_CHANGES, ChangesIncomplete, DataCorruption, help="The answer.")
async def page_of_changes(call: Call, body: PageOfChanges) -> Changes:
    """Rows that changed after version `since`, removed ones included. With the `token` of a page the next
    one; after the last one `version` is the next `since`."""
    await call.take_room(min(body.limit * ROW_BYTES_MAX, PAGE_BYTES_MAX))
    page = await call.server.store.tables.changes(call.name, body.since, body.token, body.limit)
    return Changes([ChangedRow(*row) for row in page.rows], page.token, page.version)


def _found(row: TableRow) -> FoundRow:
    return FoundRow(row.key, row.value, row.version)

"""What is known of a container's transactions: queries, listings, and the oldest ends (rules T5, M21).

Open transactions are in memory, ended ones are rows of the system table. What is found here changes nothing,
and loads no segment."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from ...journal.operations.ended_transactions import TransactionEnd
from ...storage_backends.base.errors import TransactionNotFound
from ...storage_backends.base.list_pages import Part, transaction_text
from ...storage_backends.base.transactions import PARTS_MAX, TransactionInfo, TransactionState
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded, prefix_end, successor
from ...storage_backends.sorted_runs.scan import PAGE_CONSIDERED_MAX, KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from .ended_rows import end_of_key, ended_key, ended_of_row, ended_prefix, index_start, split_key
from .operations.transactions import TransactionRequest, info_of
from .segment_rows import name_key, sid_of_row
from .segments import NotLoaded
from .state import ContainerState
from .transaction_table import unknown

if TYPE_CHECKING:
    from .container import Container

_PAGE = PageLimits(256)


class Known(Struct, frozen=True):
    info: TransactionInfo
    version: int
    """That of its end; 0 if it is open."""


class EndsPage(Struct, frozen=True):
    ends: list[TransactionEnd]
    records_to: int
    """That of the view's runs."""
    resume: bytes
    """Where the next page starts."""


async def find_known(state: ContainerState, runs: RunReader, target: str, transaction: str) -> Known:
    """What is known of one transaction. Raises ``TransactionNotFound``, ``Unavailable``,
    ``DataCorruption``."""
    record = state.transactions.records.get((target, transaction))
    if record is not None:
        return Known(info_of(state, record), 0)

    with state.table.view() as view:
        key = ended_key(target, transaction)
        row = (await find_rows(view, runs, (key,))).get(key)
        for known in await _known(state, view, runs, [] if row is None else [row]):
            return known
    raise unknown(target, transaction)


async def known_page(
    state: ContainerState, runs: RunReader, prefix: str, start: str, limit: int
) -> Part[Known]:
    """The transactions whose target begins with ``prefix``, from the text ``start`` on, as of now, sorted
    (rule M22). Raises ``Unavailable``, ``DataCorruption``."""
    first = ended_prefix(prefix)
    keys = KeyRange(max(first, ended_prefix(start)), prefix_end(first))
    with state.table.view() as view:
        # Of the moment of the view: what has ended since is open in this page.
        found, stop = _open_from(state, keys, limit)
        page = await scan_rows(view, runs, keys, PageLimits(limit, considered=PAGE_CONSIDERED_MAX))
        stops = [each for each in (stop, page.resume) if each is not None]
        rows = {row.key: row for row in page.rows if row.key not in found}
        shown = sorted({*found, *rows})
        if len(shown) > limit:
            stops.append(shown[limit])
        stop = min(stops, default=None)
        shown = [key for key in shown if stop is None or key < stop]
        for known in await _known(state, view, runs, [rows[key] for key in shown if key in rows]):
            found[ended_key(known.info.target, known.info.transaction_id)] = known
    text = None if stop is None else transaction_text(*decoded(split_key, stop, stop))
    return [found[key] for key in shown if key in found], text


def _open_from(state: ContainerState, keys: KeyRange, limit: int) -> tuple[dict[bytes, Known], bytes | None]:
    """Open transactions by the keys that they will have, and the first key that others may have."""
    found: dict[bytes, Known] = {}
    staged = 0
    for record in state.transactions.records_from(decoded(split_key, keys.start, keys.start)):
        key = ended_key(record.target, record.id)
        if keys.end is not None and key >= keys.end:
            break
        if len(found) == limit or staged >= PARTS_MAX:
            return found, key
        found[key] = Known(info_of(state, record), 0)
        staged += len(found[key].info.staged)
    return found, None


async def _known(state: ContainerState, view: TableView, runs: RunReader, rows: list[Row]) -> list[Known]:
    """Ended transactions, except those of an earlier segment of a target's name (rule T8)."""
    records = [
        (row.version, record) for row in rows if (record := decoded(ended_of_row, row, row.key)) is not None
    ]
    keys = {record.target: name_key(record.target) for _, record in records}
    names = await find_rows(view, runs, keys.values())
    sids = {target: decoded(sid_of_row, names.get(key), key) for target, key in keys.items()}
    return [
        Known(info_of(state, record), version)
        for version, record in records
        if sids[record.target] in (None, record.sid)
    ]


async def find_ends(state: ContainerState, runs: RunReader, start: bytes, version: int) -> EndsPage:
    """The first ends, up to ``version``; ``start``: where an earlier page resumes, ``b""`` for the first one.
    Raises ``Unavailable``, ``DataCorruption``."""
    with state.table.view() as view:
        keys = KeyRange(start or index_start(0), index_start(version + 1))
        page = await scan_rows(view, runs, keys, _PAGE)
        ends = [decoded(end_of_key, row.key, row.key) for row in page.rows]
        rows = await find_rows(view, runs, [ended_key(end.target, end.id) for end in ends])
        found = [
            end._replace(is_newest=version_of(rows.get(ended_key(end.target, end.id))) == row.version)
            for end, row in zip(ends, page.rows, strict=True)
        ]
        resume = successor(page.rows[-1].key) if page.rows else start
        return EndsPage(found, view.runs.records_to, resume)


# --- of an owner --------------------------------------------------------------------------------


async def ask_transaction(container: Container, request: TransactionRequest) -> TransactionInfo:
    """The answer to a request about a transaction's state, with the time that is left (rules T5 and T7)."""
    state, leases = container.state, container.leases
    info: TransactionInfo | None = None
    with suppress(NotLoaded):  # of a query: the others load what they need
        info = await container.ask(request, 256)
    if info is not None:
        row = state.table.find_in_memory(ended_key(request.target, request.transaction))
        if info.state is TransactionState.OPEN:
            return leases.with_time(info, 0)
        if row is not None and row.value is not None:
            return leases.with_time(info, row.version)

    return await container.as_owner(_look_up(container, request, info))


async def _look_up(
    container: Container, request: TransactionRequest, info: TransactionInfo | None
) -> TransactionInfo:
    try:
        known = await find_known(container.state, container.runs, request.target, request.transaction)
    except TransactionNotFound:
        await container.wait_durable()
        if info is None:
            raise
        return info  # it was committed as another transaction (rule T4)
    await container.wait_durable()
    return container.leases.with_time(info or known.info, known.version)


async def page_of_transactions(
    container: Container, prefix: str, start: str, limit: int
) -> Part[TransactionInfo]:
    """As ``known_page``."""
    leases = container.leases  # first: it raises if the container is not open yet
    known, stop = await container.as_owner(known_page(container.state, container.runs, prefix, start, limit))
    infos = [leases.with_time(each.info, each.version) for each in known]
    # After the view: what it shows is durable then.
    await container.wait_durable()
    return infos, stop

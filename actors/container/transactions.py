"""What is known of a container's transactions: queries, listings, and the oldest ends (rules T5, M21).

Open transactions are in memory, ended ones are rows of the system table. What is found here changes nothing,
and loads no segment."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from ...journal.operations.ended_transactions import TransactionEnd
from ...storage_backends.base.errors import TransactionNotFound
from ...storage_backends.base.transactions import TransactionInfo, TransactionState
from ...storage_backends.sorted_runs.lookup import find_rows
from ...storage_backends.sorted_runs.memtable import version_of
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded, prefix_end, successor
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from .ended_rows import end_of_key, ended_key, ended_of_row, ended_prefix, index_start, split_key
from .operations.transactions import TransactionRequest, info_of
from .segment_rows import name_key, sid_of_row
from .segments import NotLoaded
from .state import ContainerState
from .transaction_table import unknown

if TYPE_CHECKING:
    from .container import Container
    from .leases import Leases

_PAGE = PageLimits(256)


@attrs.frozen
class Known:
    info: TransactionInfo
    version: int
    """That of its end; 0 if it is open."""


@attrs.frozen
class EndsPage:
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


async def known_pages(
    state: ContainerState, runs: RunReader, prefix: str
) -> AsyncGenerator[list[Known], None]:
    """The transactions whose target begins with ``prefix``, sorted, in pages of one moment each. Raises
    ``Unavailable``, ``DataCorruption``."""
    start: bytes | None = ended_prefix(prefix)
    end = prefix_end(ended_prefix(prefix))
    while start is not None:
        with state.table.view() as view:
            # Of the moment of the view: what has ended since is open in this page.
            records = islice(state.transactions.records_from(decoded(split_key, start, start)), _PAGE.rows)
            found = {
                key: Known(info_of(state, record), 0)
                for record in records
                if _is_before(key := ended_key(record.target, record.id), end)
            }
            page = await scan_rows(view, runs, KeyRange(start, end), _PAGE)
            start = page.resume
            if len(found) == _PAGE.rows and (start is None or max(found) < start):
                start = successor(max(found))
            stop = end if start is None else start
            rows = [row for row in page.rows if row.key not in found and _is_before(row.key, stop)]
            for known in await _known(state, view, runs, rows):
                found[ended_key(known.info.target, known.info.transaction_id)] = known
        yield [known for key, known in sorted(found.items()) if _is_before(key, stop)]


def _is_before(key: bytes, stop: bytes | None) -> bool:
    return stop is None or key < stop


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


async def list_transactions(container: Container, prefix: str) -> list[TransactionInfo]:
    """The transactions whose target begins with ``prefix``, sorted, in pages of one moment each."""
    leases = container.leases  # first: it raises if the container is not open yet
    return await container.as_owner(_list(container, leases, prefix))


async def _list(container: Container, leases: Leases, prefix: str) -> list[TransactionInfo]:
    found: list[TransactionInfo] = []
    async with aclosing(known_pages(container.state, container.runs, prefix)) as pages:
        async for page in pages:
            found += (leases.with_time(known.info, known.version) for known in page)
    await container.wait_durable()
    return found

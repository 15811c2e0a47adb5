"""Tables over HTTP: each verb as a request, and what ``Table`` asks of a client; ``SyncTable`` has the same
verbs as plain functions."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from ....storage_backends.base.arguments import APPEND_BYTES_MAX, WriterId
from ....storage_backends.base.errors import TooLarge
from ....storage_backends.base.names import check_segment_name
from ....storage_backends.base.table import Table, TableTransaction, WriterEvent
from ....storage_backends.base.tables import (
    ABSENT,
    PAGE_ROWS_MAX,
    ChangesPage,
    TableChange,
    TablePage,
    TableRow,
    TableUpdate,
)
from ....storage_backends.base.verbs import copy_docstrings
from ..wire import paths, table_bodies
from ..wire.bodies import JSON_TYPE, Empty, RequestBody, decode_answer, encode_json
from ..wire.headers import writer_text
from ..wire.paths import Verb
from .requests import Call, Request
from .retries import Repeat

T = TypeVar("T")
A = TypeVar("A")
_JSON = (("Content-Type", JSON_TYPE),)


def create_table(name: str, exist_ok: bool) -> Call[None]:
    repeat = Repeat.IDEMPOTENT if exist_ok else Repeat.CREATES
    body = table_bodies.CreateTable(exist_ok)
    return _post(name, Verb.CREATE_TABLE, body, Empty, lambda answer: None, repeat, 201)


def update_rows(
    name: str,
    rows: Sequence[tuple[bytes, bytes | None]],
    expected: Mapping[bytes, int],
    event: WriterEvent,
) -> Call[int | None]:
    size = sum(len(key) + len(value or b"") for key, value in rows) + sum(map(len, expected))
    if size > APPEND_BYTES_MAX:
        raise TooLarge(f"an update has at most {APPEND_BYTES_MAX} bytes of keys and values, not {size}")

    numbers: dict[str, Any] = {}
    if event.writer:
        numbers |= {"writer_id": writer_text(event.writer), "event_number": event.number}
        if event.previous is not None:
            numbers["previous_event_number"] = event.previous
        if event.history is not None:
            numbers["history"] = event.history
    body = table_bodies.UpdateRows(
        [table_bodies.RowUpdate(key, value) for key, value in rows],
        [table_bodies.Condition(key, version) for key, version in expected.items()],
        **numbers,
    )
    return _post(
        name,
        Verb.UPDATE_ROWS,
        body,
        table_bodies.Updated,
        lambda answer: answer.version,
        _repeat(rows, expected, event),
    )


def _repeat(
    rows: Sequence[tuple[bytes, bytes | None]], expected: Mapping[bytes, int], event: WriterEvent
) -> Repeat:
    if not rows:
        return Repeat.READS
    if event.writer:
        return Repeat.NUMBERED
    # Once applied, it has changed a row whose version it expects, and versions never come back. Absence does.
    is_once = any(expected.get(key, ABSENT) != ABSENT for key, _ in rows)
    return Repeat.AT_VERSION if is_once else Repeat.NEVER


def get_rows(name: str, keys: Sequence[bytes]) -> Call[list[TableRow | None]]:
    def value(answer: table_bodies.FoundRows) -> list[TableRow | None]:
        if len(answer.rows) != len(keys):
            raise ValueError(f"{len(answer.rows)} rows for {len(keys)} keys")
        return [None if row is None else _row(row) for row in answer.rows]

    body = table_bodies.GetRows(list(keys))
    return _post(name, Verb.GET_ROWS, body, table_bodies.FoundRows, value, Repeat.READS)


def page_of_rows(
    name: str, start: bytes, end: bytes | None, token: str | None, limit: int
) -> Call[TablePage]:
    def value(answer: table_bodies.Page) -> TablePage:
        return TablePage([_row(row) for row in answer.rows], answer.token)

    body = table_bodies.PageOfRows(start, end, token, limit)
    return _post(name, Verb.PAGE_OF_ROWS, body, table_bodies.Page, value, Repeat.READS)


def page_of_changes(name: str, since: int, token: str | None, limit: int) -> Call[ChangesPage]:
    def value(answer: table_bodies.Changes) -> ChangesPage:
        rows = [TableChange(row.key, row.value, row.version) for row in answer.rows]
        return ChangesPage(rows, answer.token, answer.version)

    body = table_bodies.PageOfChanges(since, token, limit)
    return _post(name, Verb.PAGE_OF_CHANGES, body, table_bodies.Changes, value, Repeat.READS)


def _row(row: table_bodies.FoundRow) -> TableRow:
    return TableRow(row.key, row.value, row.version)


def _post(
    name: str,
    verb: Verb,
    body: RequestBody,
    kind: type[A],
    value: Callable[[A], T],
    repeat: Repeat,
    status: int = 200,
) -> Call[T]:
    check_segment_name(name)
    request = Request("POST", paths.segment_path(name, verb), encode_json(body), _JSON)
    return Call(
        request, repeat, lambda response: value(decode_answer(response.body, kind)), name, statuses=(status,)
    )


class RunCall(Protocol):
    async def __call__(self, call: Call[T]) -> T:
        """The call's value, once it is answered."""
        ...


class ClientTables:
    """The ``TableAccess`` of a client."""

    def __init__(self, run: RunCall) -> None:
        self._run = run

    async def update(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes | None]],
        expected: Mapping[bytes, int],
        event: WriterEvent,
    ) -> int | None:
        return await self._run(update_rows(name, rows, expected, event))

    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]:
        return await self._run(get_rows(name, keys))

    async def page(
        self, name: str, start: bytes, end: bytes | None, token: str | None, limit: int
    ) -> TablePage:
        return await self._run(page_of_rows(name, start, end, token, limit))

    async def changes(self, name: str, since: int, token: str | None, limit: int) -> ChangesPage:
        return await self._run(page_of_changes(name, since, token, limit))


def _done(call: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, because its calls are plain functions."""
    try:
        call.send(None)
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise RuntimeError("a call of a synchronous client was suspended")


@copy_docstrings(Table)
class SyncTable:
    """``Table`` with plain functions."""

    def __init__(self, tables: ClientTables, name: str) -> None:
        self._table = Table(tables, name)
        self.name = name

    def __repr__(self) -> str:
        return f"<SyncTable {self.name!r}>"

    def get(self, key: bytes) -> TableRow | None:
        return _done(self._table.get(key))

    def get_many(self, keys: Iterable[bytes]) -> list[TableRow | None]:
        return _done(self._table.get_many(keys))

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        expected_version: int | None = None,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        return _done(
            self._table.put(
                key,
                value,
                expected_version=expected_version,
                writer_id=writer_id,
                event_number=event_number,
                previous_event_number=previous_event_number,
                history=history,
            )
        )

    def remove(
        self,
        key: bytes,
        *,
        expected_version: int | None = None,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        return _done(
            self._table.remove(
                key,
                expected_version=expected_version,
                writer_id=writer_id,
                event_number=event_number,
                previous_event_number=previous_event_number,
                history=history,
            )
        )

    def put_many(
        self,
        values: Mapping[bytes, bytes],
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        return _done(
            self._table.put_many(
                values,
                writer_id=writer_id,
                event_number=event_number,
                previous_event_number=previous_event_number,
                history=history,
            )
        )

    def update(
        self,
        updates: Iterable[TableUpdate],
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        return _done(
            self._table.update(
                updates,
                writer_id=writer_id,
                event_number=event_number,
                previous_event_number=previous_event_number,
                history=history,
            )
        )

    def items(
        self, *, prefix: bytes = b"", start: bytes = b"", end: bytes | None = None
    ) -> Iterator[TableRow]:
        token: str | None = None
        while True:
            page = self.page(prefix=prefix, start=start, end=end, token=token)
            yield from page.rows
            token = page.token
            if token is None:
                return

    def page(
        self,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes | None = None,
        token: str | None = None,
        limit: int = PAGE_ROWS_MAX,
    ) -> TablePage:
        return _done(self._table.page(prefix=prefix, start=start, end=end, token=token, limit=limit))

    def changes(self, since: int = 0, *, token: str | None = None, limit: int = PAGE_ROWS_MAX) -> ChangesPage:
        return _done(self._table.changes(since, token=token, limit=limit))

    @contextmanager
    def transaction(
        self,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> Iterator[SyncTableTransaction]:
        event = WriterEvent.of(writer_id, event_number, previous_event_number, history)
        transaction = self._table.begin()
        try:
            yield SyncTableTransaction(transaction)
        finally:
            transaction.end()
        _done(transaction.commit(event))


@copy_docstrings(TableTransaction)
class SyncTableTransaction:
    """``TableTransaction`` with plain functions."""

    def __init__(self, transaction: TableTransaction) -> None:
        self._transaction = transaction

    @property
    def version(self) -> int | None:
        return self._transaction.version

    def get(self, key: bytes) -> TableRow | None:
        return _done(self._transaction.get(key))

    def put(self, key: bytes, value: bytes) -> None:
        self._transaction.put(key, value)

    def remove(self, key: bytes) -> None:
        self._transaction.remove(key)

"""A table as its users see it: ``Table`` and ``TableTransaction``, the same for the embedded store and for
the clients, which pass what is theirs as ``TableAccess``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs

from .arguments import WriterId, check_history, check_int, event_identity, previous_event
from .errors import InvalidArgument
from .page_tokens import check_token
from .tables import (
    ABSENT,
    FOREIGN_PAGE,
    PAGE_ROWS_MAX,
    TABLE_ROWS_MAX,
    VERSION_MAX,
    ChangesPage,
    TablePage,
    TableRow,
    TableUpdate,
    check_bounds,
    check_key,
    check_value,
    checked_keys,
    checked_table_updates,
)
from .values import Value


@attrs.frozen(eq=False, repr=False)
class WriterEvent(Value):
    """An update is one event of its writer (rule C3)."""

    writer: bytes = b""
    """Empty for an update without a writer."""
    number: int = 0
    previous: int | None = None
    history: int | None = None
    """The history that the number is of, None if the caller does not say (rule R9)."""

    @classmethod
    def of(
        cls, writer_id: WriterId | None, number: int | None, previous: int | None, history: int | None = None
    ) -> WriterEvent:
        known = check_history(history)
        if writer_id is None and number is None and previous is None:
            if known is not None:
                raise InvalidArgument("history says of which history event_number is: give one")
            return cls()
        writer, first = event_identity(writer_id, number, "event_number")
        return cls(writer, first, previous_event(previous, first), known)


class TableAccess(Protocol):
    """What a store, or a client of one, does for its tables. The arguments are checked."""

    async def update(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes | None]],
        expected: Mapping[bytes, int],
        event: WriterEvent,
    ) -> int | None: ...
    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]: ...
    async def page(
        self, name: str, start: bytes, end: bytes | None, token: str | None, limit: int
    ) -> TablePage: ...
    async def changes(self, name: str, since: int, token: str | None, limit: int) -> ChangesPage: ...


class Table:
    """A table: keys of 1 byte to 8 KiB, and values of up to 1 MiB, each with the version of its last change.

    ``store.table(name)`` makes it, without asking whether there is such a table. Every answer is durable,
    "not found" included, and shows all updates that were answered before. Besides its own errors each verb
    raises those of the store's verbs, ``SegmentNotFound`` if there is no table of that name, and
    ``WrongSegmentKind`` if the name is that of a segment with bytes.

    A ``writer_id`` makes an update safe to repeat, as it does for appends: each update is one event of the
    writer, with the number ``event_number``. A repeat changes nothing and returns the version of the first
    attempt, or None if the writer has made another update since. ``history`` is the one that the number is
    of, as for appends; versions say themselves which one they are of.
    """

    def __init__(self, access: TableAccess, name: str) -> None:
        self._access = access
        self.name = name

    def __repr__(self) -> str:
        return f"<Table {self.name!r}>"

    async def get(self, key: bytes) -> TableRow | None:
        """Returns the row of ``key``, or None."""
        return (await self._access.get(self.name, (check_key(key),)))[0]

    async def get_many(self, keys: Iterable[bytes]) -> list[TableRow | None]:
        """Returns the rows of up to 1,000 keys, as of one moment, in the order of ``keys``. Raises
        ``TooLarge`` if the rows have more than 4 MiB."""
        chosen = checked_keys(keys)
        return await self._access.get(self.name, chosen) if chosen else []

    async def put(
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
        """Sets the value of ``key`` and returns its version. ``expected_version``: the version that the key
        must have now; 0 if it must have no row.

        Raises:
            TableConflict: The key has another version. Nothing was changed.
            SegmentSealed: The table is sealed.
        """
        update = TableUpdate(key, check_value(value), expected_version)
        return await self._update(
            (update,), WriterEvent.of(writer_id, event_number, previous_event_number, history)
        )

    async def remove(
        self,
        key: bytes,
        *,
        expected_version: int | None = None,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        """Removes ``key``, whether it has a row or not, and returns the version of the removal. Arguments and
        errors are those of ``put``."""
        update = TableUpdate(key, None, expected_version)
        return await self._update(
            (update,), WriterEvent.of(writer_id, event_number, previous_event_number, history)
        )

    async def put_many(
        self,
        values: Mapping[bytes, bytes],
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        """Sets the values of up to 1,000 keys, all or none, and returns their version."""
        if not isinstance(values, Mapping):
            raise InvalidArgument(f"values are a mapping of keys to values, not {type(values).__name__}")

        updates = [TableUpdate(key, check_value(value)) for key, value in values.items()]
        event = WriterEvent.of(writer_id, event_number, previous_event_number, history)
        return await self._update(checked_table_updates(updates), event)

    async def update(
        self,
        updates: Iterable[TableUpdate],
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> int | None:
        """Puts and removes up to 1,000 rows, all or none, and returns their version. If one condition does
        not hold, nothing is changed. Errors are those of ``put``."""
        event = WriterEvent.of(writer_id, event_number, previous_event_number, history)
        return await self._update(checked_table_updates(updates), event)

    async def _update(self, updates: Sequence[TableUpdate], event: WriterEvent) -> int | None:
        rows = [(update.key, update.value) for update in updates]
        expected = {
            update.key: update.expected_version for update in updates if update.expected_version is not None
        }
        return await self._access.update(self.name, rows, expected, event)

    async def items(
        self, *, prefix: bytes = b"", start: bytes = b"", end: bytes | None = None
    ) -> AsyncGenerator[TableRow, None]:
        """Yields the rows whose keys begin with ``prefix`` and are in ``start <= key < end``, in the order of
        their keys. It reads them in pages, each as of one moment."""
        token: str | None = None
        while True:
            page = await self.page(prefix=prefix, start=start, end=end, token=token)
            for row in page.rows:
                yield row
            token = page.token
            if token is None:
                return

    async def page(
        self,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        end: bytes | None = None,
        token: str | None = None,
        limit: int = PAGE_ROWS_MAX,
    ) -> TablePage:
        """Returns some of the rows that ``items`` yields, at most ``limit`` of them and about 1 MiB, as of
        one moment. There are more as long as the page has a token, even if it has no rows. ``token`` is that
        of the page before, which was asked for with the same range; it stays valid across restarts.

        Raises:
            InvalidArgument: The token is of another table or range, or of changes.
        """
        check_bounds(prefix, start, end)
        check_int("limit", limit, 1, PAGE_ROWS_MAX)
        after = _prefix_end(prefix)
        if end is not None and (after is None or end < after):
            after = end
        return await self._access.page(
            self.name, max(prefix, start), after, check_token(token, FOREIGN_PAGE), limit
        )

    async def changes(
        self, since: int = 0, *, token: str | None = None, limit: int = PAGE_ROWS_MAX
    ) -> ChangesPage:
        """Returns some of the rows that changed after version ``since``, removed ones included, in the order
        of their keys; a row that changed several times once, with its newest value. Ask again with the
        ``token`` of the page until that is None, then with the ``version`` of the page as ``since``. A row
        that changes meanwhile may be shown twice.

        A token knows its ``since``, which may be left out with it.

        Raises:
            InvalidArgument: The token is of another table or ``since``, or of rows.
            ChangesIncomplete: The store does not know all changes since that version any more, or it is a
                version of an earlier table of that name. Forget all rows, and start over with ``since=0``,
                which shows all of them. Forget them also if the first pass did not come to its end.
        """
        check_int("since", since, 0, VERSION_MAX)
        check_int("limit", limit, 1, PAGE_ROWS_MAX)
        return await self._access.changes(self.name, since, check_token(token, FOREIGN_PAGE), limit)

    @asynccontextmanager
    async def transaction(
        self,
        *,
        writer_id: WriterId | None = None,
        event_number: int | None = None,
        previous_event_number: int | None = None,
        history: int | None = None,
    ) -> AsyncIterator[TableTransaction]:
        """``async with table.transaction() as transaction:`` reads and changes many rows as if nobody else
        did anything meanwhile. The changes are made at the end of the block, all or none, and only if every
        row that was read is as it was. If the block raises, nothing is changed.

        Raises:
            TableConflict: At the end of the block: a row was changed since it was read. Nothing was changed;
                run the block again.
        """
        event = WriterEvent.of(writer_id, event_number, previous_event_number, history)
        transaction = self.begin()
        try:
            yield transaction
        finally:
            transaction.end()
        await transaction.commit(event)

    def begin(self) -> TableTransaction:
        """A transaction whose end is its ``commit``: use ``transaction``."""
        return TableTransaction(self._access, self.name)


class TableTransaction:
    """What a block of ``Table.transaction`` has read and will change, up to 1,000 rows each."""

    def __init__(self, access: TableAccess, name: str) -> None:
        self._access = access
        self._name = name
        self._read: dict[bytes, TableRow | None] = {}
        self._writes: dict[bytes, bytes | None] = {}
        self._ended = False
        self.version: int | None = None
        """The version of the changed rows, once the block has ended."""

    async def get(self, key: bytes) -> TableRow | None:
        """The row of ``key``, with the changes of this transaction, whose version is 0 until its end. A row
        that was read before is not read again."""
        self._check_open()
        if check_key(key) in self._writes:
            value = self._writes[key]
            return None if value is None else TableRow(key, value, 0)

        if key not in self._read:
            _check_count("reads", len(self._read) + 1)
            self._read[key] = (await self._access.get(self._name, (key,)))[0]
        return self._read[key]

    def put(self, key: bytes, value: bytes) -> None:
        self._write(check_key(key), check_value(value))

    def remove(self, key: bytes) -> None:
        self._write(check_key(key), None)

    def _write(self, key: bytes, value: bytes | None) -> None:
        self._check_open()
        _check_count("changes", len(self._writes) + (key not in self._writes))
        self._writes[key] = value

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidArgument("the block of this transaction has ended: begin another one")

    def end(self) -> None:
        """The end of the block calls it, however it ends: no reads and changes from then on."""
        self._ended = True

    async def commit(self, event: WriterEvent) -> None:
        """The end of the block calls it, after ``end``."""
        if not self._read and not self._writes:
            return

        expected = {key: ABSENT if row is None else row.version for key, row in self._read.items()}
        rows = tuple(self._writes.items())
        self.version = await self._access.update(self._name, rows, expected, event)


def _check_count(what: str, count: int) -> None:
    if count > TABLE_ROWS_MAX:
        raise InvalidArgument(f"a transaction {what} at most {TABLE_ROWS_MAX} rows: divide it")


def _prefix_end(prefix: bytes) -> bytes | None:
    """The smallest byte string greater than every key that begins with ``prefix``; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None

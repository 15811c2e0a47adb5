"""The public types of tables, their limits, and the verbs of a table, with their documentation: one text for
the embedded store and for the clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from .arguments import check_int, check_many
from .errors import InvalidArgument, TooLarge, shown

TABLE_KEY_BYTES_MAX = 8 << 10
TABLE_VALUE_BYTES_MAX = 1 << 20
TABLE_ROWS_MAX = 1_000
"""The most rows, and the most conditions, of one update, and the most keys of one ``get_many``."""
TABLE_BYTES_MAX = 4 << 20
"""Bytes of the keys and values of one update, its conditions included, or of the rows of one get."""
VERSION_MAX = (1 << 63) - 1
ABSENT = 0
"""As an expected version: the key must have no row."""
PAGE_ROWS_MAX = 1_000
PAGE_BYTES = 1 << 20
"""Bytes of the keys and values of a page. The row that reaches it is the last one."""
FOREIGN_PAGE = "the token is not one that a page of this table, and of the same range, gave"


class TableRow(NamedTuple):
    key: bytes
    value: bytes
    version: int
    """Greater than the version of every earlier change of the table."""


class TableChange(NamedTuple):
    key: bytes
    value: bytes | None
    """None if the key was removed."""
    version: int


class TablePage(Struct, frozen=True):
    """Rows in the order of their keys."""

    rows: list[TableRow]
    """Perhaps none: a page ends after some thousand removed rows as well."""
    token: str | None
    """Continues after this page; None if there is nothing more. It stays valid across restarts."""


class ChangesPage(Struct, frozen=True):
    """Changed rows in the order of their keys."""

    rows: list[TableChange]
    """Perhaps none: a page ends after some thousand unchanged rows as well."""
    token: str | None
    """Continues after this page; None if there is nothing more."""
    version: int
    """What to pass as ``since`` once there is nothing more: all changes up to it were shown by then."""


class TableUpdate(Struct, frozen=True):
    """One row of an update: ``TableUpdate(b"k", b"v", expected_version=ABSENT)``. Raises ``InvalidArgument``
    for a bad key, value or version."""

    key: bytes
    """1 byte to 8 KiB."""
    value: bytes | None
    """Up to 1 MiB; None removes the key."""
    expected_version: int | None = None
    """The version that the key must have; 0, which is ``ABSENT``, if it must have no row; None for any."""

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.value is not None:
            check_value(self.value)
        check_expected(self.expected_version)


def check_key(key: object) -> bytes:
    if type(key) is not bytes or not 0 < len(key) <= TABLE_KEY_BYTES_MAX:
        raise InvalidArgument(f"a key is bytes, 1 to {TABLE_KEY_BYTES_MAX} of them, not {_described(key)}")
    return key


def check_value(value: object) -> bytes:
    if type(value) is not bytes:
        raise InvalidArgument(f"a value is bytes, not {_described(value)}")
    if len(value) > TABLE_VALUE_BYTES_MAX:
        raise TooLarge(f"a value has at most {TABLE_VALUE_BYTES_MAX} bytes, not {len(value)}")
    return value


def check_expected(version: int | None) -> int | None:
    return None if version is None else check_int("expected_version", version, ABSENT, VERSION_MAX)


def checked_keys(keys: Iterable[bytes]) -> tuple[bytes, ...]:
    chosen = tuple(map(check_key, check_many("keys", keys)))
    if len(chosen) > TABLE_ROWS_MAX:
        raise InvalidArgument(f"get_many takes at most {TABLE_ROWS_MAX} keys, not {len(chosen)}")
    return chosen


def checked_table_updates(updates: Iterable[TableUpdate]) -> tuple[TableUpdate, ...]:
    """The rows of an update, each key once."""
    chosen = tuple(check_many("updates", updates))
    if not 0 < len(chosen) <= TABLE_ROWS_MAX:
        raise InvalidArgument(f"an update takes 1 to {TABLE_ROWS_MAX} rows, not {len(chosen)}")
    for update in chosen:
        if not isinstance(update, TableUpdate):
            raise InvalidArgument(f"a row of an update is a TableUpdate, not {shown(update)}")
    if len({update.key for update in chosen}) != len(chosen):
        raise InvalidArgument("an update names each key once")
    return chosen


def check_bounds(prefix: object, start: object, end: object) -> None:
    for what, value in (("prefix", prefix), ("start", start), ("end", end)):
        if value is None and what == "end":
            continue
        if type(value) is not bytes or len(value) > TABLE_KEY_BYTES_MAX:
            raise InvalidArgument(
                f"{what} is bytes, at most {TABLE_KEY_BYTES_MAX} of them, not {_described(value)}"
            )


def _described(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a value of type {type(value).__name__}"


def checked_rows(
    rows: Sequence[tuple[bytes, bytes | None]], conditions: Sequence[tuple[bytes, int]]
) -> tuple[Sequence[tuple[bytes, bytes | None]], dict[bytes, int]]:
    """Rows and conditions, each key once among either."""
    expected = dict(conditions)
    if len({key for key, _ in rows}) != len(rows) or len(expected) != len(conditions):
        raise InvalidArgument("an update names each key once")
    if not rows and not expected:
        raise InvalidArgument("an update has at least one row or condition")
    return rows, expected

"""The JSON bodies of the verbs of tables (rule H19). Keys and values are base64 (RFC 4648, section 4)."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field

from ....storage_backends.base.page_tokens import TOKEN_MAX
from ....storage_backends.base.tables import (
    PAGE_BYTES,
    PAGE_ROWS_MAX,
    TABLE_BYTES_MAX,
    TABLE_KEY_BYTES_MAX,
    TABLE_ROWS_MAX,
    TABLE_VALUE_BYTES_MAX,
    VERSION_MAX,
)
from .bodies import Number, Offset, PreviousNumber, RequestBody, WriterId, described

ROWS_BYTES_MAX = TABLE_BYTES_MAX * 3 // 2
"""Bytes of the body of an update or a get, and of its answer: room for the largest one in base64, with its
JSON."""
ROW_BYTES_MAX = (TABLE_VALUE_BYTES_MAX + TABLE_KEY_BYTES_MAX) * 3 // 2
"""The same for one row."""
PAGE_BYTES_MAX = PAGE_BYTES * 3 // 2 + ROW_BYTES_MAX
"""The same for the answer with a page of rows or of changes."""

Version = Annotated[int, Meta(ge=0, le=VERSION_MAX)]
_BASE64 = described("^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
Key = Annotated[bytes, Meta(min_length=1, max_length=TABLE_KEY_BYTES_MAX), _BASE64]
Bound = Annotated[bytes, Meta(max_length=TABLE_KEY_BYTES_MAX), _BASE64]
Value = Annotated[bytes, Meta(max_length=TABLE_VALUE_BYTES_MAX), _BASE64]
Limit = Annotated[int, Meta(ge=1, le=PAGE_ROWS_MAX)]
Token = Annotated[str, Meta(max_length=TOKEN_MAX)]


# --- requests -----------------------------------------------------------------------------------


class CreateTable(RequestBody, frozen=True):
    exist_ok: bool = False


class RowUpdate(RequestBody, frozen=True):
    key: Key
    value: Value | None
    """Null removes the key."""


class Condition(RequestBody, frozen=True):
    key: Key
    version: Version
    """The version that the key must have; 0: it must have no row."""


class UpdateRows(RequestBody, frozen=True):
    rows: Annotated[list[RowUpdate], Meta(max_length=TABLE_ROWS_MAX)]
    conditions: Annotated[list[Condition], Meta(max_length=TABLE_ROWS_MAX)] = field(default_factory=list)
    writer_id: WriterId | UnsetType = UNSET
    event_number: Number | UnsetType = UNSET
    previous_event_number: PreviousNumber | UnsetType = UNSET
    history: Offset | UnsetType = UNSET
    """The history that the event's number is of."""


class GetRows(RequestBody, frozen=True):
    keys: Annotated[list[Key], Meta(min_length=1, max_length=TABLE_ROWS_MAX)]


class PageOfRows(RequestBody, frozen=True):
    start: Bound = b""
    end: Bound | None = None
    """The key to stop before; null is no end."""
    token: Token | None = None
    limit: Limit = PAGE_ROWS_MAX


class PageOfChanges(RequestBody, frozen=True):
    since: Version = 0
    token: Token | None = None
    limit: Limit = PAGE_ROWS_MAX


# --- answers ------------------------------------------------------------------------------------


class Updated(Struct, frozen=True):
    version: Version | None
    """None for a repeat that is not the writer's latest update, and for an update without rows."""


class FoundRow(Struct, frozen=True):
    key: Key
    value: Value
    version: Version


class ChangedRow(Struct, frozen=True):
    key: Key
    value: Value | None
    """Null if the key was removed."""
    version: Version


class FoundRows(Struct, frozen=True):
    rows: list[FoundRow | None]


class Page(Struct, frozen=True):
    rows: list[FoundRow]
    token: str | None


class Changes(Struct, frozen=True):
    rows: list[ChangedRow]
    token: str | None
    version: Version

"""Checks of arguments that the store's doors share: the store itself, its read-only view, the command line.

Owns: ranges and kinds of what callers pass, and the ``InvalidArgument`` that says what is allowed. Pure.
Does not own: the grammar of names (``base/names.py``) nor what only one verb takes (its own module checks that).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

from ..storage_backends.base.errors import InvalidArgument, shown

T = TypeVar("T")
WriterId = str | bytes | UUID
WRITER_ID_BYTES_MAX = 64
EVENT_NUMBER_MAX = (1 << 63) - 1
READ_BYTES_MAX = 64 << 20
OFFSET_MAX = 1 << 62


def check_int(what: str, value: object, low: int, high: int) -> int:
    """``value``, if it is an int from ``low`` to ``high``."""
    if type(value) is not int or not low <= value <= high:
        raise InvalidArgument(f"{what} is an int from {low} to {high}, not {shown(value)}")

    return value


def check_offset(value: object, what: str = "offset") -> int:
    return check_int(what, value, 0, OFFSET_MAX)


def check_size(value: object, what: str = "size") -> int:
    """The size of one read, in bytes."""
    return check_int(what, value, 1, READ_BYTES_MAX)


def check_many(what: str, values: Iterable[T]) -> Iterable[T]:
    """``values``, unless it is text or bytes (whose items are characters and numbers) or nothing to go through."""
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{what} are an iterable of several, not {type(values).__name__}")

    return values


def writer_bytes(writer_id: WriterId | None) -> bytes:
    """A writer id as 1 to 64 bytes; empty for none."""
    if writer_id is None:
        return b""

    if isinstance(writer_id, UUID):
        return writer_id.bytes

    if not isinstance(writer_id, (str, bytes)):
        raise InvalidArgument(f"a writer_id is a str, bytes or UUID, not {type(writer_id).__name__}")

    # What is not Unicode text keeps its bytes, so that two ids are never taken for one.
    writer = writer_id.encode("utf-8", "surrogatepass") if isinstance(writer_id, str) else writer_id
    if not 0 < len(writer) <= WRITER_ID_BYTES_MAX:
        raise InvalidArgument(f"a writer_id has 1 to {WRITER_ID_BYTES_MAX} bytes, {writer_id!r} has {len(writer)}")

    return writer


def required_writer(writer_id: WriterId | None, verb: str) -> bytes:
    writer = writer_bytes(writer_id)
    if not writer:
        raise InvalidArgument(f"{verb} needs a writer_id")

    return writer

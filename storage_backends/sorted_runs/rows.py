"""A row of a table: a key, the version that wrote it, and a value or a tombstone (rule M1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..base.codec import DecodeError
from ..base.errors import DataCorruption

S = TypeVar("S")
T = TypeVar("T")

VERSION_MAX = (1 << 64) - 1
ABSENT = 0
"""The version of a key that no live row has, in conditions of a commit."""
_LABEL_BYTES = 64


class Row(NamedTuple):
    """Rows sort by key."""

    key: bytes
    version: int
    value: bytes | None
    """None is a tombstone: the key was removed at this version."""


def label_of(key: bytes) -> str:
    """What errors call the row of ``key``, which may be long and need not be text."""
    shown = key[:_LABEL_BYTES].decode("ascii", "backslashreplace")
    return f"row {shown}{'...' if len(key) > _LABEL_BYTES else ''}"


def decoded(decode: Callable[[S], T], source: S, key: bytes) -> T:
    """``decode(source)``, of the row of ``key``. Raises ``DataCorruption``."""
    try:
        return decode(source)
    except DecodeError as error:
        raise DataCorruption(
            f"a row of the system table does not decode: {error}", file=label_of(key)
        ) from error


def successor(key: bytes) -> bytes:
    """The smallest byte string greater than ``key``."""
    return key + b"\0"


def prefix_end(prefix: bytes) -> bytes | None:
    """The smallest byte string greater than every key that begins with ``prefix``; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None

"""What all records share: the two bytes at their start, and the check of their named invariants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import TypeVar

from ...base.checksum import Buffer
from ...base.codec import DecodeError, Decoder, Encoder

R = TypeVar("R")

SEGMENT_TYPE = 1
CHUNK_TYPE = 2
INDEX_TYPE = 3
DEFERRED_WORK_TYPE = 4
RELEASED_TYPE = 6

_U16 = Struct(">H")

Invariants = Mapping[str, Callable[[R], bool]]


def begin(kind: int, version: int) -> Encoder:
    return Encoder().u8(kind).u8(version)


def text_parts(value: str) -> tuple[bytes, bytes]:
    """A ``text`` field as ``Encoder.text`` writes it, for frequently written records."""
    data = value.encode()
    return _U16.pack(len(data)), data


def expect(data: Buffer, kind: int, version: int) -> Decoder:
    """A decoder positioned behind the two bytes. Raises ``DecodeError`` for another type or an unknown
    version."""
    decoder = Decoder(data)
    found, written_as = decoder.u8(), decoder.u8()
    if found != kind:
        raise DecodeError(f"record type {found} where {kind} was expected")

    # Never read as if it were known: in another version the same bytes may mean something else. What a newer
    # version only adds stands behind the fields, under the same number.
    if written_as != version:
        raise DecodeError(
            f"record type {kind} has format version {written_as}, this version of tierlog reads {version}"
        )

    return decoder


def broken(record: R, invariants: Invariants[R]) -> list[str]:
    """The names of the invariants that do not hold."""
    return [name for name, holds in invariants.items() if not holds(record)]

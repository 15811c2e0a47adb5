"""The two bytes that every record starts with, and the check of its named invariants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ...base.checksum import Buffer
from ...base.codec import DecodeError, Decoder, Encoder

R = TypeVar("R")

SEGMENT_TYPE = 1
CHUNK_TYPE = 2
INDEX_TYPE = 3

Invariants = Mapping[str, Callable[[R], bool]]


def begin(kind: int, version: int) -> Encoder:
    return Encoder().u8(kind).u8(version)


def expect(data: Buffer, kind: int, version: int) -> Decoder:
    """A decoder behind the two bytes. ``DecodeError`` for another record, or one of a version that this code does not know."""
    decoder = Decoder(data)
    found, written_as = decoder.u8(), decoder.u8()
    if found != kind:
        raise DecodeError(f"record type {found} where {kind} was expected")

    if written_as != version:
        raise DecodeError(f"record type {kind} has format version {written_as}, this version of tierlog reads {version}")

    return decoder


def broken(record: R, invariants: Invariants[R]) -> list[str]:
    """The names of the invariants that do not hold."""
    return [name for name, holds in invariants.items() if not holds(record)]

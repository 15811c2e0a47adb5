"""The registry of log operations, and the bytes of one operation in a group.

An operation is ``type u8, body length u32, body``. Type numbers are permanent: a number is never reused and a
layout never changes; 45 to 48 are reserved for what checkpoints and pins of consistent cycles need. Each
record type lives in a file of its own and registers there, with ``@operation``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol, TypeVar

from ...storage_backends.base.codec import DecodeError, Decoder, NewerFormat

HEAD = struct.Struct(">BI")
"""Type and body length."""

NUMBERS: dict[type, int] = {}
"""The type number of each registered record type."""

_DECODERS: dict[int, Callable[[memoryview, int, int], Operation]] = {}


class Operation(Protocol):
    """A persisted record; in practice a ``NamedTuple``."""

    def encode(self) -> bytes:
        """The body."""


class _Record(Operation, Protocol):
    @staticmethod
    def decode(fields: Decoder) -> Operation:
        """The operation that ``encode`` wrote. ``DecodeError`` if ``fields`` are not a valid body."""


R = TypeVar("R", bound=_Record)


def operation(number: int) -> Callable[[type[R]], type[R]]:
    """Class decorator: register a record type under its permanent number."""

    def register_class(record: type[R]) -> type[R]:
        decode_fields = record.decode

        def decode(view: memoryview, start: int, end: int) -> Operation:
            fields = Decoder(view, start, end)
            op = decode_fields(fields)
            # Bytes behind the fields are refused: a layout never changes, so they are damage or a mistake.
            fields.finish()
            return op

        register(number, record, decode)
        return record

    return register_class


def register(
    number: int, record: type[Operation], decode: Callable[[memoryview, int, int], Operation]
) -> None:
    """Register a record type that decodes ``view[start:end]`` itself, for speed."""
    # At import: two records of one number would read each other's bytes without an error.
    if number in _DECODERS:
        raise ValueError(f"type number {number} is taken: {record.__name__} needs another")

    NUMBERS[record] = number
    _DECODERS[number] = decode


def encode_operation(op: Operation) -> bytes:
    """Type, length and body. Groups frame appends with ``append.encode_head``, which copies no data."""
    body = op.encode()
    return HEAD.pack(NUMBERS[type(op)], len(body)) + body


def decode_operations(payload: memoryview, position: int) -> list[Operation]:
    """The operations from ``position`` to the end of ``payload``. The data of appends are views into it.
    Raises ``DecodeError``, of which ``NewerFormat`` for a type that this code does not know."""
    operations: list[Operation] = []
    end = len(payload)
    add, unpack, decoders, head_size = operations.append, HEAD.unpack_from, _DECODERS, HEAD.size
    while position < end:
        if position + head_size > end:
            raise DecodeError(f"operation head at {position} is cut short")

        number, size = unpack(payload, position)
        position += head_size
        stop = position + size
        decode = decoders.get(number)
        # Nothing is skipped (C5): what this code does not know may be what later operations rest on.
        if stop > end:
            raise DecodeError(f"operation of type {number} and {size} bytes at {position} does not fit")
        if decode is None:
            raise NewerFormat(f"operation of type {number} at {position}")

        add(decode(payload, position, stop))
        position = stop

    return operations

"""A group's payload: ``first sequence u64``, then its operations.

Operation ``i`` of a group has the sequence ``first + i``; sequences are dense over the life of a container,
but for those that ``BeginHistory`` leaves out. A decode error is corruption: the frame's checksum was right,
so a bug or damaged memory wrote the bytes.
"""

from __future__ import annotations

import struct

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.codec import DecodeError
from .operations.append import Append, encode_head
from .operations.operation import Operation, decode_operations, encode_operation

_FIRST = struct.Struct(">Q")


class PayloadBuilder:
    """Collects operations. The joined ``parts`` are the payload; an append's data is referenced, not
    copied."""

    __slots__ = ("operations", "parts", "size")

    def __init__(self, first_sequence: int) -> None:
        self.parts: list[Buffer] = [_FIRST.pack(first_sequence)]
        self.size = _FIRST.size
        """Bytes of the payload so far."""
        self.operations: list[Operation] = []

    def add(self, op: Operation) -> None:
        self.operations.append(op)
        if type(op) is Append:
            data = op.data
            size = len(data)
            head = encode_head(op, size)
            self.parts += head, data
            self.size += len(head) + size
        else:
            encoded = encode_operation(op)
            self.parts.append(encoded)
            self.size += len(encoded)


def decode_group(payload: memoryview) -> tuple[int, list[Operation]]:
    """Return (first sequence, operations). Raises ``DecodeError``."""
    if len(payload) < _FIRST.size:
        raise DecodeError(f"a group of {len(payload)} bytes has no sequence")

    return _FIRST.unpack_from(payload)[0], decode_operations(payload, _FIRST.size)

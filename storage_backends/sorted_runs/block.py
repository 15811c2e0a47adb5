"""A block: some KiB of rows in key order, the unit that is read, verified and cached (rule M2).

A key omits the bytes that it shares with the previous row's, except at a restart point, every 8 rows. So a
lookup bisects the restart points and then compares at most 8 rows, without decoding the others.

Layout: the rows; u32 offset of each restart point; u32 their count; u32 checksum of everything before it
(``part_checksum.py``). A row: u16 length of the shared beginning, u16 length of the rest of the key, u32
length of the value or ``0xffffffff`` for a tombstone, u64 version; the rest of the key; the value. The index
of a run is a block too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ..base.checksum import Buffer
from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .part_checksum import part_checksum
from .rows import Row

RESTART_INTERVAL = 8
_ROW = struct.Struct(">HHIQ")
_U32 = struct.Struct(">I")
_TOMBSTONE = 0xFFFF_FFFF
ROW_OVERHEAD = _ROW.size
_ENDING = 2 * _U32.size
CRC_BYTES = _U32.size


class BlockBuilder:
    """Encodes rows whose keys ascend. ``finish`` returns the block and begins the next one."""

    __slots__ = ("_parts", "_previous", "_restarts", "rows", "size")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self._restarts: list[int] = []
        self._previous = b""
        self.rows = 0
        self.size = 0
        """Bytes of the rows so far."""

    def add(self, key: bytes, version: int, value: bytes | None) -> None:
        if self.rows % RESTART_INTERVAL:
            shared = common_prefix(self._previous, key)
        else:
            shared = 0
            self._restarts.append(self.size)
        rest = len(key) - shared
        length = 0 if value is None else len(value)
        self._parts += (
            _ROW.pack(shared, rest, _TOMBSTONE if value is None else length, version),
            key[shared:],
            value or b"",
        )
        self.size += ROW_OVERHEAD + rest + length
        self._previous = key
        self.rows += 1

    def finish(self, run: str, offset: int) -> bytes:
        """The block, which will begin at ``offset`` of the run with the name ``run``."""
        count = len(self._restarts)
        self._parts.append(struct.pack(f">{count + 1}I", *self._restarts, count))
        body = b"".join(self._parts)
        self._begin()
        return body + _U32.pack(part_checksum(body, run, offset))


def common_prefix(one: bytes, other: bytes) -> int:
    """How many leading bytes two keys share, without a loop over bytes."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter

    difference = int.from_bytes(one[:shorter], "big") ^ int.from_bytes(other[:shorter], "big")
    # The highest bit that differs lies in the first byte that differs.
    return shorter - (difference.bit_length() + 7) // 8


def check_block(block: Buffer, run: str, offset: int) -> None:
    """Raise ``DecodeError`` unless the checksum is right for a block at ``offset`` of the run with the name
    ``run``, and the restart points fit."""
    if (
        len(block) < _ENDING
        or part_checksum(block[:-CRC_BYTES], run, offset)
        != _U32.unpack_from(block, len(block) - CRC_BYTES)[0]
    ):
        raise DecodeError("the checksum of a block is wrong")
    _rows_end(block)


def require_block(block: Buffer, run: str, offset: int) -> None:
    """As ``check_block``, for a block that was read. Raises ``DataCorruption``."""
    try:
        check_block(block, run, offset)
    except DecodeError as error:
        raise DataCorruption(f"a sorted run is damaged: {error}", file=run, offset=offset) from error


def _rows_end(block: Buffer) -> int:
    """Where the rows end and the restart points begin."""
    end = len(block) - _ENDING - _U32.size * _restart_count(block)
    if end < 0:
        raise DecodeError(f"a block of {len(block)} bytes has {_restart_count(block)} restart points")
    return end


def _restart_count(block: Buffer) -> int:
    count: int = _U32.unpack_from(block, len(block) - _ENDING)[0]
    return count


def rows_of_block(block: bytes, start: bytes = b"") -> Iterator[Row]:
    """The rows of a checked block from the key ``start`` on. Raises ``DecodeError`` if they are malformed or
    out of order."""
    end = _rows_end(block)
    return _rows_between(block, _restart_before(block, end, start) if start else 0, end, start)


def _rows_between(block: bytes, position: int, end: int, start: bytes) -> Iterator[Row]:
    unpack, overhead = _ROW.unpack_from, ROW_OVERHEAD
    key = b""
    while position < end:
        if position + overhead > end:
            raise DecodeError(f"a row at {position} of a block is cut off")
        shared, rest, size, version = unpack(block, position)
        key_at = position + overhead
        value_at = key_at + rest
        position = value_at if size == _TOMBSTONE else value_at + size
        previous, key = key, key[:shared] + block[key_at:value_at]
        # A right checksum does not prove it: a writer with a fault computes one too.
        if position > end or len(key) != shared + rest or key <= previous:
            raise DecodeError(f"a row at {key_at - overhead} of a block is malformed or out of order")
        # The rows from the restart point up to `start` are decoded for their keys only.
        if key >= start:
            yield Row(key, version, None if size == _TOMBSTONE else block[value_at:position])


def find_in_block(block: bytes, key: bytes) -> Row | None:
    """The row of ``key`` in a checked block."""
    end = _rows_end(block)
    row = next(_rows_between(block, _restart_before(block, end, key), end, key), None)
    return row if row is not None and row.key == key else None


def _restart_before(block: bytes, end: int, key: bytes) -> int:
    """The offset of the last restart point whose key is not greater than ``key``, or of the first one."""
    low, high = 0, _restart_count(block)
    while high - low > 1:
        middle = (low + high) // 2
        if _key_at(block, end, middle)[1] <= key:
            low = middle
        else:
            high = middle
    return _key_at(block, end, low)[0] if high else end


def _key_at(block: bytes, end: int, restart: int) -> tuple[int, bytes]:
    offset: int = _U32.unpack_from(block, end + _U32.size * restart)[0]
    if offset + ROW_OVERHEAD > end:
        raise DecodeError(f"restart point {restart} of a block lies outside its rows")
    shared, rest, _, _ = _ROW.unpack_from(block, offset)
    if shared:
        raise DecodeError(f"restart point {restart} of a block is not a whole key")
    return offset, block[offset + ROW_OVERHEAD : offset + ROW_OVERHEAD + rest]

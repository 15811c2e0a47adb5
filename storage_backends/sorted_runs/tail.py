"""The tail of a run: fingerprints and index, held in memory while the run is in use.

The index has one row per block, so a lookup finds its block by bisecting keys. It then bisects the
fingerprints of that block's rows: one that is missing proves that the run does not hold the key, without
reading the block. A 32-bit fingerprint lets about one absent key in forty million through, at a hundred rows
per block. This order needs 4 bytes per row and sorts no more than one block's fingerprints at a time; one
sorted array over the whole run would need the number of a block beside each, and one sort of all rows.

Layout, between the blocks and the trailer: u32 fingerprint of each row, ascending within each block; u32
checksum of them (``part_checksum.py``); the index. The index is a block (``block.py``): its key is a
separator, greater than every key of the previous block and not greater than this one's first; its version is
the greatest in the block; its value is u32 length of the block, u32 its rows.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from msgspec import Struct

from ..base.checksum import Buffer, crc32c
from ..base.codec import DecodeError
from ..base.errors import DataCorruption
from .block import BlockBuilder, check_block, common_prefix, rows_of_block
from .part_checksum import part_checksum
from .rows import Row, successor
from .summary import RunSummary
from .trailer import Trailer

_POSITION = struct.Struct(">II")
_U32 = struct.Struct(">I")
_ENTRY_MEMORY = 138
"""Bytes of memory for one block's index entry, without its key: a ``bytes`` object and array elements."""
_STEP_BLOCKS = 1000


def fingerprint(key: Buffer) -> int:
    return crc32c(key)


class Tail(Struct, eq=False, weakref=True):
    summary: RunSummary
    separators: list[bytes]
    offsets: array[int]
    """Where each block begins, and where the last one ends."""
    first_rows: array[int]
    """The number of each block's first row, and the count of all rows."""
    fingerprints: array[int]
    versions: array[int]
    """The greatest of each block."""

    @property
    def memory(self) -> int:
        """Bytes that it takes in memory, about."""
        keys = sum(map(len, self.separators))
        return 4 * len(self.fingerprints) + keys + _ENTRY_MEMORY * len(self.separators)

    @property
    def blocks(self) -> int:
        return len(self.separators)

    def block_at(self, key: bytes) -> int:
        """The block that would hold ``key``; the first one for smaller keys."""
        return max(0, bisect_right(self.separators, key) - 1)

    def find_block(self, key: bytes, sought: int | None = None) -> int | None:
        """The block that may hold ``key``; None if the run certainly does not. ``sought`` is the fingerprint
        of ``key``, for lookups in several runs."""
        if sought is None:
            sought = fingerprint(key)
        number = bisect_right(self.separators, key) - 1
        if number < 0:
            return None  # The first separator is not greater than any key of the run.
        rows, fingerprints = self.first_rows, self.fingerprints
        end = rows[number + 1]
        at = bisect_left(fingerprints, sought, rows[number], end)
        return number if at < end and fingerprints[at] == sought else None

    def rows_of_block(self, number: int, block: bytes, run: str, start: bytes = b"") -> Iterator[Row]:
        """The rows of a checked block from the key ``start`` on. Raises ``DataCorruption`` if they are
        malformed, out of order, or not between this block's separator and the next one."""
        first, last = self.separators[number], number + 1 == self.blocks
        end = successor(self.summary.last_key) if last else self.separators[number + 1]
        try:
            for row in rows_of_block(block, start):
                if not first <= row.key < end:
                    raise DecodeError("a row lies outside the keys of its block")
                yield row
        except DecodeError as error:
            raise DataCorruption(
                f"a sorted run is malformed: {error}", file=run, offset=self.offsets[number]
            ) from error


class TailBuilder:
    """Collects the tail's contents while blocks are written."""

    __slots__ = ("_fingerprints", "_index", "_length", "_previous_key")

    def __init__(self) -> None:
        self._fingerprints = array("I")
        self._index = BlockBuilder()
        self._length = 0
        self._previous_key = b""

    def add_block(
        self, block: bytes, first_key: bytes, last_key: bytes, max_version: int, fingerprints: list[int]
    ) -> None:
        shared = common_prefix(self._previous_key, first_key)
        separator = first_key[: shared + 1]  # The shortest that is greater than the previous key.
        self._index.add(separator, max_version, _POSITION.pack(len(block), len(fingerprints)))
        self._fingerprints.extend(sorted(fingerprints))
        self._length += len(block)
        self._previous_key = last_key

    def finish(self, run: str, summary: RunSummary) -> bytes:
        """The tail of the run with the name ``run``."""
        if sys.byteorder == "little":
            self._fingerprints.byteswap()
        packed = self._fingerprints.tobytes()
        checksum = _U32.pack(part_checksum(packed, run, self._length))
        index_at = self._length + len(packed) + len(checksum)
        index = self._index.finish(run, index_at)
        trailer = Trailer(summary, self._length, len(index)).encode(run, index_at + len(index))
        return b"".join((packed, checksum, index, trailer))


def decode_tail(data: bytes, name: str, run_length: int) -> Tail:
    """The tail of the run ``name`` of ``run_length`` bytes, all of it verified. Raises ``DataCorruption``
    with the offset of the damaged part."""
    *_, tail = tail_in_steps(data, name, run_length)
    assert tail is not None
    return tail


def tail_in_steps(data: bytes, name: str, run_length: int) -> Iterator[Tail | None]:
    """As ``decode_tail``, in steps of about a millisecond: None for each but the last, which is the tail."""
    start = run_length - len(data)
    at = run_length
    try:
        trailer, trailer_length = Trailer.decode(data, name, run_length)
        # `at` is where the part that is decoded next begins, for the error.
        at -= trailer_length
        index_at = len(data) - trailer_length - trailer.index_length
        fingerprints_end = index_at - _U32.size
        if fingerprints_end != _U32.size * trailer.summary.rows or trailer.blocks_length != start:
            raise DecodeError("the parts of a run do not add up to its length")

        at = start
        packed = memoryview(data)[:fingerprints_end]
        if part_checksum(packed, name, start) != _U32.unpack_from(data, fingerprints_end)[0]:
            raise DecodeError("the checksum of the fingerprints is wrong")

        at += index_at
        index = data[index_at : index_at + trailer.index_length]
        check_block(index, name, at)
        yield from _decode_index(trailer, packed, index)
    except DecodeError as error:
        raise DataCorruption(f"a sorted run is damaged: {error}", file=name, offset=max(0, at)) from error


def _decode_index(trailer: Trailer, packed: memoryview, index: bytes) -> Iterator[Tail | None]:
    fingerprints = array("I")
    fingerprints.frombytes(packed)
    if sys.byteorder == "little":
        fingerprints.byteswap()
    tail = Tail(trailer.summary, [], array("Q", (0,)), array("I", (0,)), fingerprints, array("Q"))
    offset = rows = 0
    for number, (separator, version, value) in enumerate(rows_of_block(index)):
        if number % _STEP_BLOCKS == _STEP_BLOCKS - 1:
            yield None
        if value is None or len(value) != _POSITION.size:
            raise DecodeError("an index entry of a run is malformed")
        length, count = _POSITION.unpack(value)
        offset += length
        rows += count
        # Despite a right checksum: lookups index arrays with these numbers.
        if rows > len(fingerprints) or not count:
            raise DecodeError("the index of a run does not cover its rows")
        tail.separators.append(separator)
        tail.offsets.append(offset)
        tail.first_rows.append(rows)
        tail.versions.append(version)
    if offset != trailer.blocks_length or rows != len(fingerprints):
        raise DecodeError("the index of a run does not cover its blocks")
    yield tail

"""Encodes rows in key order as a run, piece by piece (rule M2).

Memory holds one block, and of the blocks before only fingerprints and index. The same name and rows give the
same bytes, so a put whose outcome is unknown is repeated with the same content (rule S2).

Layout of a run: blocks (``block.py``), fingerprints and index (``tail.py``), trailer (``trailer.py``).
"""

from __future__ import annotations

from msgspec import Struct

from ..base.checksum import Buffer, crc32c
from .block import BlockBuilder
from .rows import VERSION_MAX, Row
from .summary import RunSummary
from .tail import TailBuilder, fingerprint

BLOCK_BYTES = 8 << 10
"""A block ends with the row that reaches this size (docs/decisions/0017)."""
RUN_BYTES_MAX = 16 << 20
"""A cycle begins another run at this size, and so does a merge unless its runs would be too many."""
MERGED_RUN_BYTES_MAX = 128 << 20
"""A merge begins another run at this size in any case, which bounds the memory of a put and of a tail."""


class EncodedRun(Struct, frozen=True):
    """What an encoder has written."""

    name: str
    length: int
    crc: int
    """The CRC32C of all bytes."""
    tail_length: int
    summary: RunSummary


class RunEncoder:
    """``add`` rows whose keys ascend, ``take`` finished pieces at any time, and ``finish``."""

    def __init__(self, name: str, block_bytes: int = BLOCK_BYTES) -> None:
        """``name`` is the run's: its checksums cover it."""
        self._name = name
        self._block_bytes = block_bytes
        self._block = BlockBuilder()
        self._tail = TailBuilder()
        self._pieces: list[bytes] = []
        self._crc = self._rows = self._tombstones = self._max_version = self._block_version = 0
        self._min_version = VERSION_MAX
        self._fingerprints: list[int] = []
        self._run_first = self._block_first = self._last = b""
        self._written = 0

    @property
    def length(self) -> int:
        """Bytes of the finished blocks and the rows of the present one."""
        return self._written + self._block.size

    @property
    def rows(self) -> int:
        return self._rows

    def add(self, row: Row) -> None:
        key, version, value = row
        # Lookups bisect: one key out of order would hide others.
        if key <= self._last:
            raise ValueError(f"the key {key[:40]!r} does not follow {self._last[:40]!r}")

        if not self._rows:
            self._run_first = key
        if not self._fingerprints:
            self._block_first = key
        self._last = key
        self._rows += 1
        self._tombstones += value is None
        self._min_version = min(self._min_version, version)
        self._block_version = max(self._block_version, version)
        self._fingerprints.append(fingerprint(key))
        self._block.add(key, version, value)
        if self._block.size >= self._block_bytes:
            self._end_block()

    def take(self) -> list[Buffer]:
        """The pieces that were finished since the last call, in order."""
        pieces: list[Buffer] = list(self._pieces)
        self._pieces.clear()
        return pieces

    def finish(self) -> EncodedRun:
        """End the run, which has at least one row. ``take`` has the rest of it."""
        if self._fingerprints:
            self._end_block()
        summary = RunSummary(
            self._rows,
            self._tombstones,
            self._min_version,
            self._max_version,
            self._run_first,
            self._last,
        )
        tail = self._tail.finish(self._name, summary)
        self._write(tail)
        return EncodedRun(self._name, self._written, self._crc, len(tail), summary)

    def _end_block(self) -> None:
        block = self._block.finish(self._name, self._written)
        self._tail.add_block(block, self._block_first, self._last, self._block_version, self._fingerprints)
        self._max_version = max(self._max_version, self._block_version)
        self._fingerprints, self._block_version = [], 0
        self._write(block)

    def _write(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._written += len(piece)
        # While the piece is in the processor's cache.
        self._crc = crc32c(piece, self._crc)

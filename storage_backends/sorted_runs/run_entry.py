"""The entry of a run in the manifest: everything that a lookup needs to know before it reads (rule M3).

Layout: u8 version 1, text name, u64 length, u32 CRC32C of all bytes, u32 length of the tail, u64 first and
u64 last cycle, the summary (``summary.py``); bytes behind are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from ..base.checksum import Buffer
from ..base.chunk_storage import NAME_BYTES_MAX
from ..base.codec import DecodeError, Decoder, Encoder
from .summary import RunSummary, decode_summary, encode_summary

if TYPE_CHECKING:
    from .encoder import EncodedRun

_VERSION = 1
_LENGTH_MAX = 1 << 48
"""More than a storage has room for in one object."""
_WRITTEN_MAX = 512 << 20
"""Above what any version writes: blocks of 128 MiB (``encoder.py``), a step of a writer, and a tail."""
_TAIL_MIN = 256 << 10
_SHOWN = 100


class RunEntry(Struct, frozen=True):
    name: str
    """The name of the object, as a chunk's. Never used for other bytes (rule S2)."""
    length: int
    crc: int
    tail_length: int
    first_cycle: int
    last_cycle: int
    """The run holds changes of these cycles. Runs with equal cycles come from one merge, and their key ranges
    are disjoint."""
    summary: RunSummary
    extra: bytes = b""
    """Fields of a newer version, kept unchanged."""

    @classmethod
    def of(cls, run: EncodedRun, first_cycle: int, last_cycle: int) -> RunEntry:
        return cls(run.name, run.length, run.crc, run.tail_length, first_cycle, last_cycle, run.summary)

    def covers(self, key: bytes) -> bool:
        return self.summary.first_key <= key <= self.summary.last_key

    @property
    def is_of_a_writer(self) -> bool:
        """Whether a writer makes runs of this length with such a tail: a reader takes memory for it before it
        knows whether the bytes are a run's.

        Each row has 4 bytes in the tail and 16 in its block, besides its key. An entry of the index is not
        larger than its block, which begins with a whole key. The trailer, and what tiny blocks have more, is
        in the constant."""
        blocks = self.length - self.tail_length
        return self.length <= _WRITTEN_MAX and self.tail_length <= blocks * 5 // 4 + _TAIL_MIN

    def encode(self) -> bytes:
        fields = Encoder().u8(_VERSION).text(self.name).u64(self.length).u32(self.crc).u32(self.tail_length)
        encode_summary(fields.u64(self.first_cycle).u64(self.last_cycle), self.summary)
        return fields.raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> RunEntry:
        fields = Decoder(data)
        if (version := fields.u8()) != _VERSION:
            raise DecodeError(f"the entry of a run has version {version}")
        entry = cls(
            fields.text(),
            fields.u64(),
            fields.u32(),
            fields.u32(),
            fields.u64(),
            fields.u64(),
            decode_summary(fields),
            extra=fields.rest(),
        )
        # A lookup trusts these before it reads a byte of the run.
        is_bounded = 0 < len(entry.name) <= NAME_BYTES_MAX and entry.tail_length < entry.length <= _LENGTH_MAX
        if not is_bounded or entry.first_cycle > entry.last_cycle:
            raise DecodeError(f"no run has an entry like that of {entry.name[:_SHOWN]!r}")
        return entry

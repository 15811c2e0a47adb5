"""The trailer: the last bytes of a run, from which everything else in it is found.

Layout: the summary (``summary.py``); u64 length of the blocks; u32 length of the index; then the ending: u32
length of what is before it, u16 format version, the bytes ``TLRUN1``, u32 checksum of all that
(``part_checksum.py``). The part between the blocks and the trailer is fingerprints and index (``tail.py``).
"""

from __future__ import annotations

import struct

from msgspec import Struct

from ..base.checksum import Buffer, crc32c
from ..base.codec import DecodeError, Decoder, Encoder
from ..base.errors import StoreMismatch
from .part_checksum import part_checksum
from .summary import RunSummary, decode_summary, encode_summary

FORMAT_VERSION = 2
"""1, of unreleased code, had checksums without name and offset."""
_MAGIC = b"TLRUN1"
_ENDING = struct.Struct(">IH6sI")


class Trailer(Struct, frozen=True):
    summary: RunSummary
    blocks_length: int
    index_length: int

    def encode(self, run: str, offset: int) -> bytes:
        """The trailer at ``offset`` of the run with the name ``run``."""
        body = encode_summary(Encoder(), self.summary).u64(self.blocks_length).u32(self.index_length).finish()
        sealed = body + Encoder().u32(len(body)).u16(FORMAT_VERSION).raw(_MAGIC).finish()
        return sealed + part_checksum(sealed, run, offset).to_bytes(4, "big")

    @classmethod
    def decode(cls, data: Buffer, run: str, run_length: int) -> tuple[Trailer, int]:
        """The trailer at the end of ``data``, with which the run ``run`` of ``run_length`` bytes ends, and
        its length. Raises ``StoreMismatch`` if only a newer
        version of tierlog can read the run."""
        if len(data) < _ENDING.size:
            raise DecodeError(f"{len(data)} bytes are no trailer of a run")
        size, version, magic, crc = _ENDING.unpack_from(data, len(data) - _ENDING.size)
        length = size + _ENDING.size
        sealed = data[-length:-4]
        if magic != _MAGIC or length > min(len(data), run_length):
            raise DecodeError("the trailer of a run is damaged")
        # After the checksum: a damaged version must not be reported as another one.
        if version < FORMAT_VERSION and crc32c(sealed) == crc:
            raise StoreMismatch(
                f"a sorted run has format {version}, which only unreleased versions of tierlog wrote, and "
                f"this one reads {FORMAT_VERSION}: copy the data out with the version that wrote it"
            )
        if part_checksum(sealed, run, run_length - length) != crc:
            raise DecodeError("the trailer of a run is damaged")
        if version != FORMAT_VERSION:
            raise StoreMismatch(
                f"a sorted run has format {version}, and this version of tierlog reads {FORMAT_VERSION}; "
                f"open the store with a newer version"
            )

        fields = Decoder(data, len(data) - length, len(data) - _ENDING.size)
        trailer = cls(decode_summary(fields), fields.u64(), fields.u32())
        fields.finish()
        return trailer, length

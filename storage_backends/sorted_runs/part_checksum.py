"""The checksum of a part of a run: of a block, the fingerprints, the index or the trailer (rule M2).

It is the CRC32C of u64 offset of the part in the run, the run's name, and the part's bytes. So a part that
lies in another place, or in another run, does not verify, however sound it is there.
"""

from __future__ import annotations

import struct

from ..base.checksum import Buffer, crc32c

_U64 = struct.Struct(">Q")


def part_checksum(part: Buffer, run: str, offset: int) -> int:
    """The checksum of the bytes ``part``, which begin at ``offset`` of the run with the name ``run``."""
    return crc32c(part, crc32c(_U64.pack(offset) + run.encode()))

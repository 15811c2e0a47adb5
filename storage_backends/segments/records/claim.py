"""The claim record: an owner of this log claims, or is about to claim, long-term storage with this epoch
(rule W8).

It is durable before the claim is created, and removed after the claim is deleted. So a claim without a record
is not of this log's past: the folder is a copy or an old backup, or a copy of it was opened. Adopting writes
the records of such claims.

A record also notes whether long-term storage is known to have held a claim of this container. Since the
newest claim is never deleted, storage without any is not mounted then, although no chunk was ever flushed.

Layout: u8 type 7, u8 version 1, owner id 16 bytes, u8 flags (bit 0: long-term storage has held a claim),
which earlier versions left out; further bytes are kept.
"""

from __future__ import annotations

from msgspec import Struct

from ...base.checksum import Buffer
from ...base.codec import hex_number
from .header import begin, expect

CLAIM_PREFIX = "w:"
_TYPE = 7
_VERSION = 1
_STORAGE_CLAIMED = 1


def claim_key(epoch: int) -> str:
    return f"{CLAIM_PREFIX}{epoch:016x}"


def epoch_of_key(key: str) -> int:
    return hex_number(key[len(CLAIM_PREFIX) :])


class ClaimRecord(Struct, frozen=True):
    owner: bytes
    storage_claimed: bool = False
    """Whether long-term storage is known to have held a claim."""
    flags: int = 0
    """Flag bits of a newer version, kept unchanged."""
    extra: bytes = b""
    """Fields of a newer version, kept unchanged."""

    def encode(self) -> bytes:
        flags = self.flags | (_STORAGE_CLAIMED if self.storage_claimed else 0)
        written = bytes([flags]) if flags or self.extra else b""
        return begin(_TYPE, _VERSION).raw(self.owner).raw(written).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> ClaimRecord:
        fields = expect(data, _TYPE, _VERSION)
        owner, rest = bytes(fields.raw(16)), fields.rest()
        flags = rest[0] if rest else 0
        return cls(owner, bool(flags & _STORAGE_CLAIMED), flags=flags & ~_STORAGE_CLAIMED, extra=rest[1:])

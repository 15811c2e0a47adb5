"""The claim record: an owner of this log claims, or is about to claim, long-term storage with this epoch
(rule W8).

It is durable before the claim is created, and removed after the claim is deleted. So a claim without a record
is not of this log's past: the folder is a copy or an old backup, or a copy of it was opened. Adopting writes
the records of such claims.

Layout: u8 type 7, u8 version 1, owner id 16 bytes; further bytes are kept.
"""

from __future__ import annotations

import attrs

from ...base.checksum import Buffer
from ...base.codec import hex_number
from .header import begin, expect

CLAIM_PREFIX = "w:"
_TYPE = 7
_VERSION = 1


def claim_key(epoch: int) -> str:
    return f"{CLAIM_PREFIX}{epoch:016x}"


def epoch_of_key(key: str) -> int:
    return hex_number(key[len(CLAIM_PREFIX) :])


@attrs.frozen
class ClaimRecord:
    owner: bytes
    extra: bytes = attrs.field(default=b"", kw_only=True)
    """Fields of a newer version, kept unchanged."""

    def encode(self) -> bytes:
        return begin(_TYPE, _VERSION).raw(self.owner).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> ClaimRecord:
        fields = expect(data, _TYPE, _VERSION)
        return cls(bytes(fields.raw(16)), extra=fields.rest())

"""The record that a container is unconfirmed: its metadata may not know all chunks that somebody needs, so it
deletes nothing (rule G4). There is one at most; confirming removes it.

Layout: u8 type 8, u8 version 1, u8 reason, text location of the owner before; further bytes are kept.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from ...base.checksum import Buffer
from .header import begin, expect

UNCONFIRMED_KEY = "u:"
_TYPE = 8
_VERSION = 1


class Reason(IntEnum):
    MOVED = 1
    """The folder's fingerprint differs from that of the last claim: it was moved, or it is a copy."""
    ADOPTED = 2
    """It was opened with ``adopt`` although long-term storage was claimed by another owner."""
    RESTORED = 3
    """It was restored from a backup or recovered from long-term storage, or long-term storage shows that its
    log was."""


class UnconfirmedRecord(Struct, frozen=True):
    reason: Reason
    location: str = ""
    """Where the owner before was, as ``host:path``; empty if unknown."""
    extra: bytes = b""
    """Fields of a newer version, kept unchanged."""

    @property
    def explanation(self) -> str:
        where = f" from {self.location}" if self.location else ""
        return {
            Reason.MOVED: f"the folder was moved{where}, or it is a copy",
            Reason.ADOPTED: f"the folder was adopted{where}: it is a copy or an old backup",
            Reason.RESTORED: (
                "the store was restored from a backup or recovered from long-term storage, or its log was"
            ),
        }[self.reason]

    def encode(self) -> bytes:
        return begin(_TYPE, _VERSION).u8(self.reason).text(self.location).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> UnconfirmedRecord:
        fields = expect(data, _TYPE, _VERSION)
        return cls(fields.member(Reason), fields.text(), extra=fields.rest())

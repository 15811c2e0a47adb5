"""The record that a name was imported from the legacy layout, which is never searched for it again (rule
S14).

It is written with the import, or before this store's first header file for the name: from then on the files
under the name are this store's own. It outlives the segment, because its header file may stay forever, and
without the record a deleted segment would come back, in part, at the next access.

Layout: u8 type 5, u8 version 1, u64 segment; further bytes are kept.
"""

from __future__ import annotations

from msgspec import Struct

from ...base.checksum import Buffer
from .header import begin, expect

_TYPE = 5
IMPORTED_PREFIX = "o:"
_VERSION = 1


def imported_key(name: str) -> str:
    return f"{IMPORTED_PREFIX}{name}"


class ImportedRecord(Struct, frozen=True):
    segment: int
    """The id that the segment got."""
    extra: bytes = b""
    """Fields of a newer version, kept unchanged."""

    def encode(self) -> bytes:
        return begin(_TYPE, _VERSION).u64(self.segment).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> ImportedRecord:
        fields = expect(data, _TYPE, _VERSION)
        return cls(fields.u64(), extra=fields.rest())

"""The record that a name's legacy layout was imported: it is never looked up again (rule S14).

Owns: its key and layout (format version 1). It is written with the import, or before the first header that
this store makes for the name: then what lies there under it is the store's own. It stays when the segment is
deleted: the header file may lie there for ever, and without this record a deleted segment would come back at
the next access, in part.

Layout: u8 type 5, u8 version 1, u64 segment; bytes behind are kept.
"""

from __future__ import annotations

import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.segments.records.header import begin, expect

_TYPE = 5
_VERSION = 1


def imported_key(name: str) -> str:
    return f"o:{name}"


@attrs.frozen
class ImportedRecord:
    segment: int
    """The id that the segment got."""
    extra: bytes = attrs.field(default=b"", kw_only=True)
    """Fields of a newer version, kept as they are."""

    def encode(self) -> bytes:
        return begin(_TYPE, _VERSION).u64(self.segment).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> ImportedRecord:
        fields = expect(data, _TYPE, _VERSION)
        return cls(fields.u64(), extra=fields.rest())

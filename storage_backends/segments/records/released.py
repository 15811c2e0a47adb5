"""The released record: a file that no segment needs any more, and that no listing of the container's own
prefix would find (rule S19).

Owns: its key, layout (format version 1) and invariants. Does not own: who is released
(``segment_transaction.py``), nor the deletion (the collector). It is written in the commit that takes the
file's chunk record out, and goes once the file is gone: so a crash in between leaves a trace that the next
owner follows. Only files of the legacy layout need one: an owner's own chunks are found by their names.

Layout: u8 type 6, u8 version 1, text name, u64 length; bytes behind are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from ...base.checksum import Buffer
from .header import RELEASED_TYPE, Invariants, begin, broken, expect

RELEASED_PREFIX = "x:"
_VERSION = 1


def released_key(name: str) -> str:
    return f"{RELEASED_PREFIX}{name}"


def released_names(keys: Iterable[str]) -> list[str]:
    """The files of which ``keys`` say that they were released, sorted."""
    return sorted(key[len(RELEASED_PREFIX) :] for key in keys if key.startswith(RELEASED_PREFIX))


@attrs.frozen
class ReleasedRecord:
    name: str
    length: int
    """Bytes of it that were part of a segment: all of the file, when it was imported."""
    extra: bytes = attrs.field(default=b"", kw_only=True)
    """Fields of a newer version, kept as they are."""

    @property
    def key(self) -> str:
        return released_key(self.name)

    def encode(self) -> bytes:
        return begin(RELEASED_TYPE, _VERSION).text(self.name).u64(self.length).raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> ReleasedRecord:
        fields = expect(data, RELEASED_TYPE, _VERSION)
        return cls(fields.text(), fields.u64(), extra=fields.rest())

    def broken(self) -> list[str]:
        """The names of the invariants that this record breaks."""
        return broken(self, RELEASED_INVARIANTS)


def _has_a_name(r: ReleasedRecord) -> bool:
    return bool(r.name)


def _has_bytes(r: ReleasedRecord) -> bool:
    return r.length > 0


RELEASED_INVARIANTS: Invariants[ReleasedRecord] = {
    "it has a name": _has_a_name,
    "it has bytes": _has_bytes,
}

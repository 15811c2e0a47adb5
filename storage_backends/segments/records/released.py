"""The released record: a file that no segment needs any more and that a listing of the container's own names
would not find (rule S19).

It is written in the commit that deletes the file's chunk record, and removed once the file is deleted, so
that the next owner finds it after a crash. Only files of the legacy layout need one.

Layout: u8 type 6, u8 version 1, text name, u64 length; bytes behind are kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from ...base.checksum import Buffer
from .header import RELEASED_TYPE, Invariants, begin, broken, expect

RELEASED_PREFIX = "x:"
_VERSION = 1


def released_key(name: str) -> str:
    return f"{RELEASED_PREFIX}{name}"


def released_names(keys: Iterable[str]) -> list[str]:
    """The released files among ``keys``, sorted."""
    return sorted(key[len(RELEASED_PREFIX) :] for key in keys if key.startswith(RELEASED_PREFIX))


class ReleasedRecord(Struct, frozen=True):
    name: str
    length: int
    """Its length when it was imported."""
    extra: bytes = b""
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


RELEASED_INVARIANTS: Invariants[ReleasedRecord] = {"it has a name": _has_a_name, "it has bytes": _has_bytes}

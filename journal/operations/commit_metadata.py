"""CommitMetadata: one transaction of chunk metadata (rule S6), durable and fenced by the container's log.

Its operation sequence becomes the version of every written key. The expected versions were checked when the
request was decided. Layout: ``count u32, [key text, present u8, (value blob)] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(9)
class CommitMetadata(NamedTuple):
    writes: tuple[tuple[str, bytes | None], ...]
    """(key, encoded record); None removes the key."""

    def encode(self) -> bytes:
        out = Encoder().u32(len(self.writes))
        for key, value in self.writes:
            out.text(key).optional_blob(value)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CommitMetadata:
        return CommitMetadata(tuple((fields.text(), fields.optional_blob()) for _ in range(fields.u32())))

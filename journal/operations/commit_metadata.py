"""CommitMetadata: one transaction of chunk metadata (rule S6), durable and fenced because it rides in the
container's log.

Its operation sequence is the version that every written key has afterwards. The conditions were checked when
it was validated. Layout: ``count u32, [key text, present u8, (value blob)] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 9


class CommitMetadata(NamedTuple):
    writes: tuple[tuple[str, bytes | None], ...]
    """(key, encoded record); None removes the key."""


def encode(op: CommitMetadata) -> bytes:
    out = Encoder().u32(len(op.writes))
    for key, value in op.writes:
        out.text(key)
        if value is None:
            out.u8(0)
        else:
            out.u8(1).blob(value)

    return out.finish()


def _decode_value(fields: Decoder) -> bytes | None:
    return fields.blob() if fields.flag() else None


def decode(view: memoryview, start: int, end: int) -> CommitMetadata:
    fields = Decoder(view, start, end)
    op = CommitMetadata(tuple((fields.text(), _decode_value(fields)) for _ in range(fields.u32())))
    fields.finish()
    return op

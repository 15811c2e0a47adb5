"""UpdateAttributes: attributes take new values.

The log holds the *results* of the five update kinds, decided when the operation was validated, so that replay
never evaluates a condition and an accumulate is never applied twice. Layout: ``sid u64, count u16,
[key text, value i64] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder

TYPE = 6


class UpdateAttributes(NamedTuple):
    sid: int
    values: tuple[tuple[str, int], ...]


def encode_values(out: Encoder, values: tuple[tuple[str, int], ...]) -> None:
    out.u16(len(values))
    for key, value in values:
        out.text(key).i64(value)


def decode_values(fields: Decoder) -> tuple[tuple[str, int], ...]:
    return tuple((fields.text(), fields.i64()) for _ in range(fields.u16()))


def encode(op: UpdateAttributes) -> bytes:
    out = Encoder().u64(op.sid)
    encode_values(out, op.values)
    return out.finish()


def decode(view: memoryview, start: int, end: int) -> UpdateAttributes:
    fields = Decoder(view, start, end)
    op = UpdateAttributes(fields.u64(), decode_values(fields))
    fields.finish()
    return op

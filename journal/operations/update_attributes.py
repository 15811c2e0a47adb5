"""UpdateAttributes: sets attributes.

The log holds the *results* of the five kinds of update: replay evaluates no condition and never accumulates
twice. Layout: ``sid u64, count u16,
[key text, value i64] * count``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(6)
class UpdateAttributes(NamedTuple):
    sid: int
    values: tuple[tuple[str, int], ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.sid)
        encode_values(out, self.values)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> UpdateAttributes:
        return UpdateAttributes(fields.u64(), decode_values(fields))


def encode_values(out: Encoder, values: tuple[tuple[str, int], ...]) -> None:
    out.u16(len(values))
    for key, value in values:
        out.text(key).i64(value)


def decode_values(fields: Decoder) -> tuple[tuple[str, int], ...]:
    return tuple((fields.text(), fields.i64()) for _ in range(fields.u16()))

"""ForgetRows: removes rows of the system table that a removed segment left, and at last its mark (rule M17).

Layout: ``count u32, [key blob] * count``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(44)  # 34 had another layout in unreleased code
class ForgetRows(NamedTuple):
    keys: tuple[bytes, ...]

    def encode(self) -> bytes:
        out = Encoder().u32(len(self.keys))
        for key in self.keys:
            out.blob(key)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> ForgetRows:
        return ForgetRows(tuple(fields.blob() for _ in range(fields.u32())))

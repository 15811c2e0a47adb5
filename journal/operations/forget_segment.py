"""ForgetSegment: removes a deleted segment's id from the container once long-term storage has no record of
it.

Layout: ``sid u64``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(10)
class ForgetSegment(NamedTuple):
    sid: int

    def encode(self) -> bytes:
        return Encoder().u64(self.sid).finish()

    @staticmethod
    def decode(fields: Decoder) -> ForgetSegment:
        return ForgetSegment(fields.u64())

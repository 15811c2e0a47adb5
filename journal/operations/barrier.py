"""Barrier: changes nothing; once it is durable, its owner was not fenced before (rule G1). Layout: empty."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder
from .operation import operation


@operation(13)
class Barrier(NamedTuple):
    def encode(self) -> bytes:
        return b""

    @staticmethod
    def decode(fields: Decoder) -> Barrier:
        return Barrier()

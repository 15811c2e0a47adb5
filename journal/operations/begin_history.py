"""BeginHistory: another history may have used the sequences that come next, so this one goes on after
``above`` (rule J6). It is the only operation whose sequence does not follow the one before.

Layout: ``above u64``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(43)
class BeginHistory(NamedTuple):
    above: int
    """Its own sequence, unless that is higher already."""

    def encode(self) -> bytes:
        return Encoder().u64(self.above).finish()

    @staticmethod
    def decode(fields: Decoder) -> BeginHistory:
        return BeginHistory(fields.u64())

"""Barrier: says nothing, and proves by becoming durable that its owner was not fenced (rule G1). Layout:
empty."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder

TYPE = 13


class Barrier(NamedTuple):
    pass


def encode(op: Barrier) -> bytes:
    return b""


def decode(view: memoryview, start: int, end: int) -> Barrier:
    Decoder(view, start, end).finish()
    return Barrier()

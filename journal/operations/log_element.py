"""LogElement: an element of the chain is about to be created in long-term storage; ElementCreated: it exists
(rules J3, J5).

``LogElement`` is durable before the creation begins, with the element's content, so that every later owner of
this log knows the element and can create it again with the same bytes. ``ElementCreated`` is what makes it
count. ``CheckpointManifest`` has both for a checkpoint.

Layouts: ``content blob``; ``n u64, CRC u32``; ``checkpoint u64, head content blob, intent content blob``,
empty for none."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from ..manifest.element import Element, Position, position_of
from .operation import operation

# Whoever asks what is newest asks again a few times until there is another one.
_decode = lru_cache(maxsize=16)(Element.decode)


@operation(23)
class LogElement(NamedTuple):
    content: bytes
    """The encoded element."""

    @property
    def position(self) -> Position:
        return position_of(self.content)

    @property
    def element(self) -> Element:
        return _decode(self.content)

    def encode(self) -> bytes:
        return Encoder().blob(self.content).finish()

    @staticmethod
    def decode(fields: Decoder) -> LogElement:
        return LogElement(fields.blob())


@operation(24)
class ElementCreated(NamedTuple):
    position: Position

    def encode(self) -> bytes:
        return Encoder().u64(self.position.n).u32(self.position.crc).finish()

    @staticmethod
    def decode(fields: Decoder) -> ElementCreated:
        return ElementCreated(Position(fields.u64(), fields.u32()))


@operation(25)
class CheckpointManifest(NamedTuple):
    checkpoint: int
    head: bytes
    """The newest element that exists; empty if there is none."""
    intent: bytes
    """The element that is recorded and not known to exist; empty if there is none."""

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).blob(self.head).blob(self.intent).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointManifest:
        return CheckpointManifest(fields.u64(), fields.blob(), fields.blob())

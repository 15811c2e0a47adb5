"""LoadSegment: a segment whose image only the runs had comes back into memory; UnloadSegments: idle ones
leave it (rule M4).

The load has all that was read, so that replay reads no run: the image and the segment's record in long-term
storage, with their versions. Both are logged so that replay has the same segments in memory as the owner.

Layouts: ``version u64, image blob, record version u64, record blob``; ``count u32 [sid u64]``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from .operation import operation


@operation(29)
class LoadSegment(NamedTuple):
    version: int
    image: bytes
    """An encoded ``SegmentImage``."""
    record_version: int
    record: bytes
    """The segment's record in long-term storage."""

    def encode(self) -> bytes:
        return (
            Encoder().u64(self.version).blob(self.image).u64(self.record_version).blob(self.record).finish()
        )

    @staticmethod
    def decode(fields: Decoder) -> LoadSegment:
        return LoadSegment(fields.u64(), fields.blob(), fields.u64(), fields.blob())


@operation(30)
class UnloadSegments(NamedTuple):
    sids: tuple[int, ...]

    def encode(self) -> bytes:
        out = Encoder().u32(len(self.sids))
        for sid in self.sids:
            out.u64(sid)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> UnloadSegments:
        return UnloadSegments(tuple(fields.u64() for _ in range(fields.u32())))

"""ImportSegment: adds a segment whose bytes are in long-term storage already, with the records of its chunks.

All of it is one operation: the segment is imported as a whole or not at all (rule S14). None of its bytes are
in the log. The image is that of a live segment without pending merges. Layout: ``image blob (SegmentImage),
records u32 [key text, value blob]``."""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from .operation import operation
from .segment_image import SegmentImage, SegmentStatus, decode_image, encode_image


@operation(21)
class ImportSegment(NamedTuple):
    image: SegmentImage
    records: tuple[tuple[str, bytes], ...]
    """(key, encoded record) of chunk metadata; the segment's own record is among them."""

    def encode(self) -> bytes:
        out = Encoder().blob(encode_image(self.image)).u32(len(self.records))
        for key, value in self.records:
            out.text(key).blob(value)

        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> ImportSegment:
        image = decode_image(fields.blob())
        if image.status is not SegmentStatus.LIVE or image.merges:
            raise DecodeError(
                f"an imported segment must be live and without pending merges, {image.name!r} is not"
            )

        return ImportSegment(image, tuple((fields.text(), fields.blob()) for _ in range(fields.u32())))

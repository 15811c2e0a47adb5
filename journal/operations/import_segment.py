"""ImportSegment: a segment whose bytes lie in long-term storage already becomes one of the container's, with
all its records there.

Name, length, start, seal, attributes and writers, and the records of its chunks, in one operation: either all
of them are true or none is (rule S14). No byte of it is in the log. The image is of a live segment that waits
for no merge. Layout: ``image blob (SegmentImage), records u32 [key text, value blob]``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from .segment_image import SegmentImage, SegmentStatus, decode_image, encode_image

TYPE = 21


class ImportSegment(NamedTuple):
    image: SegmentImage
    records: tuple[tuple[str, bytes], ...]
    """(key, encoded record) of chunk metadata; the segment's own record is among them."""


def encode(op: ImportSegment) -> bytes:
    out = Encoder().blob(encode_image(op.image)).u32(len(op.records))
    for key, value in op.records:
        out.text(key).blob(value)

    return out.finish()


def decode(view: memoryview, start: int, end: int) -> ImportSegment:
    fields = Decoder(view, start, end)
    image = decode_image(fields.blob())
    if image.status is not SegmentStatus.LIVE or image.merges:
        raise DecodeError(f"an imported segment is live and waits for no merge, {image.name!r} is not")

    op = ImportSegment(image, tuple((fields.text(), fields.blob()) for _ in range(fields.u32())))
    fields.finish()
    return op

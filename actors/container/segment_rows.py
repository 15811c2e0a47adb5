"""Names and images of segments as rows of the system table (rule M13). Sync.

The row of a name is put by the operation that creates, deletes or merges the segment, like any other row.
Images change with every append, so their rows are made when a run is written, from the segments that changed
since the runs before. What has been deleted gets a tombstone from the operation that ends it.

Value of a name's row: ``id u64``. Of an image's row: ``record version u64, record blob``, and the image. The
record is the segment's in long-term storage; as long as there is none, because the segment is empty, the
version is 0. It has a row of its own too, but to load a segment shall take one block for both (rule M4)."""

from __future__ import annotations

import struct

from ...journal.operations.load_segment import LoadSegment
from ...journal.operations.segment_image import decode_image
from ...storage_backends.base.codec import DecodeError
from ...storage_backends.sorted_runs.rows import Row
from .segments import SegmentState

IMAGE_PREFIX, NAME_PREFIX = b"g:", b"n:"
_SID_BYTES = 8
_RECORD = struct.Struct(">QI")
NO_RECORD = 0, b""
"""The version and the encoded record in long-term storage of a segment that has none."""


def image_key(sid: int) -> bytes:
    return b"%b%016x" % (IMAGE_PREFIX, sid)


def name_key(name: str) -> bytes:
    return NAME_PREFIX + name.encode()


def name_row(name: str, version: int, sid: int) -> Row:
    return Row(name_key(name), version, sid.to_bytes(_SID_BYTES, "big"))


def sid_of_row(row: Row | None) -> int | None:
    """The id in the row of a name; None for a tombstone, and without a row. Raises ``DecodeError``."""
    if row is None or row.value is None:
        return None

    if len(row.value) != _SID_BYTES:
        raise DecodeError(f"the row of a name has {len(row.value)} bytes")
    return int.from_bytes(row.value, "big")


def encode_image_row(image: bytes, record_version: int, record: bytes) -> bytes:
    return _RECORD.pack(record_version, len(record)) + record + image


def load_of_row(row: Row | None) -> LoadSegment | None:
    """What loads the segment of an image's row; None for a tombstone, and without a row. Raises
    ``DecodeError``."""
    if row is None or row.value is None:
        return None

    # Without a decoder: a recovery reads the images of all segments.
    value = row.value
    if len(value) < _RECORD.size:
        raise DecodeError(f"the row of an image has {len(value)} bytes")
    record_version, size = _RECORD.unpack_from(value)
    image_at = _RECORD.size + size
    if image_at > len(value):
        raise DecodeError(f"the row of an image has {len(value)} bytes, and a record of {size}")
    return LoadSegment(row.version, value[image_at:], record_version, value[_RECORD.size : image_at])


def loaded(load: LoadSegment) -> SegmentState:
    """The segment that ``load`` brings. Raises ``DecodeError``."""
    segment = SegmentState.from_image(decode_image(load.image), load.version)
    if load.record_version:
        segment.load_record(load.record_version, load.record)
    return segment


def name_of_key(key: bytes) -> str:
    """The name in the key of a name's row. Raises ``DecodeError``."""
    try:
        return key[len(NAME_PREFIX) :].decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the key of a name's row is no text: {error}") from error

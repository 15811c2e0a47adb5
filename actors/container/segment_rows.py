"""Names and images of segments as rows of the system table (rule M13). Sync.

The row of a name is put by the operation that creates, deletes or merges the segment, like any other row.
Images change with every append, so their rows are made when a run is written, from the segments that changed
since the runs before. What has been deleted gets a tombstone from the operation that ends it.

Value of a name's row: ``id u64``. Of an image's row: ``record version u64, record blob``, and the image. The
record is the segment's in long-term storage; as long as there is none, because the segment is empty, the
version is 0. It has a row of its own too, but to load a segment shall take one block for both (rule M4)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import repeat

from ...journal.operations.load_segment import LoadSegment
from ...journal.operations.segment_image import decode_image
from ...storage_backends.base.codec import DecodeError, Decoder
from ...storage_backends.base.sharded_dict import ShardedDict
from ...storage_backends.sorted_runs.memtable import SLICE_KEYS
from ...storage_backends.sorted_runs.rows import Row
from ..kernel.slices import in_slices
from .segments import SegmentState, SegmentTable

IMAGE_PREFIX, NAME_PREFIX = b"g:", b"n:"
_SORT_MAX = 2048
"""Ids that are sorted in one step."""
_SID_BYTES = 8
_RECORD = struct.Struct(">QI")
_END = Row(b"", 0, None)
FindRecord = Callable[[int], tuple[int, bytes]]
"""The version and the encoded record in long-term storage of a segment in memory; ``NO_RECORD`` if it has
none."""
NO_RECORD = 0, b""


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

    fields = Decoder(row.value)
    record_version, record = fields.u64(), fields.blob()
    image = row.value[fields.position :]
    return LoadSegment(row.version, image, record_version, record)


def loaded(load: LoadSegment) -> SegmentState:
    """The segment that ``load`` brings. Raises ``DecodeError``."""
    segment = SegmentState.from_image(decode_image(load.image), load.version)
    if load.record_version:
        segment.load_record(load.record)
    return segment


def name_of_key(key: bytes) -> str:
    """The name in the key of a name's row. Raises ``DecodeError``."""
    try:
        return key[len(NAME_PREFIX) :].decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"the key of a name's row is no text: {error}") from error


class ImageRows:
    """The images that a cycle publishes: those of the segments that changed since the runs before."""

    def __init__(self, segments: SegmentTable, find_record: FindRecord, clean_to: int, version: int) -> None:
        """``clean_to``: the runs have the images up to this version. ``version``: that of the rows, at most.
        The segments that changed are taken from the table: give them back if the rows do not count."""
        self._segments = segments
        self._find_record = find_record
        self._clean_to = clean_to
        self._version = version
        self._changed, segments.unpublished = segments.unpublished, ShardedDict()

    def give_back(self) -> Iterator[None]:
        """The rows do not count. Some segments in each step."""
        for sids in in_slices(self._changed):
            for sid in sids:
                if sid in self._segments:
                    self._segments.unpublished[sid] = None
            yield

    def rows(self) -> Iterator[Row | None]:
        """In the order of keys; None for a segment that has none, which is work too. An image is as of the
        moment at which its row is taken: if the segment changed after ``version``, it gets another row in the
        next run."""
        order: list[list[int]] = []
        for part in in_slices(self._changed, _SORT_MAX):
            order.append(sorted(part))
            if len(part) == _SORT_MAX:
                yield from repeat(None, SLICE_KEYS)
        for sid in order[0] if len(order) == 1 else merge(*order):
            yield self._row(sid)

    def _row(self, sid: int) -> Row | None:
        segments, clean_to, version = self._segments, self._clean_to, self._version
        segment = segments.by_id.get(sid)
        if segment is None:
            return None  # deleted since: the tombstone is in the next run

        touched = segment.touched
        # While it is listed as dirty, its next change does not list it as unpublished.
        if segment.is_listed or touched > version:
            segments.unpublished[sid] = None
        if touched <= clean_to or not segment.fits_row:
            return None

        # The greatest version in the runs must not be above rows that are not in them (rule M8).
        return Row(
            image_key(sid),
            min(version, touched),
            encode_image_row(segment.image(), *self._find_record(sid)),
        )


def spliced(rows: Iterable[Row | None], images: Iterator[Row | None]) -> Iterator[Row | None]:
    """``rows`` and ``images`` in the order of keys."""
    image = next(images, _END)
    for row in rows:
        while row is not None and image is not _END and (image is None or image.key < row.key):
            yield image
            image = next(images, _END)
        yield row
    while image is not _END:
        yield image
        image = next(images, _END)

"""SegmentImage: what a checkpoint keeps of one segment. It is not an operation; ``CheckpointPart`` carries
it.

Layout: ``sid u64, status u8, flags u8, length u64, start u64, rolling u64, name text, attribute values,
writers u32 [writer, first i64, last i64, offset u64], expired u32 [writer], merges u32 [offset u64, source
u64, length u64]``, and with flag 32 ``histories u32 [history u64, length u64]``. Flags: 1 sealed, 2 a table;
4 further names of attributes are rows, 8 there are attributes with ids (rule M19); 16 further writers are
rows (rule M20); 32 it changed after a recovery (rule R9). Code that does not know a flag refuses the image.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple, Self, overload

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from .expire_writers import decode_writer, encode_writer
from .update_attributes import decode_values, encode_values

SEALED_FLAG, TABLE_FLAG, SPILLED_FLAG, IDS_FLAG, WRITERS_FLAG, HISTORIES_FLAG = 1, 2, 4, 8, 16, 32
_PLAIN_FLAGS = SEALED_FLAG | TABLE_FLAG
_FLAGS = _PLAIN_FLAGS | SPILLED_FLAG | IDS_FLAG | WRITERS_FLAG | HISTORIES_FLAG
_HEAD = struct.Struct(">QBBQQQH")
"""All before the name, and its length."""
_NUMBERS, _WRITER = struct.Struct(">BQQQ"), struct.Struct(">qqQ")
_NO_LISTS = bytes(14)
_MERGE, _HISTORY = struct.Struct(">3Q"), struct.Struct(">QQ")


class SegmentStatus(IntEnum):
    LIVE = 1
    """Has a name; can be read and changed."""
    MERGED = 2
    """Its bytes belong to a target whose record in long-term storage does not include them yet; readable only
    through that target."""
    DELETED = 3
    """Deleted for every reader; its record and chunks in long-term storage are still to be removed."""


_STATUSES = {int(status): status for status in SegmentStatus}


class WriterState(NamedTuple):
    """A writer's latest append to one segment (rule C3)."""

    first_event: int
    last_event: int
    offset: int
    """Offset of the latest append."""


class MergedRange(NamedTuple):
    """A merge that the segment's record in long-term storage does not include yet."""

    offset: int
    source: int
    length: int


class MergedRanges(Sequence[MergedRange]):
    """Merges in offset order, encoded as in an image. There may be 50,000 of one segment: as objects they
    would take 25 ms to encode and 7 ms to free, each in one step of the event loop."""

    __slots__ = ("encoded",)

    def __init__(self, encoded: Buffer = b"") -> None:
        self.encoded = bytearray(encoded)

    @classmethod
    def of(cls, merges: Iterable[MergedRange]) -> Self:
        return cls(b"".join(_MERGE.pack(*merge) for merge in merges))

    def copy(self) -> MergedRanges:
        return MergedRanges(self.encoded)

    def append(self, merge: MergedRange) -> None:
        self.encoded += _MERGE.pack(*merge)

    def drop_first(self, count: int) -> None:
        # A copy of the rest takes up to 4 ms for 50,000, each time.
        del self.encoded[: count * _MERGE.size]

    def __len__(self) -> int:
        return len(self.encoded) // _MERGE.size

    @overload
    def __getitem__(self, index: int) -> MergedRange: ...
    @overload
    def __getitem__(self, index: slice) -> list[MergedRange]: ...
    def __getitem__(self, index: int | slice) -> MergedRange | list[MergedRange]:
        if isinstance(index, slice):
            return list(self)[index]

        return MergedRange._make(_MERGE.unpack_from(self.encoded, range(len(self))[index] * _MERGE.size))

    def __iter__(self) -> Iterator[MergedRange]:
        # A copy: a buffer that is iterated over cannot change its size.
        return map(MergedRange._make, _MERGE.iter_unpack(bytes(self.encoded)))

    def __eq__(self, other: object) -> bool:
        return self.encoded == other.encoded if isinstance(other, MergedRanges) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


NO_MERGES = MergedRanges()
"""Of a segment that nothing was merged into. It is shared, so nothing may be added to it."""


class SegmentImage(NamedTuple):
    sid: int
    status: SegmentStatus
    sealed: bool
    length: int
    start_offset: int
    rolling_size: int
    name: str
    values: tuple[tuple[str, int], ...]
    writers: tuple[tuple[bytes, WriterState], ...]
    expired: tuple[bytes, ...]
    merges: MergedRanges = NO_MERGES
    is_table: bool = False
    """It has rows, in the system table, and no bytes (rule M14)."""
    spilled: bool = False
    """Names that are not in ``values`` may be rows of the system table."""
    has_ids: bool = False
    """Attributes with ids are rows."""
    has_writer_rows: bool = False
    """Writers that are not in ``writers`` or ``expired`` may be rows."""
    histories: tuple[tuple[int, int], ...] = ()
    """Of each history that a recovery began, and in which the segment changed: its epoch, and the length that
    the segment had when it began."""


def encode_image(image: SegmentImage) -> bytes:
    flags = encode_flags(image.sealed, image.is_table)
    flags |= SPILLED_FLAG * image.spilled | IDS_FLAG * image.has_ids | WRITERS_FLAG * image.has_writer_rows
    flags |= HISTORIES_FLAG * bool(image.histories)
    out = Encoder().u64(image.sid).u8(image.status).u8(flags)
    out.u64(image.length).u64(image.start_offset).u64(image.rolling_size).text(image.name)
    encode_values(out, image.values)
    out.u32(len(image.writers))
    for writer, state in image.writers:
        encode_writer(out, writer)
        out.i64(state.first_event).i64(state.last_event).u64(state.offset)

    out.u32(len(image.expired))
    for writer in image.expired:
        encode_writer(out, writer)

    out.u32(len(image.merges)).raw(image.merges.encoded)
    if image.histories:
        out.u32(len(image.histories))
        for history, length in image.histories:
            out.u64(history).u64(length)
    return out.finish()


def encode_flags(sealed: bool, is_table: bool) -> int:
    """Those of a plain image."""
    return SEALED_FLAG * sealed | TABLE_FLAG * is_table


def encode_plain_image(
    sid: int, status: SegmentStatus, flags: int, length: int, start_offset: int, rolling: int, name: str
) -> bytes:
    """The same for an image without attributes, writers, expired writers and merges, packed at once."""
    encoded = name.encode()
    return _HEAD.pack(sid, status, flags, length, start_offset, rolling, len(encoded)) + encoded + _NO_LISTS


def sid_of_image(data: bytes) -> int:
    """The id in an encoded image."""
    return int.from_bytes(data[:8], "big")


def decode_image(data: bytes) -> SegmentImage:
    # Most are plain, and a recovery decodes the images of all segments.
    return _decode_plain_image(data) or _decode_any_image(data)


def _decode_plain_image(data: bytes) -> SegmentImage | None:
    """What ``encode_plain_image`` packed, unpacked at once; None for any other image."""
    if len(data) < _HEAD.size:
        return None

    sid, number, flags, length, start_offset, rolling_size, size = _HEAD.unpack_from(data)
    status = _STATUSES.get(number)
    if status is None or flags & ~_PLAIN_FLAGS or data[_HEAD.size + size :] != _NO_LISTS:
        return None

    try:
        name = data[_HEAD.size : _HEAD.size + size].decode()
    except UnicodeDecodeError:
        return None
    sealed, is_table = bool(flags & SEALED_FLAG), bool(flags & TABLE_FLAG)
    return SegmentImage(
        sid, status, sealed, length, start_offset, rolling_size, name, (), (), (), NO_MERGES, is_table
    )


def _decode_any_image(data: bytes) -> SegmentImage:
    fields = Decoder(data)
    sid, status = fields.u64(), fields.member(SegmentStatus)
    flags, length, start_offset, rolling_size = fields.unpacked(_NUMBERS)
    if flags & ~_FLAGS:
        raise DecodeError(f"the flags of segment {sid:#x} are {flags}")

    name, values = fields.text(), decode_values(fields)
    writers = tuple(
        (decode_writer(fields), WriterState(*fields.unpacked(_WRITER))) for _ in range(fields.u32())
    )
    expired = tuple(decode_writer(fields) for _ in range(fields.u32()))
    merges = MergedRanges(fields.raw(_MERGE.size * fields.u32()))
    histories: tuple[tuple[int, int], ...] = ()
    if flags & HISTORIES_FLAG:
        histories = tuple(_HISTORY.iter_unpack(fields.raw(_HISTORY.size * fields.u32())))
    fields.finish()
    return SegmentImage(
        sid,
        status,
        bool(flags & SEALED_FLAG),
        length,
        start_offset,
        rolling_size,
        name,
        values,
        writers,
        expired,
        merges,
        bool(flags & TABLE_FLAG),
        bool(flags & SPILLED_FLAG),
        bool(flags & IDS_FLAG),
        bool(flags & WRITERS_FLAG),
        histories,
    )

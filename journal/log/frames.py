"""The bytes of a WAL file: a header, then one frame per group; and the scan that finds where valid frames end
(rule W2). No I/O.

A frame has two CRC32Cs, of its header and of header and payload, salted with the file's identity and the
frame's position. So user bytes that look like a frame, or a real frame copied elsewhere, are never valid. The
header's own CRC keeps a scan over such bytes linear: without the log's id nobody can forge a length. The
re-logged frame, the first of an opener's file, is salted with the file header's CRC as well: it is invalid
without its header. Hence a frame that validates behind a broken header belongs to a group that was begun
after the open was complete.

A group is begun only after the one before it is durable, so only the last can be torn: a valid frame behind
an invalid one proves that the invalid one was once good, which is corruption.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

from msgspec import Struct

from ...storage_backends.base.checksum import Buffer, crc32c, crc32c_of
from ...storage_backends.base.codec import DecodeError, Decoder, Encoder
from ...storage_backends.base.errors import StoreMismatch
from .contract import GROUP_BYTES_MAX

FORMAT_VERSION = 1
LOG_ID_BYTES = 16
JOIN_BYTES_MAX = 128 << 10
"""Up to this size a frame is joined into one buffer: a copy costs less than more buffers in a system call."""
SMALL_JOIN_BYTES_MAX = 1 << 20
"""The same for a frame of many small buffers. A log keeps this much memory."""
_SMALL = 2 << 10
"""The average size of small buffers: to copy one takes less time than to compute its checksum by itself."""

_FRAME_MAGIC = 0xF654_4C47
FRAME_MAGIC_BYTES = _FRAME_MAGIC.to_bytes(4, "big")
_FRAME = struct.Struct(">IIQQIQII")
_FRAME_FIELDS = struct.Struct(">IIQQIQ")
_CHECKS = struct.Struct(">II")
FRAME_HEADER_BYTES = _FRAME.size
_HEADER_MAGIC = 0x544C_5748  # "TLWH"
_ENVELOPE = struct.Struct(">IHHI")
_CRC = struct.Struct(">I")
_POSITION = struct.Struct(">Q")
_IDENTITY = struct.Struct(">16sQI")
_SEALS_MAX = 1 << 20
# The fixed fields have 49 bytes and each seal has 20: a damaged length above this is not read at all.
_BODY_BYTES_MAX = 64 + 20 * _SEALS_MAX


class FileId(Struct, frozen=True, order=True):
    """A WAL file within its log: the epoch of its owner and its number among that owner's files, from 1."""

    epoch: int
    sequence: int


class Seal(Struct, frozen=True):
    """An older file ends at exactly ``end`` bytes, whatever follows them (rule W4)."""

    file: FileId
    end: int


class FileHeader(Struct, frozen=True):
    """The first record of a WAL file. The newest valid one decides which older files count (rule W4)."""

    log_id: bytes
    file: FileId
    first_group: int
    truncate_before: int
    """The newest durable truncation address when the file was made; 0 if none."""
    relogged: bool
    """Whether the first frame repeats the last group before the file; then the file counts only if that frame
    is valid too."""
    seals: tuple[Seal, ...]
    """All older files that are still needed, this owner's included, in order. Any other older file has length
    0."""


class Frame(NamedTuple):
    """A valid frame. A tuple, because recovery makes one per group."""

    position: int
    payload: int
    """Where the payload starts in the file."""
    size: int
    number: int
    tag: int
    truncate_before: int


# --- salts --------------------------------------------------------------------------------------


def file_salt(log_id: bytes, file: FileId) -> int:
    """The running CRC32C value that every frame of a file starts from."""
    return crc32c(_IDENTITY.pack(log_id, file.epoch, file.sequence))


def relog_salt(salt: int, encoded_header: bytes) -> int:
    """The salt of a re-logged frame, which binds it to its file's header."""
    return crc32c(encoded_header[-_CRC.size :], salt)


# --- the file header ----------------------------------------------------------------------------


def encode_header(header: FileHeader) -> bytes:
    body = Encoder().raw(header.log_id).u64(header.file.epoch).u32(header.file.sequence)
    body.u64(header.first_group).u64(header.truncate_before).u8(header.relogged).u32(len(header.seals))
    for seal in header.seals:
        body.u64(seal.file.epoch).u32(seal.file.sequence).u64(seal.end)
    content = body.finish()
    record = _ENVELOPE.pack(_HEADER_MAGIC, FORMAT_VERSION, 0, len(content)) + content
    return record + _CRC.pack(crc32c(record))


def header_size(data: Buffer) -> int:
    """The size of the header that ``data`` begins with; a few bytes if it begins with none."""
    if len(data) >= _ENVELOPE.size:
        magic, _, _, length = _ENVELOPE.unpack_from(data)
        if magic == _HEADER_MAGIC and length <= _BODY_BYTES_MAX:
            return int(_ENVELOPE.size + length + _CRC.size)
    return _ENVELOPE.size


def decode_header(data: Buffer, path: str) -> tuple[FileHeader, int]:
    """The header at the start of ``data`` and its size in bytes. Raises ``DecodeError`` if it is incomplete
    or invalid.

    The envelope (magic, version, length, CRC) is the same in every version, so a newer one is recognised and
    raises ``StoreMismatch``.
    """
    if len(data) < _ENVELOPE.size:
        raise DecodeError(f"{len(data)} bytes are too few for a header")
    magic, version, _, length = _ENVELOPE.unpack_from(data)
    end = _ENVELOPE.size + length
    if magic != _HEADER_MAGIC or length > _BODY_BYTES_MAX or end + _CRC.size > len(data):
        raise DecodeError("no header")
    if crc32c(memoryview(data)[:end]) != _CRC.unpack_from(data, end)[0]:
        raise DecodeError("the header's CRC does not match")
    # Only after a valid CRC: a flipped bit in the version is corruption, not a newer format.
    if version > FORMAT_VERSION:
        raise StoreMismatch(
            f"{path} has format {version}, this version reads up to {FORMAT_VERSION}: use a newer tierlog"
        )
    return _decode_body(Decoder(data, _ENVELOPE.size, end)), end + _CRC.size


def _decode_body(body: Decoder) -> FileHeader:
    log_id = bytes(body.raw(LOG_ID_BYTES))
    file = FileId(body.u64(), body.u32())
    first_group, truncate_before, relogged, count = body.u64(), body.u64(), body.flag(), body.u32()
    if count > _SEALS_MAX:
        raise DecodeError(f"{count} seals")
    seals = tuple(Seal(FileId(body.u64(), body.u32()), body.u64()) for _ in range(count))
    body.finish()
    return FileHeader(log_id, file, first_group, truncate_before, relogged, seals)


# --- frames -------------------------------------------------------------------------------------


class FrameScratch:
    """The memory in which a log joins its frames, one after the other. Fresh memory for each would cost up to
    ten times as much, because the system makes its pages one by one."""

    __slots__ = ("_file", "_joined")

    def __init__(self) -> None:
        self._file = BytesIO(bytes(FRAME_HEADER_BYTES))
        self._joined = memoryview(b"")

    def join(self, head: bytes, value: int, buffers: Sequence[Buffer]) -> memoryview:
        """The whole frame, until it is released. ``value``: the checksum of its header."""
        file = self._file
        file.seek(FRAME_HEADER_BYTES)
        file.writelines(buffers)
        joined = self._joined = file.getbuffer()[: file.tell()]
        joined[:FRAME_HEADER_BYTES] = head + _CHECKS.pack(value, crc32c(joined[FRAME_HEADER_BYTES:], value))
        return joined

    def release(self) -> None:
        """The frame, if one was joined, is written: the memory is free for the next one."""
        self._joined.release()


def encode_frame(
    salt: int,
    position: int,
    epoch: int,
    number: int,
    tag: int,
    truncate_before: int,
    buffers: Sequence[Buffer],
    scratch: FrameScratch | None = None,
) -> tuple[int, Sequence[Buffer]]:
    """Return (size of the frame, its buffers), to be written at ``position``. Small payloads are joined in
    ``scratch``, large ones are not copied."""
    size = sum(map(len, buffers))
    head = _FRAME_FIELDS.pack(_FRAME_MAGIC, size, epoch, number, tag, truncate_before)
    value = crc32c(head, crc32c(_POSITION.pack(position), salt))
    join_max = SMALL_JOIN_BYTES_MAX if size <= _SMALL * len(buffers) else JOIN_BYTES_MAX
    if scratch is not None and size <= join_max:
        return FRAME_HEADER_BYTES + size, (scratch.join(head, value, buffers),)
    return FRAME_HEADER_BYTES + size, (head + _CHECKS.pack(value, crc32c_of(buffers, value)), *buffers)


def frame_end(view: memoryview, at: int, position: int, salt: int, epoch: int) -> int | None:
    """The position in the file at which the frame at ``position`` ends. The frame begins at ``at`` in
    ``view``. None if its header is incomplete or not valid."""
    if at + FRAME_HEADER_BYTES > len(view):
        return None
    magic, size, owner, _, _, _, head_crc, _ = _FRAME.unpack_from(view, at)
    # The search for frames in a torn tail comes here for each occurrence of the magic, so the checks that
    # cost nothing come before the CRC.
    if magic != _FRAME_MAGIC or owner != epoch or size > GROUP_BYTES_MAX:
        return None
    fields = view[at : at + _FRAME_FIELDS.size]
    if crc32c(fields, crc32c(_POSITION.pack(position), salt)) != head_crc:
        return None
    end: int = position + FRAME_HEADER_BYTES + size
    return end


def decode_frame(view: memoryview, at: int, position: int, salt: int, epoch: int) -> Frame | None:
    """The frame at ``position`` in the file, which begins at ``at`` in ``view``; None if it is incomplete or
    not valid."""
    # The header first: a payload is read for a valid header only, or user bytes that imitate headers would
    # make a scan quadratic (W2).
    end = frame_end(view, at, position, salt, epoch)
    if end is None or at + end - position > len(view):
        return None
    _, size, _, number, tag, truncate_before, head_crc, crc = _FRAME.unpack_from(view, at)
    if crc32c(view[at + FRAME_HEADER_BYTES : at + end - position], head_crc) != crc:
        return None
    return Frame(position, position + FRAME_HEADER_BYTES, size, number, tag, truncate_before)

"""The decoders of a local log's files: WAL header and frames, the register with its watermarks, and the
history out of whole files."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from fuzz.target import Target
from support.memory_files import MemoryHandle, run_on, scan_bytes
from tierlog.journal.log.frames import (
    FileHeader,
    FileId,
    Seal,
    decode_frame,
    decode_header,
    encode_frame,
    encode_header,
    file_salt,
    relog_salt,
)
from tierlog.journal.log.local_history import HistoryReader, payloads, windows
from tierlog.journal.log.local_layout import (
    LogLayout,
    parse_spare_names,
    parse_wal_names,
    spare_name,
    wal_name,
)
from tierlog.journal.log.local_scan import FrameRun
from tierlog.journal.registers.local import (
    EPOCH_RECORD_BYTES,
    REGISTER_BYTES,
    SLOT_BYTES,
    OtherLog,
    Watermark,
    decode_epoch,
    decode_image,
    decode_watermark,
    encode_epoch,
    encode_watermark,
    read_register,
    slot_offset,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch

LOG_ID = bytes(range(16))
REFUSED = (DataCorruption, StoreMismatch)


def sealed(body: bytes) -> bytes:
    """``body`` with a right checksum behind it."""
    return body + crc32c(body).to_bytes(4, "big")


# --- header and frames --------------------------------------------------------------------------

_OLD, _NEW = FileId(1, 1), FileId(2, 1)
_HEADER = FileHeader(LOG_ID, _NEW, 3, 1, True, (Seal(_OLD, 400), Seal(FileId(1, 2), 1 << 40)))
_SALT = file_salt(LOG_ID, _OLD)
_PAYLOADS = (b"first", b"", b"third group")


def _decode_header_body(body: bytes) -> FileHeader:
    envelope = encode_header(_HEADER)[:8] + len(body).to_bytes(4, "big")
    return decode_header(sealed(envelope + body), "x.wal")[0]


def _frame(salt: int, position: int, file: FileId, number: int, payload: bytes) -> bytes:
    return b"".join(encode_frame(salt, position, file.epoch, number, 9, 1, [payload])[1])


def _frames(data: bytes, file: FileId, first: int, contents: Sequence[bytes], first_salt: int) -> bytes:
    """``data`` followed by frames."""
    salt = first_salt
    for number, payload in enumerate(contents, first):
        data += _frame(salt, len(data), file, number, payload)
        salt = file_salt(LOG_ID, file)
    return data


def _decode_frame(data: bytes) -> tuple[int, int, int, bytes] | None:
    frame = decode_frame(memoryview(data), 0, 0, _SALT, _OLD.epoch)
    return frame and (
        frame.number,
        frame.tag,
        frame.truncate_before,
        data[frame.payload : frame.payload + frame.size],
    )


def _scan(data: bytes) -> tuple[bytes, ...]:
    found = scan_bytes(data, FrameRun(0, 1, _OLD.epoch, _SALT, _SALT))
    return tuple(data[frame.payload : frame.payload + frame.size] for frame in found.frames)


_FRAME_TARGETS = [
    Target(
        "wal header",
        lambda data: decode_header(data, "x.wal"),
        [encode_header(_HEADER), encode_header(replace(_HEADER, seals=(), relogged=False))],
        errors=(DecodeError, StoreMismatch),
        encode=lambda found: encode_header(found[0]),
        canonical=False,  # frames follow it
        checksummed=True,
    ),
    Target(
        "wal header behind a right checksum",
        _decode_header_body,
        [
            encode_header(_HEADER)[12:-4],
            encode_header(replace(_HEADER, seals=(), relogged=False))[12:-4],
        ],
        encode=lambda header: encode_header(header)[12:-4],
    ),
    Target(
        "wal frame",
        _decode_frame,
        [_frame(_SALT, 0, _OLD, 1, b"payload"), _frame(_SALT, 0, _OLD, 2, b"")],
        (),
        checksummed=True,
    ),
    Target(
        "wal frames",
        _scan,
        [_frames(b"", _OLD, 1, _PAYLOADS, _SALT)],
        errors=(),
        genuine=lambda found: found == _PAYLOADS[: len(found)],
    ),
    Target(
        "wal file name",
        lambda data: next(iter(parse_wal_names([data.decode("utf-8", "surrogateescape")])), None),
        [wal_name(_OLD).encode()],
        errors=(),
        encode=lambda file: wal_name(file).encode(),
    ),
    Target(
        "spare name",
        lambda data: next(iter(parse_spare_names([data.decode("utf-8", "surrogateescape")])), None),
        [spare_name(_OLD).encode()],
        errors=(),
        encode=lambda file: spare_name(file).encode(),
    ),
]


# --- whole files --------------------------------------------------------------------------------

_LAYOUT = LogLayout("log")
_ALL = tuple(enumerate((*_PAYLOADS, b"fourth"), 1))


def _old_file() -> bytes:
    header = FileHeader(LOG_ID, _OLD, 1, 0, False, ())
    return _frames(encode_header(header), _OLD, 1, _PAYLOADS, _SALT)


def _new_file(seal_end: int) -> bytes:
    """Re-logs the last group of the old file and goes on."""
    header = encode_header(FileHeader(LOG_ID, _NEW, 3, 0, True, (Seal(_OLD, seal_end),)))
    return _frames(header, _NEW, 3, (_PAYLOADS[2], b"fourth"), relog_salt(file_salt(LOG_ID, _NEW), header))


_OLD_BYTES = _old_file()
_NEW_BYTES = _new_file(len(_OLD_BYTES) - len(_frame(_SALT, 0, _OLD, 3, _PAYLOADS[2])))
_WATERMARK = Watermark(2, 1, len(_NEW_BYTES), 4, False)
"""All of it is durable: a history that is shorter lost acked bytes."""


def _history(old: bytes, new: bytes) -> tuple[tuple[int, bytes], ...]:
    contents = {_LAYOUT.wal(_OLD): old, _LAYOUT.wal(_NEW): new}
    history = run_on(
        contents, HistoryReader(_LAYOUT, LOG_ID, {_WATERMARK.epoch: _WATERMARK}).read([_OLD, _NEW])
    )
    found: dict[int, bytes] = {}
    for wal in history.files:
        path = _LAYOUT.wal(wal.file)
        for frames in windows(wal, range(1, wal.next_number)):
            part = contents[path][frames[0].position :]
            groups = payloads(wal, frames, part, path, log_id=LOG_ID)
            found |= {number: bytes(data) for number, data in groups}
    return tuple(found.items())


_FILE_TARGETS = [
    Target(
        "newest wal file",
        lambda data: _history(_OLD_BYTES, data),
        [_NEW_BYTES],
        errors=REFUSED,
        genuine=lambda found: found == _ALL,
        bytes_per_byte=4096,
    ),
    Target(
        "sealed wal file",
        lambda data: _history(data, _NEW_BYTES),
        [_OLD_BYTES],
        errors=REFUSED,
        genuine=lambda found: found == _ALL,
        bytes_per_byte=4096,
    ),
]


# --- the register -------------------------------------------------------------------------------

_EARLIER = Watermark(17, 3, 9000, 41, True)
_LATER = Watermark(18, 1, 700, 44, False)


def _register() -> bytes:
    data = bytearray(encode_epoch(LOG_ID, 18).ljust(REGISTER_BYTES, b"\0"))
    for mark in (_EARLIER, _LATER):
        data[slot_offset(mark.epoch) : slot_offset(mark.epoch) + SLOT_BYTES] = encode_watermark(LOG_ID, mark)
    return bytes(data)


def _is_part_of_the_register(found: tuple[int, dict[int, Watermark]]) -> bool:
    # 64 zero bytes are a slot that nobody wrote, so a blanked one looks the same.
    return found[0] == 18 and found[1].items() <= {17: _EARLIER, 18: _LATER}.items()


def _read_register(data: bytes) -> tuple[int, dict[int, Watermark]]:
    program = read_register(MemoryHandle("register"), LOG_ID)
    image = run_on({"register": data}, program)
    assert image == decode_image(data, LOG_ID, "register")
    return image.epoch, image.watermarks


def _decode_watermark_body(body: bytes) -> Watermark | None:
    return decode_watermark(body + crc32c(body, crc32c(LOG_ID)).to_bytes(4, "big"), LOG_ID)


_REGISTER_TARGETS = [
    Target(
        "register epoch",
        lambda data: decode_epoch(data, LOG_ID, "register"),
        [encode_epoch(LOG_ID, 18), encode_epoch(LOG_ID, 0)],
        errors=REFUSED,
        encode=lambda epoch: encode_epoch(LOG_ID, epoch),
        canonical=False,  # the rest of the register follows it
        checksummed=True,
    ),
    Target(
        "register epoch behind a right checksum",
        lambda body: decode_epoch(sealed(body), LOG_ID, "register"),
        [encode_epoch(LOG_ID, 18)[: EPOCH_RECORD_BYTES - 4]],
        errors=(*REFUSED, OtherLog),
        encode=lambda epoch: encode_epoch(LOG_ID, epoch)[: EPOCH_RECORD_BYTES - 4],
        canonical=False,  # the record is filled up with bytes that a later version may use
    ),
    Target(
        "watermark",
        lambda data: decode_watermark(data, LOG_ID),
        [encode_watermark(LOG_ID, _EARLIER), encode_watermark(LOG_ID, _LATER)],
        errors=(),
        encode=lambda mark: encode_watermark(LOG_ID, mark),
        checksummed=True,
    ),
    Target(
        "watermark behind a right checksum",
        _decode_watermark_body,
        [encode_watermark(LOG_ID, mark)[:-4] for mark in (_EARLIER, _LATER)],
        errors=(),
        encode=lambda mark: encode_watermark(LOG_ID, mark)[:-4],
        canonical=False,  # as above
    ),
    Target("register", _read_register, [_register()], errors=REFUSED, genuine=_is_part_of_the_register),
]

FILE_TARGETS = [*_FRAME_TARGETS, *_FILE_TARGETS, *_REGISTER_TARGETS]

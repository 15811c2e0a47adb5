"""The bytes of WAL files: golden records, round trips, and a scan that any bytes give an answer (W2)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.memory_files import scan_bytes
from tierlog.journal.log import frames
from tierlog.journal.log.frames import (
    FRAME_HEADER_BYTES,
    JOIN_BYTES_MAX,
    SMALL_JOIN_BYTES_MAX,
    FileHeader,
    FileId,
    FrameScratch,
    Seal,
    decode_frame,
    decode_header,
    encode_frame,
    encode_header,
    file_salt,
    relog_salt,
)
from tierlog.journal.log.local_scan import Ending, FrameRun
from tierlog.storage_backends.base.checksum import Buffer, crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import StoreMismatch

GOLDEN = Path(__file__).parents[2] / "golden"
LOG_ID = bytes(range(16))
FILE = FileId(7, 2)
SALT = file_salt(LOG_ID, FILE)
HEADER = FileHeader(LOG_ID, FILE, 41, 33, False, (Seal(FileId(5, 1), 4000), Seal(FileId(7, 1), 66_000)))


def frame_at(position: int, number: int, payload: bytes, salt: int = SALT) -> bytes:
    return b"".join(encode_frame(salt, position, FILE.epoch, number, 9, 33, [payload])[1])


def frames_of(*payloads: bytes) -> bytes:
    data = b""
    for index, payload in enumerate(payloads):
        data += frame_at(len(data), 41 + index, payload)
    return data


def scan_all(data: bytes) -> tuple[list[bytes], Ending]:
    found = scan_bytes(data, FrameRun(0, 41, FILE.epoch, SALT, SALT))
    return [data[frame.payload : frame.payload + frame.size] for frame in found.frames], found.ending


def test_header_and_frame_have_their_golden_bytes() -> None:
    golden = (GOLDEN / "wal_file_v1.hex").read_text().split()
    header = encode_header(HEADER)

    assert header.hex() == golden[0]
    assert frame_at(len(header), 41, b"payload").hex() == golden[1]
    assert decode_header(bytes.fromhex(golden[0]), "x") == (HEADER, len(header))


def test_a_header_of_a_newer_format_is_refused_as_such_and_a_damaged_one_is_not() -> None:
    record = bytearray(encode_header(HEADER)[:-4])
    record[5] += 1
    newer = bytes(record) + crc32c(record).to_bytes(4, "big")
    with pytest.raises(StoreMismatch, match="newer tierlog"):
        decode_header(newer, "some.wal")
    with pytest.raises(DecodeError):
        decode_header(bytes(record) + b"\0\0\0\0", "some.wal")


@given(st.lists(st.binary(max_size=200), max_size=6))
def test_frames_come_back_as_they_were(payloads: list[bytes]) -> None:
    assert scan_all(frames_of(*payloads)) == (payloads, Ending.CLEAN)


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.data())
def test_a_cut_file_keeps_every_whole_frame_and_is_torn(payloads: list[bytes], data: st.DataObject) -> None:
    whole = frames_of(*payloads)
    size = data.draw(st.integers(0, len(whole)))
    found, ending = scan_all(whole[:size])

    assert found == payloads[: len(found)]
    assert sum(FRAME_HEADER_BYTES + len(payload) for payload in found) <= size
    assert ending is (
        Ending.CLEAN if size == sum(FRAME_HEADER_BYTES + len(payload) for payload in found) else Ending.TORN
    )


@given(st.lists(st.binary(max_size=60), min_size=2, max_size=4), st.data())
def test_damage_before_the_last_frame_is_corruption_and_in_it_a_torn_tail(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = bytearray(frames_of(*payloads))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    _, ending = scan_all(bytes(whole))

    last = len(whole) - FRAME_HEADER_BYTES - len(payloads[-1])
    assert ending is (Ending.CORRUPT if bit // 8 < last else Ending.TORN)


def test_a_torn_tail_full_of_forged_headers_costs_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's bytes, each of whose headers claims all the rest: were their payloads read, the walk would be
    quadratic."""
    size, checked = 1 << 18, 0

    def counting(data: Buffer, value: int = 0) -> int:
        nonlocal checked
        checked += len(data)
        return crc32c(data, value)

    monkeypatch.setattr(frames, "crc32c", counting)
    step = FRAME_HEADER_BYTES
    forged = b"".join(
        struct.pack(">IIQQIQII", 0xF6544C47, size - step - at, FILE.epoch, 42, 0, 0, 0, 0)
        for at in range(0, size - step, step)
    )
    assert scan_all(b"torn" + forged) == ([], Ending.TORN)
    assert checked < 2 * size


@given(st.binary(max_size=400))
def test_any_bytes_scan_to_an_end(data: bytes) -> None:
    found, ending = scan_all(data)
    assert found == []
    assert ending in (Ending.CLEAN, Ending.TORN)


def test_a_frame_counts_only_in_its_own_file_and_offset() -> None:
    frame = frame_at(100, 41, b"x")
    padded = memoryview(bytes(100) + frame + frame)

    assert decode_frame(padded, 100, 100, SALT, 7) is not None
    assert decode_frame(padded, 100 + len(frame), 100 + len(frame), SALT, 7) is None
    for other in (FileId(7, 3), FileId(6, 2)):
        assert decode_frame(padded, 100, 100, file_salt(LOG_ID, other), other.epoch) is None
    assert decode_frame(padded, 100, 100, file_salt(bytes(16), FILE), 7) is None


def test_a_relogged_frame_counts_only_behind_its_own_header() -> None:
    """W4: without its header it does not exist, so it can never pass for a later group behind a broken
    one."""
    header = encode_header(replace(HEADER, relogged=True))
    other = encode_header(replace(HEADER, relogged=True, truncate_before=34))
    data = header + frame_at(len(header), 41, b"again", relog_salt(SALT, header))

    assert decode_frame(memoryview(data), len(header), len(header), relog_salt(SALT, header), 7) is not None
    assert decode_frame(memoryview(data), len(header), len(header), relog_salt(SALT, other), 7) is None
    assert decode_frame(memoryview(data), len(header), len(header), SALT, 7) is None


def test_large_payloads_are_not_copied_and_small_ones_are_one_buffer() -> None:
    large = memoryview(bytes(JOIN_BYTES_MAX + 1))
    size, buffers = encode_frame(SALT, 0, 7, 41, 0, 0, [large], FrameScratch())

    assert buffers[1] is large
    assert size == FRAME_HEADER_BYTES + len(large)
    scratch = FrameScratch()
    assert len(encode_frame(SALT, 0, 7, 41, 0, 0, [b"a", b"b"], scratch)[1]) == 1
    scratch.release()


@pytest.mark.parametrize("count", [1, 3, JOIN_BYTES_MAX // 512 + 1])
def test_a_joined_frame_has_the_bytes_of_one_that_is_not(count: int) -> None:
    """Also a shorter one in the memory of a longer one."""
    scratch = FrameScratch()
    for size in (600, 512, 0):
        payload = [bytes([number % 256]) * size for number in range(count)]
        apart_size, apart = encode_frame(SALT, 64, 7, 41, 9, 33, payload)
        joined_size, joined = encode_frame(SALT, 64, 7, 41, 9, 33, payload, scratch)

        assert len(joined) == 1
        assert joined[0] == b"".join(apart)
        assert joined_size == apart_size == len(joined[0])
        scratch.release()


def test_many_small_buffers_are_joined_up_to_a_mebibyte() -> None:
    """A checksum and a slot of the system call for each would take longer than the copy."""
    scratch, small = FrameScratch(), bytes(1024)
    most = SMALL_JOIN_BYTES_MAX // 1024

    assert len(encode_frame(SALT, 0, 7, 41, 0, 0, [small] * most, scratch)[1]) == 1
    scratch.release()
    assert len(encode_frame(SALT, 0, 7, 41, 0, 0, [small] * (most + 1), scratch)[1]) == most + 2
    assert len(encode_frame(SALT, 0, 7, 41, 0, 0, [bytes(JOIN_BYTES_MAX), small], scratch)[1]) == 3

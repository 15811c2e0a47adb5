"""Windows: the bytes of a range out of its chunks, verified, in order, whatever the chunks' sizes."""

from __future__ import annotations

import threading
from random import Random

import pytest
from msgspec.structs import replace

from support.direct import MemoryStorage, stored
from tierlog.actors.direct_read.windows import ROOM, windows
from tierlog.storage_backends.base.checksum import BLOCK
from tierlog.storage_backends.base.errors import ChunkNotFound, DataCorruption
from tierlog.storage_backends.base.segment_layout import ChunkExtent

SIZES = (2 * BLOCK + 5, 10, 1, BLOCK, 700_000, 700_000, 3 * BLOCK)
DATA = Random(7).randbytes(sum(SIZES))


def read(storage: MemoryStorage, extents: tuple[ChunkExtent, ...], start: int, end: int) -> bytes:
    found = bytearray()
    for window in windows(storage, extents, start, end):
        assert window.offset == start + len(found)
        assert window.begin >= ROOM
        found += window.buffer[window.begin : window.end]
        window.buffer[: window.begin] = b"x" * window.begin  # it is the caller's
    return bytes(found)


@pytest.mark.parametrize("piece, ahead", [(BLOCK, 0), (BLOCK, 2), (3 * BLOCK, 0), (4 * BLOCK, 3)])
@pytest.mark.parametrize(
    "start, end",
    [
        (0, len(DATA)),
        (5, 6),
        (BLOCK - 1, 2 * BLOCK + 7),
        (2 * BLOCK + 14, 2 * BLOCK + 17),
        (BLOCK, len(DATA)),
    ],
)
def test_s21_windows_have_the_bytes_of_the_range(piece: int, ahead: int, start: int, end: int) -> None:
    """Also if the extents begin long before it and end long after it."""
    storage = MemoryStorage(piece, ahead)
    extents = stored(DATA, SIZES, storage)

    assert read(storage, extents, start, end) == DATA[start:end]


def test_an_extent_may_begin_and_end_inside_its_chunk() -> None:
    storage = MemoryStorage()
    [extent] = stored(DATA, [4 * BLOCK], storage)
    middle = replace(extent, block=1, crcs=extent.crcs[4:12])

    assert read(storage, (middle,), BLOCK + 3, 3 * BLOCK) == DATA[BLOCK + 3 : 3 * BLOCK]
    assert {asked[0] for asked in storage.asked} == {"c0"}
    assert sum(size for _, _, size in storage.asked) == 2 * BLOCK


def test_bytes_before_the_extents_are_missing_and_not_left_out() -> None:
    storage = MemoryStorage()
    extents = stored(DATA, [BLOCK, BLOCK], storage)

    with pytest.raises(DataCorruption, match="byte 5 is missing"):
        read(storage, extents[1:], 5, 2 * BLOCK)


def test_small_chunks_share_a_window() -> None:
    storage = MemoryStorage()
    extents = stored(DATA, [1000] * 2000, storage)

    assert len(list(windows(storage, extents, 0, 2_000_000))) == 2


def test_blocks_that_the_range_does_not_touch_are_not_read() -> None:
    storage = MemoryStorage(8 * BLOCK)
    extents = stored(DATA, [5 * BLOCK, BLOCK], storage)
    first = replace(extents[0], block=1, crcs=extents[0].crcs[4:])

    assert read(storage, (first, extents[1]), BLOCK + 5, 2 * BLOCK + 1) == DATA[BLOCK + 5 : 2 * BLOCK + 1]
    assert storage.asked == [("c0", BLOCK, 2 * BLOCK)]


@pytest.mark.parametrize("ahead", [0, 3])
def test_s21_a_block_that_does_not_match_its_checksum_is_never_given(ahead: int) -> None:
    storage = MemoryStorage(BLOCK, ahead)
    extents = stored(DATA, [3 * BLOCK, BLOCK], storage)
    damaged = bytearray(storage.chunks["c0"])
    damaged[2 * BLOCK + 9] ^= 1
    storage.chunks["c0"] = bytes(damaged)
    found = windows(storage, extents, 0, 4 * BLOCK)

    assert [next(found).offset, next(found).offset] == [0, BLOCK]
    with pytest.raises(DataCorruption, match="do not match their checksum") as caught:
        next(found)
    assert (caught.value.file, caught.value.offset) == ("c0", 2 * BLOCK)


def test_s21_a_chunk_that_is_shorter_than_recorded_is_reported() -> None:
    storage = MemoryStorage()
    extents = stored(DATA, [3 * BLOCK], storage)
    storage.chunks["c0"] = storage.chunks["c0"][: BLOCK + 7]

    with pytest.raises(DataCorruption, match="shorter than the 3145728 bytes") as caught:
        read(storage, extents, 0, 3 * BLOCK)
    assert (caught.value.file, caught.value.offset) == ("c0", BLOCK + 7)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_missing_chunk_has_its_name(ahead: int) -> None:
    storage = MemoryStorage(ahead=ahead)
    extents = stored(DATA, [BLOCK, BLOCK], storage)
    del storage.chunks["c1"]

    with pytest.raises(ChunkNotFound) as caught:
        read(storage, extents, 0, 2 * BLOCK)
    assert caught.value.chunk == "c1"


def test_reads_are_begun_ahead_and_waited_for_when_the_caller_has_enough() -> None:
    threads = set(threading.enumerate())
    storage, third = MemoryStorage(BLOCK, 2), threading.Event()
    extents = stored(DATA, [BLOCK] * 5, storage)
    read_into = storage.read_into

    def noticed(chunk: str, offset: int, target: memoryview) -> int:
        if chunk == "c2":
            third.set()
        return read_into(chunk, offset, target)

    storage.read_into = noticed  # type: ignore[method-assign]
    found = windows(storage, extents, 0, 5 * BLOCK)

    assert next(found).offset == 0
    assert third.wait(30)
    found.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= threads

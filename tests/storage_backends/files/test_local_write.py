"""Large writes: cut into slices, every byte in its place, and no error of the disk swallowed on the way."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.files import local_write
from tierlog.storage_backends.files.local_write import SLICE_BYTES, slices, write_bulk, write_whole

BUFFERS_MAX = os.sysconf("SC_IOV_MAX")


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size + 1, 0)


@pytest.mark.parametrize("write", [write_whole, write_bulk])
@pytest.mark.parametrize(
    "sizes",
    [
        [SLICE_BYTES],
        [SLICE_BYTES + 1],
        [3 * SLICE_BYTES],
        [1, 2 * SLICE_BYTES, 0, SLICE_BYTES - 1],
        [200 << 10] * 21,
        [1025] * (3 * BUFFERS_MAX),
        [5] * (2 * BUFFERS_MAX + 1),
    ],
)
def test_every_byte_of_a_large_write_is_at_its_offset(
    descriptor: int, sizes: Sequence[int], write: Callable[[int, Sequence[Buffer], int], None]
) -> None:
    buffers: list[Buffer] = [os.urandom(size) for size in sizes]
    buffers[0] = bytearray(buffers[0])
    buffers[-1] = memoryview(buffers[-1])
    os.pwrite(descriptor, b"before|", 0)

    write(descriptor, buffers, 7)

    assert content(descriptor) == b"before|" + b"".join(buffers)


@pytest.mark.parametrize(
    "sizes", [[5 * SLICE_BYTES // 2], [3000] * 5000, [1] * (2 * BUFFERS_MAX), [SLICE_BYTES - 1] * 3, [0, 0]]
)
def test_slices_fit_into_one_system_call_and_are_the_same_bytes(sizes: Sequence[int]) -> None:
    buffers = [os.urandom(size) for size in sizes]

    found = list(slices(buffers))

    assert b"".join(b"".join(piece) for piece in found) == b"".join(buffers)
    assert all(0 < len(piece) <= BUFFERS_MAX and 0 < sum(map(len, piece)) <= SLICE_BYTES for piece in found)


def test_a_slice_is_on_its_way_to_the_disk_while_the_next_is_copied(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int, int]] = []
    monkeypatch.setattr(
        local_write, "_sync_file_range", lambda fd, offset, size, what: begun.append((offset, offset + size))
    )

    write_bulk(descriptor, [bytes(2 * SLICE_BYTES + 9)], 100)

    first, second, third = 100, 100 + SLICE_BYTES, 100 + 2 * SLICE_BYTES
    assert begun == [
        (first, second),
        (first, third),
        (second, third + 9),
    ]  # each after a wait for the one before it


def test_a_write_with_a_waiter_is_one_call(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    pwritev = os.pwritev

    def counted(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        sizes.append(pwritev(fd, buffers, offset))
        return sizes[-1]

    monkeypatch.setattr(
        local_write, "_sync_file_range", lambda *call: pytest.fail("a write that is not bulk was pushed")
    )
    monkeypatch.setattr(os, "pwritev", counted)

    write_whole(descriptor, [bytes(SLICE_BYTES)] * 3, 0)

    assert sizes == [3 * SLICE_BYTES]


@pytest.mark.parametrize("count", [2, 3 * BUFFERS_MAX])
def test_a_small_write_is_left_to_its_sync(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(
        local_write, "_sync_file_range", lambda *call: pytest.fail("a small write was pushed")
    )

    write_bulk(descriptor, [b"x" * 100] * count, 0)

    assert content(descriptor) == b"x" * 100 * count


def test_an_error_of_the_disk_that_the_wait_consumed_is_raised(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_write, "_sync_file_range", failing_with(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"):
        write_bulk(descriptor, [bytes(2 * SLICE_BYTES)], 0)


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_a_system_without_early_writeback_still_writes(
    descriptor: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(local_write, "_sync_file_range", failing_with(code))

    write_bulk(descriptor, [b"y" * (2 * SLICE_BYTES)], 0)
    monkeypatch.setattr(local_write, "_sync_file_range", None)
    write_bulk(descriptor, [b"z" * (2 * SLICE_BYTES)], 2 * SLICE_BYTES)

    assert content(descriptor) == b"y" * (2 * SLICE_BYTES) + b"z" * (2 * SLICE_BYTES)


def test_a_slice_that_the_system_cuts_short_is_completed(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwritev
    monkeypatch.setattr(
        os, "pwritev", lambda fd, buffers, offset: whole(fd, [b"".join(buffers)[:1000]], offset)
    )
    data = os.urandom(2 * SLICE_BYTES + 1)

    write_bulk(descriptor, [data], 0)

    assert content(descriptor) == data


def failing_with(code: int) -> object:
    def call(fd: int, offset: int, size: int, what: int) -> int:
        ctypes.set_errno(code)
        return -1

    return call

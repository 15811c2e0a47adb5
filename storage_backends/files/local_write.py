"""Writes all buffers to a descriptor, bulk data in slices that the disk begins with at once.

In one call, several megabytes cost about twice the CPU per byte (measured on ext4 in a virtual machine,
alongside a busy WAL; probably because the page cache then allocates large cold blocks). And left to the sync,
they reach the disk as one burst, in front of each sync of a WAL on the same disk. So bulk data is written in
slices of a megabyte: while one is on its way to the disk the next is copied. A write that a caller waits for
stays one call, because after each call its thread may have to wait for the interpreter.

Waiting for a slice consumes the error that its write-back may have had, so it is raised here; the later sync
would not report it (rule W6).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence

from ..base.checksum import Buffer

SLICE_BYTES = 1 << 20
_BUFFERS_MAX = os.sysconf("SC_IOV_MAX")
_WAIT_THEN_BEGIN = 1 | 2
_NOT_THERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ESPIPE)


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The C library's ``sync_file_range``, which exists on Linux and is not in Python's ``os``."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function


_sync_file_range = _find_sync_file_range()


def write_whole(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers one after the other at ``offset``, and return where they end. After an ``OSError``
    any part may be written."""
    if len(buffers) <= _BUFFERS_MAX:
        return _write_batch(fd, buffers, offset)

    for start in range(0, len(buffers), _BUFFERS_MAX):
        offset = _write_batch(fd, buffers[start : start + _BUFFERS_MAX], offset)
    return offset


def write_bulk(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """As ``write_whole``, in slices."""
    if sum(map(len, buffers)) <= SLICE_BYTES:
        return write_whole(fd, buffers, offset)

    previous = offset
    for piece in slices(buffers):
        end = _write_batch(fd, piece, offset)
        # From the slice before: its write-back had the time of a copy, so there is little to wait for.
        _wait_then_begin(fd, previous, end)
        previous, offset = offset, end
    return offset


def slices(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes, not copied, as lists for one call each: ``SLICE_BYTES``, or less if there are too many
    buffers."""
    batch: list[Buffer] = []
    room = SLICE_BYTES
    for buffer in buffers:
        view: Buffer = buffer
        while len(view) >= room:
            whole = memoryview(view)
            yield [*batch, whole[:room]]
            view, batch, room = whole[room:], [], SLICE_BYTES

        if len(view):
            batch.append(view)
            room -= len(view)
        if len(batch) == _BUFFERS_MAX - 1:  # The next one may be cut in two.
            yield batch
            batch, room = [], SLICE_BYTES

    if batch:
        yield batch


def _write_batch(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    size = sum(map(len, buffers))
    written = os.pwritev(fd, buffers, offset) if size else 0
    if written < size:
        _write_rest(fd, b"".join(buffers), offset, written)
    return offset + size


def _write_rest(fd: int, data: bytes, offset: int, done: int) -> None:
    """A short write happens at 2 GiB, on a full disk and after a signal; continuing completes it or raises
    the error."""
    view = memoryview(data)
    while done < len(view):
        written = os.pwrite(fd, view[done:], offset + done)
        if not written:
            # It would be repeated without end.
            raise OSError(errno.EIO, "write made no progress")
        done += written


def _wait_then_begin(fd: int, start: int, end: int) -> None:
    """Wait for the write-back under way in a range, then start that of the rest, if the system supports
    it."""
    if _sync_file_range is not None and _sync_file_range(fd, start, end - start, _WAIT_THEN_BEGIN):
        code = ctypes.get_errno()
        if code not in _NOT_THERE:
            raise OSError(code, os.strerror(code))

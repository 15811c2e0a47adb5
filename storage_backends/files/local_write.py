"""Writing buffers to a descriptor, whole, and bulk data in slices that the disk begins with at once.

Owns: the limits of one system call, writes that the system cuts short, and the pace of bulk data. Does not
own: handles, programs (``local.py``), nor durability: the disk only begins earlier with what a sync has to
finish anyway.

Written in one call, several megabytes cost about twice the CPU a byte (measured on ext4 in a virtual machine,
beside a busy WAL; probably because the page cache then takes memory in large blocks that are not warm). And
left to the sync, they reach the disk as one burst, in front of each sync of a WAL on the same disk. So slices
of a megabyte: while one is on its way to the disk the next is copied. A write that somebody waits for stays
one call: after each call its thread may have to wait for the interpreter.

Errors: waiting for a slice consumes the error that its way to the disk may have had, so it is raised here;
the later sync would not see it (rule W6).
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
    """The C library's ``sync_file_range``, which Python does not have and other systems neither."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        function.restype = ctypes.c_int
    return function


_sync_file_range = _find_sync_file_range()


def write_whole(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers one after the other at ``offset``; returns where they end. An ``OSError`` may come
    after any part of it."""
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
        _wait_then_begin(fd, previous, end)
        previous, offset = offset, end
    return offset


def slices(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """The same bytes, not copied, as lists that one call takes: ``SLICE_BYTES`` each unless the buffers are
    too many."""
    taken: list[Buffer] = []
    room = SLICE_BYTES
    for buffer in buffers:
        view: Buffer = buffer
        while len(view) >= room:
            whole = memoryview(view)
            yield [*taken, whole[:room]]
            view, taken, room = whole[room:], [], SLICE_BYTES

        if len(view):
            taken.append(view)
            room -= len(view)
        if len(taken) == _BUFFERS_MAX - 1:  # The next one may be cut in two.
            yield taken
            taken, room = [], SLICE_BYTES

    if taken:
        yield taken


def _write_batch(fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    size = sum(map(len, buffers))
    written = os.pwritev(fd, buffers, offset) if size else 0
    if written < size:
        _write_rest(fd, b"".join(buffers), offset, written)
    return offset + size


def _write_rest(fd: int, data: bytes, offset: int, done: int) -> None:
    """A short write happens at 2 GiB, on a full disk and after a signal; going on either completes it or
    gives the error."""
    view = memoryview(data)
    while done < len(view):
        written = os.pwrite(fd, view[done:], offset + done)
        if not written:
            raise OSError(errno.EIO, "write made no progress")
        done += written


def _wait_then_begin(fd: int, start: int, end: int) -> None:
    """Wait for what is on its way to the disk in a range, then let the rest of it begin; nothing where the
    system cannot be told to."""
    if _sync_file_range is not None and _sync_file_range(fd, start, end - start, _WAIT_THEN_BEGIN):
        code = ctypes.get_errno()
        if code not in _NOT_THERE:
            raise OSError(code, os.strerror(code))

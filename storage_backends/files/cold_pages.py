"""Drops pages of cold files from the page cache once they are on the disk. A hint: nothing depends on it.

A log is read only at a takeover, and flushed chunks are in the tail cache for as long as reads are likely.
Left to the system, both evict what others on the machine do read, and each write takes new memory: in a
virtual machine whose host reclaims free pages, a page that was not used recently costs about ten times one
that was just freed (measured: 250 MiB/s of synced writes instead of 1,200).

Only whole, synced pages are dropped; the page in which a range ends is dropped with the next range. Ranges
are dropped in steps, because a call for each small group would cost more than its pages.
"""

from __future__ import annotations

import os

STEP_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ColdPages:
    """The written range of one descriptor. Not thread-safe: programs of one handle never overlap."""

    __slots__ = ("_end", "_start")

    def __init__(self) -> None:
        self._start = self._end = 0

    def wrote(self, start: int, end: int) -> None:
        if self._start == self._end:
            self._start = self._end = start
        self._start = min(self._start, start)
        self._end = max(self._end, end)

    def synced(self, fd: int) -> None:
        if self._end - self._start < STEP_BYTES or not hasattr(os, "posix_fadvise"):
            return

        start = (
            self._start - self._start % _PAGE_BYTES
        )  # A range that begins inside a page would keep that page.
        try:
            os.posix_fadvise(fd, start, self._end - start, os.POSIX_FADV_DONTNEED)
        except OSError:
            return  # The file system does not support it.
        self._start = self._end

"""Pages of cold files: what was written, is on the disk, and will not be read again soon, leaves the page
cache.

Owns: which bytes of one handle may go, and when. Does not own: which files are cold (who opens them says it),
nor durability.

A log is read at a takeover only, and what is flushed to chunks is in the tail cache for as long as somebody
is likely to want it. Left to the system, both push out what others on the machine do read, and each write
takes new memory: in a virtual machine whose host takes free pages back, a page that nobody used lately costs
about ten times one that has just been given up (measured: 250 MiB/s of synced writes instead of 1,200).

A hint: nothing depends on it. Only whole pages that are on the disk go; the page that a range ends in goes
with the next range. Ranges are given up in steps, because a call for each small group would cost more than
its pages.
"""

from __future__ import annotations

import os

STEP_BYTES = 1 << 20
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ColdPages:
    """Of one descriptor. Not safe from several threads: programs of one handle never overlap."""

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
        )  # A range that begins inside a page would leave that page, one in each step.
        try:
            os.posix_fadvise(fd, start, self._end - start, os.POSIX_FADV_DONTNEED)
        except OSError:
            return  # A file system that takes no hints.
        self._start = self._end

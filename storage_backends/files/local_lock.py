"""Locks of files, which are held for moments. A holder that was stopped, or a backup program, may hold one
for hours: whoever waits for it gets an error that names the holder instead, and can try again."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from contextlib import suppress

WAIT_SECONDS = 10.0
"""More than the syncs take that are made under a lock."""
_POLL_SECONDS = 0.01


def lock_file(fd: int, path: str, *, wait: bool) -> bool:
    """Take the exclusive flock of ``fd``; False if it is held and ``wait`` is False. Raises ``EBUSY`` if it
    is still held after ``WAIT_SECONDS``."""
    pause = threading.Event()
    # Counted, so that the time in which the machine stood still does not count.
    for _ in range(round(WAIT_SECONDS / _POLL_SECONDS) + 1):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
        else:
            return True
        pause.wait(_POLL_SECONDS)

    holder = _holder(fd)
    who = f"process {holder}" if holder else "another process"
    reason = f"{who} has held its lock for {WAIT_SECONDS:g} s: end or continue it, and try again"
    raise OSError(errno.EBUSY, reason, path)


def _holder(fd: int) -> int:
    """The process that holds the flock of the file; 0 if the system does not report it."""
    info = os.fstat(fd)
    file = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    with suppress(OSError, ValueError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            # As in proc_locks(5): 1: FLOCK  ADVISORY  WRITE 3361 00:0d:271 0 EOF
            _, kind, _, _, pid, found, *_ = line.split()
            if (kind, found) == ("FLOCK", file):
                return max(0, int(pid))
    return 0

"""Facts about a process, from the system's ``/proc``."""

from __future__ import annotations

import os
from contextlib import suppress


def status_fields(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the state on (``proc(5)`` numbers that one 3). Empty if there is
    no such process, or no ``/proc``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # The name, in parentheses, may hold anything, so the fields are counted from its end.
            return stream.read(4096).rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return []


def process_start(pid: int) -> str:
    """Identifies the process among all that ever have its number: the boot of the machine, and the clock
    ticks from there to the start. Empty if the system does not report them."""
    fields = status_fields(pid)
    # The start time is field 22 of proc(5), and fields begin at 3 here.
    if len(fields) < 20:
        return ""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return f"{stream.read(64).strip()}/{fields[19]}"
    except OSError:
        return ""


def holds_lock(pid: int, path: str) -> bool:
    """Whether the process has the file ``path`` open under a flock. False if the system does not report it,
    as of processes of another user."""
    with suppress(OSError):
        # Compared by device and inode: the process may have opened the file by another path.
        wanted = os.stat(path)
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), wanted):
                    with open(f"/proc/{pid}/fdinfo/{number}", encoding="ascii") as facts:
                        if any(line.startswith("lock:") and "FLOCK" in line for line in facts):
                            return True
    return False

"""Processes that a program has left behind."""

from __future__ import annotations

import contextlib
from pathlib import Path


def processes_with(temporary: Path) -> list[str]:
    """Processes with this temporary folder: everything that a script started with it starts, and their
    descendants."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and f"TMPDIR={temporary}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found

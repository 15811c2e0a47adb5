"""What must not grow: processes, descriptors, sockets, threads.

Owns: counting them through /proc, and comparing two counts. Does not own: when to count: only while every
host serves its share and the writers are at rest do two counts mean the same.

A process that was replaced is compared with what its role had before: a host with the fullest host, by the
containers that it serves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

SLACK = 6
"""Descriptors that may come and go: a connection that is being closed, a log file that is just rolled."""


@attrs.frozen
class Usage:
    """What one process has open."""

    role: str
    descriptors: int
    sockets: int
    threads: int


def usage_of(pid: int, role: str) -> Usage | None:
    """None if the process is gone."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None

    return Usage(role, len(names), sum(_is_socket(pid, name) for name in names), threads)


def _is_socket(pid: int, name: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    except (FileNotFoundError, ProcessLookupError):
        return False


def compare_usage(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> list[str]:
    """What has grown, by process name. Processes of one role are measured by the one that had most."""
    found = []
    for name, now in sorted(after.items()):
        peers = [each for each in before.values() if each.role == now.role]
        if not peers:
            found.append(f"{name} was not there before")
            continue

        for what in ("descriptors", "sockets", "threads"):
            most = max(getattr(peer, what) for peer in peers)
            allowed = most + (SLACK if what != "threads" else 2 * SLACK)
            if getattr(now, what) > allowed:
                found.append(f"{name} has {getattr(now, what)} {what}, {most} at the beginning: they leak")
    return found


def sockets_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_socket()]

"""Limits of time that grow with the machine's load: they end what hangs, and never what is merely slow."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

LOAD = Path("/proc/loadavg")
ATTEMPTS = 10
"""More than a machine that stands still now and then spoils in a row."""


def scaled(seconds: float) -> float:
    """``seconds`` on a machine with a free core, and as many times more as runnable processes share each.

    Each step of ``nice`` gives other processes a quarter more, so niced runs get higher limits.
    """
    return seconds * max(1.0, _runnable() / (os.cpu_count() or 1)) * 1.25 ** max(0, os.nice(0))


def _runnable() -> float:
    """Processes that run or wait for a core: the average of the last minute, or on Linux the number now if it
    is higher."""
    average = os.getloadavg()[0]
    if not LOAD.exists():
        return average
    return max(average, float(LOAD.read_text().split()[3].partition("/")[0]))


async def succeeds(attempt: Callable[[], Awaitable[bool]]) -> bool:
    """Whether one of some attempts does: for what has to come within a fraction of a second. A virtual
    machine may stand still for longer, and no load shows it."""
    for _ in range(ATTEMPTS):
        if await attempt():
            return True
    return False

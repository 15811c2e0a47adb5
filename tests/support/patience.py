"""Limits of time that grow with the machine's load: they end what hangs, and never what is merely slow."""

from __future__ import annotations

import os
from pathlib import Path

LOAD = Path("/proc/loadavg")


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

"""Limits of time that grow with the machine's load: they end what hangs, and never what is merely slow."""

from __future__ import annotations

import os


def scaled(seconds: float) -> float:
    """``seconds`` on a machine with a free core, and as many times more as runnable processes share each."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

"""Limits of time inside the suite: they grow with the load and with the niceness of the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support import patience


@pytest.mark.parametrize(
    ("average", "running", "nice", "times"),
    [(0.1, 1, 0, 1), (8.0, 1, 0, 4), (0.1, 8, 0, 4), (0.1, 1, 2, 1.25**2), (8.0, 2, 1, 5)],
    ids=["a quiet machine", "load of the last minute", "load now", "niced", "niced under load"],
)
def test_limits_grow_with_the_load_and_with_niceness(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, average: float, running: int, nice: int, times: float
) -> None:
    load = tmp_path / "loadavg"
    load.write_text(f"{average} 0.00 0.00 {running}/500 4711\n")
    monkeypatch.setattr(patience, "LOAD", load)
    monkeypatch.setattr(os, "getloadavg", lambda: (average, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "nice", lambda by: nice)
    assert patience.scaled(10) == 10 * times

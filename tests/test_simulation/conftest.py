"""Child processes of these tests import the simulator, which no installed package holds."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def simulator_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))

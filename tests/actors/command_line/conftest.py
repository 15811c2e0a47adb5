"""A data folder that is not there yet, and the command line that works on it by default."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run, in_this_process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """The command line in this process."""
    monkeypatch.setenv("TIERLOG_DATA", str(folder))
    monkeypatch.chdir(folder.parent)
    with in_this_process(capfdbinary) as call:
        yield call

"""A data folder that is not there yet, and the command line that works on it by default."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Done, Run
from tierlog.actors.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """The command line in this process."""
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setenv("TIERLOG_DATA", str(folder))
    monkeypatch.chdir(folder.parent)

    def call(*arguments: str) -> Done:
        code = main(list(arguments))
        return Done(code, *capfdbinary.readouterr())

    yield call
    signal.signal(signal.SIGINT, before)

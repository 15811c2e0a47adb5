"""A folder for a service, watched for what is left behind, and the command line."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run, in_this_process
from support.live_service import nothing_left


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # The control socket's folder, short enough for a socket's path.
    with tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(tmp_path / "data", Path(runtime)):
            yield tmp_path / "data"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Run]:
    """The command line in this process."""
    with in_this_process(capfdbinary) as run:
        yield run

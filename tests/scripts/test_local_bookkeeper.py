"""The command that runs a BookKeeper on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import local_bookkeeper
from support.bookkeeper import installation
from support.patience import scaled
from tierlog.storage_backends.ledgers.installed import FOLDER_VARIABLE


@pytest.mark.extended
def test_it_prints_the_command_that_uses_it_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, local_bookkeeper.__file__],
        env={**os.environ, FOLDER_VARIABLE: str(installation().folder), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("a BookKeeper with 3 bookies at 127.0.0.1:")
        assert process.stdout.readline().startswith("tierlog serve bookkeeper://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(scaled(60)) == 0
    finally:
        process.kill()
        process.communicate()
    assert list(tmp_path.iterdir()) == []

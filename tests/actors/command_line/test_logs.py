"""The program's log: its level, and its form on a terminal and elsewhere."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import NAME


def create(folder: Path, *options: str, **variables: str) -> str:
    """The stderr of a command that creates a segment."""
    call = [sys.executable, "-m", "tierlog", *options, "segment", "create", NAME, "--exist-ok"]
    environ = {**os.environ, "TIERLOG_DATA": str(folder), **variables}
    done = subprocess.run(call, env=environ, stderr=subprocess.PIPE, text=True, check=True, cwd=folder.parent)
    return done.stderr


def test_a_command_logs_nothing_unless_asked(folder: Path) -> None:
    assert create(folder) == ""


@pytest.mark.parametrize("way", ["option", "variable", "file"])
def test_the_level_comes_from_an_option_a_variable_or_the_file(folder: Path, way: str) -> None:
    config = folder.parent / "log.toml"
    config.write_text('[log]\nlevel = "info"\n')
    options = ("--log-level", "info") if way == "option" else ()
    variables = {"variable": {"TIERLOG_LOG_LEVEL": "info"}, "file": {"TIERLOG_CONFIG": str(config)}}
    lines = create(folder, *options, **variables.get(way, {})).splitlines()

    assert "log_opened" in [json.loads(line)["event"] for line in lines]


def test_a_folder_that_other_users_may_change_is_reported_once(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)

    assert create(folder, "--log-level", "warning").count("folder_shared") == 1


def test_an_option_overrides_the_variable(folder: Path) -> None:
    assert create(folder, "--log-level", "error", TIERLOG_LOG_LEVEL="info") == ""


def test_on_a_terminal_the_log_is_plain_text(folder: Path) -> None:
    main, terminal = pty.openpty()
    call = [sys.executable, "-m", "tierlog", "--log-level", "info", "segment", "create", NAME]
    environ = {**os.environ, "TIERLOG_DATA": str(folder)}
    with subprocess.Popen(call, env=environ, stderr=terminal, cwd=folder.parent) as process:
        os.close(terminal)
        text = b""
        while block := read_terminal(main):
            text += block
    os.close(main)

    assert process.returncode == 0
    lines = text.decode().splitlines()
    assert all(" INFO " in line and "event=" in line for line in lines)
    assert any("event='log_opened'" in line for line in lines)


def read_terminal(main: int) -> bytes:
    try:
        return os.read(main, 65_536)
    except OSError:  # Linux's answer when the last process has closed the terminal
        return b""

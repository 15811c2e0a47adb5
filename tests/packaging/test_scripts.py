"""The setup that all scripts share: it refuses with a reason, and touches nothing that is not its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("bench", "chaos", "check", "quickstart", "simulate", "test")
TOOLS = ("basename", "cat", "dirname", "ls", "mkdir", "rm", "sh")


def run(
    script: Path, environment: dict[str, str], cwd: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script), *arguments],
        env=environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_python_the_error_lists_what_was_searched(script: str, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool) or tool)

    environment = {"PATH": str(tools), "TIERLOG_VENV": str(tmp_path / "venv")}
    arguments = ["failover"] if script == "chaos" else []
    done = run(ROOT / "scripts" / script, environment, tmp_path, *arguments)

    assert done.returncode == 1
    assert done.stderr.startswith(f"{script}: no suitable Python found. Tried python3, python3.13, ")
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")

    done = run(ROOT / "scripts" / "test", {**os.environ, "TIERLOG_VENV": str(tmp_path)}, tmp_path)

    assert done.returncode == 1
    assert (
        done.stderr
        == f"test: {tmp_path} exists and is no virtual environment; remove it or name another folder with "
        f"TIERLOG_VENV.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--bogus"], 2, "unrecognized arguments: --bogus"),
        (["--input", "no-such-file"], 2, "--input: no-such-file does not exist"),
        (["--help"], 0, "usage: scripts/quickstart"),
    ],
)
def test_the_quickstart_looks_at_its_arguments_before_it_makes_an_environment(
    arguments: list[str], status: int, words: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "TIERLOG_VENV": str(tmp_path / "venv")}
    done = run(ROOT / "scripts" / "quickstart", environment, tmp_path, *arguments)

    assert done.returncode == status
    assert words in (done.stderr if status else done.stdout)
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("during", ["tomllib", "install"])
def test_ctrl_c_during_the_setup_ends_it_silently(during: str, tmp_path: Path) -> None:
    """A terminal sends the signal to all processes; the environment's Python does when it runs ``during``."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(
        f"#!{sys.executable}\n"
        "import os, signal, sys\n"
        f"if {during!r} in ' '.join(sys.argv):\n"
        "    os.kill(0, signal.SIGINT)\n"
        "if sys.argv[1] != '-m':\n"
        f"    os.execv({sys.executable!r}, sys.argv)\n"
    )
    python.chmod(0o755)
    (tmp_path / ".tierlog-run").touch()  # of an earlier version
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "quickstart"), "--no-spark"],
        env={**os.environ, "TIERLOG_VENV": str(tmp_path)},
        capture_output=True,
        start_new_session=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("arguments, status", [(["--help"], 0), ([], 2), (["bogus"], 2)])
def test_chaos_lists_its_scripts(arguments: list[str], status: int, tmp_path: Path) -> None:
    done = run(ROOT / "scripts" / "chaos", dict(os.environ), tmp_path, *arguments)

    assert done.returncode == status
    assert (done.stdout or done.stderr).startswith("usage: scripts/chaos SCRIPT [OPTION...]")


def test_every_script_can_be_executed() -> None:
    assert [
        name for name in ("scripts/" + script for script in SCRIPTS) if not os.access(ROOT / name, os.X_OK)
    ] == []
    assert os.access(ROOT / ".ci" / "run", os.X_OK)

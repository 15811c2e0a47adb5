"""Each decoder under atheris for so many seconds, when ``--fuzz SECONDS`` asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz.targets import TARGETS

TESTS = Path(__file__).resolve().parents[1]
START_SECONDS = 60
"""Importing instrumented code, and running the examples, before the fuzzing proper."""
OPTIONS = ("-max_len=4096", "-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1")
MISSING = (
    "--fuzz needs atheris (Linux, Python 3.11 to 3.13): install the extra with pip install -e '.[dev,fuzz]'"
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Without ``--fuzz`` one skipped test stands for all."""
    names = list(TARGETS) if metafunc.config.getoption("--fuzz") else ["every target"]
    metafunc.parametrize("name", names)


@pytest.mark.timeout(0)  # the process below has a time limit of its own
def test_nothing_is_found_in_the_time_given(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--fuzz")
    if not seconds:
        pytest.skip("coverage-guided fuzzing: run with --fuzz SECONDS")
    if find_spec("atheris") is None:
        pytest.fail(MISSING, pytrace=False)

    ended = fuzz(name, tmp_path, seconds)

    assert ended.returncode == 0, report(name, tmp_path, ended)


def fuzz(name: str, folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    corpus = folder / "corpus"
    corpus.mkdir()
    options = (*OPTIONS, f"-max_total_time={max(1, round(seconds))}", f"-artifact_prefix={folder}/found-")
    return subprocess.run(
        [sys.executable, "-m", "fuzz.atheris_targets", name, str(corpus), *options],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds + START_SECONDS,
    )


def report(name: str, folder: Path, ended: subprocess.CompletedProcess[str]) -> str:
    found = [f"bytes.fromhex({path.read_bytes().hex()!r})" for path in sorted(folder.glob("found-*"))]
    lines = [line for line in ended.stderr.splitlines() if not line.startswith(("INFO:", "#", "\t"))]
    return "\n".join((f"{name}: add what was found to the target's `hostile` bytes:", *found, *lines[-60:]))

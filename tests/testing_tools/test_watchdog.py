"""What a test that hangs leaves to read."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from support.watchdog import report

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
HANGS = """
import threading

import pytest

@pytest.mark.timeout(0.1)
def test_waits():
    threading.Event().wait()
"""


async def waits_for_a_signal() -> None:
    await anyio.Event().wait()


async def calls_it() -> None:
    await waits_for_a_signal()


@pytest.mark.anyio
async def test_it_names_the_test_and_where_each_task_waits() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls_it)
        await anyio.wait_all_tasks_blocked()
        text = await anyio.to_thread.run_sync(report, "tests/test_x.py::test_y", 60)
        tasks.cancel_scope.cancel()

    assert "tests/test_x.py::test_y reached its time limit of 60 s" in text
    assert re.search(
        r"task: .*waits_for_a_signal \(test_watchdog.py:\d+\) < calls_it \(test_watchdog.py:\d+\)", text
    )


@pytest.mark.anyio
async def test_it_shows_a_task_that_runs() -> None:
    text = report("tests/test_x.py::test_y", 60)

    assert re.search(r"task: .*test_it_shows_a_task_that_runs \(test_watchdog.py:\d+\)", text)


def test_it_shows_the_stack_of_each_other_thread() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def blocks_in_a_thread() -> None:
        begun.set()
        go_on.wait()

    thread = threading.Thread(target=blocks_in_a_thread, name="blocker")
    thread.start()
    begun.wait()
    text = report("tests/test_x.py::test_y", 60)
    go_on.set()
    thread.join()

    assert "thread blocker:" in text
    assert "in blocks_in_a_thread" in text


@pytest.mark.extended
def test_one_process_of_a_run_writes_it_where_the_run_prints(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(HANGS)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            PROJECT,
            "-p",
            "conftest",
            "-n",
            "1",
            "--timeout",
            "1",
            tmp_path,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT.parent / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 1
    assert "test_one.py::test_waits reached its time limit" in run.stderr
    assert "in test_waits" in run.stderr

"""Several executor processes: what a session in one process cannot show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.spark import ROOT, WIDE, missing, staged, values, written
from support.spark_shuffled_retry import ROWS
from tierlog import SyncClient

TESTS = Path(__file__).resolve().parents[1]


pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def lost_and_doubled(store: SyncClient, url: str, segment: str, *kind: str) -> tuple[int, int]:
    """A JVM of its own: this process may have one with another master."""
    if reason := missing():
        pytest.skip(reason)
    program = [sys.executable, "-m", "support.spark_shuffled_retry", url, segment, *kind]
    subprocess.run(program, cwd=TESTS, env={**os.environ, "PYTHONPATH": os.path.join(ROOT, "scripts")}, check=True, timeout=280)
    there, expected = Counter(written(store, segment)), Counter(values(ROWS, WIDE))
    return (expected - there).total(), (there - expected).total()


def test_tasks_that_run_again_after_a_shuffle_lose_and_double_nothing(url: str, store: SyncClient, segment: str) -> None:
    assert lost_and_doubled(store, url, segment) == (0, 0)
    assert staged(store, segment) == []


def test_numbered_appends_without_transactions_would_lose_rows_there(url: str, store: SyncClient, segment: str) -> None:
    """So the test above can fail."""
    lost, doubled = lost_and_doubled(store, url, segment, "naive")

    assert lost > 0
    assert doubled > 0

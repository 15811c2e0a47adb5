"""Several executor processes: what a session in one process cannot show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from chaos_parts.spark_session import spark_home
from support import spark_connect
from support.spark import ROOT, WIDE, missing, staged, values, written
from support.spark_shuffled_retry import ROWS
from tierlog import SyncClient

TESTS = Path(__file__).resolve().parents[1]


pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def run(program: str, *arguments: str) -> str:
    """A JVM of its own: this process may have one with another master. What it says on its standard
    output."""
    if reason := missing():
        pytest.skip(reason)
    path = os.pathsep.join((os.path.join(ROOT, "scripts"), str(TESTS)))
    command = [sys.executable, "-m", f"support.{program}", *arguments]
    return subprocess.run(
        command,
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=280,
    ).stdout


def lost_and_doubled(store: SyncClient, url: str, segment: str, *kind: str) -> tuple[int, int]:
    run("spark_shuffled_retry", url, segment, *kind)
    there, expected = Counter(written(store, segment)), Counter(values(ROWS, WIDE))
    return (expected - there).total(), (there - expected).total()


def test_tasks_that_run_again_after_a_shuffle_lose_and_double_nothing(
    url: str, store: SyncClient, segment: str
) -> None:
    assert lost_and_doubled(store, url, segment) == (0, 0)
    assert staged(store, segment) == []


def test_numbered_appends_without_transactions_would_lose_rows_there(
    url: str, store: SyncClient, segment: str
) -> None:
    """So the test above can fail."""
    lost, doubled = lost_and_doubled(store, url, segment, "naive")

    assert lost > 0
    assert doubled > 0


def test_a_cluster_in_one_machine_leaves_no_folders_where_spark_is_installed(
    url: str, store: SyncClient, segment: str
) -> None:
    before = works()
    lost_and_doubled(store, url, segment)

    assert works() <= before


def works() -> set[str]:
    return {path.name for path in (spark_home() / "work").glob("app-*")}


def test_a_client_of_spark_connect_writes_and_reads(url: str, store: SyncClient, segment: str) -> None:
    for needed in ("grpc", "grpc_status", "zstandard"):
        pytest.importorskip(needed)
    found = json.loads(run("spark_connect", url, segment).splitlines()[-1])

    assert [value.encode() for value in found] == values(spark_connect.ROWS) == written(store, segment)
    assert staged(store, segment) == []

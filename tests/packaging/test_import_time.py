"""``import tierlog`` is cheap: what is heavy is imported by the call that needs it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

HEAVY = {
    "aiobotocore",
    "cattrs",
    "httpx",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "trio",
    "typer",
    "uvicorn",
}

BARE_PYTHON_SECONDS = 0.024
"""What ``python -c pass`` took on the machine on which the budget was set."""
BUDGET_SECONDS = 0.150
NOISE = 1.5


def run(*arguments: str, cwd: Path) -> str:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, check=True
    ).stderr


def seconds(program: str, cwd: Path) -> float:
    begin = time.perf_counter()
    run("-c", program, cwd=cwd)

    return time.perf_counter() - begin


OPENING = """\
import anyio, tierlog

async def main():
    async with tierlog.open_store("data") as store:
        await store.create_segment("s")

anyio.run(main)
"""


def imported_by(program: str, cwd: Path) -> set[str]:
    lines = run("-X", "importtime", "-c", program, cwd=cwd).splitlines()
    return {
        line.rpartition("|")[2].strip().split(".")[0] for line in lines if line.startswith("import time:")
    }


def test_importing_tierlog_imports_nothing_heavy(tmp_path: Path) -> None:
    imported = imported_by("import tierlog", tmp_path)

    assert "tierlog" in imported
    assert imported & HEAVY == set()


def test_opening_a_store_imports_nothing_that_only_the_service_needs(tmp_path: Path) -> None:
    """msgspec alone takes 18 ms, a tenth of the time from an open to the first ack."""
    imported = imported_by(OPENING, tmp_path)

    assert imported & (HEAVY | {"httptools", "msgspec", "starlette"}) == set()


def test_opening_a_store_imports_nothing_that_a_default_configuration_does_not_need(tmp_path: Path) -> None:
    """Together these take a tenth of the time from an open to the first ack."""
    lines = run("-X", "importtime", "-c", OPENING, cwd=tmp_path).splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}

    unneeded = {"argparse", "decimal", "difflib", "fractions", "importlib.metadata", "tomllib"}
    assert imported & unneeded == set()


def test_importing_tierlog_stays_within_its_budget(tmp_path: Path) -> None:
    """The figure is a ratio to starting Python, so that it means the same on a slow or busy machine."""
    rounds = [(seconds("pass", tmp_path), seconds("import tierlog", tmp_path)) for _ in range(7)]
    bare = min(first for first, _ in rounds)
    whole = min(second for _, second in rounds)

    assert (whole - bare) / bare <= NOISE * BUDGET_SECONDS / BARE_PYTHON_SECONDS

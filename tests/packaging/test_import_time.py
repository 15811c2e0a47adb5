"""``import tierlog`` is cheap: what is heavy is imported by the call that needs it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def modules_of(program: str, cwd: Path) -> set[str]:
    return set(run("-c", f"import sys\n{program}\nprint(*sys.modules, file=sys.stderr)", cwd=cwd).split())


CONTAINERS = {
    f"tierlog.{name}"
    for name in (
        "actors.container.container",
        "actors.flush.writer",
        "actors.store.opening",
        "journal.log.local",
        "journal.operations.append",
        "storage_backends.segments.storage",
        "storage_backends.sorted_runs.table",
    )
}


def test_a_supervisor_imports_no_container_and_a_host_does(tmp_path: Path) -> None:
    """The hosts start when the supervisor has been imported, a third of whose time containers would take."""
    supervisor = modules_of("import tierlog.actors.supervisor.service", tmp_path)
    host = modules_of("import tierlog.actors.host.main", tmp_path)

    assert supervisor & CONTAINERS == set()
    assert host >= CONTAINERS


@pytest.mark.parametrize("process", ["supervisor.service", "host.main"])
def test_processes_of_a_service_import_nothing_that_only_some_of_them_need(
    process: str, tmp_path: Path
) -> None:
    """Clients, other stores than folders, tracing, and the command line that starts them."""
    imported = modules_of(f"import tierlog.actors.{process}", tmp_path)
    roots = {name.partition(".")[0] for name in imported}

    unneeded = {
        "aiobotocore",
        "aiohttp",
        "botocore",
        "httpx",
        "prometheus_client",
        "pyarrow",
        "pyspark",
        "rich",
    }
    assert roots & unneeded == set()
    assert imported & {"difflib", "importlib.metadata", "tierlog.actors.store.shared", "tomllib"} == set()


COLLECTIONS = """\
import gc, tierlog

collections = []
gc.callbacks.append(lambda phase, details: collections.append(phase))
if ENABLED:
    gc.enable()
else:
    gc.disable()
del collections[:]
tierlog.open_store
seen = collections.count("start")
assert seen <= 1, seen  # the one that is due when it is over
assert gc.isenabled() is ENABLED
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_a_public_name_collects_no_garbage_and_leaves_the_collector_as_it_was(
    enabled: bool, tmp_path: Path
) -> None:
    run("-c", COLLECTIONS.replace("ENABLED", str(enabled)), cwd=tmp_path)


COMPARED = """\
import gc, sys, attrs, tierlog

tierlog.open_store
classes = [each for each in gc.get_objects() if isinstance(each, type) and attrs.has(each)]
own = {each.__name__ for each in classes if each.__module__.startswith("tierlog") and "__eq__" in vars(each)}
sys.stderr.write(" ".join(sorted(own)))
"""


def test_classes_that_an_opening_loads_have_no_compiled_comparisons(tmp_path: Path) -> None:
    """A class with compiled comparison, hash and representation takes twice as long to make; 65 of them took
    a twentieth of the time from an open to the first ack. ``Value`` compares by the fields instead.
    ``FileId`` has an order besides."""
    compared = set(run("-c", COMPARED, cwd=tmp_path).split())

    assert compared <= {"FileId"}


def test_importing_tierlog_stays_within_its_budget(tmp_path: Path) -> None:
    """The figure is a ratio to starting Python, so that it means the same on a slow or busy machine."""
    rounds = [(seconds("pass", tmp_path), seconds("import tierlog", tmp_path)) for _ in range(7)]
    bare = min(first for first, _ in rounds)
    whole = min(second for _, second in rounds)

    assert (whole - bare) / bare <= NOISE * BUDGET_SECONDS / BARE_PYTHON_SECONDS

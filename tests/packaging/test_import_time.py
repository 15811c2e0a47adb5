"""``import tierlog`` is cheap: what is heavy is imported by the call that needs it."""

from __future__ import annotations

import importlib.util
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


ACKED = """\
import anyio, attrs, gc, sys, tierlog

async def main():
    async with tierlog.open_store("data") as store:
        await store.create_segment("s")
        await store.append("s", b"first")
        modules = list(sys.modules)
        classes = [each for each in gc.get_objects() if isinstance(each, type) and attrs.has(each)]

    own = [each for each in classes if each.__module__.startswith("tierlog")]
    compared = [each.__name__ for each in own if "__eq__" in vars(each)]
    for found in (modules, [each.__name__ for each in own], compared):
        print(*found, file=sys.stderr)

anyio.run(main)
"""
"""Prints the modules, the classes of attrs, and those of them with compiled comparisons, that there are when
the first append is acked."""

LIBRARIES = {
    "anyio",
    "attr",
    "attrs",
    "crc32c",
    "idna",
    "msgspec",
    "sniffio",
    "sortedcontainers",
    "tierlog",
    "typing_extensions",
}
"""All that an opening may import besides the standard library; anyio needs some of them."""

LATER = {
    f"tierlog.{name}"
    for name in (
        "actors.chunk_io.statistics",
        "actors.container.cached_chunks",
        "actors.container.segment_layout",
        "actors.container.statistics",
        "actors.flush.statistics",
        "actors.gc.statistics",
        "actors.kernel.statistics",
        "actors.legacy_rolling.hook",
        "actors.read.statistics",
        "actors.store.graceful_end",
        "actors.store.nesting",
        "actors.store.shared",
        "actors.store.statistics",
        "actors.store.views",
        "journal.log.s3_layout",
        "journal.log.s3_slot",
        "storage_backends.base.ledger_service",
        "storage_backends.base.object_store",
        "storage_backends.base.storage_statistics",
        "storage_backends.base.table",
        "storage_backends.chunks.cached",
        "storage_backends.chunks.chunk_cache",
        "storage_backends.chunks.s3_request_counts",
        "storage_backends.segments.operations.defrag",
        "storage_backends.segments.operations.read",
        "storage_backends.segments.operations.write",
        "storage_backends.segments.statistics",
        "storage_backends.sorted_runs.compaction",
        "storage_backends.sorted_runs.merge",
        "storage_backends.sorted_runs.statistics",
    )
}
"""What the first ack does not need, and what needs it imports."""

MODULES_MAX, CLASSES_MAX = 310, 65
"""Of tierlog, and of attrs in it: each module takes about 0.2 ms of an opening, each class as much; a struct
(decision 33) takes 0.01 ms."""


def acked(cwd: Path) -> list[set[str]]:
    return [set(line.split()) for line in run("-c", ACKED, cwd=cwd).splitlines()]


def imported_by(program: str, cwd: Path) -> set[str]:
    lines = run("-X", "importtime", "-c", program, cwd=cwd).splitlines()
    return {
        line.rpartition("|")[2].strip().split(".")[0] for line in lines if line.startswith("import time:")
    }


def test_importing_tierlog_imports_nothing_heavy(tmp_path: Path) -> None:
    imported = imported_by("import tierlog", tmp_path)

    assert "tierlog" in imported
    assert imported & HEAVY == set()


def test_a_first_ack_needs_few_libraries(tmp_path: Path) -> None:
    roots = {name.partition(".")[0] for name in acked(tmp_path)[0]}

    others = roots - sys.stdlib_module_names - {"__main__", "__mp_main__", "_distutils_hack"}
    assert {name for name in others if not name.startswith("__editable__")} <= LIBRARIES


def test_a_first_ack_imports_nothing_that_a_default_configuration_does_not_need(tmp_path: Path) -> None:
    """What it need not import took a fifth of the time from an open to the first ack."""
    modules, classes, _ = acked(tmp_path)

    unneeded = {"argparse", "difflib", "fractions", "importlib.metadata", "tomllib"}
    assert modules & (unneeded | LATER) == set()
    assert len([name for name in modules if name.partition(".")[0] == "tierlog"]) <= MODULES_MAX
    assert len(classes) <= CLASSES_MAX


def test_what_an_opening_imports_later_exists() -> None:
    assert [name for name in LATER if importlib.util.find_spec(name) is None] == []


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


def test_classes_that_an_opening_loads_have_no_compiled_comparisons(tmp_path: Path) -> None:
    """A class with compiled comparison, hash and representation takes twice as long to make; 65 of them took
    a twentieth of the time from an open to the first ack. ``Value`` compares by the fields instead.
    ``FileId`` has an order besides."""
    compared = acked(tmp_path)[2]

    assert compared <= {"FileId"}


def test_importing_tierlog_stays_within_its_budget(tmp_path: Path) -> None:
    """The figure is a ratio to starting Python, so that it means the same on a slow or busy machine."""
    rounds = [(seconds("pass", tmp_path), seconds("import tierlog", tmp_path)) for _ in range(7)]
    bare = min(first for first, _ in rounds)
    whole = min(second for _, second in rounds)

    assert (whole - bare) / bare <= NOISE * BUDGET_SECONDS / BARE_PYTHON_SECONDS

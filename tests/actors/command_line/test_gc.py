"""``tierlog gc``: the tasks of a folder, what nothing refers to, and the refusals. A running service is in
``supervisor_process/test_gc.py``."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run

NAME = "app/events"


@pytest.fixture
def deleted(folder: Path) -> Path:
    """A store whose owner ended before it deleted the chunks of a deleted segment."""

    async def write() -> None:
        async with tierlog.open_store(folder, containers=2) as store:
            for name in (NAME, "kept"):
                await store.create_segment(name)
                await store.append(name, b"abc")
            await store.flush()
            await store.delete_segment(NAME)
            await store.flush()

    anyio.run(write)
    return folder


def test_status_of_a_folder_shows_what_the_next_owner_finds(run: Run, deleted: Path) -> None:
    found = json.loads(run("gc", "status", "--json").out)
    assert [each["queue"] for each in found] == ["GC_queue_0", "GC_queue_1"]
    assert [each["failed_queue"] for each in found] == ["GC_failed_queue_0", "GC_failed_queue_1"]
    assert sum(each["queued"] for each in found) == 1
    assert "GC_queue_1" in run("gc", "status").out


def test_ls_of_a_folder_names_the_objects(run: Run, deleted: Path) -> None:
    [task] = json.loads(run("gc", "ls", "--json").out)
    assert (task["kind"], task["state"]) == ("delete chunk", "listing")
    assert (deleted / "lts" / task["name"]).exists()
    assert run("gc", "ls", "--container", str(1 - task["container"]), "--json").out == "[]\n"


def test_a_sweep_only_shows_what_nothing_refers_to(run: Run, deleted: Path) -> None:
    [found] = json.loads(run("gc", "sweep", "--json").out)
    assert (found["chunks"], found["bytes"], found["reason"]) == (1, 3, "")
    assert run("gc", "sweep").code == 0
    assert json.loads(run("gc", "sweep", "--json").out) == [found]


def test_a_sweep_of_a_store_without_garbage_finds_nothing(run: Run, folder: Path) -> None:
    run("segment", "create", NAME)
    assert run("gc", "sweep").out.splitlines()[-1] == "nothing to sweep"
    assert run("gc", "sweep", "--confirm", "--json").out == "[]\n"


@pytest.mark.parametrize("order", ["failed", "retry", "purge", "pause", "resume"])
def test_orders_need_a_running_service(run: Run, order: str) -> None:
    refused = run("gc", order, "--url", "http://127.0.0.1:9")
    assert refused.code == 1
    assert "127.0.0.1:9" in refused.err

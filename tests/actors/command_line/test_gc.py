"""``tierlog gc``: the tasks of a folder, what nothing refers to, and the refusals. A running service is in
``supervisor_process/test_gc.py``."""

from __future__ import annotations

import json
import shutil
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


def test_r11_a_container_whose_log_is_lost_hides_none_of_the_others(run: Run, deleted: Path) -> None:
    """The others are shown, then the error with its command; nothing is asked that cannot be done."""
    [found] = json.loads(run("gc", "sweep", "--json").out)
    [task] = json.loads(run("gc", "ls", "--json").out)
    other = found["container"]
    shutil.rmtree(deleted / f"wal/000{1 - other}")

    for command in (("status",), ("ls",), ("sweep",), ("sweep", "--confirm", "--yes")):
        done = run("gc", *command, "--json")
        error, *more = done.err.splitlines()
        assert done.code == 1
        unconfirmed = "error: nothing was confirmed, since a folder is opened as a whole, or not at all"
        assert more == ([unconfirmed] if "--confirm" in command else [])
        assert error.startswith(f"error: container {1 - other}: its log is lost")
        assert f"`tierlog recover --from-lts --container {1 - other}`" in error
        shown = json.loads(done.out)
        assert [each["container"] for each in shown] == [other]
        assert shown in ([found], [task]) or command == ("status",)
    assert run("gc", "sweep").out.splitlines()[1].split()[0] == str(other)
    assert run("gc", "status", "--container", str(other)).code == 0
    alone = run("gc", "status", "--container", str(1 - other))
    assert (alone.code, alone.out) == (1, "")


@pytest.mark.usefixtures("deleted")
def test_a_sweep_that_could_not_look_at_all_containers_does_not_say_that_nothing_is_there(
    run: Run, folder: Path
) -> None:
    [found] = json.loads(run("gc", "sweep", "--json").out)
    shutil.rmtree(folder / f"wal/000{found['container']}")
    done = run("gc", "sweep")
    assert (done.code, "nothing to sweep" in done.out) == (1, False)
    assert "its log is lost" in done.err


@pytest.mark.parametrize("order", ["failed", "retry", "purge", "pause", "resume"])
def test_orders_need_a_running_service(run: Run, order: str) -> None:
    refused = run("gc", order, "--url", "http://127.0.0.1:9")
    assert refused.code == 1
    assert "127.0.0.1:9" in refused.err


@pytest.mark.parametrize("command", ["ls", "status"])
@pytest.mark.usefixtures("deleted")
def test_a_container_that_is_not_there_is_refused(run: Run, command: str) -> None:
    refused = run("gc", command, "--container", "99")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "error: there is no container 99: the store has 2\n"
    [shown] = json.loads(run("gc", "status", "--container", "1", "--json").out)
    assert shown["container"] == 1


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("ls", "--limit", "0"), "'--limit': it must be at least 1;"),
        (("ls", "--limit", "1001"), "'--limit': it must be at most 1000;"),
        (("pause", "--container", "-1"), "'--container': it must be at least 0;"),
        (("sweep", "--yes"), "--yes answers the question of --confirm"),
    ],
)
def test_wrong_usage_is_explained(run: Run, arguments: tuple[str, ...], words: str) -> None:
    refused = run("gc", *arguments)
    assert (refused.code, words in refused.err) == (2, True)


@pytest.mark.parametrize("order, heads", [("retry", "queue tried again state"), ("pause", "queue state")])
def test_an_order_shows_what_it_did(
    run: Run, monkeypatch: pytest.MonkeyPatch, order: str, heads: str
) -> None:
    async def answer(url: str, method: str, path: str, *_: object, **__: object) -> dict[str, object]:
        if path == "/v1/containers":
            return {"containers": [{"container": 0}]}

        return {"queue": "GC_queue_0", "names": 3, "paused": order == "pause"}

    monkeypatch.setattr("tierlog.actors.cli.gc.ask_service", answer)
    head, row = run("gc", order, "--container", "0").out.splitlines()
    assert head.split() == heads.split()
    assert row.split() == ["GC_queue_0", *(["3", "running"] if order == "retry" else ["paused"])]

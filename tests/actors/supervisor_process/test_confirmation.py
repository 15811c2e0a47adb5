"""A running service whose folder was adopted: it deletes nothing until an operator confirms it over HTTP
(rule G4)."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run, is_one_line
from support.live_service import SyncOwnService, name_in, wait_until
from tierlog.actors.cli.output import show_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


@pytest.fixture
def adopted(folder: Path) -> Path:
    """Container 0 has a log from before its first segment, and was adopted with it."""
    old = folder.with_name("old")

    async def write() -> None:
        async with tierlog.open_store(folder, containers=2):
            pass
        shutil.copytree(folder / "wal" / "0000", old)
        async with tierlog.open_store(folder, containers=2) as store:
            for index in range(2):
                await store.create_segment(name_in(index, 2))
                await store.append(name_in(index, 2), b"01234")
            await store.flush()

    async def adopt() -> None:
        async with tierlog.open_store(folder, containers=2, adopt=True):
            pass

    anyio.run(write)
    shutil.rmtree(folder / "wal" / "0000")
    old.rename(folder / "wal" / "0000")
    anyio.run(adopt)
    return folder


def files_of(folder: Path) -> list[Path]:
    """The files of a folder, whose service deletes files and folders meanwhile."""
    return sorted(Path(parent, name) for parent, _, names in os.walk(folder) for name in names)


def test_g4_a_running_service_is_confirmed_and_then_deletes(
    run: Run, adopted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "tierlog.toml"
    settings.write_text('[gc]\ndelay = "0s"\n')
    chunks, system = adopted / "lts" / "containers", adopted / "lts" / "_system" / "containers"
    runs = system / "0000" / "runs"
    [unknown, known], [run_file] = files_of(chunks), files_of(runs)
    size = unknown.stat().st_size + run_file.stat().st_size
    with SyncOwnService(adopted, f"--config={settings}") as service:
        service.settle()
        # The commands that the status prints.
        wait_until(lambda: service.status()["containers"][0]["unconfirmed"], "its host has reported it")
        advice = run("status", f"--url={service.url}").out.splitlines()[-2:]
        reason, confirm = (line.split("`")[1].split()[1:] for line in advice)
        assert "it is a copy or an old backup" in run(*reason).out
        assert confirm == ["gc", "sweep", "--confirm", "--url", service.url]

        monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
        refused = run(*confirm)
        assert "it is a copy or an old backup" in refused.out
        assert f"Let the store delete 2 unreferenced objects, {show_bytes(size)}?" in refused.err
        assert (refused.code, refused.err.endswith("error: nothing was confirmed\n")) == (1, True)
        assert (files_of(chunks), files_of(runs)) == ([unknown, known], [run_file])

        [confirmed] = json.loads(run(*confirm, "--yes", "--json").out)
        assert (confirmed["container"], confirmed["chunks"], confirmed["bytes"]) == (0, 2, size)
        wait_until(
            lambda: files_of(chunks) == [known] and not run_file.exists(),
            "what the container does not know is deleted",
        )
        assert run(*confirm).out.splitlines()[-1] == "nothing to sweep"


@pytest.mark.extended
def test_g4_the_requests_are_sent_to_the_containers_host(run: Run, folder: Path) -> None:
    with SyncOwnService(folder, containers=2) as service:
        service.settle()
        for index, (host, _) in service.assignments().items():
            other = next(each["url"] for each in service.status()["hosts"] if each["id"] != host)
            for method, verb in (("GET", "unconfirmed"), ("POST", "confirm")):
                path = f"/v1/containers/{index}/{verb}"
                answer = service.client.request(method, path, follow_redirects=False)
                assert (answer.status_code, answer.headers["location"]) == (
                    307,
                    f"{service.host(host)['url']}{path}",
                )
                assert service.client.request(method, path).status_code == 200
                assert service.client.request(method, f"{other}{path}").json()["code"] == "not-owner"

        assert service.client.get("/v1/containers/2/unconfirmed").json()["code"] == "no-such-container"
        refused = run("gc", "sweep", "--confirm", f"--url={service.url}", "--take-over")
        assert (refused.code, is_one_line(refused.err)) == (1, True)

"""``tierlog gc`` on a running service, whose supervisor sends each request to the container's host."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import anyio
import pytest

import tierlog
from support.command_line import Run
from support.live_service import SyncOwnService, name_in, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def flush(service: SyncOwnService) -> None:
    """All hosts at once: a container without a change has none."""
    for host in service.status()["hosts"]:
        assert service.client.post(f"{host['url']}/v1/flush", json={}).is_success


def test_the_queues_of_a_service_are_shown_paused_and_resumed(run: Run, folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tierlog.toml"
    settings.write_text('[gc]\ndelay = "0s"\n')
    with SyncOwnService(folder, f"--config={settings}", containers=2) as service:
        service.settle()
        url = f"--url={service.url}"
        paused = json.loads(run("gc", "pause", "--container", "1", url, "--json").out)
        assert paused == [{"queue": "GC_queue_1", "names": 0, "paused": True}]

        for index in range(2):
            name = name_in(index, 2)
            run("segment", "create", name, url)
            run("segment", "append", name, "--data-text", "abc", url)
        flush(service)
        chunks = {index: folder / "lts" / "containers" / f"{index:04d}" for index in range(2)}
        assert all(path.exists() for path in chunks.values())
        for index in range(2):
            run("segment", "delete", name_in(index, 2), url)
        flush(service)
        wait_until(lambda: not chunks[0].exists(), "the chunk of container 0 is deleted")

        states = {each["container"]: each for each in json.loads(run("gc", "status", url, "--json").out)}
        assert [states[index]["paused"] for index in range(2)] == [False, True]
        [task] = json.loads(run("gc", "ls", url, "--json").out)
        assert (task["container"], task["kind"]) == (1, "delete chunk")
        assert json.loads(run("gc", "failed", url, "--json").out) == []
        run("gc", "resume", url)
        wait_until(lambda: not chunks[1].exists(), "so is that of container 1")


@pytest.mark.extended
def test_a_container_that_is_not_served_hides_none_of_the_others(run: Run, folder: Path) -> None:
    """Each is answered for, and the exit code tells that not all are. The folder is a copy, so a sweep has
    something to confirm."""

    async def make() -> None:
        async with tierlog.open_store(folder.parent / "first", containers=3) as store:
            await store.flush()

    anyio.run(make)
    shutil.copytree(folder.parent / "first", folder)
    [log] = (folder / "wal").glob("*1/*.wal")
    log.write_bytes(b"")
    with SyncOwnService(folder) as service:
        wait_until(lambda: set(service.assignments()) == {0, 2}, "the others are served")
        url = f"--url={service.url}"
        for command in ("status", "pause", "ls", "failed", "resume", "sweep"):
            done = run("gc", command, url)
            [error] = done.err.splitlines()
            assert (done.code, error.startswith("error: container 1")) == (1, True)
            assert error.count("container 1") == 1
            if command not in ("ls", "failed", "sweep"):
                assert ["GC_queue_0" in done.out, "GC_queue_2" in done.out] == [True, True]
        paused = run("gc", "pause", url, "--json")
        assert [each["queue"] for each in json.loads(paused.out)] == ["GC_queue_0", "GC_queue_2"]
        swept = run("gc", "sweep", "--confirm", "--yes", url, "--json")
        assert (swept.code, [each["container"] for each in json.loads(swept.out)]) == (1, [0, 2])
        assert swept.err.startswith("error: container 1")
        assert {each["unconfirmed"] for each in json.loads(run("gc", "status", url, "--json").out)} == {""}
        [only] = json.loads(run("gc", "status", "--container=2", url, "--json").out)
        assert (only["container"], only["paused"]) == (2, True)
        alone = run("gc", "status", "--container=1", url)
        assert (alone.code, alone.out) == (1, "")
        assert "there is no container 3" in run("gc", "pause", "--container=3", url).err

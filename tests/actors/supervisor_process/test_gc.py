"""``tierlog gc`` on a running service, whose supervisor sends each request to the container's host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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

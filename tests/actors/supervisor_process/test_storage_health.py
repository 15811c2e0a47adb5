"""A real service whose long-term storage fails and returns: it reports it, takes appends meanwhile, and
recovers by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tierlog
from chaos_parts.service import TIERLOG
from support.live_service import SyncOwnService, name_in, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

CONFIG = """
[writer]
flush_age = "200ms"
error_pause = "50ms"
[storage]
attempts = 1
probe_interval = "50ms"
"""


def test_s7_a_chunk_root_that_disappears_is_reported_and_waited_for(folder: Path, tmp_path: Path) -> None:
    settings = tmp_path / "tierlog.toml"
    settings.write_text(CONFIG)
    name = name_in(0, 1)
    with (
        SyncOwnService(folder, f"--config={settings}", hosts=1, containers=1) as service,
        tierlog.connect_sync(service.url) as client,
    ):
        service.settle()
        client.create_segment(name)
        client.append(name, b"before;")
        client.flush()
        (folder / "lts").rename(folder / "lts-unmounted")
        (folder / "lts").mkdir()
        client.append(name, b"meanwhile;")

        reported = wait_until(
            lambda: service.client.get("/health").json()["unhealthy_storage"], "the supervisor reports it"
        )
        assert reported["host-0"]["state"] == "unreachable"
        assert "unmounted?" in reported["host-0"]["cause"]
        flush = service.client.post("/v1/flush")
        assert flush.status_code == 503
        assert "unmounted?" in flush.json()["detail"]
        host = service.host("host-0")
        assert host["storage"]["state"] == reported["host-0"]["state"]
        assert "unmounted?" in service.client.get("/").text
        assert (
            'tierlog_supervised_host_storage{host="host-0",storage="unreachable"} 1.0'
            in service.client.get("/metrics").text
        )
        shown = subprocess.run(
            [*TIERLOG, "status", f"--url={service.url}"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "host-0: long-term storage is unreachable:" in shown.stdout.replace("\n", " ")
        client.append(name, b"still;")
        assert client.read(name, 7, 100) == b"meanwhile;still;"

        (folder / "lts").rmdir()
        (folder / "lts-unmounted").rename(folder / "lts")
        wait_until(
            lambda: client.segment_info(name).flushed_length == 23, "what was taken meanwhile is flushed"
        )
        wait_until(
            lambda: not service.client.get("/health").json()["unhealthy_storage"],
            "long-term storage is healthy again",
        )
        assert service.host("host-0")["storage"] == {"state": "ok", "cause": ""}
        assert service.stop() == 0

"""A signal to one host: its containers are handed over before it goes (rule V10)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

import tierlog
from chaos_parts.processes import processes_naming
from support.live_service import SyncOwnService, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def test_v10_sigterm_to_a_host_hands_its_containers_over_and_replaces_it(folder: Path) -> None:
    with SyncOwnService(folder, containers=4) as service:
        service.settle()
        service.create("app/events")
        service.append("app/events", b"before ")
        pid = service.pids()["host-0"]
        os.kill(pid, signal.SIGTERM)
        service.append("app/events", b"meanwhile ")
        wait_until(lambda: service.pids()["host-0"] not in (pid, 0), "another process takes its place")
        service.settle()
        service.append("app/events", b"after")
        assert service.read("app/events") == b"before meanwhile after"
        host = service.host("host-0")
        assert (host["last_exit"], host["exits"]) == ("exited with code 0", 0)
        assert service.status()["failovers"] == 0, "nothing was lost, so nothing had to be failed over"
        assert service.stop() == 0


def test_v8_a_host_that_is_killed_while_it_exits_by_order_is_a_failover(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_TIMEOUTS_CLOSE", "3600")
    monkeypatch.setenv("TIERLOG_SERVER_DRAIN_LIMIT", "3600")
    with SyncOwnService(folder, hosts=1, containers=2) as service:
        service.settle()
        pid = service.pids()["host-0"]
        with service.half_request():
            assert service.post("/v1/roll").is_success
            wait_until(lambda: '"event": "draining"' in service.log, "the host exits by order")
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: service.pids()["host-0"] not in (pid, 0), "another process takes its place")
        service.settle()
        host = service.host("host-0")
        assert (host["last_exit"], host["exits"]) == ("was ended by SIGKILL", 1)
        assert service.status()["failovers"] == 2
        assert service.stop() == 0


def test_f9_the_end_of_a_service_leaves_nothing_to_flush(folder: Path) -> None:
    with SyncOwnService(folder, hosts=1, containers=2) as service:
        service.settle()
        for number in range(6):
            service.create(f"app/{number}")
            service.append(f"app/{number}", b"x" * 1000)
        assert service.stop() == 0
        assert '"event": "ended_flushed"' in service.log
        assert '"event": "ended_unflushed"' not in service.log

    async def check() -> None:
        async with tierlog.open_store(folder) as store:
            for number in range(6):
                info = await store.segment_info(f"app/{number}")
                assert (info.length, info.flushed_length) == (1000, 1000)

    anyio.run(check)


@pytest.mark.extended
def test_a_host_without_others_drains_and_is_replaced(folder: Path) -> None:
    with SyncOwnService(folder, hosts=1, containers=2) as service:
        service.settle()
        pid = service.pids()["host-0"]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: service.pids()["host-0"] not in (pid, 0), "another process takes its place")
        service.settle()
        assert service.host("host-0")["last_exit"] == "exited with code 0"
        assert service.stop() == 0


@pytest.mark.extended
def test_a_host_without_a_supervisor_drains_at_once(folder: Path) -> None:
    with SyncOwnService(folder) as service:
        service.settle()
        pids = service.pids()
        service.kill()
        wait_until(lambda: service.log.count('"event": "supervisor_lost"') == 2, "the hosts know")
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not processes_naming(folder), "both have ended")
        assert service.log.count('"event": "host_ended"') == 2
        assert '"event": "drain_requested"' not in service.log
        with SyncOwnService(folder, hosts=1) as second:
            second.settle()
            assert second.stop() == 0

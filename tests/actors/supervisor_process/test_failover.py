"""Hosts and supervisors that are killed, frozen and started again: what is served afterwards, by whom (rules
V1, V4 to V7, V9)."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from chaos_parts.processes import processes_naming
from support.live_service import SyncOwnService, descriptors, name_in, wait_until
from support.patience import scaled

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


@pytest.mark.extended
def test_a_service_starts_serves_and_stops_without_leaving_anything(folder: Path) -> None:
    with SyncOwnService(folder, containers=3) as service:
        service.settle()
        # On a busy machine one of them may connect after the other has all containers.
        assert re.search(r"serving 3 containers on (1 of )?2 hosts at http://127\.0\.0\.1:", service.printed)
        service.create("app/events")
        service.append("app/events", b"hello")
        assert service.read("app/events") == b"hello"
        assert service.stop() == 0
    assert service.errors == []


def test_v6_a_killed_hosts_containers_are_served_elsewhere_with_all_that_was_acked(folder: Path) -> None:
    with SyncOwnService(folder) as service:
        service.settle()
        name = name_in(0, 4)
        service.create(name)
        service.append(name, b"before ")
        host, epoch = service.assignments()[0]
        began = time.monotonic()
        os.kill(service.pids()[host], signal.SIGKILL)
        service.append(name, b"after")
        took = time.monotonic() - began
        assert service.read(name) == b"before after"
        assert service.assignments()[0][0] != host
        assert service.assignments()[0][1] > epoch
        assert took < scaled(15), "far above what it takes, and below any timeout that could have helped"
        assert service.status()["failovers"] == 2
        assert max(service.status()["failover_seconds"]) < scaled(15)
        service.settle()
        assert service.host(host)["last_exit"] == "was ended by SIGKILL"


def test_v5_a_frozen_hosts_containers_are_served_elsewhere_and_it_is_fenced_when_it_wakes(
    folder: Path,
) -> None:
    with SyncOwnService(folder) as service:
        service.settle()
        name = name_in(0, 4)
        service.create(name)
        host, epoch = service.assignments()[0]
        pid = service.pids()[host]
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: service.assignments().get(0, (host, 0))[0] != host, "the other host has it")
        took = time.monotonic() - began
        assert service.assignments()[0][1] > epoch
        service.append(name, b"meanwhile")
        assert took < scaled(15), "far above what it takes, and below the silence that it does not wait for"
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: '"event": "container_fenced"' in service.log, "the zombie finds out")
        service.settle()
        assert service.pids()[host] == pid, "it was not replaced, and takes containers again"
        assert service.read(name) == b"meanwhile"


@pytest.mark.extended
def test_v7_a_supervisor_that_was_frozen_declares_no_host_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_SILENCE", "2")
    with SyncOwnService(folder) as service:
        service.settle()
        pids, assignments = service.pids(), service.assignments()
        service.process.send_signal(signal.SIGSTOP)
        time.sleep(3)  # Longer than the silence after which a host counts as lost.
        service.process.send_signal(signal.SIGCONT)
        beats = service.log.count("host_frozen")
        assert (service.pids(), service.assignments(), service.status()["failovers"], beats) == (
            pids,
            assignments,
            0,
            0,
        )
        assert service.client.get("/ready").status_code == 200


def test_v4_a_killed_supervisors_successor_finds_its_hosts_and_moves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_ADOPTION", "20")
    with SyncOwnService(folder) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"kept")
        pids, assignments, term = first.pids(), first.assignments(), first.status()["term"]
        first.kill()
        with SyncOwnService(folder) as second:
            second.settle()
            assert second.pids() == pids
            assert second.assignments() == assignments
            assert second.status()["term"] == term + 1
            assert second.read("app/events") == b"kept"
            os.kill(pids["host-0"], signal.SIGKILL)
            second.append("app/events", b" and on")
            second.settle()
            assert second.read("app/events") == b"kept and on"
            assert second.stop() == 0


@pytest.mark.extended
def test_a_supervisor_and_all_hosts_killed_lose_nothing_acked(folder: Path) -> None:
    with SyncOwnService(folder) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"kept")
        pids = first.pids()
        first.kill()
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
    with SyncOwnService(folder) as second:
        assert second.read("app/events") == b"kept"
        assert not set(second.pids().values()) & set(pids.values())


@pytest.mark.extended
def test_v4_a_frozen_host_is_replaced_by_a_new_supervisor(folder: Path) -> None:
    with SyncOwnService(folder) as first:
        first.settle()
        pid = first.pids()["host-1"]
        os.kill(pid, signal.SIGSTOP)
        first.kill()
        with SyncOwnService(folder) as second:
            second.settle()
            assert second.pids()["host-1"] != pid
            assert pid not in processes_naming(folder)


@pytest.mark.extended
def test_v4_hosts_without_a_supervisor_serve_until_their_grace_ends(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "tierlog.toml"
    config.write_text("[server]\norphan_grace = 0.5\n")
    with SyncOwnService(folder, f"--config={config}", containers=2) as service:
        service.settle()
        service.kill()
        assert len(processes_naming(folder)) == 2
        wait_until(lambda: not processes_naming(folder), "the hosts end by themselves")
    # The socket that a killed supervisor leaves is replaced by the next one.
    with SyncOwnService(folder, hosts=1) as next_one:
        assert next_one.stop() == 0


@pytest.mark.extended
def test_v1_a_supervisor_exits_when_it_learns_of_a_higher_term(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_ADOPTION", "20")
    with SyncOwnService(folder) as first:
        first.settle()
        pids = set(first.pids().values())
        # A lock can be lost with a file; the term cannot.
        (folder / "supervisor" / "lock").unlink()
        (path,) = (path for path in Path(os.environ["XDG_RUNTIME_DIR"]).rglob("*") if path.is_socket())
        path.unlink()
        with SyncOwnService(folder) as second:
            assert first.process.wait(scaled(20)) == 1
            assert "another supervisor took over (its term is 2, this one's 1)" in first.errors[-1]
            second.settle()
            assert set(second.pids().values()) == pids
            assert second.stop() == 0


@pytest.mark.extended
def test_a_rolling_restart_replaces_every_process_and_loses_nothing(folder: Path) -> None:
    with SyncOwnService(folder) as service:
        service.settle()
        service.create("app/events")
        before = service.pids()
        assert service.post("/v1/roll").status_code == 202
        count = 0

        def is_rolled() -> bool:
            nonlocal count
            service.append("app/events", b"%04d" % count)
            count += 1
            return not set(service.pids().values()) & set(before.values()) and service.is_balanced()

        wait_until(is_rolled, "every host is another process")
        assert service.read("app/events") == b"".join(b"%04d" % number for number in range(count))
        assert [host["exits"] for host in service.status()["hosts"]] == [0, 0]


@pytest.mark.extended
def test_lost_hosts_leave_no_descriptor_in_the_supervisor(folder: Path) -> None:
    with SyncOwnService(folder) as service:

        def lose_one() -> int:
            pid = service.pids()["host-0"]
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: service.pids()["host-0"] not in (pid, 0), "another process takes its place")
            service.settle()
            return descriptors(service.process.pid)

        service.settle()
        before = lose_one()
        after = lose_one()
        wait_until(lambda: descriptors(service.process.pid) <= before, f"{before} and not {after}")

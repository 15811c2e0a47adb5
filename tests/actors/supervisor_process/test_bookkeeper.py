"""A service whose store is on a real BookKeeper, on several machines: what happens when a host, a supervisor
or a sidecar dies or stands still (rules V1, V5, V6, D7, W6). Its chunks are in a folder that all of them
share."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_bookkeeper import LocalBookKeeper
from support.bookkeeper import installation, local_bookkeeper
from support.live_service import SyncOwnService, name_in, nothing_left, wait_until
from support.machines import PREFIX, Machines, joined_line
from support.patience import scaled
from support.s3_server import S3Server
from tierlog.storage_backends.ledgers.java_runtime import find_java

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"),
]
SESSION = 4
"""Seconds for which a session at ZooKeeper outlives silence."""
SHORT = {"silence": "1", "silent_grace": "2"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def bookkeeper() -> Iterator[LocalBookKeeper]:
    with local_bookkeeper() as service:
        yield service


@pytest.fixture
def machines(
    bookkeeper: LocalBookKeeper, _server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machines]:
    monkeypatch.setenv("TIERLOG_SERVER_LEASE", "1")
    shared = tmp_path / "shared"
    shared.mkdir()
    environment = {
        "TIERLOG_BOOKKEEPER_FOLDER": str(installation().folder),
        "TIERLOG_BOOKKEEPER_TIMEOUT": f"{SESSION} s",
        "TIERLOG_CHUNKS": str(shared),
    }
    for name, value in {**environment, "TIERLOG_CHUNK_CACHE_PATH": str(tmp_path / "here")}.items():
        monkeypatch.setenv(name, value)
    with tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(Path(PREFIX), Path(runtime)):
            place = f"bookkeeper://{bookkeeper.servers}/{PREFIX}/{next(_numbers)}"
            yield Machines(tmp_path, _server, place, environment)
    wait_until(lambda: not sidecars(shared), "each ends with its process")


def sidecars(chunks: Path) -> dict[int, int]:
    """The sidecars of the store with these chunks, by the process that has started them."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"TIERLOG_CHUNKS={chunks}".encode() in (process / "environ").read_bytes().split(b"\0")
            if is_ours and b"Sidecar" in (process / "cmdline").read_bytes().split(b"\0"):
                parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(parent)] = int(process.name)
        except OSError:  # it has ended, or is the system's
            continue
    return found


def sidecar_of(machines: Machines, pid: int) -> int:
    found: int = wait_until(lambda: sidecars(machines.disks / "shared").get(pid), f"the sidecar of {pid}")
    return found


def test_v6_a_killed_hosts_containers_are_served_by_another_with_all_that_was_acked(
    machines: Machines,
) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as supervisor,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4") as b,
    ):
        joined_line(a)
        supervisor.settle_on("a", "b")
        assert supervisor.status()["folder"] == machines.place
        name = name_in(next(index for index, (host, _) in supervisor.assignments().items() if host == "a"), 2)
        supervisor.create(name)
        supervisor.append(name, b"before ")
        a.process.kill()
        supervisor.append(name, b"after")
        assert supervisor.read(name) == b"before after"
        b.process.send_signal(signal.SIGTERM)
        assert b.wait() == 0
        assert supervisor.stop() == 0
    # Nothing runs: the log and the chunks have it.
    with serve(machines) as service:
        assert service.read(name) == b"before after"


def test_v1_a_standby_follows_a_killed_supervisor_and_no_container_moves(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as first,
        machines.host("a", "127.0.0.3"),
    ):
        first.settle_on("a")
        first.create("app/events")
        first.append("app/events", b"acked")
        before = first.assignments()
        standby = machines.supervise("127.0.0.5")
        try:
            wait_until(lambda: '"event": "standing_by"' in standby.log, "it waits")
            first.kill()
            with standby:
                standby.settle_on("a")
                assert standby.assignments() == before
                assert standby.status()["term"] == 2
                assert standby.read("app/events") == b"acked"
                assert standby.errors == []
        finally:
            standby.process.kill()


def test_d8_a_supervisor_that_stands_still_keeps_no_lease_although_its_sidecar_is_well(
    machines: Machines,
) -> None:
    with machines.supervise("127.0.0.2", "--containers=1") as first, machines.host("a", "127.0.0.3"):
        first.settle_on("a")
        standby = machines.supervise("127.0.0.5")
        try:
            wait_until(lambda: '"event": "standing_by"' in standby.log, "it waits")
            os.kill(first.process.pid, signal.SIGSTOP)
            with standby:
                assert standby.status()["term"] == 2
                os.kill(first.process.pid, signal.SIGCONT)
                assert first.process.wait(scaled(20)) == 1, "it finds the higher term"
        finally:
            standby.process.kill()


def test_v5_a_host_that_stood_still_is_fenced_and_joins_again(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2", **SHORT) as supervisor,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4"),
    ):
        supervisor.settle_on("a", "b")
        index = next(index for index, (host, _) in supervisor.assignments().items() if host == "a")
        name = name_in(index, 2)
        supervisor.create(name)
        supervisor.append(name, b"before ")
        os.kill(a.pid, signal.SIGSTOP)
        wait_until(lambda: supervisor.assignments().get(index, "a")[0] == "b", "the other host has it")
        supervisor.append(name, b"meanwhile ")
        os.kill(a.pid, signal.SIGCONT)
        supervisor.settle_on("a", "b")
        supervisor.append(name, b"after")
        assert supervisor.read(name) == b"before meanwhile after"


def test_w6_a_killed_sidecar_ends_no_process_and_its_containers_recover(machines: Machines) -> None:
    with serve(machines, hosts=1) as service:
        service.create("app/events")
        service.append("app/events", b"before ")
        host = service.pids()["host-0"]
        old = sidecar_of(machines, host)
        os.kill(old, signal.SIGKILL)
        os.kill(sidecar_of(machines, service.process.pid), signal.SIGKILL)
        service.append("app/events", b"after ")
        assert sidecar_of(machines, host) != old
        assert service.read("app/events") == b"before after "
        assert service.pids()["host-0"] == host
        sidecar_of(machines, service.process.pid)  # The supervisor's lease needs one.
        service.append("app/events", b"and later")
        assert service.status()["term"] == 1, "the same supervisor"
        assert service.stop() == 0


def test_a_sidecar_that_stood_still_for_longer_than_its_session_loses_nothing(machines: Machines) -> None:
    with serve(machines, hosts=1) as service:
        service.create("app/events")
        service.append("app/events", b"before ")
        sidecar = sidecar_of(machines, service.pids()["host-0"])
        os.kill(sidecar, signal.SIGSTOP)
        woken = subprocess.Popen(
            [sys.executable, "-c", f"import time, os; time.sleep({2 * SESSION}); os.kill({sidecar}, 18)"]
        )
        service.append("app/events", b"after")
        assert woken.wait() == 0
        assert service.read("app/events") == b"before after"
        assert service.stop() == 0


def serve(machines: Machines, hosts: int = 1) -> SyncOwnService:
    return SyncOwnService(machines.disks / "here", hosts=hosts, place=machines.place)


def test_v6_containers_of_a_host_whose_sidecar_does_not_start_again_go_to_another(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, broken = tmp_path / "jdk" / "bin" / "java", tmp_path / "broken"
    java.parent.mkdir(parents=True)
    java.write_text(f'#!/bin/sh\n[ -e {broken} ] && exit 1\nexec {find_java()} "$@"\n')
    java.chmod(0o755)
    with machines.supervise("127.0.0.2", "--containers=2") as supervisor:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JAVA_HOME", str(java.parent.parent))
            a = machines.host("a", "127.0.0.3")
        with a, machines.host("b", "127.0.0.4"):
            supervisor.settle_on("a", "b")
            index = next(index for index, (host, _) in supervisor.assignments().items() if host == "a")
            name = name_in(index, 2)
            supervisor.create(name)
            supervisor.append(name, b"before ")
            broken.touch()
            os.kill(sidecar_of(machines, a.pid), signal.SIGKILL)
            wait_until(lambda: supervisor.assignments().get(index, "a")[0] == "b", "the other host has it")
            supervisor.append(name, b"after")
            assert supervisor.read(name) == b"before after"

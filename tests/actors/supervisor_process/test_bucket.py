"""A service whose store is in a bucket: on one machine after the other, of which each has its own local
copies (rules V1, V4, V6, D3)."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.command_line import Done
from support.live_service import SyncOwnService, name_in, nothing_left, refused, wait_until
from support.patience import scaled
from support.s3_server import BUCKET, Fault, S3Server
from tierlog.actors.supervisor.control.channel import remove_left_sockets

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")

PREFIX = f"stores/of-{os.getpid()}"
"""In the command lines of the services: those of another process that tests are not of this one."""
PLACE = f"s3://{BUCKET}/{PREFIX}"
LEASE = 1.0
"""Seconds: the shortest."""


@attrs.frozen
class Machines:
    """Each has a local disk; the bucket is all that they share."""

    disks: Path
    server: S3Server

    @contextmanager
    def serve(self, machine: str, *arguments: str, **options: Any) -> Iterator[SyncOwnService]:
        with self._at(machine):
            service = SyncOwnService(self.disks / machine, *arguments, place=PLACE, **options)
        with service:
            yield service

    def refuse(self, machine: str, *arguments: str) -> Done:
        with self._at(machine):
            return refused(self.disks / machine, "--listen=127.0.0.1:0", *arguments, place=PLACE)

    @contextmanager
    def _at(self, machine: str) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIERLOG_CHUNK_CACHE_PATH", str(self.disks / machine))
            patch.setenv("TIERLOG_S3_ENDPOINT", self.server.url)
            yield


@pytest.fixture
def machines(_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    _server.reset()
    monkeypatch.setenv("TIERLOG_SERVER_LEASE", str(LEASE))
    monkeypatch.setenv("TIERLOG_SERVER_ADOPTION", "20")
    # The control sockets' folder, short enough for a socket's path.
    with tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(Path(PREFIX), Path(runtime)):
            yield Machines(tmp_path, _server)


def test_v6_a_killed_hosts_containers_are_served_by_another_with_all_that_was_acked(
    machines: Machines,
) -> None:
    with machines.serve("here", containers=4) as service:
        service.settle()
        name = name_in(0, 4)
        service.create(name)
        service.append(name, b"before ")
        host, epoch = service.assignments()[0]
        os.kill(service.pids()[host], signal.SIGKILL)
        service.append(name, b"after")
        assert service.read(name) == b"before after"
        assert service.assignments()[0][0] != host
        assert service.assignments()[0][1] > epoch
        service.settle()
        assert service.host(host)["last_exit"] == "was ended by SIGKILL"
        assert service.stop() == 0
    assert service.errors == []


@pytest.mark.extended
def test_v5_a_frozen_hosts_containers_are_served_elsewhere_and_it_asks_the_bucket_when_it_wakes(
    machines: Machines,
) -> None:
    with machines.serve("here", containers=2) as service:
        service.settle()
        name = name_in(0, 2)
        service.create(name)
        host, _ = service.assignments()[0]
        pid = service.pids()[host]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: service.assignments().get(0, (host, 0))[0] != host, "the other host has it")
        service.append(name, b"meanwhile")
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: '"event": "container_fenced"' in service.log, "the zombie asks", 8)
        service.settle()
        assert service.pids()[host] == pid, "it was not replaced, and takes containers again"
        service.append(name, b" and later")
        assert service.read(name) == b"meanwhile and later"


@pytest.mark.extended
def test_hosts_that_start_while_the_bucket_is_away_wait_for_it(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_RESTARTS", "1")
    with machines.serve("here", hosts=1, containers=1) as service:
        service.settle()
        # With which an opening begins; the supervisor lists nothing.
        machines.server.fail(Fault("ListObjectsV2", drop=True, times=1000))
        os.kill(service.pids()["host-0"], signal.SIGKILL)
        wait_until(lambda: service.log.count('"event": "store_unavailable"') >= 2, "it asks again", 20)
        machines.server.heal()
        service.settle()
        assert service.errors == []


def test_a_host_that_waits_for_the_bucket_ends_on_a_signal(machines: Machines) -> None:
    with machines.serve("here", hosts=1, containers=1) as service:
        service.settle()
        machines.server.fail(Fault("ListObjectsV2", drop=True, times=1000))
        os.kill(service.pids()["host-0"], signal.SIGKILL)
        wait_until(lambda: '"event": "store_unavailable"' in service.log, "it waits", 20)
        assert service.stop() == 0


def test_an_idle_service_makes_no_requests_but_those_of_its_lease_and_shows_them(machines: Machines) -> None:
    with machines.serve("here", containers=2) as service:
        service.settle()
        assert service.status()["folder"] == PLACE
        lease = {("GetObject", f"{PREFIX}/term"), ("PutObject", f"{PREFIX}/leases/supervisor")}
        idle = {*lease, ("GetObject", f"{PREFIX}/control")}  # that once in the lease's duration

        def newest(count: int) -> set[tuple[str, str]]:
            return {(seen.operation, seen.key) for seen in machines.server.seen[-count:]}

        # What an opening leaves to be done, such as the first checkpoint, comes to an end.
        wait_until(lambda: lease <= newest(10) <= idle, "nothing but its records was checked")

        def shown_are_seen() -> bool:
            requests, seen = service.status()["requests"], machines.server.seen
            operations = Counter(each.operation for each in seen)
            return (requests["puts"], requests["gets"]) == (
                operations["PutObject"],
                operations["GetObject"] + operations["HeadObject"],
            )

        wait_until(shown_are_seen, "the status shows all requests")
        metrics = service.client.get("/metrics").text
        counted = re.search(r"^tierlog_s3_request_puts_total (\d+)", metrics, re.MULTILINE)
        assert counted is not None
        assert int(counted[1]) >= 5, "the supervisor's own"


def test_v1_a_second_service_is_refused_while_the_first_renews_its_lease(machines: Machines) -> None:
    with machines.serve("here", containers=2) as first:
        first.settle()
        done = machines.refuse("elsewhere")
        assert done.code == 1
        assert f"error: process {first.process.pid} of " in done.err
        [waits] = [line for line in done.err.splitlines() if line.startswith("waiting: ")]
        assert f"process {first.process.pid} of " in waits
        assert re.search(r"if it still has the lease after \d+ s, this one is refused", waits)
        assert "already supervises this store: stop it first, or start this one with --take-over" in done.err
        first.create("app/events")
        assert first.status()["term"] == 1


@pytest.mark.extended
def test_v1_a_service_that_takes_over_serves_what_was_acked_and_the_earlier_one_ends(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_ORPHAN_GRACE", "0.5")
    with machines.serve("here", containers=2) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"of the first")
        hosts = first.pids().values()
        with machines.serve("elsewhere", "--take-over") as second:
            assert first.process.wait(scaled(20)) == 1
            assert "another supervisor took over (its term is 2, this one's 1)" in first.errors[-1]
            second.settle()
            assert second.read("app/events") == b"of the first"
            second.append("app/events", b", and of the second")
            wait_until(
                lambda: not any(Path(f"/proc/{pid}").exists() for pid in hosts),
                "the hosts of the first end after their grace",
            )
            assert second.read("app/events") == b"of the first, and of the second"
            assert {epoch for _, epoch in second.assignments().values()} == {2}


@pytest.mark.extended
def test_v1_a_supervisor_that_stood_still_fences_no_successor_when_it_goes_on(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_ORPHAN_GRACE", "0.5")
    with machines.serve("here", containers=2) as first:
        first.settle()
        name = name_in(0, 2)
        first.create(name)
        first.append(name, b"before")
        hosts, (host, _) = first.pids(), first.assignments()[0]
        os.kill(first.process.pid, signal.SIGSTOP)
        os.kill(hosts[host], signal.SIGKILL)
        with machines.serve("elsewhere") as second:
            second.settle()
            assignments = second.assignments()
            # It finds that a host has ended, whose containers the other one could open.
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(scaled(20)) == 1
            wait_until(
                lambda: not any(Path(f"/proc/{pid}").exists() for pid in hosts.values()),
                "the hosts of the first end after their grace",
            )
            second.append(name, b" and after")
            assert second.read(name) == b"before and after"
            assert second.assignments() == assignments
    # That of the first, as the next supervisor to start would.
    remove_left_sockets(f"{os.environ['XDG_RUNTIME_DIR']}/tierlog-{os.getuid()}")


@pytest.mark.extended
def test_v4_a_killed_supervisors_successor_on_its_machine_finds_its_hosts_once_the_lease_has_ended(
    machines: Machines,
) -> None:
    with machines.serve("here", containers=2) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"kept")
        pids, assignments = first.pids(), first.assignments()
        first.kill()
        with machines.serve("here") as second:
            second.settle()
            assert (second.pids(), second.assignments()) == (pids, assignments)
            assert second.status()["term"] == 2
            assert second.read("app/events") == b"kept"
            assert second.stop() == 0


@pytest.mark.extended
def test_d3_a_lost_machines_store_is_served_by_another_once_the_lease_has_ended(machines: Machines) -> None:
    with machines.serve("here", containers=2) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"acked")
        hosts = first.pids().values()
        first.kill()
        for pid in hosts:
            os.kill(pid, signal.SIGKILL)
        with machines.serve("elsewhere") as second:
            second.settle()
            assert second.read("app/events") == b"acked"


@pytest.mark.extended
def test_v4_hosts_that_were_fenced_by_another_machine_report_nothing_to_their_next_supervisor(
    machines: Machines,
) -> None:
    """An idle host does not hear of it, and a supervisor believes what its hosts report."""
    with machines.serve("here", containers=2) as first:
        first.settle()
        first.create("app/events")
        first.append("app/events", b"here")
        hosts = first.pids()
        first.kill()
        with machines.serve("elsewhere") as second:
            second.settle()
            second.append("app/events", b" and there")
            assert second.stop() == 0
        with machines.serve("here") as third:
            third.settle()
            assert third.pids() == hosts
            third.append("app/events", b" and back")
            assert third.read("app/events") == b"here and there and back"


@pytest.mark.extended
def test_v4_a_bucket_that_does_not_answer_in_time_moves_nothing_when_the_supervisor_is_replaced(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIERLOG_SERVER_ADOPTION")
    with machines.serve("here", containers=2) as first:
        first.settle()
        pids, assignments = first.pids(), first.assignments()
        first.kill()
        # The logs' registers, which hosts ask for before they say hello; the supervisor's own are elsewhere.
        machines.server.fail(Fault("GetObject", key="/wal/", stall=True, times=1000))
        with machines.serve("here") as second:
            second.settle()
            assert (second.pids(), second.assignments()) == (pids, assignments)
            machines.server.heal()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recover-from-lts"], "recover_from_lts recovers into a data folder"),
        (["--chunks=s3://other/place"], "a store in a bucket has its chunks in PLACE/lts/"),
        (["--data=data"], "the store is given twice, as PLACE and as --data data"),
    ],
)
def test_what_only_a_data_folder_can_have_is_refused(
    machines: Machines, arguments: list[str], message: str
) -> None:
    done = machines.refuse("here", *arguments)
    assert done.code == 1
    assert message.replace("PLACE", PLACE) in done.err
    assert not machines.server.objects(), "nothing was made"


@pytest.mark.parametrize("shared", ["here", pytest.param("here/{name}-service", marks=pytest.mark.extended)])
def test_a_folder_of_lock_files_that_other_users_can_change_is_refused(
    machines: Machines, shared: str
) -> None:
    """They could name processes there, which the service would end as its own."""
    with machines.serve("here") as service:
        [folder] = (machines.disks / "here").glob("*-service")
        assert service.stop() == 0
    left = machines.server.objects()
    path = machines.disks / shared.format(name=folder.name.removesuffix("-service"))
    path.chmod(0o770)
    done = machines.refuse("here")
    assert (done.code, "other users can change" in done.err, "chmod go-w" in done.err) == (1, True, True)
    assert machines.server.objects() == left
    path.chmod(0o700)

"""A service on several machines: hosts that join, supervisors that stand by, and what happens when each of
them dies, stands still or is cut off (rules V1, V4, V5, V6, V9, V11 and V12)."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from support.command_line import Run
from support.live_service import name_in, nothing_left, wait_until
from support.machines import PLACE, PREFIX, Machines, free_port, joined_line, relay
from support.patience import scaled
from support.s3_server import Fault, S3Server
from tierlog.actors.gateway.wire.paths import Verb, segment_path

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="all of 127.0.0.0/8 is loopback on Linux only"
)
LEASE = 1.0
"""Seconds: the shortest."""
SHORT = {"silence": "1", "silent_grace": "2"}
"""Of supervisors whose hosts stand still or are cut off."""


@pytest.fixture
def machines(_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    _server.reset()
    monkeypatch.setenv("TIERLOG_SERVER_LEASE", str(LEASE))
    with tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(Path(PREFIX), Path(runtime)):
            yield Machines(tmp_path, _server)


def test_v9_hosts_join_from_other_machines_share_and_hand_over_when_they_are_drained(
    machines: Machines, run: Run
) -> None:
    with machines.supervise("127.0.0.2", "--containers=4") as supervisor:
        assert supervisor.printed == f"supervising 4 containers at {supervisor.url}\n"
        with machines.host("a", "127.0.0.3") as a:
            joined_line(a)
            supervisor.settle_on("a")
            name = name_in(0, 4)
            supervisor.create(name)
            supervisor.append(name, b"with one ")
            with machines.host("b", "127.0.0.4") as b:
                supervisor.settle_on("a", "b")
                supervisor.append(name, b"with two ")
                shown = run("status", "--url", supervisor.url)
                assert shown.code == 0
                assert shown.out.count("(joined)") == 2
                drained = run("host", "drain", "a", "--url", supervisor.url)
                assert (drained.code, drained.err) == (0, "")
                assert a.wait() == 0
                supervisor.settle_on("b")
                assert supervisor.status()["failovers"] == 0, "nothing was lost"
                supervisor.append(name, b"with one again")
                assert supervisor.read(name) == b"with one with two with one again"
                os.kill(b.pid, signal.SIGTERM)
                assert b.wait() == 0
        assert supervisor.stop() == 0
        assert supervisor.errors == []


@pytest.mark.extended
def test_ctrl_c_ends_a_host_that_has_not_joined_as_an_interrupted_command(machines: Machines) -> None:
    with machines.host("a", "127.0.0.3") as a:
        a.wait_event("connecting")
        os.kill(a.pid, signal.SIGINT)
        assert a.wait() == 130


@pytest.mark.extended
def test_v6_a_killed_joined_hosts_containers_are_served_by_another_with_all_that_was_acked(
    machines: Machines,
) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as supervisor,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4"),
    ):
        supervisor.settle_on("a", "b")
        name = name_in(next(index for index, (host, _) in supervisor.assignments().items() if host == "a"), 2)
        supervisor.create(name)
        supervisor.append(name, b"before ")
        a.process.kill()
        supervisor.append(name, b"after")
        assert supervisor.read(name) == b"before after"
        with machines.host("a", "127.0.0.3"):
            supervisor.settle_on("a", "b")
            assert supervisor.read(name) == b"before after"


def test_v10_who_reads_that_a_supervisor_is_active_can_end_it_at_once(machines: Machines) -> None:
    """With its lease released: it was killed by a signal that came before it obeyed any."""
    supervisor = machines.supervise("127.0.0.2", "--containers=1")
    assert supervisor.process.stdout is not None
    with supervisor.process.stdout as stdout:
        assert stdout.readline().startswith(b"supervising 1 container at ")
        supervisor.process.send_signal(signal.SIGTERM)
        assert supervisor.process.wait(scaled(20)) == 0


def test_v1_a_standby_is_shown_follows_a_killed_supervisor_and_no_container_moves(
    machines: Machines, run: Run
) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as first,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4") as b,
    ):
        first.settle_on("a", "b")
        first.create("app/events")
        first.append("app/events", b"acked")
        before = first.assignments()
        address = f"127.0.0.5:{free_port('127.0.0.5')}"
        standby = machines.supervise("127.0.0.5", f"--listen={address}")
        try:
            wait_until(lambda: '"event": "standing_by"' in standby.log, "it waits")
            shown = run("status", "--url", f"http://{address},{first.url}")
            assert (
                f"process {first.process.pid} on {socket.gethostname()} at {first.url}, term 1" in shown.out
            )
            waiting = f"standby: process {standby.process.pid} on {socket.gethostname()} at http://{address}"
            assert waiting in shown.out
            first.kill()
            with standby:
                standby.settle_on("a", "b")
                assert standby.assignments() == before, "both hosts reported what they serve"
                assert standby.status()["term"] == 2
                assert standby.read("app/events") == b"acked"
                assert (a.process.poll(), b.process.poll()) == (None, None)
                assert standby.errors == []
        finally:
            standby.process.kill()


@pytest.mark.extended
def test_v5_a_joined_host_that_stood_still_is_fenced_and_joins_again(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2", **SHORT) as supervisor,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4"),
    ):
        supervisor.settle_on("a", "b")
        index = next(index for index, (host, _) in supervisor.assignments().items() if host == "a")
        name = name_in(index, 2)
        supervisor.create(name)
        os.kill(a.pid, signal.SIGSTOP)
        wait_until(lambda: supervisor.assignments().get(index, ("a", 0))[0] == "b", "the other one has it")
        supervisor.append(name, b"meanwhile")
        wait_until(lambda: "a" not in supervisor.hosts(), "it is forgotten")
        os.kill(a.pid, signal.SIGCONT)
        supervisor.settle_on("a", "b")
        supervisor.append(name, b" and later")
        assert supervisor.read(name) == b"meanwhile and later"


@pytest.mark.extended
def test_v1_a_supervisor_that_stood_still_ends_and_its_hosts_obey_the_standby(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2", **SHORT) as first,
        machines.host("a", "127.0.0.3") as a,
        machines.host("b", "127.0.0.4"),
    ):
        first.settle_on("a", "b")
        first.create("app/events")
        first.append("app/events", b"acked")
        before = first.assignments()
        os.kill(first.process.pid, signal.SIGSTOP)
        with machines.supervise("127.0.0.5", **SHORT) as second:
            second.settle_on("a", "b")
            assert second.assignments() == before
            os.kill(first.process.pid, signal.SIGCONT)
            assert first.process.wait(scaled(20)) == 1
            assert "another supervisor took over" in first.errors[-1]
            second.append("app/events", b" and more")
            assert second.read("app/events") == b"acked and more"
            a.process.kill()
            second.settle_on("b")
            assert second.read("app/events") == b"acked and more"


@pytest.mark.extended
def test_v5_a_host_that_is_cut_off_loses_its_containers_and_joins_again_when_it_can(
    machines: Machines,
) -> None:
    port = free_port("127.0.0.2", "127.0.0.9")
    with (
        relay(("127.0.0.9", port), ("127.0.0.2", port)) as between,
        machines.supervise(
            "127.0.0.2",
            "--containers=2",
            "--advertise=127.0.0.9",
            control_port=str(port),
            orphan_grace="4",
            **SHORT,
        ) as supervisor,
    ):
        supervisor.url = supervisor.url.replace("127.0.0.9", "127.0.0.2")
        with machines.host("a", "127.0.0.3") as a:
            supervisor.settle_on("a")
            supervisor.create("app/events")
            supervisor.append("app/events", b"before")
            between.stop_forwarding()
            wait_until(lambda: "a" not in supervisor.hosts(), "it is forgotten")
            a.wait_event("containers_closed")
            assert a.process.poll() is None, "after its grace it serves nothing, and stays"
            between.forward()
            supervisor.settle_on("a")
            supervisor.append("app/events", b" and after")
            assert supervisor.read("app/events") == b"before and after"


@pytest.mark.extended
def test_v4_hosts_leave_a_supervisor_that_is_cut_off_from_the_bucket_for_its_successor(
    machines: Machines,
) -> None:
    real = urlsplit(machines.server.url)
    assert real.hostname is not None
    assert real.port is not None
    port = free_port("127.0.0.9")
    with (
        relay(("127.0.0.9", port), (real.hostname, real.port)) as to_bucket,
        machines.supervise(
            "127.0.0.2", "--containers=2", endpoint=f"http://127.0.0.9:{port}", **SHORT
        ) as first,
        machines.host("a", "127.0.0.3"),
        machines.host("b", "127.0.0.4"),
    ):
        first.settle_on("a", "b")
        first.create("app/events")
        first.append("app/events", b"acked")
        before = first.assignments()
        to_bucket.stop_forwarding()
        with machines.supervise("127.0.0.5", **SHORT) as second:
            second.settle_on("a", "b")
            assert second.assignments() == before
            assert second.read("app/events") == b"acked"
            to_bucket.forward()
            assert first.process.wait(scaled(60)) == 1
            second.append("app/events", b" and more")
            assert second.read("app/events") == b"acked and more"


@pytest.mark.extended
def test_v1_a_standby_that_starts_while_the_bucket_is_away_waits_for_it(machines: Machines) -> None:
    # With which an opening begins.
    machines.server.fail(Fault("ListObjectsV2", drop=True, times=1000))
    supervisor = machines.supervise("127.0.0.2", "--containers=2")
    wait_until(lambda: '"event": "store_unavailable"' in supervisor.log, "it waits")
    machines.server.heal()
    with supervisor, machines.host("a", "127.0.0.3"):
        supervisor.settle_on("a")


@pytest.mark.extended
def test_v4_a_stopped_supervisors_hosts_serve_on_and_the_next_one_finds_them(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as first,
        machines.host("a", "127.0.0.3") as a,
    ):
        first.settle_on("a")
        first.create("app/events")
        first.append("app/events", b"acked")
        before = first.assignments()
        assert first.stop() == 0
        a.wait_event("supervisor_lost")
        with machines.supervise("127.0.0.6") as second:
            second.settle_on("a")
            assert second.assignments() == before
            assert second.read("app/events") == b"acked"


@pytest.mark.extended
def test_v11_a_second_host_with_a_living_hosts_id_ends_with_an_error(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as supervisor,
        machines.host("a", "127.0.0.3") as first,
    ):
        supervisor.settle_on("a")
        with machines.host("a", "127.0.0.4") as second:
            assert second.wait() == 1
            assert all(event not in second.log for event in ("draining", "ended_flushed", "host_ended"))
            last = second.log.splitlines()[-1]
            assert f"error: process {first.pid} on " in last
            assert "is a now, and alive: choose another --id, or stop that one" in last
        supervisor.settle_on("a")


@pytest.mark.extended
def test_v11_a_host_of_the_store_that_was_in_the_bucket_before_ends_with_an_error(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as first,
        machines.host("a", "127.0.0.3") as a,
    ):
        first.settle_on("a")
        os.kill(first.process.pid, signal.SIGKILL)
        for key in machines.server.objects():
            machines.server.remove(key)
        with machines.supervise("127.0.0.4", "--containers=2"):
            assert a.wait() == 1
            assert "which was made in its place: start the host again" in a.log.splitlines()[-1]


@pytest.mark.extended
def test_v11_hosts_join_a_service_beside_its_own_and_a_rolling_restart_leaves_them(
    machines: Machines, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.live_service import SyncOwnService

    monkeypatch.setenv("TIERLOG_CHUNK_CACHE_PATH", str(machines.disks / "here"))
    monkeypatch.setenv("TIERLOG_S3_ENDPOINT", machines.server.url)
    service = SyncOwnService(machines.disks / "here", hosts=1, containers=4, place=PLACE)
    with service, machines.host("a", "127.0.0.3") as a:
        url = joined_line(a).split()[-1]
        wait_until(lambda: len(service.pids()) == 2 and service.is_balanced(), "both have their share")
        own = service.pids()["host-0"]
        assert run("roll", "--url", service.url).code == 0
        wait_until(lambda: service.pids()["host-0"] not in (0, own) and service.is_balanced(), "it is rolled")
        assert service.pids()["a"] == a.pid
        refused = run("host", "start", "a", "--url", service.url)
        assert refused.code == 1
        assert "a joined from " in refused.err
        for index in range(4):
            service.create(name_in(index, 4))
            service.append(name_in(index, 4), b"acked")
        assert service.stop() == 0
        assert a.process.poll() is None
        for index in range(4):
            answer = httpx.get(url + segment_path(name_in(index, 4), Verb.BYTES), verify=False)
            assert answer.content == b"acked", "the service's own host handed over to it"


@pytest.mark.extended
def test_h22_a_joined_host_forwards_to_the_others(machines: Machines) -> None:
    with (
        machines.supervise("127.0.0.2", "--containers=2") as supervisor,
        machines.host("a", "127.0.0.3", "--forward") as a,
        machines.host("b", "127.0.0.4", "--forward"),
    ):
        url = joined_line(a).split()[-1]
        supervisor.settle_on("a", "b")
        elsewhere = next(index for index, (host, _) in supervisor.assignments().items() if host == "b")
        name = name_in(elsewhere, 2)
        supervisor.create(name)
        supervisor.append(name, b"of b")
        wait_until(
            lambda: httpx.get(url + segment_path(name, Verb.BYTES), verify=False).content == b"of b",
            "a passes on what b serves, without a redirect",
        )
        assert "tierlog_http_forwarded_requests_total{" in httpx.get(f"{url}/metrics", verify=False).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["host", "--join=data"], "--join is for a store in a bucket"),
        (["supervise", "--join=data"], "--join is for a store in a bucket"),
        (["host", f"--join={PLACE}", "--id=host-3"], "host-3 is an id of a supervisor's own hosts"),
        (["host", f"--join={PLACE}", "--listen=0.0.0.0"], "add --advertise NAME"),
    ],
)
def test_what_cannot_join_is_refused_with_what_to_do(
    machines: Machines, run: Run, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert not machines.server.objects()

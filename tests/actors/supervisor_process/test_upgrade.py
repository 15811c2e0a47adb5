"""Two releases side by side (rule V13): real processes, some of which speak only what the release before
did, as its recorded lines have it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command_line import Run
from support.live_service import SyncOwnService, name_in, nothing_left, wait_until
from support.machines import PREFIX, Machines, joined_line
from support.s3_server import S3Server

pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="environments of processes: /proc"),
]
RELEASE_BEFORE = Path(__file__).parents[2] / "support" / "release_before"
NAMES = [name_in(container, 2) for container in range(2)]


class Written:
    """Events that were acked, and must all be there, once and in order."""

    def __init__(self) -> None:
        self._acked = dict.fromkeys(NAMES, b"")
        self._count = 0

    def create(self, service: SyncOwnService) -> None:
        for name in NAMES:
            service.create(name)

    def append(self, service: SyncOwnService, events: int = 3) -> None:
        for _ in range(events):
            self._count += 1
            event = b"%04d " % self._count
            for name in NAMES:
                service.append(name, event)
                self._acked[name] += event

    def check(self, service: SyncOwnService) -> None:
        assert {name: service.read(name) for name in NAMES} == self._acked


def releases(service: SyncOwnService) -> dict[str, str]:
    """The release of each host, by the environment of its process."""
    mark = str(RELEASE_BEFORE).encode()
    return {
        host: "before" if mark in Path(f"/proc/{pid}/environ").read_bytes() else "present"
        for host, pid in service.pids().items()
    }


def test_v13_a_service_is_upgraded_and_put_back_while_its_hosts_serve(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIERLOG_SERVER_ADOPTION", "20")
    monkeypatch.setenv("PYTHONPATH", str(RELEASE_BEFORE))
    written = Written()
    with SyncOwnService(folder, containers=2) as before:
        before.settle()
        written.create(before)
        written.append(before)
        pids, assignments = before.pids(), before.assignments()
        before.kill()

        monkeypatch.delenv("PYTHONPATH")
        with SyncOwnService(folder) as after:
            after.settle()
            assert (after.pids(), after.assignments()) == (pids, assignments), "nothing moved"
            assert set(releases(after).values()) == {"before"}
            written.append(after)
            written.check(after)

            assert after.post("/v1/roll").status_code == 202

            def is_rolled() -> bool:
                written.append(after, 1)
                return not set(after.pids().values()) & set(pids.values()) and after.is_balanced()

            wait_until(is_rolled, "every host is one of the present release")
            assert set(releases(after).values()) == {"present"}
            assert after.status()["failovers"] == 0, "no container was lost"
            written.check(after)
            pids, assignments = after.pids(), after.assignments()
            after.kill()

        monkeypatch.setenv("PYTHONPATH", str(RELEASE_BEFORE))
        with SyncOwnService(folder) as back:
            back.settle()
            assert (back.pids(), back.assignments()) == (pids, assignments), "nothing moved"
            written.append(back)
            written.check(back)
            assert back.stop() == 0


@pytest.fixture
def machines(_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    _server.reset()
    with tempfile.TemporaryDirectory(prefix="tl-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        with nothing_left(Path(PREFIX), Path(runtime)):
            yield Machines(tmp_path, _server)


def test_v13_a_joined_host_is_replaced_by_one_of_the_next_release_while_clients_write(
    machines: Machines, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written()
    with machines.supervise("127.0.0.2", "--containers=2") as supervisor:
        monkeypatch.setenv("PYTHONPATH", str(RELEASE_BEFORE))
        with machines.host("before", "127.0.0.3") as before:
            joined_line(before)
            supervisor.settle_on("before")
            written.create(supervisor)
            written.append(supervisor)

            monkeypatch.delenv("PYTHONPATH")
            with machines.host("present", "127.0.0.4"):
                supervisor.settle_on("before", "present")
                assert releases(supervisor) == {"before": "before", "present": "present"}
                assert supervisor.loads() == {"before": 1, "present": 1}
                written.append(supervisor)
                written.check(supervisor)

                drained = run("host", "drain", "before", "--url", supervisor.url)
                assert (drained.code, drained.err) == (0, "")
                written.append(supervisor)
                assert before.wait() == 0
                supervisor.settle_on("present")
                assert supervisor.status()["failovers"] == 0, "no container was lost"
                written.append(supervisor)
                written.check(supervisor)

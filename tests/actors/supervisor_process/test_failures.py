"""A service that cannot start, and one that goes on without a failed part (rules V1, V8, V10)."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import pytest

import tierlog
from chaos_parts.processes import free_port, processes_of
from chaos_parts.service import start_serving
from support.command_line import is_one_line
from support.live_service import PATIENCE, SETTINGS, SyncOwnService, refused, wait_until
from support.patience import scaled

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


def made_by_an_app(folder: Path, containers: int) -> None:
    async def make() -> None:
        async with tierlog.open_store(folder, containers=containers):
            pass

    anyio.run(make)


def test_a_taken_port_is_reported_in_one_line(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = refused(folder, f"--listen=127.0.0.1:{port}")
    assert done.code == 1
    assert is_one_line(done.err)
    assert f"cannot listen on 127.0.0.1:{port}" in done.err
    assert not folder.exists(), "nothing was made"


def test_a_typo_in_the_configuration_is_reported_in_one_line(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "tierlog.toml"
    config.write_text("[server]\nheartbeats = 1\n")
    done = refused(folder, f"--config={config}")
    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert "'server.heartbeats'; did you mean 'server.heartbeat'?" in done.err


def test_a_bad_address_is_reported_in_one_line(folder: Path) -> None:
    done = refused(folder, "--listen=nowhere.invalid:0")
    assert done.code == 1
    assert is_one_line(done.err)


def test_a_folder_with_other_files_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / "holiday.jpg").touch()
    done = refused(folder, "--listen=127.0.0.1:0")
    assert done.code == 1
    assert is_one_line(done.err)
    assert "'holiday.jpg'" in done.err


def test_another_number_of_containers_is_refused(folder: Path) -> None:
    made_by_an_app(folder, containers=2)
    done = refused(folder, "--listen=127.0.0.1:0", "--containers=3")
    assert done.code == 1
    assert "was created with 2 containers, not 3" in done.err


def test_v1_a_second_supervisor_is_refused_also_while_the_first_is_frozen(folder: Path) -> None:
    with SyncOwnService(folder, hosts=1, containers=1) as service:
        service.process.send_signal(signal.SIGSTOP)
        done = refused(folder, "--listen=127.0.0.1:0")
        service.process.send_signal(signal.SIGCONT)
        assert done.code == 1
        assert is_one_line(done.err)
        assert f"process {service.process.pid} already supervises this store" in done.err
        service.settle()


def test_a_folder_that_an_app_has_open_is_taken_over_only_on_request(folder: Path) -> None:
    async def with_app() -> None:
        async with tierlog.open_store(folder, containers=2) as store:
            await store.create_segment("app/events")
            done = await anyio.to_thread.run_sync(refused, folder, "--listen=127.0.0.1:0")
            assert done.code == 1
            assert "--take-over" in done.err
            await store.append("app/events", b"still mine")
            await anyio.to_thread.run_sync(take_over)
            with pytest.raises((tierlog.NotOwner, tierlog.OutcomeUnknown)):
                await store.append("app/events", b"no more")

    def take_over() -> None:
        with SyncOwnService(folder, "--take-over", hosts=1) as service:
            service.settle()
            assert service.read("app/events") == b"still mine"
            service.append("app/events", b", now theirs")

    anyio.run(with_app)


def taken_port_after_a_free_one() -> socket.socket:
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port - 1)):
            return socket.create_server(("127.0.0.1", port))


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--listen=0.0.0.0:0"], "0.0.0.0 means every address of this machine"),
        (["--advertise="], "--advertise (the setting server.advertise) is a name"),
    ],
)
def test_a_service_that_clients_could_not_reach_is_refused(
    folder: Path, arguments: list[str], reason: str
) -> None:
    ended = refused(folder, *arguments)

    assert (ended.code, ended.out) == (1, "")
    assert reason in ended.err


def test_h18_clients_are_led_to_the_advertised_name_and_to_the_ports_that_were_chosen(folder: Path) -> None:
    with taken_port_after_a_free_one() as taken:
        port = taken.getsockname()[1] - 1
    listen = ["--listen=0.0.0.0:0", "--advertise=app.localhost", f"--host-port={port}"]
    with SyncOwnService(folder, *listen, hosts=1, containers=1) as service:
        assert re.fullmatch(r".* at http://app\.localhost:[0-9]+\n", service.printed)
        service.url = service.url.replace("app.localhost", "127.0.0.1")
        service.settle()
        assert service.host("host-0")["url"] == f"http://app.localhost:{port}"
        answer = service.client.get("/v1/segments/a/info", follow_redirects=False)
        assert answer.headers["location"] == f"http://app.localhost:{port}/v1/segments/a/info"
        for url in (service.url, f"http://127.0.0.1:{port}"):
            codes = {
                host: httpx.get(f"{url}/health", headers={"Host": host}).status_code
                for host in ("app.localhost", "0.0.0.0", "evil.example")
            }
            assert codes == {"app.localhost": 200, "0.0.0.0": 200, "evil.example": 421}


def test_a_service_is_refused_if_another_process_listens_on_a_port_of_its_hosts(folder: Path) -> None:
    with taken_port_after_a_free_one() as taken:
        port = taken.getsockname()[1]
        done = refused(folder, "--listen=127.0.0.1:0", "--hosts=2", f"--host-port={port - 1}")
    assert (done.code, done.out) == (1, "")
    assert is_one_line(done.err)
    assert f"cannot listen on 127.0.0.1:{port}" in done.err
    assert not folder.exists(), "nothing was made"


@pytest.mark.extended
def test_a_host_that_cannot_bind_again_does_not_keep_the_others_from_serving(
    folder: Path, tmp_path: Path
) -> None:
    with taken_port_after_a_free_one() as free:
        port = free.getsockname()[1]
    config = tmp_path / "tierlog.toml"
    config.write_text(f"[server]\nhost_port = {port - 1}\nrestarts = 5\n")
    with SyncOwnService(folder, f"--config={config}") as service:
        service.settle()
        with port_of_killed_host(service, "host-1", port):
            wait_until(lambda: service.host("host-1")["phase"] == "given up", "it is given up")
            assert service.host("host-1")["last_exit"] == "exited with code 1"
            assert f"cannot listen on 127.0.0.1:{port}" in service.log
            assert {host for host, _ in service.assignments().values()} == {"host-0"}
        assert service.post("/v1/hosts/host-1/start").status_code == 202
        service.settle()


def port_of_killed_host(service: SyncOwnService, host: str, port: int) -> socket.socket:
    """Kills the host, and its successors too, until its port is free, and takes that."""

    def taken() -> socket.socket | None:
        if pid := service.host(host)["pid"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
        return None

    return wait_until(taken, "the port is free")  # type: ignore[no-any-return]


def not_ready(service: SyncOwnService, containers: list[int]) -> httpx.Response | None:
    """The answer, once it says that these are not served."""
    answer = service.client.get("/ready")
    return answer if answer.json()["containers_not_served"] == containers else None


def test_v8_a_damaged_container_is_quarantined_and_the_others_continue(folder: Path) -> None:
    made_by_an_app(folder, containers=3)
    (log,) = (folder / "wal").glob("*1/*.wal")
    whole = log.read_bytes()
    log.write_bytes(b"")
    with SyncOwnService(folder) as service:
        assert service.errors[0].startswith("error: container 1 is not served but quarantined: ")
        # One of the others may just move to the host that connected last.
        wait_until(lambda: set(service.assignments()) == {0, 2}, "the others are served")
        answer = wait_until(lambda: not_ready(service, [1]), "the others are ready")
        assert answer.status_code == 503
        log.write_bytes(whole)
        assert service.post("/v1/containers/1/open").status_code == 202
        wait_until(lambda: len(service.assignments()) == 3, "it is served again")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.extended)])
def test_ctrl_c_or_a_closed_terminal_ends_it_cleanly(folder: Path, number: signal.Signals) -> None:
    # Whoever runs the tests may ignore it, as `nohup` does, and the service would inherit that.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with SyncOwnService(folder, hosts=1, containers=1) as service:
            signal.signal(number, before)
            assert service.stop(number) == 0
    finally:
        signal.signal(number, before)
    assert service.errors == []


@pytest.mark.parametrize("stdout, code, message", [("closed", 141, ""), ("full", 1, "error: stdout")])
def test_v10_a_service_that_cannot_say_that_it_serves_ends_its_hosts(
    folder: Path, tmp_path: Path, stdout: str, code: int, message: str
) -> None:
    log = tmp_path / "log"
    if stdout == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        unread, output = os.pipe()
        os.close(unread)
    arguments = ("--listen=127.0.0.1:0", "--hosts=1")
    process = start_serving(folder, log, *arguments, stdout=output, env=SETTINGS | os.environ)
    os.close(output)
    try:
        assert process.wait(scaled(PATIENCE)) == code
        assert processes_of(folder) == [], "its hosts had ended before"
    finally:
        process.kill()
        process.wait()
    errors = [line for line in log.read_text().splitlines() if not line.startswith("{")]
    assert [line.startswith(message) for line in errors] == ([True] if message else [])


@pytest.mark.extended
def test_a_second_signal_cuts_requests_short_that_the_first_waits_for(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "tierlog.toml"
    config.write_text("[timeouts]\nclose = 3600\n[server]\ndrain_limit = 3600\n")
    with SyncOwnService(folder, f"--config={config}", hosts=1, containers=1) as service:
        service.settle()
        with service.half_request():
            service.process.terminate()
            wait_until(lambda: '"event": "draining"' in service.log, "the hosts drain")
            assert service.stop() == 0, "it does not wait for an hour"

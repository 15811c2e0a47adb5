"""The machines of scripts/chaos machines: network namespaces that can be parted, cut off and slowed down, and
what delays the requests to an engine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chaos_parts import namespaces
from chaos_parts.processes import free_port, processes_naming, python_path
from support.live_service import wait_until
from support.patience import scaled

needs_machines = pytest.mark.skipif(bool(namespaces.missing()), reason=namespaces.missing())
ROUTER = Path(__file__).resolve().parents[1] / "support" / "namespace_router.py"


@needs_machines
@pytest.mark.extended
def test_machines_are_parted_cut_off_and_healed_and_end_with_their_script(tmp_path: Path) -> None:
    command = [sys.executable, str(ROUTER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=python_path()) as process:
        assert process.stdout is not None
        try:
            found = json.loads(process.stdout.readline())
            assert len(processes_naming(tmp_path)) == 4
        finally:
            process.kill()
    assert found == {
        "whole": ["b", "a", "a"],
        "parted": ["silent", "silent", "c", "b"],
        "cut": ["no way", "b"],
        "slow": ["b", "c"],
    }
    wait_until(lambda: not processes_naming(tmp_path), "those of the machines are killed with it")


@pytest.fixture
def service() -> Iterator[Callable[[], tuple[str, int]]]:
    """Answers each request of one byte, on any number of connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1):
                    connection.sendall(data)

        def accept() -> None:
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_each_request_to_an_engine_is_late_and_all_at_once(service: Callable[[], tuple[str, int]]) -> None:
    port = free_port()
    target = "{}:{}".format(*service())
    with subprocess.Popen(
        [sys.executable, "-m", "chaos_parts.engines", f"127.0.0.1:{port}", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_path(),
    ) as front:
        assert front.stdin is not None
        assert front.stdout is not None

        def delay(seconds: float) -> None:
            assert front.stdin is not None
            assert front.stdout is not None
            front.stdin.write(b"%f\n" % seconds)
            front.stdin.flush()
            front.stdout.readline()

        delay(0)
        with closing(socket.create_connection(("127.0.0.1", port), scaled(10))) as connection:

            def ask() -> float:
                began = time.monotonic()
                connection.sendall(b"x")
                assert connection.recv(1) == b"x"
                return time.monotonic() - began

            ask()
            delay(0.2)
            assert ask() >= 0.2
            assert ask() >= 0.2, "not only the first"
        front.stdin.close()
        assert front.wait(scaled(10)) == 0

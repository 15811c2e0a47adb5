"""A real service for tests that block: `tierlog serve`, with its hosts, on loopback; and the signs that it
left nothing behind. The scripts start theirs in the same way, and ask it from an event loop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from chaos_parts.processes import kill_process, processes_naming
from chaos_parts.service import TIERLOG, is_balanced, start_serving
from support.command_line import Done
from support.patience import scaled
from tierlog.actors.gateway.wire.paths import Verb, segment_path
from tierlog.storage_backends.base.names import container_of

PATIENCE = 20.0
"""Seconds on a quiet machine after which something that should have happened has failed: far above what it
takes."""
SETTINGS = {"TIERLOG_SERVER_SILENCE": "30", "TIERLOG_SERVER_SILENT_GRACE": "60"}
"""Of services, unless a test sets its own: a virtual machine may stop a process for longer than the 0.75 s
after which a host is silent, and few tests are about what that moves."""


def wait_until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """The first true answer of ``holds``, which asks about other processes: there is nothing to be woken by.

    The longer it takes, the less often it is asked: questions take processor time from those who are waited
    for.
    """
    deadline, pause = time.monotonic() + scaled(seconds), 0.01
    while True:
        answer = holds()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)


def name_in(container: int, containers: int) -> str:
    """A segment's name that belongs to the container."""
    return next(
        name
        for name in (f"s{number}" for number in range(1000))
        if container_of(name, containers) == container
    )


class SyncOwnService:
    """``OwnService`` of the scripts, for tests without an event loop: one supervisor process on one folder. A
    second one on the same folder is another object."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        hosts: int = 2,
        containers: int | None = None,
        place: str = "",
        program: Sequence[str] = TIERLOG,
    ) -> None:
        """``place``: what is served in place of ``folder``. ``program``: the command in place of
        `tierlog`."""
        self.folder = folder
        counts = [f"--hosts={hosts}", *([] if containers is None else [f"--containers={containers}"])]
        self._log = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
        arguments = ("--listen=127.0.0.1:0", *counts, *arguments)
        environment = SETTINGS | os.environ
        self.process = start_serving(
            place or folder, self._log, *arguments, program=program, stdout=subprocess.PIPE, env=environment
        )
        self.url = ""
        self.printed = ""
        self._client: httpx.Client | None = None
        self._numbers: Counter[str] = Counter()

    def __enter__(self) -> Self:
        """Wait until it says where it listens."""
        assert self.process.stdout is not None
        self.printed = self.process.stdout.readline().decode()
        found = re.search(r"http://\S+", self.printed)
        assert found is not None, self.log
        self.url = found[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(scaled(PATIENCE))
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def errors(self) -> list[str]:
        """The lines on stderr that are for people."""
        return [line for line in self.log.splitlines() if not line.startswith("{")]

    # --- asking ----------------------------------------------------------------------------------

    @property
    def client(self) -> httpx.Client:
        if self._client is None:
            self._client = httpx.Client(
                base_url=self.url, timeout=scaled(PATIENCE), follow_redirects=True, verify=False
            )
        return self._client

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = self.client.get("/v1/status").json()
        return document

    def host(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.status()["hosts"] if each["id"] == host)
        return found

    def pids(self) -> dict[str, int]:
        return {host["id"]: host["pid"] for host in self.status()["hosts"]}

    def assignments(self) -> dict[int, tuple[str, int]]:
        """Host and epoch of each container that is served."""
        return {
            container["container"]: (container["host"], container["epoch"])
            for container in self.status()["containers"]
            if container["phase"] == "serving"
        }

    def is_balanced(self) -> bool:
        return is_balanced(self.status())

    def settle(self) -> None:
        wait_until(self.is_balanced, "every host serves its share")

    def post(self, path: str, document: dict[str, Any] | None = None) -> httpx.Response:
        return self.client.post(path, json=document or {})

    # --- data ------------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        answer = self.client.post(segment_path(name, Verb.CREATE), json={})
        assert answer.is_success, answer.text

    def append(self, name: str, data: bytes) -> None:
        """Through the supervisor's redirect, numbered, so that it can be sent again whatever became of it."""
        number = self._numbers[name]
        self._numbers[name] += 1
        headers = {
            "Content-Type": "application/octet-stream",
            "Tierlog-Writer-Id": f"test-{self.process.pid}",
            "Tierlog-Event-Number": str(number),
        }

        def is_appended() -> bool:
            try:
                answer = self.client.post(segment_path(name, Verb.APPEND), content=data, headers=headers)
            except httpx.TransportError:
                return False  # The host that the map named is gone: the next try asks again.
            assert answer.is_success or answer.json()["retry"] != "never", answer.text
            return answer.is_success

        wait_until(is_appended, f"an append to {name}")

    def read(self, name: str) -> bytes:
        answer = self.client.get(segment_path(name, Verb.BYTES))
        assert answer.is_success, answer.text
        return answer.content

    @contextmanager
    def half_request(self) -> Iterator[None]:
        """To the host of container 0. It keeps its connection, and a drain waits for it."""
        self.create("app/events")
        url = httpx.URL(self.client.get("/v1/containers").json()["containers"][0]["url"])
        assert url.port is not None
        with socket.create_connection((url.host, url.port)) as half:
            half.sendall(
                b"POST /v1/segments/app/events/append HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/octet-stream\r\nContent-Length: 10\r\n\r\nhalf"
            )
            yield

    # --- ending ----------------------------------------------------------------------------------

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(scaled(PATIENCE))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def refused(folder: Path, *arguments: str, place: str = "") -> Done:
    """`tierlog serve` on ``folder``, or on ``place``, that is expected to end by itself."""
    command = [*TIERLOG, "serve", place or str(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, cwd=folder.parent, timeout=scaled(PATIENCE), check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def nothing_left(folder: Path, runtime: Path) -> Iterator[None]:
    """After the body there is no process of the folder and no socket; what there is is killed, and the test
    fails."""
    try:
        yield
        left = processes_naming(folder)
        assert not left, left
        assert not [path for path in runtime.rglob("*") if path.is_socket()]
    finally:
        for pid in processes_naming(folder):
            kill_process(pid)
        wait_until(lambda: not processes_naming(folder), "the killed processes are gone")


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))

"""Several machines on one: each is processes with a working folder and a loopback address of their own. The
store's place is all that they share."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs
from anyio.from_thread import start_blocking_portal

from chaos_parts.proxy import Link, LinkFault
from chaos_parts.service import TIERLOG
from support.live_service import PATIENCE, SETTINGS, SyncOwnService, wait_until
from support.patience import scaled
from support.s3_server import BUCKET, S3Server

PREFIX = f"stores/of-{os.getpid()}"
"""In the command lines of the processes: those of another process that tests are not of this one."""
PLACE = f"s3://{BUCKET}/{PREFIX}"


class JoinedHost:
    """A process of `tierlog host --join`."""

    def __init__(self, name: str, place: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.place = place
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    def wait_event(self, event: str, count: int = 1) -> None:
        wait_until(lambda: self.log.count(f'"event": "{event}"') >= count, f"{self.name}: {event}")

    def wait(self) -> int:
        return self.process.wait(scaled(PATIENCE))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class SyncSupervisor(SyncOwnService):
    """A process of `tierlog supervise --join`: entered, it is active."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.folder = log.parent
        self._log = log
        self.process = process
        self.url = self.printed = ""
        self._client = None
        self._numbers: Counter[str] = Counter()

    def hosts(self) -> dict[str, str]:
        """The phase of each host."""
        return {host["id"]: host["phase"] for host in self.status()["hosts"]}

    def loads(self) -> dict[str, int]:
        """How many containers each host serves."""
        found = Counter(dict.fromkeys(self.hosts(), 0))
        found.update(host for host, _ in self.assignments().values())
        return dict(found)

    def settle_on(self, *hosts: str) -> None:
        wait_until(
            lambda: sorted(self.hosts()) == sorted(hosts) and self.is_balanced(),
            f"{', '.join(hosts)} share the containers",
        )


@attrs.frozen
class Machines:
    disks: Path
    server: S3Server
    place: str = PLACE
    environment: Mapping[str, str] = {}
    """What the place needs."""

    def supervise(self, address: str, *arguments: str, **settings: str) -> SyncSupervisor:
        log = self.disks / f"supervisor-at-{address}-{time.monotonic_ns()}.log"
        command = [f"--listen={address}:0", *arguments]
        return SyncSupervisor(self._start("supervise", log, address, command, settings), log)

    def host(self, name: str, address: str, *arguments: str, **settings: str) -> JoinedHost:
        log = self.disks / f"{name}-{time.monotonic_ns()}.log"
        command = [f"--id={name}", f"--listen={address}:0", *arguments]
        return JoinedHost(name, self.place, self._start("host", log, address, command, settings), log)

    def _start(
        self, kind: str, log: Path, address: str, arguments: list[str], settings: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        folder = self.disks / address
        folder.mkdir(exist_ok=True)
        endpoint = settings.pop("endpoint", self.server.url)
        environment: dict[str, Any] = {
            **SETTINGS,
            **os.environ,
            **self.environment,
            "TIERLOG_CHUNK_CACHE_PATH": str(folder),
            "TIERLOG_S3_ENDPOINT": endpoint,
            **{f"TIERLOG_SERVER_{name.upper()}": value for name, value in settings.items()},
        }
        with log.open("wb") as errors:
            return subprocess.Popen(
                [*TIERLOG, kind, f"--join={self.place}", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=environment,
            )


@contextmanager
def relay(shown: tuple[str, int], real: tuple[str, int]) -> Iterator[Relay]:
    """A relay at ``shown`` to ``real``, in a thread of its own."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Link(shown, real)) as link:
        yield Relay(lambda fault: portal.call(link.set, fault))


class Relay:
    def __init__(self, set_fault: Any) -> None:
        self._set = set_fault

    def stop_forwarding(self) -> None:
        """Nothing passes, and no side notices."""
        self._set(LinkFault(silent=True))

    def forward(self) -> None:
        self._set(LinkFault())


def free_port(*addresses: str) -> int:
    """One that is free at each of them."""
    while True:
        with socket.create_server((addresses[0], 0)) as first:
            port: int = first.getsockname()[1]
        try:
            for address in addresses:
                socket.create_server((address, port)).close()
        except OSError:
            continue
        return port


def joined_line(host: JoinedHost) -> str:
    """What it prints once a supervisor has welcomed it."""
    assert host.process.stdout is not None
    line = host.process.stdout.readline().decode()
    assert re.fullmatch(rf"joined {re.escape(host.place)} as {host.name} at http://\S+\n", line), host.log
    return line

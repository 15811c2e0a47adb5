"""The service under attack: a supervisor that is started here, or one that runs already.

Signals go to one process at a time. Its id comes from the service's status, and is checked to belong to this
service first. Whatever happens, all processes of a service that was started here are ended, stopped ones too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs
import httpx

from chaos_parts.processes import (
    PATIENCE,
    POLL,
    RunError,
    free_port,
    is_process_of,
    kill_process,
    processes_of,
)
from chaos_parts.report import TAKEOVER_GOAL
from tierlog.storage_backends.base.names import container_of

TIERLOG = (sys.executable, "-P", "-m", "tierlog")
"""The command line of tierlog."""
_REQUEST_TIMEOUT = 10.0
_SHORT_PATH = 48


def start_serving(
    place: Path | str, log: Path, *arguments: str, program: Sequence[str] = TIERLOG, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `tierlog serve` on a data folder or a bucket. Its output is appended to ``log``; ``options`` are
    those of `Popen`."""
    command = [*program, "serve", str(place), *arguments]
    with log.open("ab") as stream:
        streams = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": stream}
        return subprocess.Popen(command, cwd=log.parent, **{**streams, **options})


@attrs.frozen
class Victim:
    """A process to send signals to."""

    name: str
    pid: int
    containers: tuple[int, ...] = ()


class Service:
    """A running service."""

    is_ours = False
    """Whether the supervisor may be killed, because it can be restarted from here."""

    def __init__(self, url: str, *, pids_from: Path | None = None) -> None:
        self.url = url
        """The URL of the supervisor."""
        self.data_url = url
        """For writers and readers."""
        self.patience = PATIENCE
        """Seconds that it may take to settle."""
        self._client = httpx.AsyncClient(base_url=url, timeout=_REQUEST_TIMEOUT, trust_env=False)
        self._pids_from = pids_from
        self.folder = Path()
        """The data; known after ``inspect``."""
        self.containers = 0
        self.takeover_goal = TAKEOVER_GOAL
        """Seconds from the order to open a container until it is open, at most."""

    def writer_command(self, *command: str) -> list[str]:
        """What runs ``command`` where the writers are."""
        return [*command]

    def check_answers(self) -> None:
        """Raise ``RunError`` if nothing answers at the URL, before anything else is done."""
        try:
            httpx.get(f"{self.url}/v1/status", timeout=_REQUEST_TIMEOUT, trust_env=False)
        except httpx.TransportError as error:
            raise RunError(f"no service answers at {self.url}: {error}") from error

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """It is used in the body."""
        async with self._client:
            yield

    async def status(self) -> dict[str, Any] | None:
        """The supervisor's status; None while it does not answer."""
        try:
            answer = await self._client.get("/v1/status")
            document = answer.json() if answer.is_success else None
        except (httpx.TransportError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    async def inspect(self) -> None:
        """Read what does not change. Raises ``RunError`` if there is no such service on this machine."""
        status = await self.wait_for(lambda status: status["ready"], "every container is served")
        self.folder = Path(status["folder"])
        self.containers = len(status["containers"])
        for victim in await self.hosts():
            if not is_process_of(victim.pid, self.folder):
                raise RunError(
                    f"process {victim.pid} is not {victim.name} of {self.folder} here: run this "
                    "on the service's machine, or name the processes with --pids-from"
                )

    async def wait_for(self, holds: Callable[[dict[str, Any]], object], what: str) -> dict[str, Any]:
        """The first status for which ``holds``. Raises ``RunError`` after ``patience``, on a busy machine as
        many times that as processes share a core."""
        status, limit = None, self.patience * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        with anyio.move_on_after(limit):
            while True:
                status = await self.status()
                if status is not None and holds(status):
                    return status
                await anyio.sleep(POLL)
        why = self.exit_reason() or "; if this machine is busy, try again when it is not"
        raise RunError(f"not within {limit:.3g} s: {what}; the last status was {_summary(status)}{why}")

    async def settled(self) -> dict[str, Any]:
        """The status when all hosts serve and have their share of the containers."""
        return await self.wait_for(is_balanced, "every host serves its share")

    async def hosts(self) -> list[Victim]:
        """The hosts that serve now."""
        status = await self.wait_for(
            lambda status: any(host["phase"] == "serving" for host in status["hosts"]), "a host serves"
        )
        known = self._known_pids()
        return [
            Victim(host["id"], known.get(host["id"], host["pid"]), tuple(host["containers"]))
            for host in status["hosts"]
            if host["phase"] == "serving"
        ]

    async def owner(self, segment: str) -> Victim:
        """The host that serves the segment's container. Raises ``RunError`` if there is none."""
        container = container_of(segment, self.containers)
        for host in await self.hosts():
            if container in host.containers:
                return host
        raise RunError(f"no host serves container {container}")

    async def supervisor(self) -> Victim:
        status = await self.wait_for(lambda status: True, "the supervisor answers")
        return Victim("supervisor", self._known_pids().get("supervisor", status["pid"]))

    def _known_pids(self) -> dict[str, int]:
        """Lines of a name and a process id, read again each time because hosts are replaced."""
        if self._pids_from is None:
            return {}
        try:
            pairs = [line.split() for line in self._pids_from.read_text().splitlines() if line.strip()]
            return {name: int(pid) for name, pid in pairs}
        except ValueError:
            raise RunError(f"{self._pids_from}: a line is not a name and a process id") from None

    def send_signal(self, victim: Victim, number: signal.Signals) -> bool:
        """Returns whether the process was there."""
        if self._pids_from is None and not is_process_of(victim.pid, self.folder):
            return False
        try:
            os.kill(victim.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def restart_supervisor(self) -> None:
        raise RunError("a service that was not started here cannot be restarted")

    def keep(self, folder: Path) -> None:
        """Copy into ``folder`` what ``close`` removes and a user may want to see."""

    def close(self) -> None:
        """Remove what was made for the service outside of the run's folder."""

    def log_lines(self) -> Iterator[str]:
        """The log of its processes, if it is known."""
        return iter(())

    def exit_reason(self) -> str:
        """What an error message adds if the supervisor has ended."""
        return ""


class OwnService(Service):
    """A service that is started here, on a folder of ours."""

    is_ours = True

    def __init__(
        self,
        folder: Path,
        *,
        hosts: int,
        containers: int,
        config: str,
        data: Path | None = None,
        port: int | None = None,
    ) -> None:
        """``folder`` holds the log, the configuration, and the data unless ``data`` names another folder."""
        # A restarted supervisor must listen where its predecessor did.
        port = port or free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.folder = data or folder / "data"
        self.containers = containers
        self.log = folder / "service.log"
        settings = folder / "service.toml"
        settings.write_text(config)
        self.runtime = make_runtime_folder()
        self._arguments = (
            f"--listen=127.0.0.1:{port}",
            f"--hosts={hosts}",
            f"--containers={containers}",
            f"--config={settings}",
        )
        self._process: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start it, wait until it has settled, and stop it after the body; kill it if anything fails."""
        try:
            async with super().running(), self.started():
                await self.settled()
                yield
                await self.stop()
        finally:
            with anyio.CancelScope(shield=True):
                await self.kill_everything()

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Start it. A subclass puts proxies between its processes."""
        self.start()
        yield

    def close(self) -> None:
        shutil.rmtree(self.runtime, ignore_errors=True)

    def start(self) -> None:
        # In a session of its own: Ctrl-C in a terminal reaches the script alone, which ends the service.
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime)}
        self._process = start_serving(
            self.folder, self.log, *self._arguments, env=environment, start_new_session=True
        )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def restart_supervisor(self) -> None:
        """Start the next one after a kill. It takes over the running hosts."""
        assert self._process is not None
        await anyio.to_thread.run_sync(self._process.wait)
        self.start()

    async def stop(self) -> None:
        """Shut it down. Raises ``RunError`` if that fails or takes too long."""
        assert self._process is not None
        for pid in processes_of(self.folder):
            os.kill(pid, signal.SIGCONT)
        self._process.terminate()
        with anyio.move_on_after(PATIENCE):
            code = await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            if code == 0:
                return
            raise RunError(f"the supervisor ended with exit status {code}: see {self.log}")
        raise RunError(f"the service did not stop within {PATIENCE:g} s: see {self.log}")

    def kill_now(self) -> int:
        """SIGKILL of the supervisor and of all hosts; returns how many processes that are."""
        pids = processes_of(self.folder)
        for pid in pids:
            kill_process(pid)
        return len(pids)

    async def kill_everything(self) -> None:
        """SIGKILL until no process is left."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        with anyio.move_on_after(PATIENCE):
            while left := processes_of(self.folder):
                for pid in left:
                    kill_process(pid)
                await anyio.sleep(POLL)

    def log_lines(self) -> Iterator[str]:
        with self.log.open(errors="replace") as stream:
            yield from stream

    def exit_reason(self) -> str:
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""

        [last] = deque(self.log_lines(), maxlen=1) or ["nothing"]
        return f"; the supervisor has ended with exit status {code}, and its last line is: {last.strip()}"


def make_runtime_folder() -> Path:
    """For sockets: a path has at most about 100 bytes, so a deep temporary folder cannot contain them."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= _SHORT_PATH else "/tmp"
    return Path(tempfile.mkdtemp(prefix="tlc-", dir=parent))


def is_balanced(status: dict[str, Any]) -> bool:
    """Every container is served, and no host has more than one above another."""
    loads = [len(host["containers"]) for host in status["hosts"]]
    serving = all(host["phase"] == "serving" for host in status["hosts"])
    return bool(status["ready"]) and serving and max(loads) - min(loads) <= 1


def _summary(status: dict[str, Any] | None) -> str:
    if status is None:
        return "none at all"
    hosts = ", ".join(f"{host['id']} {host['phase']}" for host in status["hosts"])
    containers = ", ".join(
        f"{each['container']} {each['phase']} {each['reason']}".strip() for each in status["containers"]
    )
    return f"hosts: {hosts}; containers: {containers}"

"""The service under attack: a supervisor that is started here, or one that runs already.

Owns: the supervisor's process, its restart, its end; what its status says; the signals that hit it and its
hosts. Does not own: when what is hit (the scripts), nor the writers.

Signals go to one process id at a time, which the status names, and which is checked to be a process of this
service first. On the way out everything of ours is ended, stopped processes too: nothing is left, whatever
happened.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import attrs

from chaos_parts.raw import Admin

PATIENCE = 30.0
"""Seconds after which something that should have happened counts as broken."""
_LOOK = 0.01
_SHORT_PATH = 48


class ChaosError(Exception):
    """The run cannot be made, or the service did not come back. The message says what to look at."""


@attrs.frozen
class Victim:
    """A process that may be hit."""

    name: str
    pid: int
    containers: tuple[int, ...] = ()


class Service:
    """A running service, as the scripts see it."""

    def __init__(self, url: str, *, pids_from: Path | None = None) -> None:
        self.url = url
        self.patience = PATIENCE
        """Seconds that it may take to settle."""
        self.data_url = url
        """What writers and readers are given."""
        self.admin = Admin(url)
        self._pids_from = pids_from
        self.folder: Path | None = None
        self.containers = 0

    is_ours = False
    """Whether the supervisor may be killed, because it is started again from here."""

    async def learn(self) -> None:
        """Read what does not change. ``ChaosError`` if there is no such service, or not on this machine."""
        status = await self.wait_for(lambda status: status["ready"], "every container is served")
        self.folder = Path(status["folder"])
        self.containers = len(status["containers"])
        for victim in await self.hosts():
            if not is_process_of(victim.pid, self.folder):
                raise ChaosError(
                    f"process {victim.pid} is not {victim.name} of {self.folder} here: run this on the "
                    f"service's machine, "
                    "or name the processes with --pids-from"
                )

    async def wait_for(self, holds: Any, what: str) -> dict[str, Any]:
        """The first status for which ``holds``. ``ChaosError`` if there is none in time."""
        status, limit = None, self.patience
        with anyio.move_on_after(limit):
            while True:
                status = await self.admin.status()
                if status is not None and holds(status):
                    return status
                await anyio.sleep(_LOOK)
        raise ChaosError(
            f"not within {limit:g} s: {what}; the last status was {_short(status)}{self.last_words()}"
        )

    async def settled(self) -> dict[str, Any]:
        """Every host serves its share again."""
        return await self.wait_for(_is_balanced, "every host serves its share")

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

    async def supervisor(self) -> Victim:
        status = await self.wait_for(lambda status: True, "the supervisor answers")
        return Victim("supervisor", self._known_pids().get("supervisor", status["pid"]))

    def _known_pids(self) -> dict[str, int]:
        """Lines of a name and a process id; read anew each time, because hosts are replaced."""
        if self._pids_from is None:
            return {}
        pairs = [line.split() for line in self._pids_from.read_text().splitlines() if line.strip()]
        return {name: int(pid) for name, pid in pairs}

    def hit(self, victim: Victim, number: signal.Signals) -> bool:
        """Send a signal; whether the process was there."""
        assert self.folder is not None
        if self._pids_from is None and not is_process_of(victim.pid, self.folder):
            return False
        try:
            os.kill(victim.pid, number)
        except ProcessLookupError:
            return False
        return True

    async def restart_supervisor(self) -> None:
        raise ChaosError("a service that was not started here cannot be started again")

    def keep(self, folder: Path) -> None:
        """Put into ``folder`` what is worth keeping and does not lie there."""

    def close(self) -> None:
        """Everything that was made for it is gone."""

    def log_lines(self) -> Iterator[str]:
        """What its processes logged; nothing if that is not known."""
        return iter(())

    def last_words(self) -> str:
        """What a complaint about it has to add: how it ended, if it did and that is known."""
        return ""


class OwnService(Service):
    """One that is started here, on a folder of ours."""

    is_ours = True

    def __init__(
        self, folder: Path, workplace: Path, *, hosts: int, containers: int, config: str, port: int
    ) -> None:
        """``folder``: the data. ``workplace``: where the log and the configuration are put."""
        super().__init__(f"http://127.0.0.1:{port}")
        self.folder = folder
        self.containers = containers
        self.log = workplace / "service.log"
        settings = workplace / "service.toml"
        settings.write_text(config)
        self.runtime = Path(tempfile.mkdtemp(prefix="tlc-", dir=_short_parent()))
        self._command = [sys.executable, "-P", "-m", "tierlog.actors.cli", "serve", str(folder)]
        self._command += [f"--listen=127.0.0.1:{port}", f"--hosts={hosts}"]
        self._command += [f"--containers={containers}", f"--config={settings}"]
        self._process: subprocess.Popen[bytes] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            async with self.between():
                await self.settled()
                yield
                await self.stop()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end_everything()

    @asynccontextmanager
    async def between(self) -> AsyncIterator[None]:
        """Start it, with what shall stand between its parts while it runs: nothing here."""
        self.start()
        yield

    def close(self) -> None:
        """Remove what lies outside of the workplace."""
        shutil.rmtree(self.runtime, ignore_errors=True)

    def start(self) -> None:
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C in a terminal reaches the script alone, which then ends the
            # service.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env={**os.environ, "XDG_RUNTIME_DIR": str(self.runtime)},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def restart_supervisor(self) -> None:
        """It was killed: start the next one. The hosts are found again."""
        assert self._process is not None
        await anyio.to_thread.run_sync(self._process.wait)
        self.start()

    async def stop(self) -> None:
        """The clean end. ``ChaosError`` if it is none."""
        assert self._process is not None
        for pid in processes_of(self.folder_path):
            os.kill(pid, signal.SIGCONT)
        self._process.terminate()
        with anyio.move_on_after(PATIENCE):
            code = await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
            if code == 0:
                return
            raise ChaosError(f"the supervisor ended with exit status {code}: see {self.log}")
        raise ChaosError(f"the service did not stop within {PATIENCE:g} s: see {self.log}")

    @property
    def folder_path(self) -> Path:
        assert self.folder is not None
        return self.folder

    async def _end_everything(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        with anyio.move_on_after(PATIENCE):
            while left := processes_of(self.folder_path):
                for pid in left:
                    kill_process(pid)
                await anyio.sleep(_LOOK)

    def log_lines(self) -> Iterator[str]:
        with self.log.open(errors="replace") as stream:
            yield from stream

    def last_words(self) -> str:
        code = None if self._process is None else self._process.poll()
        if code is None:
            return ""

        [said] = deque(self.log_lines(), maxlen=1) or ["nothing"]
        return f"; the supervisor has ended with exit status {code}, and its last line is: {said.strip()}"


def _short_parent() -> str:
    """Where folders for sockets are made, whose paths have about 100 bytes in all: the temporary folder,
    unless it lies deep."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= _SHORT_PATH else "/tmp"


def _is_balanced(status: dict[str, Any]) -> bool:
    loads = [len(host["containers"]) for host in status["hosts"]]
    serving = all(host["phase"] == "serving" for host in status["hosts"])
    return bool(status["ready"]) and serving and max(loads) - min(loads) <= 1


def _short(status: dict[str, Any] | None) -> str:
    if status is None:
        return "none at all"
    hosts = ", ".join(f"{host['id']} {host['phase']}" for host in status["hosts"])
    places = ", ".join(
        f"{place['container']} {place['phase']} {place['reason']}".strip() for place in status["containers"]
    )
    return f"hosts: {hosts}; containers: {places}"


def kill_process(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def stat_of(pid: int) -> list[str]:
    """State, parent, group, session and what comes behind them; empty if the process is gone."""
    try:
        # They come behind the name, which is in brackets and may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_of(pid: int) -> str:
    """The command line; empty if the process is gone or only waits to be reaped."""
    try:
        if stat_of(pid)[:1] in ([], ["Z"]):
            return ""
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_process_of(pid: int, folder: Path) -> bool:
    """Whether the process serves the folder: its command line names it."""
    command = command_of(pid)
    return str(folder) in command and "tierlog" in command


def processes_of(folder: Path) -> list[int]:
    """Living processes that serve the folder, whoever their parent is."""
    return [pid for pid in _all_processes() if pid != os.getpid() and is_process_of(pid, folder)]


def processes_of_session(session: int) -> list[int]:
    """Living processes of a session, whoever their parent is."""
    return [
        pid
        for pid in _all_processes()
        if (stat := stat_of(pid)) and stat[0] != "Z" and int(stat[3]) == session
    ]


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]

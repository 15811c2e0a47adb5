"""A service on several machines, whose store is in a place that all of them reach: a supervisor, and hosts
that join it. A machine is a loopback address, a folder and the processes of one host.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from chaos_parts.processes import PATIENCE, POLL, RunError, free_port, kill_process, processes_of_session
from chaos_parts.service import TIERLOG, Service, Victim, is_balanced, make_runtime_folder


class _Process:
    """`tierlog supervise` or `tierlog host`, in a session of its own: Ctrl-C in a terminal does not reach it,
    and all its descendants can be found."""

    def __init__(self, name: str, command: list[str], folder: Path, runtime: Path) -> None:
        for each in (folder, runtime):
            each.mkdir(mode=0o700)
        self.name = name
        self.log = folder.with_suffix(".log")
        own = {"TIERLOG_CHUNK_CACHE_PATH": str(folder / "cache"), "XDG_RUNTIME_DIR": str(runtime)}
        with self.log.open("ab") as stream:
            self._popen = subprocess.Popen(
                [*TIERLOG, *command],
                cwd=folder,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self.was_killed = False

    @property
    def code(self) -> int | None:
        return self._popen.poll()

    def kill(self) -> None:
        """With all its descendants."""
        self.was_killed = True
        self._popen.kill()
        for pid in processes_of_session(self.pid):
            kill_process(pid)

    async def terminate(self) -> None:
        """Raises ``RunError`` if that fails or takes too long."""
        self._popen.terminate()
        with anyio.move_on_after(PATIENCE):
            while (code := self.code) is None:
                await anyio.sleep(POLL)
            if code == 0:
                return
            raise RunError(f"{self.name} ended with exit status {code}: see {self.log}")
        raise RunError(f"{self.name} did not stop within {PATIENCE:g} s: see {self.log}")

    async def gone(self) -> None:
        """Kill what is left of it."""
        self._popen.kill()
        self._popen.wait()
        with anyio.move_on_after(PATIENCE):
            while left := processes_of_session(self.pid):
                for pid in left:
                    kill_process(pid)
                await anyio.sleep(POLL)


class JoinedService(Service):
    """Hosts are named after their machines: `machine-1` has the address 127.0.0.2."""

    is_ours = True

    def __init__(self, folder: Path, place: str, *, hosts: int, containers: int, config: str) -> None:
        """``folder`` holds the logs, the configuration, and a folder for each machine."""
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self.folder = folder
        self.containers = containers
        self._port = port
        self._place = place
        self._hosts = hosts
        self._settings = folder / "service.toml"
        self._settings.write_text(config)
        self._runtime = make_runtime_folder()
        self._processes: dict[str, _Process] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start it, wait until it has settled, and stop it after the body; kill it if anything fails."""
        try:
            async with super().running():
                address = f"--listen=127.0.0.1:{self._port}"
                self._start("supervisor", "supervise", address, f"--containers={self.containers}")
                await self.wait_for(lambda status: True, "the supervisor answers")
                for number in range(1, self._hosts + 1):
                    name = f"machine-{number}"
                    self._start(name, "host", f"--listen=127.0.0.{number + 1}:0", f"--id={name}")
                await self.settled()
                yield
                await self._stop()
        finally:
            with anyio.CancelScope(shield=True):
                for process in self._processes.values():
                    await process.gone()

    def _start(self, name: str, verb: str, *arguments: str) -> None:
        command = [verb, f"--join={self._place}", f"--config={self._settings}", *arguments]
        self._processes[name] = _Process(name, command, self.folder / name, self._runtime / name)

    async def _stop(self) -> None:
        """The hosts first: the last containers are handed over to nobody."""
        for process in reversed(self._processes.values()):
            if not process.was_killed:
                await process.terminate()

    def close(self) -> None:
        shutil.rmtree(self._runtime, ignore_errors=True)

    async def settled(self) -> dict[str, Any]:
        """The status when every living host serves its share. A killed one is silent for a while."""
        living = sum(not process.was_killed for process in self._processes.values()) - 1

        def is_settled(status: dict[str, Any]) -> bool:
            serving = [host for host in status["hosts"] if host["phase"] == "serving"]
            return len(serving) == living and is_balanced({**status, "hosts": serving})

        return await self.wait_for(is_settled, "every host serves its share")

    def send_signal(self, victim: Victim, number: signal.Signals) -> bool:
        """A killed machine loses all its processes."""
        process = self._processes[victim.name]
        if number is not signal.SIGKILL or process.pid != victim.pid or process.code is not None:
            return False
        process.kill()
        return True

    def log_lines(self) -> Iterator[str]:
        for process in self._processes.values():
            with process.log.open(errors="replace") as stream:
                yield from stream

    def exit_reason(self) -> str:
        for process in self._processes.values():
            if process.code is not None and not process.was_killed:
                with process.log.open(errors="replace") as stream:
                    [last] = deque(stream, maxlen=1) or ["nothing"]
                return f"; {process.name} has ended with exit status {process.code}: {last.strip()}"
        return ""

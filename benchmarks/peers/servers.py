"""Servers as processes: started on a free port of the loopback interface, waited for, killed, and gone with
the measurement, also on Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread
import attrs

from benchmarks.harness import BenchmarkError, payloads
from benchmarks.peers.contract import EVENT_BYTES, Peer, fill
from benchmarks.starting import environment

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.005


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def find_program(name: str) -> str | None:
    """Beside this Python, where its packages put programs, or on PATH."""
    own = shutil.which(name, path=os.path.dirname(sys.executable))
    return own or shutil.which(name)


def run_to_end(command: Sequence[str]) -> str:
    """The first line that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{os.path.basename(command[0])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout.strip().partition("\n")[0]


class Server:
    """A process that listens on ``port``, with its data in ``folder``/data and its output in
    ``folder``/log."""

    def __init__(self, command: Sequence[str], folder: Path, port: int) -> None:
        self._command = command
        self._folder = folder
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = port

    def start(self) -> None:
        with self._log.open("ab") as log:
            # In a session of its own: Ctrl-C in a terminal does not reach it.
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment(str(self._folder)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def answer(self) -> None:
        """Returns once it listens."""
        assert self._process is not None
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            await self.pause()
        raise BenchmarkError(f"{self._name} does not answer: {last_line(self._log)}")

    async def pause(self) -> None:
        """Before the next attempt to reach it."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise BenchmarkError(
                f"{self._name} ended with {self._process.returncode}: {last_line(self._log)}"
            )
        await anyio.sleep(_POLL_SECONDS)

    @property
    def _name(self) -> str:
        return os.path.basename(self._command[0])

    def kill(self) -> None:
        """It and the processes that it started, as a power failure would."""
        if self._process is not None:
            kill_family(self._process)

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() or ["it prints nothing"]
    return lines[-1]


def kill_family(process: subprocess.Popen[Any]) -> None:
    """With its children and theirs, if it runs."""
    if process.poll() is None:
        for pid in reversed(_family(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _family(pid: int) -> list[int]:
    """A process, its children and theirs."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(each for child in children for each in _family(int(child)))]


class Created(Peer, Protocol):
    """A peer over a connection."""

    async def create(self) -> None:
        """Make the streams."""
        ...


Connect = Callable[[Server], AbstractAsyncContextManager[Created]]


@asynccontextmanager
async def started(server: Server, connect: Connect) -> AsyncIterator[Created]:
    """Starts the server; the caller ends it."""
    server.start()
    await server.answer()
    async with connect(server) as peer:
        yield peer


@asynccontextmanager
async def served(server: Server, connect: Connect) -> AsyncIterator[Peer]:
    """A new server and a client of it."""
    try:
        async with started(server, connect) as peer:
            await peer.create()
            yield peer
    finally:
        server.stop()


class Loaded:
    """The data of a peer that was killed after it was loaded: every round starts from it, because a start
    repairs what the next one finds."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._kept = folder / "kept"

    def keep(self) -> None:
        self.data.rename(self._kept)

    def restore(self) -> None:
        """Also waits until the copy is on the disk, where nothing else is in the way of the next sync."""
        shutil.rmtree(self.data, ignore_errors=True)
        subprocess.run(["cp", "-a", "--sparse=always", "--reflink=auto", self._kept, self.data], check=True)
        os.sync()


@attrs.frozen(eq=False)
class ServerRestarts:
    server: Server
    connect: Connect
    loaded: Loaded
    loader: Server
    """Runs in place of ``server`` while the data is loaded, where that one would take minutes for it. The
    same one otherwise."""

    async def load(self, count: int) -> None:
        try:
            async with started(self.loader, self.connect) as peer:
                await peer.create()
                await fill(peer, 0, count, payloads(EVENT_BYTES))
            if self.loader is not self.server:
                self.loader.stop()  # What it has not synced it would lose.
        finally:
            self.loader.kill()
        self.loaded.keep()

    async def first_ack(self) -> float:
        await anyio.to_thread.run_sync(self.loaded.restore)
        [event] = payloads(EVENT_BYTES, 1)
        begin = time.perf_counter()
        try:
            async with started(self.server, self.connect) as peer:
                await peer.append(0, event)
                seconds = time.perf_counter() - begin
        finally:
            self.server.kill()
        return seconds

"""Processes of this machine: found through /proc, killed with their descendants, asked over pipes, and
counted for leaks.

A worker is the first process of a session, so Ctrl-C in a terminal does not reach it, and all its descendants
(Spark's Java, and Java's Python workers) can be found.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, Self

import anyio
import anyio.abc
import attrs
from anyio.streams.buffered import BufferedByteReceiveStream

import tierlog
from tierlog.actors.kernel.process_status import status_fields

SCRIPTS = Path(__file__).resolve().parents[1]
PATIENCE = 30.0
"""Seconds after which a missing event counts as a failure."""
POLL = 0.01
_ANSWER_BYTES_MAX = 1 << 20
_SLACK = 6
"""Descriptors that may come and go: a connection that is being closed, a log file that has just been
rolled."""


class RunError(Exception):
    """The run cannot be made, or a promise does not hold. The message names what to look at."""


async def until_signalled(work: Callable[[], Awaitable[None]]) -> int:
    """Await ``work``. SIGINT, SIGTERM or SIGHUP cancels it.

    Returns 0, or 128 and the signal's number. Errors of work that a signal cut short are dropped.
    """
    status = 0

    async def watch(scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        nonlocal status
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                status = 128 + number
                scope.cancel()
                return

    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(watch, tasks.cancel_scope)
            await work()
            tasks.cancel_scope.cancel()
    except* (RunError, tierlog.TierlogError):
        if not status:
            raise
    return status


def python_path(*folders: str) -> dict[str, str]:
    """The environment of a Python process that finds these folders, and the modules of the scripts."""
    path = (*folders, str(SCRIPTS), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def counted(number: int, noun: str) -> str:
    """``1 host`` or ``2 hosts``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def free_port() -> int:
    """A port that was free a moment ago, and is none that systems choose by themselves: nobody is given it
    meanwhile. A restarted supervisor must listen where its predecessor did."""
    while True:
        port = SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


# --- /proc -------------------------------------------------------------------------------------


def kill_process(pid: int) -> None:
    signal_process(pid, signal.SIGKILL)


def signal_process(pid: int, number: signal.Signals) -> None:
    """Nothing happens if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def command_of(pid: int) -> str:
    """The command line; empty if the process is gone or a zombie."""
    try:
        if status_fields(pid)[:1] in ([], ["Z"]):
            return ""
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_process_of(pid: int, folder: Path) -> bool:
    """Whether the process serves the folder: its command line names it."""
    command = command_of(pid)
    return str(folder) in command and "tierlog" in command


def processes_naming(folder: Path) -> dict[int, str]:
    """The command lines of living processes that name the folder, without this process."""
    commands = {pid: command_of(pid) for pid in _all_processes() if pid != os.getpid()}
    return {pid: command for pid, command in commands.items() if str(folder) in command}


def processes_of(folder: Path) -> list[int]:
    """Living processes that serve the folder."""
    return [pid for pid, command in processes_naming(folder).items() if "tierlog" in command]


def processes_of_session(session: int) -> list[int]:
    """Living processes of a session."""
    found = ((pid, status_fields(pid)) for pid in _all_processes())
    return [pid for pid, stat in found if stat and stat[0] != "Z" and int(stat[3]) == session]


def children_of(parent: int) -> list[int]:
    """Living children."""
    found = ((pid, status_fields(pid)) for pid in _all_processes())
    return [pid for pid, stat in found if stat and stat[0] != "Z" and int(stat[1]) == parent]


def _all_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


# --- workers ------------------------------------------------------------------------------------


class WorkerGoneError(RunError):
    """The worker was killed, or ended by itself."""


class Worker:
    """A Python process that answers each line of JSON on its standard input with one on its standard
    output."""

    def __init__(self, process: anyio.abc.Process, log: Path) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._process = process
        self._requests = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)
        self.log = log

    @classmethod
    async def start(cls, module: str, *arguments: str, folder: Path) -> Self:
        """Run ``python -m module`` in the new ``folder``, with its temporary files there; ``folder``.log is
        its standard error output."""
        folder.mkdir()
        log = folder.with_suffix(".log")
        command = [sys.executable, "-m", module, *arguments]
        with log.open("wb") as errors:
            process = await anyio.open_process(
                command,
                stderr=errors,
                cwd=folder,
                env=python_path() | {"TMPDIR": str(folder)},
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def session(self) -> int:
        return self._process.pid

    async def ask(self, document: object) -> dict[str, Any]:
        """Send one request. Raises ``WorkerGoneError`` if the process ends before it has answered."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._requests.send(json.dumps(document).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next answer: the first one reports that the worker is ready."""
        try:
            answer: dict[str, Any] = json.loads(await self._answers.receive_until(b"\n", _ANSWER_BYTES_MAX))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            reason = f"a worker process ended by itself; {self.log} ends: {self.log_end}"
            raise WorkerGoneError(reason) from None
        return answer

    @property
    def log_end(self) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or "it is empty"

    async def close(self) -> list[int]:
        """End its input and wait; returns the processes of its session that are left after ``PATIENCE``."""
        await self._requests.aclose()
        left = []
        with anyio.move_on_after(PATIENCE):
            await self._process.wait()
            while left := processes_of_session(self.session):
                await anyio.sleep(POLL)
        return left

    async def kill(self) -> None:
        """Kill every process of its session, the first one first, and wait for the end."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            with anyio.move_on_after(PATIENCE):
                while left := processes_of_session(self.session):
                    for pid in left:
                        kill_process(pid)
                    await anyio.sleep(POLL)
            await self._process.aclose()


# --- leaks --------------------------------------------------------------------------------------


@attrs.frozen
class Usage:
    """What one process has open. Two counts are comparable only while the service is balanced and idle."""

    role: str
    descriptors: int
    sockets: int
    threads: int


def usage_of(pids: Mapping[str, int], role: str) -> dict[str, Usage]:
    """By process name; processes that are gone are left out."""
    found = {}
    for name, pid in pids.items():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
            sockets = sum(_is_socket(path) for path in descriptors)
            found[name] = Usage(role, len(descriptors), sockets, len(os.listdir(f"/proc/{pid}/task")))
    return found


def _is_socket(path: Path) -> bool:
    try:
        return str(path.readlink()).startswith("socket:")
    except (FileNotFoundError, ProcessLookupError):
        return False


def compare_usage(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> list[str]:
    """Leaks, by process name. A replaced process has a new name, so each one is compared with the largest
    count of its role."""
    found = []
    for name, now in sorted(after.items()):
        peers = [each for each in before.values() if each.role == now.role]
        if not peers:
            found.append(f"{name} was not there before")
            continue

        for what in ("descriptors", "sockets", "threads"):
            most = max(getattr(peer, what) for peer in peers)
            allowed = most + (_SLACK if what != "threads" else 2 * _SLACK)
            if getattr(now, what) > allowed:
                found.append(f"{name} has {getattr(now, what)} {what}, {most} at the beginning: they leak")
    return found

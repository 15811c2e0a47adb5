"""``Unit``: one process of a machine, which is stopped, killed and started again."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from chaos_parts.namespaces import Machine
from chaos_parts.processes import PATIENCE, POLL, RunError, children_of, command_of

PORT = 8470
"""Of supervisors; hosts have the next one."""
_OTHER_TOOK_OVER = "another supervisor took over"


class Unit:
    """One process of a machine, and the next one when it has ended."""

    def __init__(
        self,
        machine: Machine,
        kind: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
    ) -> None:
        """``kind``: the subcommand of tierlog, or ``bookie``."""
        self.machine = machine
        self.kind = kind
        self.log = log
        self.is_wanted = False
        """Whether it is to run. The end of one that is not is no fault."""
        self._command = machine.command(*command)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self.was_killed = False
        """Whether the run killed the present process, or the last one."""

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def address(self) -> str:
        return f"{self.machine.address}:{PORT + (self.kind == 'host')}"

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def has_joined(self) -> bool:
        """Whether a supervisor has welcomed the present process, a host."""
        return any(line.startswith("joined ") for line in self.log_lines())

    @property
    def is_ready(self) -> bool:
        """Whether the present process, a bookie, is registered and answers."""
        return self.is_alive and "ready\n" in self.log_lines()

    @property
    def sidecar(self) -> int:
        """The process id of its sidecar; 0 if it has none now."""
        return next((pid for pid in children_of(self.pid) if "Sidecar" in command_of(pid)), 0)

    def start(self) -> None:
        self.is_wanted, self.was_killed = True, False
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as stream:
            # In a session of its own: Ctrl-C in a terminal reaches the script alone.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=self.machine.folder,
                env=self._environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        """SIGKILL and SIGTERM end it until ``start``, also if it is stopped."""
        ends = number in (signal.SIGKILL, signal.SIGTERM)
        self.is_wanted = self.is_wanted and not ends
        if self.is_alive and self._process is not None:
            self.was_killed = self.was_killed or number == signal.SIGKILL
            self._process.send_signal(number)
            if ends:
                self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def log_lines(self) -> list[str]:
        """Of the present process, or of the last one."""
        with self.log.open(errors="replace") as stream:
            stream.seek(self._log_start)
            return stream.readlines()

    def ended_wrongly(self) -> str:
        """How it ended, if a wanted one did, and it is no supervisor that another one followed."""
        lines = [line for line in self.log_lines() if line.strip()] or ["nothing"]
        if self.kind == "supervise" and any(_OTHER_TOOK_OVER in line for line in lines[-3:]):
            return ""
        code = None if self._process is None else self._process.returncode
        return f"{self.name} ended by itself with exit status {code}: {lines[-1].strip()[:300]}"

    def wait_ready(self) -> None:
        """Raises ``RunError`` if it, a bookie, ends or takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not self.is_ready:
            if not self.is_alive or time.monotonic() > deadline:
                raise RunError(f"{self.name} did not start: see {self.log}")
            time.sleep(POLL)

    async def ended(self) -> int:
        """Its exit status, once it has ended. Raises ``RunError`` after a minute: one that is cut off
        flushes, waits for a supervisor and closes what it has, each within a limit."""
        assert self._process is not None
        with anyio.move_on_after(2 * PATIENCE):
            while (code := self._process.poll()) is None:
                await anyio.sleep(POLL)
            return code
        raise RunError(f"{self.name} did not end within {2 * PATIENCE:g} s: see {self.log}")

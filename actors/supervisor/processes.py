"""Processes of hosts: started by exec, watched until they end, signalled by a handle that a reused process id
cannot mislead. Only a verified process is signalled: a child, the peer of the control socket, or a process
that holds the lock of its lock file and whose start is the one in it.

A host may outlive its supervisor and be found by the next one (rule V4), which watches it without being its
parent. The end of a process is an event (a pidfd becomes readable); where the system has no pidfds it is
polled every 20 ms. A supervisor that ends leaves its hosts running unless it stopped them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import anyio

from ..kernel.process_status import process_start, status_fields

_POLL_SECONDS = 0.02
HAS_PIDFD = hasattr(os, "pidfd_open")


class HostProcess:
    """A process that this supervisor watches: its child, or a host of an earlier supervisor."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None, *, start: str = "") -> None:
        """``start``: what ``process_start`` reported of it, if a file named it. Raises ``ProcessLookupError``
        if there is no such process, or if its number belongs to another process now."""
        self.pid = pid
        self._child = child
        self._pidfd = os.pidfd_open(pid) if HAS_PIDFD else None
        # After the handle is open: from here on the number cannot pass to another process unnoticed.
        if start and process_start(pid) != start:
            if self._pidfd is not None:
                os.close(self._pidfd)
            raise ProcessLookupError(f"process {pid} is not the one that started as {start}")
        self.ended = anyio.Event()
        self.code: int | None = None
        """The code with which it ended, negative for a signal. None if it runs, or is no child, whose code is
        unknown."""
        self.how = ""
        """How it ended, for people."""

    async def wait(self) -> None:
        """Return when the process has ended, and close its handle."""
        try:
            if self._pidfd is not None:
                # Readable when it ends (pidfd_open(2)); the only way to wait for a process that is no child.
                await anyio.wait_readable(self._pidfd)
            else:
                while self._is_running():  # noqa: ASYNC110 - the system has no event for it
                    await anyio.sleep(_POLL_SECONDS)
        finally:
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
        if self._child is not None:
            self.code = self._child.wait()
        self.how = "ended" if self.code is None else _how(self.code)
        self.ended.set()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens if the process has ended."""
        with suppress(ProcessLookupError):
            if self.ended.is_set():
                return
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def is_frozen(self) -> bool:
        """Whether it is stopped (SIGSTOP, a debugger) and will not answer until it is continued."""
        # T: stopped by a signal; t: stopped by a debugger (proc_pid_stat(5)).
        return status_fields(self.pid)[:1] in (["T"], ["t"])

    def _is_running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def spawn(command: Sequence[str]) -> HostProcess:
    """Start ``command`` by exec in a session of its own, so that a terminal's Ctrl-C does not reach it.
    Raises ``OSError`` if that fails."""
    nothing = subprocess.DEVNULL
    # Its stderr is ours: the log lines of all processes of a service are one stream.
    child = subprocess.Popen(command, stdin=nothing, stdout=nothing, start_new_session=True)  # noqa: S603
    return HostProcess(child.pid, child)


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"

"""The Spark drivers of a run, as processes: one at a time, kept as long as its master is wanted.

Owns: the process from start to end, its orders and answers, and what its session leaves. Does not own: what
it is ordered. On cancellation everything of its session is killed and waited for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from chaos_parts.service import ChaosError, kill_process, processes_of_session
from chaos_parts.spark_draws import Master
from chaos_parts.spark_jobs import Order

START = 300.0
WRITE = 150.0
"""Seconds after which a session, or a write, hangs."""
_END = 30.0
_ANSWER_BYTES_MAX = 1 << 20
_LOOK = 0.02
_SCRIPTS = Path(__file__).resolve().parents[1]


class DriverGoneError(Exception):
    """It was killed, or has ended by itself."""


class Driver:
    def __init__(self, process: Process, master: Master, log: Path) -> None:
        assert process.stdout is not None
        self._process = process
        self._answers = BufferedByteReceiveStream(process.stdout)
        self.master = master
        self.log = log

    @property
    def session(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        try:
            with anyio.fail_after(START):
                await self._answer()
        except DriverGoneError:
            raise ChaosError(f"Spark did not start; its log ends: {_end_of(self.log)}") from None
        except TimeoutError:
            raise ChaosError(
                f"Spark did not start within {START:g} s; its log ends: {_end_of(self.log)}"
            ) from None

    async def write(self, order: Order) -> str:
        """Why it failed; empty if it did not. ``TimeoutError`` if it hangs."""
        assert self._process.stdin is not None
        with anyio.fail_after(WRITE):
            try:
                await self._process.stdin.send(order.line())
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                raise DriverGoneError from None
            failed: str = (await self._answer())["failed"]
            return failed

    async def _answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(await self._answers.receive_until(b"\n", _ANSWER_BYTES_MAX))
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            raise DriverGoneError from None
        return answer

    async def close(self) -> list[int]:
        """The clean end; what processes are left a while later."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        left = []
        with anyio.move_on_after(_END):
            await self._process.wait()
            while left := processes_of_session(self.session):
                await anyio.sleep(_LOOK)
        return left

    async def kill(self) -> None:
        """All of its session, the driver first."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.kill()
            with anyio.move_on_after(_END):
                while left := processes_of_session(self.session):
                    for pid in left:
                        kill_process(pid)
                    await anyio.sleep(_LOOK)
            await self._process.aclose()


class Drivers:
    """The one that runs, if any."""

    def __init__(
        self,
        workplace: Path,
        java: Mapping[str, str],
        *,
        started: Callable[[float], None],
        leaked: Callable[[str], None],
    ) -> None:
        self._workplace = workplace
        self._java = java
        self._started = started
        self._leaked = leaked
        self._count = 0
        self.driver: Driver | None = None

    async def for_master(self, master: Master) -> Driver:
        if self.driver is not None and self.driver.master is not master:
            await self.close()
        if self.driver is None:
            began = time.monotonic()
            self.driver = await self._start(master)
            await self.driver.ready()
            self._started(time.monotonic() - began)
        return self.driver

    async def close(self) -> None:
        if self.driver is not None:
            if left := await self.driver.close():
                self._leaked(f"processes {left} outlived the driver of {self.driver.master}")
            await self.kill()

    async def kill(self) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            await driver.kill()

    async def _start(self, master: Master) -> Driver:
        self._count += 1
        place = self._workplace / f"spark-{self._count}"
        place.mkdir()
        log = self._workplace / f"spark-{self._count}.log"
        path = os.pathsep.join(filter(None, (str(_SCRIPTS), os.environ.get("PYTHONPATH"))))
        with log.open("wb") as errors:
            process = await anyio.open_process(
                [sys.executable, "-m", "chaos_parts.spark_driver", master.value],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=place,
                env={**os.environ, **self._java, "PYTHONPATH": path, "TMPDIR": str(place)},
                start_new_session=True,
            )
        return Driver(process, master, log)


def _end_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "it is empty"

"""A service on several machines, each a network namespace with a folder of its own: two supervisors, hosts
that join, and one machine for the writers. What ends is started again, as by a service manager, unless the
run ended it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

from chaos_parts.engines import Engine
from chaos_parts.fault import LIMIT
from chaos_parts.namespaces import Network
from chaos_parts.processes import RunError, Usage, usage_of
from chaos_parts.service import TIERLOG, Service, is_balanced
from chaos_parts.units import PORT, Unit
from tierlog.actors.supervisor.placement import AVOIDED_SECONDS

LEASE = 2.0
SILENT_GRACE = 2.0
ORPHAN_GRACE = 5.0
_STATUS_TIMEOUT = 1.0
_WATCH_SECONDS = 0.05
_SETTINGS = f"""\
[server]
lease = "{LEASE:g} s"
silent_grace = "{SILENT_GRACE:g} s"
orphan_grace = "{ORPHAN_GRACE:g} s"
host_port = {PORT + 1}
container_crashes = 1000
failovers = 100000

[writer]
flush_bytes = "256 KiB"
flush_age = "1 s"
rolling_size = "1 MiB"

[checkpoint]
wal_bytes = "1 MiB"
"""
"""Leases and graces that faults outlast, and flushes, rolls and truncations all the time. Hosts may die any
number of times."""


class MachineService(Service):
    """``network``, ``supervisors``, ``hosts`` and ``spare``, another host, are there within ``prepared``."""

    def __init__(
        self, folder: Path, engine: Engine, *, hosts: int, containers: int, violated: Callable[[str], None]
    ) -> None:
        super().__init__("http://machines")
        self.engine = engine
        self.folder = folder
        self.containers = containers
        self.takeover_goal = engine.takeover_goal
        self._host_count = hosts
        self._violated = violated
        self.config = folder / "machines.toml"
        self._uneven_until = 0.0
        """Until then some containers may be kept from some hosts."""

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """The machines, the engine's service, and no process of tierlog yet."""
        with ExitStack() as stack:
            self.network = Network(self.folder)
            stack.callback(self.network.close)
            stack.enter_context(self.engine.running(self.network, self.folder))
            self.config.write_text(self.engine.config + _SETTINGS)
            os.environ.update(self.engine.environment)  # of this process, which reads the store at the end
            self.clients = self.network.add("clients", self.folder / "clients")
            containers = [f"--containers={self.containers}"]
            self.supervisors = [self._unit(f"supervisor-{n}", "supervise", containers) for n in (1, 2)]
            names = [f"host-of-{number}" for number in range(1, self._host_count + 2)]
            *self.hosts_that_join, self.spare = [self._unit(name, "host", [f"--id={name}"]) for name in names]
            self.units = [*self.supervisors, *self.hosts_that_join, self.spare]
            self.data_url = ",".join(
                f"http://{unit.address}" for unit in [*self.supervisors, *self.hosts_that_join]
            )
            yield

    def _unit(self, name: str, kind: str, arguments: list[str]) -> Unit:
        machine = self.network.add(name, self.folder / name)
        place = {"XDG_RUNTIME_DIR": "run", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp"}
        environment = {**os.environ, **self.engine.environment, "HOME": str(machine.folder)}
        for variable, folder in place.items():
            (machine.folder / folder).mkdir(mode=0o700)
            environment[variable] = str(machine.folder / folder)
        port = PORT + (kind == "host")
        common = [
            f"--join={self.engine.place}",
            f"--config={self.config}",
            f"--listen={machine.address}:{port}",
        ]
        command = [*TIERLOG, kind, *common, *arguments]
        return Unit(machine, kind, command, environment, self.folder / f"{name}.log")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start everything but the spare host, stop it after the body; kill it if anything fails."""
        try:
            async with anyio.create_task_group() as tasks:
                async with super().running():
                    for unit in self.supervisors:
                        unit.start()
                    await self.wait_for(lambda status: True, "a supervisor is active")
                    for unit in self.hosts_that_join:
                        unit.start()
                    tasks.start_soon(self._keep_running)
                    await self.complete()
                    yield
                    await self.stop()
                tasks.cancel_scope.cancel()
        finally:
            self.kill_everything()

    async def _keep_running(self) -> None:
        while True:
            for unit in [*self.units, *self.engine.bookies]:
                if unit.is_wanted and not unit.is_alive:
                    if reason := unit.ended_wrongly():
                        self._violated(reason)
                    unit.start()
            await anyio.sleep(_WATCH_SECONDS)

    def writer_command(self, *command: str) -> list[str]:
        return self.clients.command(*command)

    # --- what it shows ---------------------------------------------------------------------------

    async def status(self) -> dict[str, Any] | None:
        """That of the active supervisor: the one with the highest term, if several believe that they are."""
        found: list[dict[str, Any]] = []

        async def ask(unit: Unit) -> None:
            try:
                answer = await self._client.get(f"http://{unit.address}/v1/status", timeout=_STATUS_TIMEOUT)
                # One that stands by refuses.
                found.append(answer.raise_for_status().json())
            except (httpx.HTTPError, ValueError):
                return

        async with anyio.create_task_group() as tasks:
            for unit in self.supervisors:
                if unit.is_alive:
                    tasks.start_soon(ask, unit)
        return max(found, key=lambda status: int(status["term"]), default=None)

    async def inspect(self) -> None:
        await self.complete()

    async def active(self) -> Unit:
        """The unit of the active supervisor."""
        status = await self.wait_for(self._is_ours, "a supervisor is active")
        return next(unit for unit in self.supervisors if unit.pid == status["pid"])

    def _is_ours(self, status: dict[str, Any]) -> bool:
        return status["pid"] in [unit.pid for unit in self.supervisors]

    async def complete(self) -> dict[str, Any]:
        """The status when every process that is wanted does its part: one supervisor is active, the other one
        stands by, and each host serves its share."""

        def is_complete(status: dict[str, Any]) -> bool:
            wanted = [unit for unit in [*self.units, *self.engine.bookies] if unit.is_wanted]
            # One that was just killed is known for a while.
            hosts = sorted((unit.name, unit.pid) for unit in wanted if unit.kind == "host")
            return (
                all(unit.is_alive for unit in wanted)
                and self._is_ours(status)
                and all(unit.is_ready for unit in self.engine.bookies)
                and all(unit.pid == status["pid"] or _stands_by(unit) for unit in self.supervisors)
                and sorted((host["id"], host["pid"]) for host in status["hosts"]) == hosts
                and (is_balanced(status) or (status["ready"] and time.monotonic() < self._uneven_until))
            )

        return await self.wait_for(is_complete, "all machines do their part")

    def expect_failed_openings(self) -> None:
        """From now on: what fails on a host is not opened there for a while, if others accept it (V8)."""
        self._uneven_until = time.monotonic() + AVOIDED_SECONDS + LIMIT

    async def settled(self) -> dict[str, Any]:
        return await self.complete()

    async def containers_of(self, hosts: list[Unit]) -> list[int]:
        status = await self.wait_for(lambda status: True, "a supervisor is active")
        names = [unit.name for unit in hosts]
        return [index for host in status["hosts"] if host["id"] in names for index in host["containers"]]

    def log_lines(self) -> Iterator[str]:
        """Of all processes, in the order of time."""
        lines = []
        for unit in self.units:
            if unit.log.exists():
                with unit.log.open(errors="replace") as stream:
                    lines += [line for line in stream if line.startswith('{"')]
        return iter(sorted(lines, key=_timestamp))

    def usage(self) -> dict[str, Usage]:
        found: dict[str, Usage] = {}
        for role in ("supervise", "host"):
            pids = {unit.name: unit.pid for unit in self.units if unit.kind == role and unit.is_alive}
            found |= usage_of(pids, role)
        return found

    # --- ending ----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Hosts first, then the supervisor that stands by. Raises ``RunError`` if one fails or takes too
        long."""
        active = await self.active()
        supervisors = sorted(self.supervisors, key=lambda unit: unit is active)
        for unit in [*self.hosts_that_join, *supervisors]:
            unit.signal(signal.SIGTERM)
            code = await unit.ended()
            if code and not (unit.kind == "supervise" and unit is not active):
                raise RunError(f"{unit.name} ended with exit status {code}: see {unit.log}")

    def kill_everything(self) -> None:
        for unit in self.units:
            unit.kill()


def _stands_by(unit: Unit) -> bool:
    events = [
        event
        for line in unit.log_lines()
        for event in ("standing_by", "control_record_put")
        if f'"event": "{event}"' in line
    ]
    return events[-1:] == ["standing_by"]


def _timestamp(line: str) -> str:
    _, _, rest = line.partition('"timestamp": "')
    return rest.partition('"')[0]

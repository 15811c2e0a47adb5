"""The host process: wires the store's parts, the gateway and the link to the supervisor, and brings them to
an end in order.

Owns: arguments, logging, signals, exit codes, the order of start and end. Does not own: anything that the
parts do.

Start: bind, open the folder, link to the supervisor, which orders the rest. SIGTERM is a hand-over: the
supervisor is asked to open the containers elsewhere and then to dismiss this host (rule V10). End (its order,
a second SIGTERM or one without a supervisor, no relief in half of ``drain_limit``, no supervisor for the
grace, refused): take no new requests, finish those in flight, close the containers, exit with 0. A signal
while that lasts gives it half a second more; what is not closed by then is left to recovery, which is always
right. A start that fails tells why in one line and exits with 1. The process is started by exec and runs
asyncio on uvloop; it may ask for the machine's clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import anyio.abc
import attrs

from ...storage_backends.base.errors import TierlogError
from ..gateway.server.app import gateway_of, make_app
from ..gateway.server.listener import ServerAddress, bind, serve_http
from ..gateway.wire.bodies import ContainerAssignment, ContainerMap
from ..settings.configuration import StoreConfig, load_config
from ..store.opening import open_host, system_world
from ..store.runtime import ContainerRuntime
from ..supervisor.control.messages import Hello, Owners
from ..telemetry.logging import get_logger, log_json_lines
from ..telemetry.opentelemetry import tracing_of_process
from .heartbeat import LoopMonitor
from .link import Link
from .orders import Orders

_log = get_logger("host")
_LOOK_SECONDS = 1.0
_HURRY_SECONDS = 0.5
_STATISTICS_SECONDS = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one host; returns the exit code."""
    given = _parse(arguments)
    log_json_lines(host=given.id, pid=os.getpid())
    try:
        config = StoreConfig() if given.config is None else load_config(given.config)
        host = HostMain(given, config)
        anyio.run(host.run, backend="asyncio", backend_options={"use_uvloop": True})
    except TierlogError as error:
        _log.error("host_failed", code=error.code, reason=str(error))
        return 1
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tierlog.actors.host", description="A host process; `tierlog serve` starts them."
    )
    parser.add_argument("--data", required=True, help="the data folder")
    parser.add_argument("--id", required=True, help="the host's id, such as host-0")
    parser.add_argument("--control", required=True, help="the supervisor's socket")
    parser.add_argument(
        "--listen", default="127.0.0.1:0", help="address and port; port 0 lets the system choose"
    )
    parser.add_argument("--advertise", default="", help="the address under which clients reach this machine")
    parser.add_argument("--config", help="a tierlog.toml")
    parser.add_argument("--adopt", action="store_true", help="open a restored or copied folder on purpose")
    return parser.parse_args(arguments)


class Places:
    """Where the containers are: what is here by this host's own word, all else by the supervisor's last
    one."""

    def __init__(self) -> None:
        self.own = ""
        """This host's URL."""
        self.urls: Mapping[int, str] = {}
        self._version = 0

    def learn(self, owners: Owners) -> None:
        self.urls = owners.urls
        self._version += 1

    def url_of(self, index: int) -> str | None:
        return self.urls.get(index)

    def map(self, runtime: ContainerRuntime) -> ContainerMap:
        """All containers; the epochs only of those that are here, which counts while the supervisor says
        nothing."""
        epochs = runtime.epochs()
        urls = {**self.urls, **dict.fromkeys(epochs, self.own)} if self.own else self.urls
        places = (
            ContainerAssignment(index, urls.get(index), epochs.get(index))
            for index in range(runtime.containers)
        )
        return ContainerMap(self._version, tuple(places))


class HostMain:
    def __init__(self, given: argparse.Namespace, config: StoreConfig) -> None:
        self._given = given
        self._config = config
        self._places = Places()
        self._tracing = tracing_of_process(given.id)
        self._leaving, self._draining = anyio.Event(), anyio.Event()
        self._supervised: Link | None = None

    async def run(self) -> None:
        address, _, port = self._given.listen.rpartition(":")
        with bind(address.strip("[]"), int(port)) as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._obey_signals)
                tasks.start_soon(self._leave)
                async with self._opened() as runtime:
                    await self._serve(runtime, listener)
                tasks.cancel_scope.cancel()
        _log.info("host_ended")

    def _opened(self) -> AbstractAsyncContextManager[ContainerRuntime]:
        given = self._given
        return open_host(given.data, given.id, config=self._config, adopt=given.adopt, span=self._tracing)

    async def _serve(self, runtime: ContainerRuntime, listener: socket.socket) -> None:
        app = make_app(
            runtime.store,
            system_world(),
            container_map=partial(self._places.map, runtime),
            owner_of=self._places.url_of,
            tracing=self._tracing,
        )
        async with anyio.create_task_group() as tasks:
            async with serve_http(app, listener, stop_timeout=self._config.timeouts.close) as served:
                self._link(runtime, served, tasks)
                await self._draining.wait()
                gateway_of(app).drain()
            # The heartbeats go on until here; the containers are closed behind this block, and the supervisor
            # sees the process end.
            tasks.cancel_scope.cancel()

    def _link(self, runtime: ContainerRuntime, served: ServerAddress, tasks: anyio.abc.TaskGroup) -> None:
        """Connect to the supervisor and do what it says."""
        url = self._places.own = attrs.evolve(served, host=self._given.advertise or served.host).url
        vitals = LoopMonitor(time.monotonic)
        link = Link(
            self._given.control,
            hello=lambda term: Hello(self._given.id, os.getpid(), url, runtime.epochs(), term),
            obey=lambda order: orders.obey(order),  # noqa: PLW0108 - they are made after each other
            redirect=self._places.learn,
            vitals=vitals,
            grace=self._config.server.orphan_grace,
        )
        orders = Orders(runtime, say=link.say, drain=self._drain, tasks=tasks)
        self._supervised = link
        tasks.start_soon(self._run_link, link)
        tasks.start_soon(vitals.watch, partial(self._look, orders, vitals, {"looked": 0.0, "told": 0.0}))

    def _look(self, orders: Orders, vitals: LoopMonitor, last: dict[str, float], late: float) -> None:
        """In each round of the loop: what costs little is done at its pace; after a pause, which may have
        been a freeze, at once."""
        now = vitals.clock()
        if late > vitals.interval or now - last["looked"] >= _LOOK_SECONDS:
            last["looked"] = now
            orders.look()
        if now - last["told"] >= _STATISTICS_SECONDS:
            last["told"] = now
            vitals.statistics = orders.statistics()

    async def _run_link(self, link: Link) -> None:
        self._drain(await link.run())

    def _drain(self, reason: str) -> None:
        if not self._draining.is_set():
            _log.info("draining", reason=reason)
            self._draining.set()

    async def _obey_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._draining.is_set():
                    self._hurry()
                elif not self._leaving.is_set() and self._supervised is not None and self._supervised.leave():
                    _log.info("leaving", reason=signal.Signals(number).name)
                    self._leaving.set()
                else:
                    self._drain(signal.Signals(number).name)

    async def _leave(self) -> None:
        """Wait for the supervisor's dismissal, not for ever: after ``drain_limit`` it kills."""
        await self._leaving.wait()
        await anyio.sleep(self._config.server.drain_limit / 2)
        self._drain("nobody took its containers")

    def _hurry(self) -> None:
        _log.warning("hurrying")
        # Whatever is not closed by then is recovered by the next owner.
        timer = threading.Timer(_HURRY_SECONDS, os._exit, args=(1,))
        timer.daemon = True
        timer.start()

"""The host process: serves the store's containers over HTTP as the supervisor orders, which has started it
or, for one that joined (`tierlog host --join`), is found by the store's bucket.

Start: bind, open the folder, connect to the supervisor, which orders the rest. A signal before a host has
joined interrupts it, as the command line does. SIGTERM is a hand-over: what
is not flushed is, within the budget (rule F9), and the supervisor is asked to open the containers elsewhere
and then to order this host to exit (rule V10). The process drains on that order, on a second SIGTERM or one
without a supervisor, if its containers were not moved within half of ``drain_limit``, after the grace without
a supervisor, or when it is refused: it takes no new requests, finishes those in flight, closes the containers
and exits with 0. A signal during that leaves it half a second; what is not closed by then is recovered by the
next owner. One that joined closes its containers after the grace and looks on for a supervisor, and exits
with 1 when it is refused. If the start fails, it logs one line and exits with 1. The process of a
supervisor's host is started by exec; both kinds run asyncio on uvloop.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio
import anyio.abc
import attrs

from ...storage_backends.base.errors import InvalidArgument, TierlogError
from ..gateway.server.app import ServerLimits, gateway_of, make_app
from ..gateway.server.connections import raise_file_limit
from ..gateway.server.guard import advertised_name, names_of
from ..gateway.server.listener import ServerAddress, bind, serve_http
from ..gateway.wire.bodies import ContainerAssignment, ContainerMap
from ..kernel.exits import first_leaf
from ..kernel.process_memory import RecoveredObjects
from ..settings.configuration import StoreConfig
from ..settings.environment import read_config
from ..store.folder_opening import system_world
from ..store.opening import open_host
from ..store.runtime import ContainerRuntime
from ..supervisor.control.messages import VERSION, Hello, Owners
from ..telemetry.logging import LEVELS, get_logger, log_to_stderr
from ..telemetry.opentelemetry import tracing_of_process
from .dialing import Dialer, RecordDialer, SocketDialer
from .heap import HeapTrimmer
from .heartbeat import LoopMonitor
from .link import Link
from .orders import Orders

_log = get_logger("host")
RESERVED_FILES, CONTAINER_FILES = 128, 4
"""Descriptors that connections leave to the process, and to each container: an idle one holds two, a log that
rolls and chunks need more."""
_CHECK_SECONDS = 1.0
_CONFIRM_SECONDS = 2.0
"""For which a supervisor that was found waits for the logs' answers, at most."""
_PAUSED = 2
"""Intervals by which a round is late if the process may have been stopped for so long that a supervisor saw
it."""
_FORCED_EXIT_SECONDS = 0.5
_STATISTICS_SECONDS = 0.5


@attrs.frozen(kw_only=True)
class HostOptions:
    place: str
    """The data folder, or ``s3://BUCKET/PREFIX`` or ``bookkeeper://ZOOKEEPER:PORT/PATH``."""
    id: str
    address: str
    port: int
    """0 lets the system choose."""
    advertise: str = ""
    """The name or address under which clients reach this machine."""
    control: str = ""
    """The supervisor's socket; empty if the host joins."""
    store_id: str = ""
    """The id of the store that must be there; empty if any may be."""
    adopt: bool = False
    """Whether to open a copied or restored folder (rule W8)."""
    forward: bool = False
    """Whether to pass requests for other hosts on to them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one host; returns the exit code."""
    given = _parse(arguments)
    log_to_stderr(given.log_level, host=given.id, pid=os.getpid())
    try:
        raise_file_limit()
        config = read_config(given.config, os.environ)
        host = HostService(_options_of(given), config)
        anyio.run(host.run, backend="asyncio", backend_options={"use_uvloop": True})
    except TierlogError as error:
        _log.error("host_failed", code=error.code, reason=str(error))
        return 1
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tierlog.actors.host", description="A host process; `tierlog serve` starts them."
    )
    parser.add_argument("--data", required=True, help="the store's place")
    parser.add_argument("--store", default="", help="the id of the store that must be in it")
    parser.add_argument("--id", required=True, help="the host's id, such as host-0")
    parser.add_argument("--control", required=True, help="the supervisor's socket")
    parser.add_argument(
        "--listen", default="127.0.0.1:0", help="address and port; port 0 lets the system choose"
    )
    parser.add_argument("--advertise", default="", help="the address under which clients reach this machine")
    parser.add_argument("--forward", action="store_true", help="pass requests for other hosts on to them")
    parser.add_argument("--config", help="a tierlog.toml")
    parser.add_argument("--log-level", choices=LEVELS, default="info", help="the least level that is logged")
    parser.add_argument("--adopt", action="store_true", help="open a restored or copied folder on purpose")
    return parser.parse_args(arguments)


def _options_of(given: argparse.Namespace) -> HostOptions:
    address, _, port = given.listen.rpartition(":")
    return HostOptions(
        place=given.data,
        id=given.id,
        address=address.strip("[]"),
        port=int(port),
        advertise=given.advertise,
        control=given.control,
        store_id=given.store,
        adopt=given.adopt,
        forward=given.forward,
    )


def _confirm_seconds(adoption: float) -> float:
    # Half: a supervisor that starts kills a host that has not said hello within ``adoption``.
    return min(_CONFIRM_SECONDS, adoption / 2)


def without_restarts(config: StoreConfig) -> StoreConfig:
    """V8: a container that failed where other machines may be better off is opened by one of them. Only this
    one may be cut off from the store."""
    return attrs.evolve(config, supervision=attrs.evolve(config.supervision, restarts=0))


class ContainerLocations:
    """The URL of each container's host: this host's for those served here, the supervisor's last word for the
    others."""

    def __init__(self, runtime: ContainerRuntime, own_url: str) -> None:
        self._runtime = runtime
        self._own_url = own_url
        self._urls: Mapping[int, str] = {}
        self._absences: Mapping[int, str] = {}
        self._version = 0

    def update(self, owners: Owners) -> None:
        urls = {**self._urls, **owners.urls} if owners.is_part else owners.urls
        # What is served here is known better: what ended since would lead requests from this host to itself.
        self._urls = {index: url for index, url in urls.items() if url != self._own_url}
        kept = self._absences if owners.is_part else {}
        self._absences = {i: why for i, why in kept.items() if i not in owners.urls} | dict(owners.absences)
        self._version += 1

    def absence_of(self, index: int) -> str:
        """Why the container stays closed until an operator opens it, by the supervisor's last word; empty if
        it does not."""
        return self._absences.get(index, "")

    def url_of(self, index: int) -> str | None:
        return self._urls.get(index) or None

    def map(self) -> ContainerMap:
        """The map of all containers. Only those served here have an epoch, which decides while there is no
        supervisor."""
        epochs = self._runtime.epochs()
        urls = {**self._urls, **dict.fromkeys(epochs, self._own_url)}
        return ContainerMap(
            self._version,
            tuple(
                ContainerAssignment(index, urls.get(index) or None, epochs.get(index))
                for index in range(self._runtime.containers)
            ),
            self._runtime.store.append_bytes_max,
            self._runtime.store_id,
        )


class _Rounds:
    """What is done in the rounds of the event loop, most of it at an interval of its own."""

    def __init__(self, orders: Orders, link: Link, monitor: LoopMonitor, heap: HeapTrimmer) -> None:
        self._orders = orders
        self._link = link
        self._monitor = monitor
        self._heap = heap
        self._recovered = RecoveredObjects(orders.ownerships)
        self._checked = self._measured = 0.0

    def __call__(self, late: float) -> None:
        now = self._monitor.clock()
        # A pause may have been a freeze, in which containers were opened elsewhere.
        if late > self._monitor.interval or now - self._checked >= _CHECK_SECONDS:
            self._checked = now
            self._orders.check_fenced()
        # Without a supervisor nobody gets a report, and the hello to the next one asks the logs again.
        is_due = self._orders.is_unconfirmed and self._link.is_connected
        if is_due or late > _PAUSED * self._monitor.interval:
            self._orders.confirm()
        if now - self._measured >= _STATISTICS_SECONDS:
            self._measured = now
            self._monitor.statistics = self._orders.statistics()
        self._heap.check()
        self._recovered.check()


def _nobody(url: str) -> None:
    """A supervisor sees its hosts by itself."""


class HostService:
    def __init__(
        self, options: HostOptions, config: StoreConfig, announce: Callable[[str], None] = _nobody
    ) -> None:
        """``announce`` is called with this host's URL when a supervisor has welcomed it first."""
        self._options = options
        self._config = config
        self._announce = announce
        self._tracing = tracing_of_process(options.id)
        self._leaving, self._draining = anyio.Event(), anyio.Event()
        self._opening: anyio.CancelScope | None = None
        self._supervised: Link | None = None
        self._runtime: ContainerRuntime | None = None

    async def run(self) -> None:
        """Serve until the drain has ended. Raises ``InvalidArgument`` if it joins and is refused."""
        # Before the folder is opened: a port in use must not cost a recovery.
        with bind(self._options.address, self._options.port) as listener:
            try:
                async with anyio.create_task_group() as tasks:
                    # One that has not joined has nothing to hand over: a signal interrupts it at once.
                    if not self._is_joined:
                        await tasks.start(self._obey_signals)
                    tasks.start_soon(self._leave)
                    with anyio.CancelScope() as self._opening:
                        async with self._opened() as runtime:
                            await self._serve(runtime, listener)
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as error:
                # Whoever started it gets one line, which a group would begin with "unhandled errors".
                raise first_leaf(error) from None
        if not self._is_refused:
            _log.info("host_ended")
        if self._is_joined and self._supervised is not None and self._supervised.refusal:
            raise InvalidArgument(self._supervised.refusal)

    @property
    def _is_refused(self) -> bool:
        """It joins, was never welcome, and so has nothing to end: its error says all."""
        link = self._supervised
        return self._is_joined and link is not None and bool(link.refusal) and not link.welcomed.is_set()

    @property
    def _is_joined(self) -> bool:
        return not self._options.control

    def _opened(self) -> AbstractAsyncContextManager[ContainerRuntime]:
        options = self._options
        return open_host(
            options.place,
            options.id,
            config=without_restarts(self._config) if self._is_joined else self._config,
            store_id=options.store_id,
            adopt=options.adopt,
            span=self._tracing,
        )

    async def _serve(self, runtime: ContainerRuntime, listener: socket.socket) -> None:
        options, world = self._options, system_world()
        address, port = listener.getsockname()[:2]
        reached = ServerAddress(advertised_name(options.advertise) or address, port)
        locations = ContainerLocations(runtime, reached.url)
        app = make_app(
            runtime.store,
            world,
            container_map=locations.map,
            owner_of=locations.url_of,
            absence_of=locations.absence_of,
            tracing=self._tracing,
            limits=ServerLimits(
                connections=self._config.server.connections,
                # All of them may fail over to this host.
                reserved_files=RESERVED_FILES + CONTAINER_FILES * runtime.containers,
            ),
            names=names_of(options.address, options.advertise, self._config.server.names),
            serves=runtime.serves if options.forward or self._config.server.forward else None,
        )
        monitor = LoopMonitor(time.monotonic)
        gateway = gateway_of(app)
        heap = HeapTrimmer(lambda: gateway.held_bytes, lambda: gateway.requests, time.monotonic)
        self._runtime = runtime
        instance = world.new_id()

        async def hello(term: int) -> Hello:
            # V4: a supervisor that starts believes it, and opens nothing of it elsewhere. What the bucket did
            # not confirm in time stays in it: to leave that out would move containers that are healthy, while
            # one that was fenced acks nothing (W12), and is reported as soon as the bucket answers (V3).
            with anyio.move_on_after(_confirm_seconds(self._config.server.adoption)):
                await orders.find_fenced()
            return Hello(
                options.id,
                os.getpid(),
                reached.url,
                runtime.epochs(),
                term,
                newest=VERSION,
                machine=socket.gethostname(),
                instance=instance,
                store=runtime.store_id,
                leaving=monitor.leaving,
            )

        async def close_all() -> None:
            await orders.close_all()

        link = Link(
            self._dialer(runtime, reached.host, world.new_id),
            hello=hello,
            redirect=locations.update,
            monitor=monitor,
            grace=self._config.server.orphan_grace,
            on_grace_expired=close_all if self._is_joined else None,
        )
        async with anyio.create_task_group() as tasks:
            orders = Orders(runtime, report=link.report, drain=self._drain, tasks=tasks)
            async with serve_http(app, listener, stop_timeout=self._config.timeouts.close):
                self._supervised = link
                tasks.start_soon(self._run_link, link, orders)
                tasks.start_soon(self._announce_welcome, link, reached.url, tasks)
                tasks.start_soon(monitor.watch, _Rounds(orders, link, monitor, heap))
                await self._draining.wait()
                gateway.drain()
            # The heartbeats go on until here. The containers are closed after this block, and the supervisor
            # sees the process end.
            tasks.cancel_scope.cancel()

    def _dialer(self, runtime: ContainerRuntime, host: str, new_id: Callable[[], str]) -> Dialer:
        if not self._is_joined:
            return SocketDialer(self._options.control)
        if runtime.coordination is None:
            raise InvalidArgument(
                f"{self._options.place} is a data folder, whose hosts `tierlog serve` starts itself"
            )
        return RecordDialer(runtime.coordination, runtime.store_id, host, new_id)

    async def _announce_welcome(self, link: Link, url: str, tasks: anyio.abc.TaskGroup) -> None:
        await link.welcomed.wait()
        if self._is_joined:
            await tasks.start(self._obey_signals)
        self._announce(url)

    async def _run_link(self, link: Link, orders: Orders) -> None:
        self._drain(await link.run(orders.obey))

    def _drain(self, reason: str) -> None:
        if not self._draining.is_set():
            if not self._is_refused:
                _log.info("draining", reason=reason)
            self._draining.set()
            # It may wait for a bucket for as long as that is away.
            if self._runtime is None and self._opening is not None:
                self._opening.cancel()

    async def _obey_signals(
        self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        # A host of a supervisor has no terminal, and one that joins may have.
        hang_up = self._is_joined and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN
        more = (signal.SIGHUP,) if hang_up else ()
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *more) as signals:
            task_status.started()
            async for number in signals:
                if self._draining.is_set():
                    self._force_exit()
                elif not self._leaving.is_set() and (link := self._supervised) and link.is_connected:
                    self._leaving.set()
                else:
                    self._drain(signal.Signals(number).name)

    async def _leave(self) -> None:
        """Drain without the supervisor's order if it does not come: after ``drain_limit`` the supervisor
        kills."""
        await self._leaving.wait()
        assert self._supervised is not None
        assert self._runtime is not None
        # While it serves: its successors replay only what comes after (F9).
        await self._runtime.flush_before_end()
        if self._draining.is_set():
            return
        if not self._supervised.leave():
            self._drain("there is no supervisor any more")
            return
        _log.info("drain_requested", reason="a signal")
        # Half: the rest is for closing the containers before the supervisor kills.
        await anyio.sleep(self._config.server.drain_limit / 2)
        self._drain("its containers were not moved in time")

    def _force_exit(self) -> None:
        _log.warning("exit_forced")
        # What is not closed by then is recovered by the next owner. In a thread: the loop may be stuck.
        timer = threading.Timer(_FORCED_EXIT_SECONDS, os._exit, args=(1,))
        timer.daemon = True
        timer.start()

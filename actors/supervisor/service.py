"""The supervisor's process: what `tierlog serve` runs and, without hosts of its own, `tierlog supervise`.

Start: the port, the store, the lease, the term, then the hosts; a failure before the hosts leaves nothing
behind. End: on SIGTERM, Ctrl-C or SIGHUP, or if it cannot say that it serves, the hosts drain and the admin
server stops last; the second signal cuts that short, the third kills them. If the supervisor ends for another
reason (a later one took over), the hosts go on.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import Any

import anyio
import anyio.abc
import attrs
from msgspec.structs import replace

from ...storage_backends.base.errors import InvalidArgument, shown
from ...storage_backends.base.world import World
from ...storage_backends.files.local import LocalFiles
from ..folder.lock_files import SUPERVISOR, Owner, describe_opening
from ..folder.paths import StoreFolder, live_owners
from ..folder.restore_folder import finish_restore
from ..gateway.server.connections import raise_file_limit
from ..gateway.server.guard import advertised_name, names_of
from ..gateway.server.listener import ServerAddress, bind, is_ipv6, serve_http
from ..kernel.backoff import Backoff
from ..kernel.exits import first_leaf
from ..kernel.process_status import holds_lock
from ..kernel.task_groups import body_group
from ..settings.configuration import ServerConfig, StoreConfig
from ..store.folder_opening import announced, system_world
from ..telemetry.logging import get_logger
from ..telemetry.opentelemetry import tracing_of_process
from ..telemetry.printable import printable
from .admin import LIMITS, make_admin_app
from .control.channel import control_path
from .control.record import ControlRecord
from .fleet import FleetOptions
from .hosts import is_own_id, own_id
from .join_listener import JoinListener, find_predecessor
from .options import SupervisorOptions
from .served_store import ServedStore, StoreAsked, check_place, open_served
from .standby import Standby
from .supervisor import Supervisor
from .term import Term, claim_term, confirm_identity

_log = get_logger("service")
_SETTLE_SECONDS = 30.0
_REJOIN_SECONDS = 2.5
"""For which a supervisor waits at least for hosts that had joined the one before: they look into the bucket
each half second, and ask it for what they serve, for half of ``server.adoption``."""
FOLLOWS_AFTER = 1.5
"""Leases that may pass until a supervisor that stands by has followed one that died."""
PORT_MAX = 65_535
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?")


@attrs.frozen(kw_only=True)
class ServiceOptions:
    store: StoreAsked
    config_file: str | None
    """Given to the hosts, which read it when they start."""
    address: str
    port: int
    hosts: int
    """0 if all of them join."""
    adopt: bool
    """Whether hosts may open a copied or restored folder (rule W8)."""
    log_level: str = "info"
    """The log level of the hosts; one of ``LEVELS``."""

    @property
    def config(self) -> StoreConfig:
        return self.store.config


def listen_of(text: str | None, server: ServerConfig) -> tuple[str, int]:
    """Address and port of ``ADDRESS:PORT``, ``ADDRESS`` or ``:PORT``; the configuration gives what is
    missing."""
    if text is None:
        return server.listen, server.port
    if not text:
        # A script passes it as `--listen "$ADDRESS"` if the variable is not set.
        raise InvalidArgument("--listen is empty: name ADDRESS:PORT, such as 127.0.0.1:8470, or leave it out")

    # An IPv6 address has colons of its own; in brackets a port may follow it.
    address, colon, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    address = address.strip("[]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX
    if (colon and not is_port) or address.isdigit() or (":" in address and not is_ipv6(address)):
        raise InvalidArgument(
            f"--listen: {text[:80]!r} is not ADDRESS:PORT, such as 127.0.0.1:8470, with a port up to "
            f"{PORT_MAX}"
        )
    return address or server.listen, int(port) if colon else server.port


def check_host_ports(port: int, host_port: int, hosts: int) -> None:
    """Raises ``InvalidArgument`` if the hosts' ports leave 1 to 65535 or include the supervisor's
    ``port``."""
    last = host_port + hosts - 1
    if not host_port:
        return

    if last > PORT_MAX:
        raise InvalidArgument(
            f"{hosts} hosts from port {host_port} on need ports up to {last}, and the last one is "
            f"{PORT_MAX}: choose --host-port {PORT_MAX - hosts + 1} or less"
        )
    if host_port <= port <= last:
        raise InvalidArgument(
            f"the hosts' ports {host_port} to {last} include {port}, on which the supervisor listens: choose "
            f"another --host-port or another port in --listen"
        )


def check_advertised_name(advertise: str) -> None:
    name = advertised_name(advertise)
    if not (_HOST_NAME.fullmatch(name) or is_ipv6(name)):
        raise InvalidArgument(
            f"--advertise (the setting server.advertise) is a name or an address without a port, such as "
            f"db.example.org, or https://NAME behind a proxy that terminates TLS, not {shown(advertise)}"
        )


def check_advertised(address: str, advertise: str) -> None:
    """Raises ``InvalidArgument`` if clients on other machines would be sent to an address that is none."""
    if advertise:
        check_advertised_name(advertise)
    try:
        is_every = ip_address(address).is_unspecified
    except ValueError:
        is_every = False
    if is_every and not advertise:
        raise InvalidArgument(
            f"{address} means every address of this machine, and clients need one of them: "
            f"add --advertise NAME (or the setting server.advertise)"
        )


async def run_service(options: ServiceOptions, announce: Callable[[ServerAddress, Supervisor], None]) -> None:
    """Serve until a signal. ``announce`` is called with the advertised address once every container is
    served, fenced or quarantined, or after 30 seconds; without hosts as soon as this supervisor is active."""
    raise_file_limit()
    server = options.config.server
    check_advertised(options.address, server.advertise)
    check_place(options.store)
    limits = attrs.evolve(LIMITS, connections=server.connections)
    names = names_of(options.address, server.advertise, server.names)
    # First of all: a port in use is reported before anything is locked or created.
    with bind(options.address, options.port) as listener:
        check_host_ports(listener.getsockname()[1], server.host_port, options.hosts)
        # The active one may be on this machine, and have it.
        if not options.store.stands_by:
            _check_control_port(options, listener.getsockname()[0])
        files, world = LocalFiles(), system_world()
        if isinstance(options.store.place, StoreFolder):
            await finish_restore(files, options.store.place)
        await _check_ports_free(files, options)
        async with (
            open_served(options.store, files, world) as served_store,
            # Before the search for orphans: from here on nobody else starts hosts (rule V1).
            _claimed(options.store, served_store, Standby(world, limits, names), listener, world) as term,
        ):
            orphans = await _find_orphans(files, options.store)
            address = listener.getsockname()[0]
            join_listener = await _open_join_listener(options, served_store, term, address, world)
            supervisor = _make_supervisor(options, served_store, term, orphans, join_listener)
            tracing = tracing_of_process(SUPERVISOR)
            bound = ServerAddress(*listener.getsockname()[:2])
            # A wildcard address would lead clients on other machines to themselves.
            known = attrs.evolve(bound, host=advertised_name(server.advertise) or bound.host)
            facts = {
                "store": served_store.identity.store_id.hex(),
                "folder": printable(options.store.shown),
                "pid": os.getpid(),
                "machine": socket.gethostname(),
                "url": known.url,
            }
            app = make_admin_app(
                supervisor,
                facts,
                world,
                limits=limits,
                tracing=tracing,
                names=names,
                forwards=server.forward,
            )
            async with (
                serve_http(app, listener, stop_timeout=1),
                announced(files, world, options.store.local, SUPERVISOR, known.url),
            ):
                await _supervise(supervisor, lambda: announce(known, supervisor), has_hosts=options.hosts > 0)


@asynccontextmanager
async def _claimed(
    asked: StoreAsked, store: ServedStore, standby: Standby, listener: socket.socket, world: World
) -> AsyncIterator[Term]:
    """The term, once this supervisor has the lease. Until then ``standby`` answers at its address."""

    def note_wait(holder: str, prospect: str) -> None:
        standby.note_wait(holder)
        if asked.on_wait is not None:
            asked.on_wait(holder, prospect)

    coordination, identity, owner = store.coordination, store.identity, world.id_bytes()
    options = attrs.evolve(store.term, on_wait=note_wait)
    # In a data folder, which only this machine has, none can join, and none waits.
    if asked.is_local:
        claim = claim_term(coordination, identity, owner, options)
    else:
        find = partial(find_predecessor, coordination, identity.store_id.hex())
        confirm = partial(confirm_identity, coordination, identity)
        claim = claim_term(coordination, identity, owner, options, find, confirm)
    async with AsyncExitStack() as claimed:
        try:
            async with body_group() as tasks:
                tasks.start_soon(standby.serve, listener)
                try:
                    term = await claimed.enter_async_context(claim)
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as error:
            raise first_leaf(error) from None
        yield term


async def _supervise(supervisor: Supervisor, announce: Callable[[], None], *, has_hosts: bool) -> None:
    unannounced: list[Exception] = []

    async def announce_settled() -> None:
        # A container whose storage hangs may never settle, and the others serve.
        with anyio.move_on_after(_SETTLE_SECONDS):
            await supervisor.wait_settled()
        if supervisor.is_stopping:
            return  # The containers that it has left are none that it serves.
        try:
            announce()
        except Exception as error:  # noqa: BLE001 - raised below
            # Raised here, it would leave the hosts running, without anybody who knows of them.
            unannounced.append(error)
            supervisor.stop()

    try:
        async with body_group() as tasks:
            try:
                # First: who reads that it is active may end it at once.
                await tasks.start(_obey_signals, supervisor)
                if has_hosts:
                    tasks.start_soon(announce_settled)
                else:
                    announce()  # Who starts hosts waits for it.
                await supervisor.run()
            finally:
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as error:
        # The operator gets one line, which a group would begin with "unhandled errors in a TaskGroup".
        raise first_leaf(error) from None
    if unannounced:
        raise unannounced[0]


async def _obey_signals(
    supervisor: Supervisor, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    # `nohup` has SIGHUP ignored, which a closed terminal sends.
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hang_up) as signals:
        task_status.started()
        async for _ in signals:
            # Each one: the second does not wait for requests (V10).
            supervisor.stop()


async def _find_orphans(files: LocalFiles, store: StoreAsked) -> dict[str, Owner]:
    """The hosts of an earlier supervisor that still run on this machine. Raises ``InvalidArgument`` if an app
    or a command has the folder open and ``take_over`` is not set."""
    owners = await live_owners(files, store.local)
    others = [owner for owner in owners if not owner.role]
    if others and not store.take_over:
        raise InvalidArgument(
            describe_opening(store.shown, others, take_over="--take-over", use_service="stop it")
        )
    # A file from another machine names a process there: the same number is some other process here. Hosts
    # that joined are no supervisor's own.
    return {
        owner.role: _verified(owner, store.local)
        for owner in owners
        if is_own_id(owner.role) and owner.host == socket.gethostname()
    }


def _verified(owner: Owner, folder: StoreFolder) -> Owner:
    """``owner``, without its ``start`` unless the process that it names holds the lock: whoever may write
    into the folder can name any process (rule V4)."""
    return owner if holds_lock(owner.pid, f"{folder.owners}/{owner.owner_id}") else replace(owner, start="")


def _check_control_port(options: ServiceOptions, address: str) -> None:
    """Raises ``ConfigError`` if hosts could not join at the configured port."""
    port = options.config.server.control_port
    if port and not options.store.is_local:
        bind(address, port, "the setting server.control_port").close()


def warn_of_lease(server: ServerConfig) -> None:
    """If the hosts that joined give up before another supervisor can follow one that died (rules D3, V4)."""
    if FOLLOWS_AFTER * server.lease >= server.orphan_grace:
        _log.warning(
            "lease_outlasts_hosts",
            lease=server.lease,
            orphan_grace=server.orphan_grace,
            advice=f"set server.orphan_grace above {FOLLOWS_AFTER * server.lease:g} s, or server.lease lower",
        )


async def _open_join_listener(
    options: ServiceOptions, store: ServedStore, term: Term, address: str, world: World
) -> JoinListener | None:
    """Where hosts of other machines join; None if the store is in a data folder."""
    if options.store.is_local:
        return None

    _check_control_port(options, address)
    warn_of_lease(options.config.server)
    port = options.config.server.control_port
    # An address and no name: there is one.
    [listener] = (await anyio.create_tcp_listener(local_host=address, local_port=port)).listeners
    record = ControlRecord(
        term.number,
        # Two ids: each has 122 bits of the system's randomness.
        world.id_bytes() + world.id_bytes(),
        advertised_name(options.config.server.advertise) or address,
        listener.extra(anyio.abc.SocketAttribute.local_port),  # noqa: S610 - not Django's
        socket.gethostname(),
        term.awaited,
        store.identity.store_id,
    )
    return JoinListener(store.coordination, listener, record, world.id_bytes, term)


def _make_supervisor(
    options: ServiceOptions,
    store: ServedStore,
    term: Term,
    orphans: dict[str, Owner],
    join_listener: JoinListener | None,
) -> Supervisor:
    server, store_id = options.config.server, store.identity.store_id
    control = control_path(store_id, options.store.local.path, os.environ) if options.hosts else ""
    return Supervisor(
        store.identity.containers,
        _hosts(options),
        command=lambda host: _host_command(options, store_id, control, host),
        term=term,
        orphans=orphans,
        options=SupervisorOptions(
            fleet=fleet_options(server),
            control=control,
            heartbeat=server.heartbeat,
            orphan_grace=server.orphan_grace,
            append_bytes_max=options.config.append_bytes_max,
            store=store_id.hex(),
        ),
        random=system_world().random,
        requests=store.requests,
        join_listener=join_listener,
        awaited=term.awaited,
    )


async def _check_ports_free(files: LocalFiles, options: ServiceOptions) -> None:
    """Raises ``ConfigError`` if a host could not listen on its port, unless it runs and does so already."""
    running = {owner.role for owner in await live_owners(files, options.store.local)}
    for host in _hosts(options):
        if host not in running:
            # Here, where it can be reported: a host would fail, be started again and be given up.
            bind(options.address, _host_port(options.config.server, host), "--host-port").close()


def _hosts(options: ServiceOptions) -> list[str]:
    return [own_id(index) for index in range(options.hosts)]


def _host_port(server: ServerConfig, host: str) -> int:
    """The port of a host; 0 takes a free one."""
    return server.host_port + int(host.rpartition("-")[2]) if server.host_port else 0


def fleet_options(server: ServerConfig) -> FleetOptions:
    return FleetOptions(
        silence=server.silence,
        silent_grace=server.silent_grace,
        start_limit=server.start_limit,
        drain_limit=server.drain_limit,
        adoption=server.adoption,
        rejoin=max(server.adoption, _REJOIN_SECONDS),
        restart=Backoff(first=server.restart_backoff, maximum=server.restart_backoff_max),
        exits_max=server.restarts,
        exits_period=server.restart_period,
        crashes_max=server.container_crashes,
        failovers_max=server.failovers,
    )


def host_count(asked: int | None, server: ServerConfig) -> int:
    """The number of hosts: ``asked``, or as configured, or one for each core that this process may use."""
    return (
        asked
        or server.hosts
        # A container of an orchestrator may be bound to a few of the machine's cores.
        or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    )


def _host_command(options: ServiceOptions, store_id: bytes, control: str, host: str) -> Sequence[str]:
    server = options.config.server
    arguments: dict[str, Any] = {
        "data": options.store.shown,
        "store": store_id.hex(),
        "id": host,
        "control": control,
        # On the supervisor's address: a client is sent from one to the other.
        "listen": f"{options.address}:{_host_port(server, host)}",
        "log-level": options.log_level,
    }
    if server.advertise:
        arguments["advertise"] = server.advertise
    if options.config_file is not None:
        arguments["config"] = os.path.abspath(options.config_file)
    # -P: a file in the current folder must not replace a module.
    flags = ["--adopt"] if options.adopt else []
    if server.forward:
        flags.append("--forward")
    return [
        # The same interpreter: another one in PATH may have another version of tierlog.
        sys.executable,
        "-P",
        "-m",
        "tierlog.actors.host",
        *(f"--{name}={value}" for name, value in arguments.items()),
        *flags,
    ]

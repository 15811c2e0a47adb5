"""``tierlog host --join`` and ``tierlog supervise --join``: a service on several machines, whose store is in
a bucket or on BookKeeper."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ...storage_backends.base.errors import InvalidArgument
from ..kernel.process_memory import importing
from ..telemetry.logging import current_level, log_to_stderr
from . import output
from .options import Config, LogLevelOption, store_place
from .running import SERVICE_HINTS, execute, read_settings
from .serve import Adopt, Advertise, Containers, Forward, Listen

if TYPE_CHECKING:
    from ..folder.place import SharedLocation
    from ..gateway.server.listener import ServerAddress
    from ..settings.configuration import StoreConfig
    from ..supervisor.supervisor import Supervisor


class HostGroup(TyperGroup):
    """``host --join PLACE`` is short for ``host run --join PLACE``."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        # Without anything too: it says what is missing.
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["run", *args]
        return super().make_context(info_name, args, parent, **extra)


Join = Annotated[
    str,
    typer.Option(
        "--join",
        parser=store_place,
        metavar="PLACE",
        help="The store: s3://BUCKET/PREFIX or bookkeeper://ZOOKEEPER:PORT/PATH.",
        show_default=False,
    ),
]


def host(
    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="PLACE",
            help="Run a host on this machine for the store in PLACE, as `tierlog host run --join PLACE` "
            "does, with the options of that.",
            show_default=False,
        ),
    ] = None,
) -> None:
    # For the help alone: with options the group runs `host run`.
    pass


Id = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="NAME",
        help="The host's id: up to 32 letters, digits, dots, underscores and hyphens, of which the first is "
        "a letter or a digit, and none like host-0. Default: the machine's name and random digits.",
        show_default=False,
    ),
]
HostListen = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="ADDRESS:PORT",
        help="The address and port on which clients reach this host, such as 10.0.0.7:8471; the port is at "
        "most 65535, and 0 lets the system choose. Default: the settings server.listen and "
        "server.host_port, 127.0.0.1:0.",
    ),
]


def run(
    join: Join,
    id: Id = None,
    listen: HostListen = None,
    advertise: Advertise = None,
    forward: Forward = False,
    adopt: Adopt = False,
    config: Config = None,
    log_level: LogLevelOption = None,
) -> None:
    """Run a host on this machine, for the service of a store that all machines reach: it finds the supervisor
    by the store's records, wherever that runs, and takes its share of the containers.

    It looks for the next supervisor when one ends. SIGTERM, Ctrl-C or `tierlog host drain` hands its
    containers over to other hosts, and ends it with exit code 0. `tierlog host --join` is short for it.
    Before it has joined, Ctrl-C ends it with 130.
    """

    async def command() -> None:
        # The host lives for months: its collector should not visit what these imports make.
        with importing():
            import attrs

            from ..gateway.server.connections import raise_file_limit
            from ..host.main import HostOptions, HostService
            from ..store.folder_opening import system_world
            from ..supervisor.hosts import default_id, joined_id_refusal
            from ..supervisor.service import check_advertised, listen_of

        settings = _overridden(read_settings(config, None), advertise, forward)
        name = default_id(socket.gethostname(), system_world().new_id) if id is None else id
        if refusal := joined_id_refusal(name):
            raise InvalidArgument(refusal)
        log_to_stderr(host=name, pid=os.getpid())
        place = _shared(join, "`tierlog serve` starts the hosts of a data folder itself (--hosts)")
        # Its own port, where the supervisor may be on the same machine.
        server = attrs.evolve(settings.server, port=settings.server.host_port)
        address, port = listen_of(listen, server)
        check_advertised(address, server.advertise)
        raise_file_limit()
        options = HostOptions(
            place=str(place).rstrip("/"),
            id=name,
            address=address,
            port=port,
            advertise=server.advertise,
            adopt=adopt,
        )
        joined = f"joined {options.place} as {name}"
        await HostService(options, settings, lambda url: output.print_lines([f"{joined} at {url}"])).run()

    execute(command, uvloop=True)


NewChunks = Annotated[
    str | None,
    typer.Option(
        "--chunks",
        envvar="TIERLOG_CHUNKS",
        show_envvar=True,
        metavar="LOCATION",
        help="Long-term storage of a new store on BookKeeper: s3://BUCKET/PREFIX, or the absolute path of a "
        "folder that all machines share. It cannot be changed later. A store in a bucket has its own there, "
        "in lts/.",
        show_default=False,
    ),
]


def supervise(
    join: Join,
    config: Config = None,
    listen: Listen = None,
    advertise: Advertise = None,
    forward: Forward = False,
    containers: Containers = None,
    chunks: NewChunks = None,
    log_level: LogLevelOption = None,
) -> None:
    """Supervise the service of a store that all machines reach, without hosts on this machine: they join
    (`tierlog host --join`). While another supervisor is active it stands by, and follows when that one's
    lease has ended.

    A store that does not exist is created. It runs until SIGTERM, Ctrl-C or the terminal's end, which end it
    with exit code 0; hosts that joined go on, for the next supervisor. Before it is active, Ctrl-C ends it
    with 130, SIGTERM with 143.
    """

    async def command() -> None:
        with importing():
            from ..supervisor.served_store import StoreAsked
            from ..supervisor.service import ServiceOptions, listen_of, run_service

        settings = _overridden(read_settings(config, chunks), advertise, forward)
        log_to_stderr(host="supervisor", pid=os.getpid())
        address, port = listen_of(listen, settings.server)
        asked = StoreAsked(
            place=_shared(join, "use `tierlog serve`, whose lock lets one start at a time"),
            config=settings,
            containers=containers,
            take_over=False,
            stands_by=True,
        )
        options = ServiceOptions(
            store=asked,
            config_file=None,
            address=address,
            port=port,
            hosts=0,
            adopt=False,
            log_level=current_level(),
        )
        await run_service(options, _announce)

    execute(command, uvloop=True, hints=SERVICE_HINTS)


def _announce(served: ServerAddress, supervisor: Supervisor) -> None:
    # Scripts wait for this line, the only one on stdout: before it another one is active.
    found = output.count(len(supervisor.fleet.assignments), "container")
    output.print_lines([f"supervising {found} at {served.url}"])


def _overridden(settings: StoreConfig, advertise: str | None, forward: bool) -> StoreConfig:
    """The settings with those that options replace."""
    import attrs

    from ..supervisor.service import check_advertised_name

    server = settings.server
    if advertise is not None:
        check_advertised_name(advertise)
        server = attrs.evolve(server, advertise=advertise)
    return attrs.evolve(settings, server=attrs.evolve(server, forward=forward or server.forward))


def _shared(place: str, remedy: str) -> SharedLocation:
    from ..folder.place import shared_location

    location = shared_location(place)
    if location is None:
        raise InvalidArgument(
            f"--join is for a store in a bucket, s3://BUCKET/PREFIX, or on BookKeeper, "
            f"bookkeeper://ZOOKEEPER:PORT/PATH, because other machines cannot reach the data folder {place}: "
            f"{remedy}"
        )
    return location

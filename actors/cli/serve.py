"""``tierlog serve``: the service on a data folder or a bucket, in the foreground."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...storage_backends.base.errors import InvalidArgument
from ..kernel.process_memory import importing
from ..telemetry.logging import current_level, log_to_stderr
from . import output
from .options import DEFAULT_DATA, Chunks, Config, Data, LogLevelOption, number_option, store_place
from .running import SERVICE_HINTS, execute, print_error, read_settings, show_lease_wait

if TYPE_CHECKING:
    from ..gateway.server.listener import ServerAddress
    from ..supervisor.supervisor import Supervisor


Place = Annotated[
    str | None,
    typer.Argument(
        parser=store_place,
        metavar="PATH",
        help="The data folder, the same as --data; or s3://BUCKET/PREFIX, a store that is in a bucket as a "
        "whole; or bookkeeper://ZOOKEEPER:PORT/PATH, one on BookKeeper.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS:PORT",
        help="The address and port to listen on, such as localhost:8470, [::1]:8470 or :8470; the port is "
        "at most 65535, and 0 lets the system choose. Default: the settings server.listen and server.port, "
        "127.0.0.1:8470.",
    ),
]
Advertise = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The name or address under which clients reach this machine; default: the one listened on. "
        "https://NAME behind a proxy that terminates TLS.",
    ),
]
Forward = Annotated[
    bool,
    typer.Option(
        "--forward",
        help="One-port mode, for load balancers: each host, and the supervisor, passes requests for other "
        "hosts on to them.",
    ),
]
HostPort = Annotated[
    int | None,
    number_option(
        "--host-port",
        "The port of host-0; the other hosts take the next ones. Default: the system chooses.",
        0,
        65_535,
    ),
]
Hosts = Annotated[
    int | None,
    number_option("--hosts", "Number of host processes; default: one for each core.", 1, 256),
]
Containers = Annotated[
    int | None,
    number_option(
        "--containers", "Number of containers of a new store; it cannot be changed later.", 1, 1024
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        help="Open the folder even if an app has it open: the app is fenced. In a bucket: end the service "
        "that serves the store elsewhere.",
    ),
]
Adopt = Annotated[
    bool,
    typer.Option(
        "--adopt", help="Serve a copied or restored store even if long-term storage has a newer owner."
    ),
]

RecoverFromLts = Annotated[
    bool,
    typer.Option(
        "--recover-from-lts",
        help="If wal/ is missing, recover the store from long-term storage alone, as of its last full flush; "
        "anything later is lost.",
    ),
]


def serve(
    context: typer.Context,
    path: Place = None,
    data: Data = DEFAULT_DATA,
    config: Config = None,
    listen: Listen = None,
    advertise: Advertise = None,
    host_port: HostPort = None,
    forward: Forward = False,
    hosts: Hosts = None,
    containers: Containers = None,
    chunks: Chunks = None,
    take_over: TakeOver = False,
    adopt: Adopt = False,
    recover_from_lts: RecoverFromLts = False,
    log_level: LogLevelOption = None,
) -> None:
    """Serve a store over HTTP: start host processes, supervise them, and replace those that fail.

    It runs until SIGTERM, Ctrl-C or the terminal's end, then lets the hosts finish the requests in flight; a
    second signal does not wait. Logs go to stderr: plain text on a terminal, else JSON lines.
    """

    async def command() -> None:
        # The supervisor lives for months: its collector should not visit what these imports make.
        with importing():
            import attrs

            from ..folder.place import store_place as parse_place
            from ..supervisor.served_store import StoreAsked
            from ..supervisor.service import (
                ServiceOptions,
                check_advertised_name,
                host_count,
                listen_of,
                run_service,
            )

        settings = read_settings(config, chunks)
        log_to_stderr(host="supervisor", pid=os.getpid())
        # Options override the file and the environment.
        if advertise is not None:
            # Empty is what a script passes as `--advertise "$NAME"` if the variable is not set.
            check_advertised_name(advertise)
            settings = attrs.evolve(settings, server=attrs.evolve(settings.server, advertise=advertise))
        if host_port is not None:
            settings = attrs.evolve(settings, server=attrs.evolve(settings.server, host_port=host_port))
        if forward:
            settings = attrs.evolve(settings, server=attrs.evolve(settings.server, forward=True))
        address, port = listen_of(listen, settings.server)
        place = _one_place(context, path, data)
        options = ServiceOptions(
            store=StoreAsked(
                place=parse_place(place),
                config=settings,
                containers=containers,
                take_over=take_over,
                recover_from_lts=recover_from_lts,
                on_wait=show_lease_wait,
            ),
            config_file=None if config is None else os.fspath(config),
            address=address,
            port=port,
            hosts=host_count(hosts, settings.server),
            adopt=adopt,
            log_level=current_level(),
        )
        await run_service(options, _announce)

    execute(command, uvloop=True, hints=SERVICE_HINTS)


def _one_place(context: typer.Context, path: str | None, data: Path) -> str:
    """The argument overrides the environment; together with --data it is ambiguous."""
    if path is None:
        given = os.fspath(data)
        scheme, slash, rest = given.partition(":/")
        if slash and scheme in {"s3", "bookkeeper"}:  # a Path has lost a slash
            raise InvalidArgument(
                f"a store in a bucket or on BookKeeper is named without --data: `tierlog serve "
                f"{scheme}://{rest.lstrip('/')}`"
            )
        return given

    source = context.get_parameter_source("data")
    if source is not None and source.name == "COMMANDLINE":
        raise InvalidArgument(f"the store is given twice, as {path} and as --data {data}: leave one out")

    return path


def _announce(served: ServerAddress, supervisor: Supervisor) -> None:
    view = supervisor.view().document()
    for assignment in view["containers"]:
        # It serves the others: one damaged container must not keep them down.
        if assignment["phase"] != "serving":
            print_error(
                f"container {assignment['container']} is not served but {assignment['phase']}: "
                f"{assignment['reason'] or 'see the log'}"
            )
    containers, hosts = (_count_serving(view[key], key.removesuffix("s")) for key in ("containers", "hosts"))
    # Scripts wait for this line, the only one on stdout, and read the URL: with port 0 nothing else names it.
    output.print_lines([f"serving {containers} on {hosts} at {served.url}"])


def _count_serving(found: list[dict[str, Any]], noun: str) -> str:
    """``2 hosts``, or ``1 of 2 hosts`` if one does not serve."""
    serving = sum(each["phase"] == "serving" for each in found)
    return f"{'' if serving == len(found) else f'{serving} of '}{output.count(len(found), noun)}"

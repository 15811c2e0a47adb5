"""``tierlog status``: the state of a running service, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import output
from .interrupts import end_at_once
from .options import DEFAULT_URL, Json, Url
from .running import ask_service, execute

if TYPE_CHECKING:
    from rich.console import RenderableType

_WATCH_SECONDS = 1.0
_HOST_COLUMNS = ("host", "phase", "pid", "containers", "lag", "storage", "starts", "last exit")
_CONTAINER_COLUMNS = ("container", "phase", "host", "epoch", "segments", "WAL", "unflushed", "reason")


def status(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show a service's hosts, containers and failovers."""

    async def command() -> None:
        if watch:
            await _watch(url)
            return

        end_at_once()
        found = await ask_service(url, "GET", "/v1/status")
        if json:
            output.print_json(found)
        else:
            output.console().print(_shown(found), crop=False)

    execute(command)


async def _watch(url: str) -> None:
    import anyio
    from rich.live import Live

    with Live(_shown(await ask_service(url, "GET", "/v1/status")), screen=False, auto_refresh=False) as live:
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            live.update(_shown(await ask_service(url, "GET", "/v1/status")), refresh=True)


def _shown(status: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    word = "ready" if status["ready"] else "stopping" if status["stopping"] else "not ready"
    times = ", ".join(f"{seconds * 1000:.0f} ms" for seconds in status["failover_seconds"][-5:])
    tail = f", the last ones took {times}" if times else ""
    return Group(
        Text.assemble(f"{status['folder']}: ", (word, "green" if status["ready"] else "red")),
        Text(
            f"supervisor: process {status['pid']}, term {status['term']}; failovers: "
            f"{status['failovers']}{tail}"
        ),
        Text(),
        output.table(_HOST_COLUMNS, [_host_row(host) for host in status["hosts"]]),
        Text(),
        output.table(_CONTAINER_COLUMNS, [_container_row(assignment) for assignment in status["containers"]]),
        *_unhealthy(status),
    )


def _unhealthy(status: dict[str, Any]) -> list[RenderableType]:
    """A line for each host that cannot use long-term storage as usual."""
    from rich.text import Text

    unhealthy = [(host["id"], host["storage"]) for host in status["hosts"] if host["storage"]["cause"]]
    lines = [
        Text.assemble(f"\n{host}: long-term storage is ", (storage["state"], "red"), f": {storage['cause']}")
        for host, storage in unhealthy
    ]
    return list(lines)


def _host_row(host: dict[str, Any]) -> tuple[Any, ...]:
    held = ", ".join(map(str, host["containers"])) or "none"
    lag, health = f"{host['lag_seconds'] * 1000:.0f} ms", host["storage"]["state"]
    return (host["id"], host["phase"], host["pid"], held, lag, health, host["starts"], host["last_exit"])


def _container_row(assignment: dict[str, Any]) -> tuple[Any, ...]:
    sizes = (output.show_bytes(assignment["wal_bytes"]), output.show_bytes(assignment["unflushed_bytes"]))
    return (
        assignment["container"],
        assignment["phase"],
        assignment["host"],
        assignment["epoch"],
        assignment["segments"],
        *sizes,
        assignment["reason"],
    )

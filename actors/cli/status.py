"""``tierlog status``: the state of a running service, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..telemetry.printable import printable
from . import output
from .interrupts import end_at_once
from .options import DEFAULT_URL, Json, Url
from .running import ask_service, execute, find_standbys

if TYPE_CHECKING:
    from rich.console import RenderableType

_WATCH_SECONDS = 1.0
_HOST_COLUMNS = ("host", "phase", "machine", "pid", "containers", "lag", "storage", "starts", "last exit")
_CONTAINER_COLUMNS = ("container", "phase", "host", "epoch", "segments", "WAL", "unflushed", "reason")
_LEAST_IMPORTANT = ("pid", "machine", "starts", "lag", "WAL", "epoch", "segments")
"""The columns that a narrow terminal does without, in this order."""


def status(
    url: Url = DEFAULT_URL,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show a service's hosts, containers and failovers."""

    async def command() -> None:
        if watch:
            # Ctrl-C cancels it: rich must end its display in order.
            await _watch(url)
            return

        end_at_once()
        found = await _ask_status(url)
        if json:
            output.print_json(found)
        else:
            width = output.terminal_width()
            console, status = output.console(width=width), render_status(_completed(found), width, url)
            if console.is_terminal:
                console.print(status, crop=False)
                return
            with console.capture() as shown:
                console.print(status, crop=False)
            # Tables are padded, also in their last columns.
            output.print_lines([line.rstrip() for line in shown.get().splitlines()])

    execute(command)


async def _ask_status(url: str) -> dict[str, Any]:
    from ..gateway.wire.bodies import ServiceStatus

    found = await ask_service(url, "GET", "/v1/status", kind=ServiceStatus)
    return {**found, "standbys": await find_standbys(url)}


def _completed(status: dict[str, Any]) -> dict[str, Any]:
    """With the defaults of what a service of an earlier version does not send."""
    import msgspec

    from ..gateway.wire.bodies import ServiceStatus

    completed: dict[str, Any] = msgspec.to_builtins(msgspec.convert(status, ServiceStatus))
    return completed


async def _watch(url: str) -> None:
    import anyio
    from rich.live import Live

    async def now() -> RenderableType:
        return render_status(_completed(await _ask_status(url)), output.terminal_width(), url)

    console = output.console(width=output.terminal_width())
    # On the normal screen, where the last state stays after Ctrl-C. The first answer comes before that, so
    # that a service that is down is one line.
    with Live(await now(), console=console, screen=False, auto_refresh=False) as live:
        while True:
            await anyio.sleep(_WATCH_SECONDS)
            # The window may have another size now.
            console.width = output.terminal_width()
            live.update(await now(), refresh=True)


def render_status(status: dict[str, Any], width: int, url: str) -> RenderableType:
    """The status of the service at ``url``, for a terminal of ``width`` columns."""
    from rich.console import Group
    from rich.text import Text

    def fitted(headers: tuple[str, ...], rows: list[tuple[Any, ...]]) -> RenderableType:
        return output.fitted(headers, rows, width, _LEAST_IMPORTANT)

    word = "ready" if status["ready"] else "stopping" if status["stopping"] else "not ready"
    # The last ones only: the service remembers more than fit into a line.
    times = ", ".join(f"{seconds * 1000:.0f} ms" for seconds in status["failover_seconds"][-5:])
    tail = f", the last ones took {times}" if times else ""
    return Group(
        Text.assemble(f"{printable(status['folder'])}: ", (word, "green" if status["ready"] else "red")),
        Text(f"supervisor: {_supervisor(status)}; failovers: {status['failovers']}{tail}"),
        *_standbys(status),
        *_requests(status),
        Text(),
        fitted(_HOST_COLUMNS, [_host_row(host) for host in status["hosts"]]),
        Text(),
        fitted(_CONTAINER_COLUMNS, [_container_row(assignment) for assignment in status["containers"]]),
        *_imbalance(status),
        *_unhealthy(status),
        *_without_log(status),
        *_withheld(status),
        *_unconfirmed(status, url),
    )


def _supervisor(status: dict[str, Any]) -> str:
    # One of an earlier version does not say where it is.
    machine = f" on {printable(status['machine'])}" if status["machine"] else ""
    place = f" at {printable(status['url'])}" if status["url"] else ""
    active = f", active for {_span(status['active_seconds'])}" if status["active_seconds"] else ""
    return f"process {status['pid']}{machine}{place}, term {status['term']}{active}"


def _standbys(status: dict[str, Any]) -> list[RenderableType]:
    """A line for each supervisor that stands by at one of the addresses that were asked."""
    from rich.text import Text

    return [
        Text(
            f"standby: process {each['pid']} on {printable(each['machine'])} at {each['url']}, for "
            f"{_span(each['waiting_seconds'])}"
        )
        for each in status["standbys"]
    ]


def _span(seconds: float) -> str:
    """As ``2 days, 3:04:05``."""
    from datetime import timedelta

    return str(timedelta(seconds=round(seconds)))


def _requests(status: dict[str, Any]) -> list[RenderableType]:
    """A line of what a bucket costs besides its space."""
    from rich.text import Text

    counts = ", ".join(f"{count} {kind}" for kind, count in (status["requests"] or {}).items())
    return [Text(f"requests to the bucket by the running processes: {counts}")] if counts else []


def _imbalance(status: dict[str, Any]) -> list[RenderableType]:
    """A line if hosts have not their shares yet."""
    from rich.text import Text

    found = status["imbalance"]
    count = output.count(found["containers"], "container")
    moving = f"\n{count} still to move to other hosts: {printable(found['reason'])}"
    return [Text(moving, style="yellow")] if found["containers"] else []


def _unhealthy(status: dict[str, Any]) -> list[RenderableType]:
    """A line for each host that cannot use long-term storage as usual."""
    from rich.text import Text

    unhealthy = [(host["id"], host["storage"]) for host in status["hosts"] if host["storage"]["cause"]]
    lines = [
        Text.assemble(
            f"\n{host}: long-term storage is ",
            (storage["state"], "red"),
            f": {printable(storage['cause'])}",
        )
        for host, storage in unhealthy
    ]
    return list(lines)


def _without_log(status: dict[str, Any]) -> list[RenderableType]:
    """A line for each container whose log does not answer."""
    from rich.text import Text

    return [
        Text.assemble(
            f"\ncontainer {each['container']}: its log is ",
            (each["log"]["state"], "red"),
            f": {printable(each['log']['cause'])}",
        )
        for each in status["containers"]
        if each["log"]["cause"]
    ]


def _withheld(status: dict[str, Any]) -> list[RenderableType]:
    """A line if containers stay closed until an operator opens them."""
    from rich.text import Text

    withheld = [each for each in status["containers"] if each["phase"] in ("fenced", "quarantined")]
    found = ", ".join(str(each["container"]) for each in withheld)
    advice = "once the cause is removed, `tierlog container open` opens each of them again"
    return [Text(f"\nclosed containers ({found}): {advice}", style="yellow")] if found else []


def _unconfirmed(status: dict[str, Any], url: str) -> list[RenderableType]:
    """What to do if containers delete no chunks, each command in a line of its own."""
    from rich.text import Text

    found = [str(each["container"]) for each in status["containers"] if each["unconfirmed"]]
    advice = (
        f"\nunconfirmed containers ({', '.join(found)}) delete no chunks:\n"
        f"`tierlog gc status --url {url}` shows why\n"
        f"`tierlog gc sweep --confirm --url {url}` allows it"
    )
    return [Text(advice, style="yellow")] if found else []


def _host_row(host: dict[str, Any]) -> tuple[Any, ...]:
    held = ", ".join(map(str, host["containers"])) or "none"
    lag, health = f"{host['lag_seconds'] * 1000:.0f} ms", host["storage"]["state"]
    machine = f"{host['machine']}{' (joined)' if host['joined'] else ''}"
    ends = (host["starts"], host["last_exit"])
    return (host["id"], host["phase"], machine, host["pid"], held, lag, health, *ends)


def _container_row(assignment: dict[str, Any]) -> tuple[Any, ...]:
    sizes = (output.show_bytes(assignment["wal_bytes"]), output.show_bytes(assignment["unflushed_bytes"]))
    return (
        assignment["container"],
        f"{assignment['phase']}, log {assignment['log']['state']}"
        if assignment["log"]["cause"]
        else assignment["phase"],
        assignment["host"],
        assignment["epoch"],
        assignment["segments"],
        *sizes,
        assignment["reason"],
    )

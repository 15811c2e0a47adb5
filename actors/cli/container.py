"""Commands to a running service: move and reopen containers, drain and start hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import output
from .agreement import check_agreed
from .options import DEFAULT_URL, Json, Url, whole_number
from .running import ask_service, execute, fail

Index = Annotated[
    int,
    typer.Argument(
        metavar="CONTAINER", parser=whole_number(0), help="The container's number.", show_default=False
    ),
]
Host = Annotated[
    str, typer.Argument(metavar="HOST", help="The host's id, such as host-0.", show_default=False)
]
_PROGRESS = "; `tierlog status` shows the progress"


def move(
    container: Index,
    host: Annotated[
        str | None,
        typer.Argument(metavar="HOST", help="The host's id, such as host-0.", show_default=False),
    ] = None,
    unpin: Annotated[
        bool, typer.Option("--unpin", help="Without HOST: let the supervisor choose the host again.")
    ] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Move a container to another host and pin it there, or unpin it."""
    if unpin is (host is not None):
        raise typer.BadParameter("name either a HOST or --unpin")

    if host is None:
        now = _assignment(_order(url, f"/v1/containers/{container}/move", {"host": None}), container)
        _print(now, json, f"container {container} is not pinned any more")
        return

    # An order is answered when it is taken, and carried out later: the answer shows the state in between.
    now = _assignment(_order(url, f"/v1/containers/{container}/move", {"host": host}), container)
    if (now["phase"], now["host"]) == ("serving", host):
        _print(now, json, f"container {container} is already on {host}")
    else:
        _print(now, json, f"container {container} is moving to {host}{_PROGRESS}")


def open_again(container: Index, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Reopen a container that was fenced or quarantined. If it is damaged, repair it first; see `tierlog
    doctor`. The host of one that is served confirms it."""
    now = _assignment(_order(url, f"/v1/containers/{container}/open"), container)
    _print(now, json, f"container {container} is being opened{_PROGRESS}")


def drain(
    host: Host,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, for scripts.")] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Move a host's containers to other hosts, let it finish its requests, and restart it. One that joined
    exits with code 0, and whatever started it decides. Asks first if no other host accepts its containers."""
    if not yes and (facts := _left_alone(_status(url), host)):
        check_agreed(f"{facts[0].upper()}{facts[1:]}. Drain it?", asks=not json, facts=facts)
    now = _host(_order(url, f"/v1/hosts/{host}/drain"), host)
    _print(now, json, f"{host} is {now['phase']}{_PROGRESS}")


def start(host: Host, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Start a host that stays down because it exited too often."""
    now = _host(_order(url, f"/v1/hosts/{host}/start"), host)
    if now["phase"] == "serving":
        _print(now, json, f"{host} is already serving")
    else:
        _print(now, json, f"{host} is {now['phase']}{_PROGRESS}")


def roll(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Drain and restart every host, one after the other, while the others serve. Those that joined are left
    to whatever started them."""
    _print(_order(url, "/v1/roll"), json, f"the hosts are restarting, one after the other{_PROGRESS}")


def _left_alone(status: dict[str, Any], host: str) -> str:
    """What has no host while this one is drained; empty if others take it, or if it has nothing."""
    found = next((each for each in status["hosts"] if each["id"] == host), None)
    others = any(each["phase"] == "serving" for each in status["hosts"] if each["id"] != host)
    # Of a host that does not serve the service says why it cannot be drained.
    if found is None or others or found["phase"] != "serving" or not found["containers"]:
        return ""
    until = "another host joins" if found.get("joined") else "it is back"
    containers = output.count(len(found["containers"]), "container")
    return f"no other host accepts containers: {containers} of {host} will have no host until {until}"


def _status(url: str) -> dict[str, Any]:
    from ..gateway.wire.bodies import ServiceStatus

    return execute(lambda: ask_service(url, "GET", "/v1/status", kind=ServiceStatus))


def _order(url: str, path: str, body: dict[str, str | None] | None = None) -> dict[str, Any]:
    """Send the order; returns the service's status right after it."""
    from ..gateway.wire.bodies import ServiceStatus

    return execute(lambda: ask_service(url, "POST", path, body, kind=ServiceStatus))


def _assignment(status: dict[str, Any], container: int) -> dict[str, Any]:
    return _entry(status["containers"], "container", container)


def _host(status: dict[str, Any], host: str) -> dict[str, Any]:
    return _entry(status["hosts"], "id", host)


def _entry(entries: list[dict[str, Any]], key: str, value: object) -> dict[str, Any]:
    found = next((entry for entry in entries if entry[key] == value), None)
    if found is None:
        fail(f"the service accepted the order, but its status lacks {value}: is it a tierlog service?")

    return found


def _print(now: dict[str, Any], json: bool, message: str) -> None:
    if json:
        output.print_json(now)
    else:
        output.print_lines([message])

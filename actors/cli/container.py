"""Commands to a running service: move and reopen containers, drain and start hosts."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import output
from .options import DEFAULT_URL, Url
from .running import ask_service, execute

Index = Annotated[
    int, typer.Argument(metavar="CONTAINER", min=0, help="The container's number.", show_default=False)
]
Host = Annotated[
    str, typer.Argument(metavar="HOST", help="The host's id, such as host-0.", show_default=False)
]


def move(container: Index, host: Host, url: Url = DEFAULT_URL) -> None:
    """Move a container to another host."""
    now = _assignment(_order(url, f"/v1/containers/{container}/move", {"host": host}), container)
    if (now["phase"], now["host"]) == ("serving", host):
        output.print_lines([f"container {container} is already on {host}"])
    else:
        _print_progress(f"container {container} is moving to {host}")


def open_again(container: Index, url: Url = DEFAULT_URL) -> None:
    """Reopen a container that was fenced or quarantined. If it is damaged, repair it first; see `tierlog
    doctor`."""
    now = _assignment(_order(url, f"/v1/containers/{container}/open"), container)
    if now["phase"] == "serving":
        output.print_lines([f"container {container} is already open on {now['host']}"])
    else:
        _print_progress(f"container {container} is being opened")


def drain(host: Host, url: Url = DEFAULT_URL) -> None:
    """Move a host's containers to other hosts, let it finish its requests, and restart it."""
    phase = _phase(_order(url, f"/v1/hosts/{host}/drain"), host)
    _print_progress(f"{host} is {phase}")


def start(host: Host, url: Url = DEFAULT_URL) -> None:
    """Start a host that stays down because it exited too often."""
    phase = _phase(_order(url, f"/v1/hosts/{host}/start"), host)
    if phase == "serving":
        output.print_lines([f"{host} is already serving"])
    else:
        _print_progress(f"{host} is {phase}")


def roll(url: Url = DEFAULT_URL) -> None:
    """Drain and restart every host, one after the other, while the others serve."""
    _order(url, "/v1/roll")
    _print_progress("the hosts are restarting, one after the other")


def _order(url: str, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
    """Send the order; returns the service's status right after it."""
    return execute(lambda: ask_service(url, "POST", path, body))


def _assignment(status: dict[str, Any], container: int) -> dict[str, Any]:
    found: dict[str, Any] = status["containers"][container]
    return found


def _phase(status: dict[str, Any], host: str) -> str:
    return next(str(each["phase"]) for each in status["hosts"] if each["id"] == host)


def _print_progress(message: str) -> None:
    output.print_lines([f"{message}; `tierlog status` shows the progress"])

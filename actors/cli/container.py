"""Commands to a running service: move and reopen containers, drain and start hosts."""

from __future__ import annotations

from typing import Annotated

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
    _order(
        url, f"/v1/containers/{container}/move", f"container {container} is moving to {host}", {"host": host}
    )


def open_again(container: Index, url: Url = DEFAULT_URL) -> None:
    """Reopen a container that was fenced or quarantined. If it is damaged, repair it first; see `tierlog
    doctor`."""
    _order(url, f"/v1/containers/{container}/open", f"container {container} is being opened")


def drain(host: Host, url: Url = DEFAULT_URL) -> None:
    """Move a host's containers to other hosts, let it finish its requests, and restart it."""
    _order(url, f"/v1/hosts/{host}/drain", f"{host} is draining")


def start(host: Host, url: Url = DEFAULT_URL) -> None:
    """Start a host that stays down because it exited too often."""
    _order(url, f"/v1/hosts/{host}/start", f"{host} is starting")


def roll(url: Url = DEFAULT_URL) -> None:
    """Drain and restart every host, one after the other, while the others serve."""
    _order(url, "/v1/roll", "the hosts are restarting, one after the other")


def _order(url: str, path: str, message: str, body: dict[str, str] | None = None) -> None:
    async def command() -> None:
        await ask_service(url, "POST", path, body)

    execute(command)
    output.print_lines([f"{message}; `tierlog status` shows the progress"])

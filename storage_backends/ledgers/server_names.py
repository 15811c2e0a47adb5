"""The names of ZooKeeper's servers, looked up before a sidecar is started for them: its client takes one that
does not resolve for a server that does not answer yet, and waits."""

from __future__ import annotations

import socket

import anyio

from ..base.errors import Unavailable


async def require_known(servers: str) -> None:
    """Raises ``Unavailable`` if none of the servers, ``host:port`` with commas between them, has a name that
    resolves. One is enough: the client goes on to the others."""
    unknown = {}
    for server in servers.split(","):
        host = server.rpartition(":")[0] or server
        try:
            await anyio.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the second: a part of the name is too long
            unknown[host] = getattr(error, "strerror", None) or str(error)
        else:
            return
    found = ", ".join(f"{host} ({why})" for host, why in unknown.items())
    raise Unavailable(
        f"ZooKeeper cannot be found, because {'this name does' if len(unknown) == 1 else 'these names do'} "
        f"not resolve: {found}"
    )

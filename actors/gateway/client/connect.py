"""``connect`` and ``connect_sync``. The one module of the client that may use the machine's clock and
randomness."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random

import httpx

from ....storage_backends.base.errors import InvalidArgument, shown
from ....storage_backends.base.world import World
from ...kernel.contexts import PlainContext, owned_context
from ...kernel.event_loop import event_source, loop_clock
from ...telemetry.tracing import Tracing
from .addresses import check_addresses
from .async_client import Client, open_client
from .attempts import ClientContext
from .container_map import ContainerMapCache
from .sessions import dial_with
from .sync_client import SyncClient, SyncConnection
from .transport import LIMITS

DEADLINE = 30.0
MAP_REFRESH = 0.5


@owned_context("client")
async def connect(
    url: str | Sequence[str],
    *,
    deadline: float = DEADLINE,
    map_refresh: float = MAP_REFRESH,
    span: Tracing | None = None,
    sessions: bool = True,
    world: World | None = None,
    transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
) -> AsyncIterator[Client]:
    """Connects to the service at ``url``, on asyncio and trio: one URL, or several as a sequence or in a text
    with commas between them, of the supervisor or of hosts, in any order.

    ``async with tierlog.connect("http://127.0.0.1:8470") as store`` gives a ``Client`` with the verbs of
    ``SegmentStore``, and so does ``await tierlog.connect(...)``, which its ``aclose`` closes. It uses the
    first address that answers, and the next one when that no longer does.
    ``deadline`` is in seconds and bounds each call, repeats included (default 30).
    ``map_refresh`` is in seconds: while a call has no answer, the client refreshes the container map this
    often (default 0.5), and at most this often to learn whether an append above the service's limit is
    allowed by now. ``sessions``: one connection to each server carries all calls, where the server takes it
    (default); False uses plain HTTP only. ``span`` traces every call and request, see
    ``tierlog.opentelemetry_tracing()``.
    ``world`` and ``transport`` are for simulations and tests.

    Raises ``InvalidArgument`` for a bad URL or number, and a host name that the server does not accept;
    ``Unavailable`` if no server answers within 5 s.
    """
    context = _context(url, deadline, map_refresh, world, loop_clock())
    make = transport or _async_pools(context.map.base)
    dial = dial_with(_verify(context.map.base)) if sessions and transport is None else None
    async with open_client(context, make, event_source(), span, dial) as client:
        yield client


def connect_sync(
    url: str | Sequence[str],
    *,
    deadline: float = DEADLINE,
    sessions: bool = True,
    span: Tracing | None = None,
    world: World | None = None,
) -> PlainContext[SyncClient]:
    """As ``connect``, for code without an event loop, or in the middle of one, such as a notebook's.

    ``with tierlog.connect_sync("http://127.0.0.1:8470") as store`` gives a ``SyncClient``, and so does
    ``tierlog.connect_sync(...).open()``, which its ``close`` closes. Any number of threads may use it. It has
    an event loop in a thread of its own.
    """
    return PlainContext(
        "client",
        "tierlog.connect_sync(...)",
        SyncConnection(lambda: connect(url, deadline=deadline, sessions=sessions, span=span, world=world)),
    )


def _context(
    url: str | Sequence[str],
    deadline: float,
    map_refresh: float,
    world: World | None,
    clock: Callable[[], float],
) -> ClientContext:
    return ClientContext(
        ContainerMapCache(*check_addresses(url)),
        _seconds("deadline", deadline),
        _seconds("map_refresh", map_refresh),
        clock,
        # For the pauses between attempts: many clients must not come back at once after a failover.
        Random() if world is None else world.random,
    )


def _seconds(what: str, value: object) -> float:
    # Not ``isinstance`` alone: a bool is an int. NaN fails the comparison.
    if type(value) not in (int, float) or not isinstance(value, (int, float)) or not 0 < value < 86_400:
        raise InvalidArgument(f"{what} is a number of seconds above 0 and below a day, not {shown(value)}")

    return float(value)


def _async_pools(url: str) -> Callable[[], httpx.AsyncBaseTransport]:
    verify = _verify(url)
    # The proxies of the environment are meant for other servers.
    return lambda: httpx.AsyncHTTPTransport(verify=verify, trust_env=False, http2=False, limits=LIMITS)


def _verify(url: str) -> ssl.SSLContext:
    """The machine's certificates for https only: loading them takes longer than opening the client."""
    return (
        ssl.create_default_context() if url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )

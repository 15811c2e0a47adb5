"""Connections to other servers in several pools. A pool of httpx examines all its connections several times
for each request, so one with some thousands would keep the event loop busy with that alone.

A cancelled exchange closes its connection; the pools stay usable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import httpx


class ConnectionPools:
    """``make()``: a pool of at least ``exchanges_max`` connections. ``exchanges_max``: exchanges at a time
    that share one."""

    def __init__(self, make: Callable[[], httpx.AsyncBaseTransport], exchanges_max: int) -> None:
        self._make = make
        self._exchanges_max = exchanges_max
        self._pools: dict[httpx.AsyncBaseTransport, int] = {}
        """With the number of exchanges under way."""

    @property
    def exchanges(self) -> int:
        """Those under way."""
        return sum(self._pools.values())

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncBaseTransport]:
        """A pool for one exchange."""
        pool = next((each for each, count in self._pools.items() if count < self._exchanges_max), None)
        if pool is None:
            pool = self._make()
        self._pools[pool] = self._pools.get(pool, 0) + 1
        try:
            yield pool
        finally:
            self._pools[pool] -= 1
            # One stays, with its connections, for the next exchange.
            if not self._pools[pool] and len(self._pools) > 1:
                del self._pools[pool]
                with anyio.CancelScope(shield=True):
                    await pool.aclose()

    async def aclose(self) -> None:
        for pool in list(self._pools):
            await pool.aclose()

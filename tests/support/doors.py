"""The doors to a store: embedded, a client, and a plain client whose calls are awaited like the others'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_thread

import tierlog


class InThread:
    """A sync client whose calls are awaited."""

    def __init__(self, client: tierlog.SyncClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._client, name)
        return lambda *args, **named: anyio.to_thread.run_sync(lambda: verb(*args, **named))


@asynccontextmanager
async def connect_in_thread(url: str, **terms: Any) -> AsyncIterator[InThread]:
    """``tierlog.connect_sync`` in the form of ``tierlog.connect``."""
    opened = tierlog.connect_sync(url, **terms)
    client = await anyio.to_thread.run_sync(opened.__enter__)
    try:
        yield InThread(client)
    finally:
        await anyio.to_thread.run_sync(opened.__exit__, None, None, None)

"""A synchronous client behind the asynchronous interface, so that one test runs on every client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

import tierlog


class AwaitedSyncClient:
    """A sync client whose calls are awaited."""

    def __init__(self, client: tierlog.SyncClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        verb = getattr(self._client, name)
        return lambda *args, **named: anyio.to_thread.run_sync(lambda: verb(*args, **named))


@asynccontextmanager
async def connect_in_thread(url: str, **options: Any) -> AsyncIterator[AwaitedSyncClient]:
    """``tierlog.connect_sync`` in the form of ``tierlog.connect``."""
    opened = tierlog.connect_sync(url, **options)
    client = await anyio.to_thread.run_sync(opened.__enter__)
    try:
        yield AwaitedSyncClient(client)
    finally:
        await anyio.to_thread.run_sync(opened.__exit__, None, None, None)


CONNECTS: dict[str, Callable[..., Any]] = {
    "async": tierlog.connect,
    "sync": connect_in_thread,
    "async-http": partial(tierlog.connect, sessions=False),
}
"""Each kind of client, in sessions and over plain HTTP."""
KINDS = ["async", "sync", pytest.param("async-http", marks=pytest.mark.extended)]

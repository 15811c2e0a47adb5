"""Calls that end after a fraction of a second, on a machine that may stand still for longer than that: what
its pause cut short is done again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from support.patience import ATTEMPTS
from tierlog import TierlogError, Unavailable


@asynccontextmanager
async def hurried_client(
    connect: Callable[..., AbstractAsyncContextManager[Any]], url: str, deadline: float
) -> AsyncIterator[Any]:
    """A client with this ``deadline``, which bounds its opening too."""
    async with AsyncExitStack() as stack:
        client = None
        for _ in range(ATTEMPTS):
            with suppress(Unavailable):
                client = await stack.enter_async_context(connect(url, deadline=deadline))
                break
        assert client is not None, f"no server answers at {url}"
        yield client


async def error_of(
    call: Callable[[], Awaitable[object]], requests: Callable[[], int], least: int = 1
) -> TierlogError:
    """The error of a call whose deadline came after ``least`` requests. ``requests``: how many there were so
    far."""
    error = None
    for _ in range(ATTEMPTS):
        before = requests()
        try:
            await call()
        except TierlogError as raised:
            error = raised
        assert error is not None, "the call succeeded"
        if requests() - before >= least:
            return error

    pytest.fail(f"{ATTEMPTS} calls ended with fewer than {least} requests, the last with: {error}")

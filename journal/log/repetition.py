"""``Repetition``: a call of a service is repeated until it has a verdict, for a while (rule L6).

Only the caller can repeat a change whose outcome is unknown: what it writes names it. Cancellation leaves the
outcome of the call unknown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from ...storage_backends.base.errors import OutcomeUnknown, Unavailable
from ...storage_backends.base.ledger_service import LedgerLost, SidecarNotStarted
from ...storage_backends.base.world import World
from .call_health import CallHealth, WatchedCall

T = TypeVar("T")


class Repetition:
    """``patience``: seconds for which one call is repeated; ``delay``: seconds before it is repeated first,
    and the longest ones. ``health`` learns how the calls end."""

    def __init__(
        self, world: World, patience: float, delay: tuple[float, float], health: CallHealth | None = None
    ) -> None:
        self._random = world.random
        self._patience = patience
        self._delay = delay
        self._health = health or CallHealth()

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        with self._health.watched() as watched:
            return await self._repeated(call, watched)

    async def _repeated(self, call: Callable[[], Awaitable[T]], watched: WatchedCall) -> T:
        delay, longest = self._delay
        until = anyio.current_time() + self._patience
        while True:
            try:
                return await call()
            except (SidecarNotStarted, LedgerLost):
                # B11: the log is opened again at once, or another host soon has its container.
                raise
            except (Unavailable, OutcomeUnknown) as error:
                watched.failed(error)
                wait = delay * self._random.uniform(0.5, 1.0)
                if anyio.current_time() + wait > until:
                    raise
                await anyio.sleep(wait)
                delay = min(2 * delay, longest)

"""``SharedCall``: one call for all who wait for it at the same time (rule L10). Each gets the outcome of a
call that began after it had asked.

Cancellation: a cancelled caller's call is given up, and the next who waits makes another.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from ...storage_backends.base.errors import TierlogError


class SharedCall:
    def __init__(self, call: Callable[[], Awaitable[None]]) -> None:
        self._call = call
        self._turn = anyio.Lock()
        self._begun = 0
        """Calls so far."""
        self._ended = 0
        """The newest that has an outcome."""
        self._error: TierlogError | None = None
        """Its outcome."""

    async def join(self) -> None:
        # A call that runs already may have been answered before this one asked.
        needed = self._begun + 1
        async with self._turn:
            if self._ended < needed:
                self._begun = number = self._begun + 1
                self._error = await self._outcome()
                self._ended = number
            if self._error is not None:
                raise self._error

    async def _outcome(self) -> TierlogError | None:
        try:
            await self._call()
        except TierlogError as error:
            return error
        return None

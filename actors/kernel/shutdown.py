"""Shutdown with a deadline.

Owns: the shield around clean-up that has to await. Does not own: the order of a stop (rule A11; each actor
carries it out).

Cancellation: clean-up is protected from a cancellation around it for as long as its deadline, no longer. What
does not finish is cancelled at the deadline, and the caller is told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


async def finish_within(seconds: float, clean_up: Callable[[], Awaitable[object]]) -> bool:
    """Run ``clean_up``, shielded, for at most ``seconds``. True if it finished. Its exceptions pass."""
    with anyio.move_on_after(seconds, shield=True) as scope:
        await clean_up()
    return not scope.cancelled_caught

"""``Fault``: what happens to a service on several machines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import attrs

from chaos_parts.units import Unit

LIMIT = 60.0
"""Seconds after which a container that does not ack counts as lost: a supervisor's successor waits for the
lease, and for hosts that are gone, and a log asks for half of it for a verdict on its requests."""


@attrs.frozen(kw_only=True)
class Fault:
    name: str
    begin: Callable[[], Awaitable[None]]
    heal: Callable[[], Awaitable[None]]
    """After the links have been healed."""
    seconds: float = 0.0
    """How long it lasts, unless a failover takes longer."""
    lost: Sequence[Unit] = ()
    """The hosts whose containers must ack again meanwhile, which others may have taken over."""
    is_felt_by_all: bool = False
    """Whether all containers must ack again meanwhile."""
    is_takeover: bool = True
    """Whether nothing but a takeover is waited for then: the time of each one counts."""
    figure: str = ""
    goal: float | None = None


async def nothing() -> None:
    await anyio.lowlevel.checkpoint()


async def start(units: Sequence[Unit]) -> None:
    for unit in units:
        if not unit.is_wanted:
            await unit.ended()
            unit.start()

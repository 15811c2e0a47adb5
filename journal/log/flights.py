"""``Flights``: the appends of a log that are under way, for logs that allow several (rules L2 and B3). They
are settled in their order, and if one fails, none behind it is."""

from __future__ import annotations

import anyio
import attrs

from .lifecycle import LogEvent, LogLifecycle, LogState


@attrs.define(eq=False, repr=False)
class Flight:
    """An append under way."""

    before: Flight | None
    ended: anyio.Event = attrs.field(factory=anyio.Event)
    has_started: bool = False
    """Whether the next one may start."""
    _started: anyio.Event | None = None
    """Made if another waits for it."""

    async def wait_started(self) -> None:
        if not self.has_started:
            self._started = self._started or anyio.Event()
            await self._started.wait()

    def set_started(self) -> None:
        self.has_started = True
        if self._started is not None:
            self._started.set()


class Flights:
    def __init__(self, life: LogLifecycle, appends_max: int) -> None:
        self._life = life
        self._appends_max = appends_max
        self._newest: Flight | None = None
        self._count = 0

    def require_room(self) -> None:
        """Raises if the log cannot take another append now."""
        if not self._count or self._count == self._appends_max:
            self._life.step(LogEvent.BEGIN_APPEND)
        self._life.require("append", LogState.APPENDING)

    def take(self) -> Flight:
        """The next append, after ``require_room``."""
        flight = self._newest = Flight(self._newest if self._count else None)
        self._count += 1
        return flight

    async def wait_to_start(self, flight: Flight) -> None:
        """Until those before have started, where each says so. Does not wait if they have."""
        if flight.before is not None:
            await flight.before.wait_started()
        self._life.require("append", LogState.APPENDING)

    async def wait_for_turn(self, flight: Flight) -> None:
        """Until those before have ended. Raises if one of them failed."""
        if flight.before is not None:
            await flight.before.ended.wait()
            flight.before = None
        self._life.require("append", LogState.APPENDING)

    def end(self, flight: Flight, error: BaseException | None = None) -> None:
        """However it ended: call it once."""
        if error is not None:
            self._life.failed(error)
        self._count -= 1
        flight.ended.set()
        if not self._count and error is None:
            self._life.step(LogEvent.APPENDED)

"""The network of a world with sessions: where hosts listen, and what happens to connections to them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import trio

from ..fleets.network import Agenda
from ..trace import Trace
from .event_loop import HostLoop
from .middleboxes import FrameFault, meddle
from .streams import DELAY, ClientEnd, Connection, StreamOptions

_PIECES = (9, 120, 1500, 1 << 16, 1 << 16)
_ROOMS = (300, 3000, 20_000, 1 << 17)
_DARK_SECONDS = 0.3


@attrs.frozen
class Swarm:
    """The shares of connections with each fault, of one world."""

    reset: float
    half: float
    frames: float
    slow: float

    @classmethod
    def drawn(cls, random: Random) -> Swarm:
        reset, half, frames, slow = (random.choice((0.0, 0.0, 0.1, 0.4)) for _ in range(4))
        return cls(reset, half, frames, slow)


@attrs.frozen
class Door:
    """Where a host accepts connections."""

    loop: HostLoop
    make: Callable[[], Any]


class Network:
    def __init__(self, agenda: Agenda, random: Random, trace: Trace, swarm: Swarm) -> None:
        self._agenda = agenda
        self._random = random
        self._trace = trace
        self.swarm = swarm
        self.doors: dict[str, Door] = {}
        """By URL."""
        self.dark: set[str] = set()
        """No packet comes through to these, or back."""
        self.proxies: dict[str, Callable[[Connection], None]] = {}
        self.connections: list[Connection] = []
        """All that ever were."""
        self._frame_faults: list[FrameFault] = []
        self.is_healed = False
        self._proxied: list[Connection] = []

    def open_to(self, url: str) -> list[Connection]:
        return [each for each in self.connections if each.url == url and not each.is_over]

    async def dial(self, url: str) -> ClientEnd:
        """A connection to the host at ``url``. Raises ``OSError``; waits while no packet comes through."""
        await trio.sleep(self._random.expovariate(1 / DELAY))
        while url in self.dark:
            await trio.sleep(_DARK_SECONDS)
        door = self.doors.get(url)
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")

        number = len(self.connections)
        random = Random(f"{self._random.random()} connection {number}")
        connection = Connection(
            number, url, self._agenda, random, self._options(random), self._options(random)
        )
        self.connections.append(connection)
        if not self.is_healed:
            self._add_middlebox(connection, random)
        self._trace.note("network", f"connection {number} to {url}")
        connection.accept(door.loop, door.make)
        return connection.client

    def _options(self, random: Random) -> StreamOptions:
        options = StreamOptions(DELAY, random.choice(_PIECES), random.choice(_ROOMS))
        if self.is_healed:
            return options
        if random.random() < self.swarm.slow:
            options = attrs.evolve(options, delay=0.05, room=random.choice((100, 1000)))
        if random.random() < self.swarm.reset:
            options = attrs.evolve(options, reset_at=int(random.expovariate(1 / 3000)))
        if random.random() < self.swarm.half:
            options = attrs.evolve(options, end_at=int(random.expovariate(1 / 3000)))
        return options

    def _add_middlebox(self, connection: Connection, random: Random) -> None:
        if proxy := self.proxies.get(connection.url):
            proxy(connection)
            self._proxied.append(connection)
        elif random.random() < self.swarm.frames:
            number = 1 + int(random.expovariate(1 / 8))
            fault = FrameFault(random.choice(FrameFault.KINDS), number, random)
            meddle(connection, fault, upwards=random.random() < 0.5)
            self._frame_faults.append(fault)

    def remove_proxy(self, url: str) -> None:
        self.proxies.pop(url, None)

    def leave(self, url: str) -> None:
        """The process at ``url`` is gone: the system ends its connections, each in one of two ways."""
        self.doors.pop(url, None)
        for connection in self.open_to(url):
            if self._random.random() < 0.5:
                connection.reset()
            else:
                connection.down.send_end()
                connection.up.on_data = connection.reset  # whatever comes for it now

    def heal(self) -> None:
        """Nothing happens to connections from now on. What went nowhere is reset, as the other side's TCP
        does when it hears of it again."""
        self.is_healed = True
        self.dark.clear()
        self.proxies.clear()
        for fault in self._frame_faults:
            fault.stop()
        for connection in self.connections:
            both = (connection.up, connection.down)
            if connection in self._proxied or any(stream.is_lost or stream.is_cut for stream in both):
                connection.reset()
            for stream in both:
                stream.heal()

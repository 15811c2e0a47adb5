"""The network between a supervisor and hosts on other machines, and the agenda of what happens when.

A connection delivers its bytes in order and late, or, once it is broken, not at all. Across a partition they
wait until it heals, as TCP repeats them. A machine that loses its power breaks no connection: nothing comes
from it any more. The host's end is plain callbacks, so that hundreds of hosts need no tasks.
"""

from __future__ import annotations

import itertools
import math
import socket
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from random import Random
from typing import Any

import anyio
import anyio.abc
import attrs

DELAY_SECONDS = 0.0005
"""The median of a message's way."""
LATE = 0.001
"""The share of messages that are late, by up to ``LATE_SECONDS``."""
LATE_SECONDS = 0.3


class Agenda:
    """What happens at which time, in one task."""

    def __init__(self, slice_seconds: float = 0.0) -> None:
        """``slice_seconds``: what happens within such a slice of time happens at its end, in order, which
        saves rounds of the event loop."""
        self._slice = slice_seconds
        self._acts: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._earlier = anyio.Event()

    def at(self, time: float, act: Callable[[], None]) -> None:
        if self._slice:
            time = math.ceil(time / self._slice) * self._slice
        if not self._acts or time < self._acts[0][0]:
            self._earlier.set()
        heappush(self._acts, (time, next(self._numbers), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(anyio.current_time() + seconds, act)

    async def run(self) -> None:
        while True:
            self._earlier = anyio.Event()
            now = anyio.current_time()
            while self._acts and self._acts[0][0] <= now:
                heappop(self._acts)[2]()
            with anyio.move_on_at(self._acts[0][0] if self._acts else now + 3600):
                await self._earlier.wait()


class HostEnd:
    """Whoever is at a host's end of a connection."""

    def received(self, pipe: Pipe, data: bytes) -> None:
        raise NotImplementedError

    def ended(self, pipe: Pipe) -> None:
        raise NotImplementedError


@attrs.define(eq=False)
class Pipe:
    """One connection."""

    network: Network
    machine: str
    """The host's."""
    host: HostEnd
    stream: Stream
    """The supervisor's end."""
    is_broken: bool = False
    held: list[tuple[bool, bytes]] = attrs.field(factory=list)
    """What waits for the end of a partition: whether it goes to the host, and the bytes; none for the end."""
    arrivals: dict[bool, float] = attrs.field(factory=lambda: {True: 0.0, False: 0.0})
    """When the last bytes of each direction arrive."""

    def to_supervisor(self, data: bytes) -> None:
        self.network.carry(self, False, data)

    def close_from_host(self) -> None:
        self.network.carry(self, False, b"")

    def break_off(self) -> None:
        """It delivers nothing more, and both sides see that."""
        if not self.is_broken:
            self.network.carry(self, True, b"")
            self.network.carry(self, False, b"")
            self.is_broken = True

    def arrive(self, to_host: bool, data: bytes) -> None:
        # What was on its way when the connection broke is lost.
        if self.network.is_dark(self.machine) or (self.is_broken and data):
            return
        if not to_host:
            self.stream.arrive(data)
        elif data:
            self.host.received(self, data)
        else:
            self.host.ended(self)


class _Socket:
    """What of a socket the supervisor asks for."""

    family = socket.AF_INET

    def __init__(self) -> None:
        self.drops = False
        """Whether its end drops what the other side has not got."""

    def getpeername(self) -> tuple[str, int]:
        return "", 0  # all are alike

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self.drops = self.drops or option == socket.SO_LINGER


class Stream(anyio.abc.ByteStream):
    """The supervisor's end of a connection."""

    def __init__(self) -> None:
        self.pipe: Pipe | None = None
        self._socket = _Socket()
        self._received = bytearray()
        self._is_ended = False
        self._is_closed = False
        self._more = anyio.Event()

    def arrive(self, data: bytes) -> None:
        self._received += data
        self._is_ended = self._is_ended or not data
        self._more.set()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return {anyio.abc.SocketAttribute.raw_socket: lambda: self._socket}

    async def receive(self, max_bytes: int = 1 << 16) -> bytes:
        while not self._received:
            if self._is_closed:
                raise anyio.ClosedResourceError
            if self._is_ended:
                raise anyio.EndOfStream
            self._more = anyio.Event()
            await self._more.wait()
        data = bytes(self._received[:max_bytes])
        del self._received[:max_bytes]
        return data

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        if self._is_closed or self._is_ended or self.pipe is None:
            raise anyio.BrokenResourceError
        self.pipe.network.carry(self.pipe, True, item)

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        if not self._is_closed and self.pipe is not None:
            self._is_closed = True
            if self._socket.drops:
                self.pipe.held = [(to_host, data) for to_host, data in self.pipe.held if not to_host]
            self.pipe.network.carry(self.pipe, True, b"")
        await anyio.lowlevel.checkpoint()


class Listener(anyio.abc.Listener[Any]):
    """Where hosts connect to one supervisor."""

    def __init__(self) -> None:
        self.pipes: list[Pipe] = []
        """All that were ever made."""
        self.is_open = True
        self._waiting: list[Stream] = []
        self._more = anyio.Event()

    def connect(self, pipe: Pipe) -> None:
        self.pipes.append(pipe)
        self._waiting.append(pipe.stream)
        self._more.set()

    async def serve(
        self, handler: Callable[[Any], Any], task_group: anyio.abc.TaskGroup | None = None
    ) -> None:
        async with anyio.create_task_group() as tasks:
            while True:
                waiting, self._waiting = self._waiting, []
                for stream in waiting:
                    tasks.start_soon(handler, stream)
                self._more = anyio.Event()
                await self._more.wait()

    async def aclose(self) -> None:
        self.is_open = False
        await anyio.lowlevel.checkpoint()


class Network:
    def __init__(self, agenda: Agenda, random: Random) -> None:
        self.agenda = agenda
        self.listeners: dict[int, Listener] = {}
        """By port."""
        self.bytes = {True: 0, False: 0}
        """Sent to hosts, and to supervisors."""
        self._random = random
        self._cut_off: set[str] = set()
        self._dark: set[str] = set()
        self._pipes: list[Pipe] = []

    def connect(self, machine: str, port: int, host: HostEnd) -> Pipe | None:
        """A connection to the supervisor at the port; None if it cannot be reached."""
        listener = self.listeners.get(port)
        if listener is None or not listener.is_open or machine in self._cut_off:
            return None

        stream = Stream()
        pipe = stream.pipe = Pipe(self, machine, host, stream)
        self._pipes.append(pipe)
        listener.connect(pipe)
        return pipe

    def carry(self, pipe: Pipe, to_host: bool, data: bytes) -> None:
        """Send bytes on; none are the end."""
        self.bytes[to_host] += len(data)
        if pipe.is_broken or self.is_dark(pipe.machine):
            return
        if pipe.machine in self._cut_off:
            pipe.held.append((to_host, data))
            return

        delay = self._random.expovariate(1 / DELAY_SECONDS)
        if self._random.random() < LATE:
            delay += self._random.uniform(0, LATE_SECONDS)
        at = max(anyio.current_time() + delay, pipe.arrivals[to_host])
        pipe.arrivals[to_host] = at
        self.agenda.at(at, lambda: pipe.arrive(to_host, data))

    def is_dark(self, machine: str) -> bool:
        return machine in self._dark

    def is_cut_off(self, machine: str) -> bool:
        return machine in self._cut_off

    def darken(self, machine: str) -> None:
        """Its power is gone: nobody sees that."""
        self._dark.add(machine)

    def cut_off(self, machines: set[str]) -> None:
        """Nothing comes through between these and the supervisors."""
        self._cut_off |= machines

    def heal(self) -> None:
        self._cut_off.clear()
        for pipe in self._pipes:
            held, pipe.held = pipe.held, []
            for to_host, data in held:
                self.carry(pipe, to_host, data)

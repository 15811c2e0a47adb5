"""Connections between clients and hosts: two streams of bytes each, that are late, cut into pieces, bounded,
held, ended, reset, or that go nowhere.

The client's end is a stream of anyio, the server's a transport of asyncio, with the rules of both: a
transport keeps what the network does not take, and says so to its protocol; a socket that is closed with
unread bytes, or that gets bytes afterwards, resets the connection, and its client loses what it has not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import anyio
import anyio.abc
import attrs
import trio

from tierlog.actors.kernel.byte_connection import LoopConnection

from ..fleets.network import Agenda
from ..invariants import Broken
from .event_loop import HostLoop, client_loop

_LARGE = 1 << 40
DELAY = 0.0005
"""Mean seconds on the way, where nothing is slow."""
_GOES_ON = "it does not hold that frames that do not belong together end their session (N1)"


@attrs.frozen
class StreamOptions:
    """How the bytes of one direction travel."""

    delay: float
    """Mean seconds on the way."""
    pieces: int
    """The most bytes that arrive at once."""
    room: int
    """Bytes that may be on their way, or unread."""
    reset_at: int = _LARGE
    """Bytes after which the connection is reset."""
    end_at: int = _LARGE
    """Bytes after which this direction ends; what is sent afterwards is lost, and its sender does not see
    it."""


class ByteStream:
    """One direction. ``reset``: ends the whole connection."""

    def __init__(
        self, agenda: Agenda, random: Random, options: StreamOptions, reset: Callable[[], None]
    ) -> None:
        self._agenda = agenda
        self._random = random
        self._options = options
        self._reset = reset
        self.pass_on: Callable[[bytes], bytes] = bytes
        """What a middlebox makes of the bytes."""
        self.shows_fault: Callable[[], bool] = bool
        """Whether what was passed on shows the receiver what a middlebox did."""
        self.on_data: Callable[[], None] = _nothing
        """There is something to read, or nothing more will come."""
        self.on_room: Callable[[], None] = _nothing
        self.unread = bytearray()
        self.is_ended = False
        """Nothing comes behind what is unread."""
        self.is_lost = False
        """It goes nowhere."""
        self.held_until = 0.0
        self._sent = 0
        self._carried = self._taken = 0
        self._fault_at = _LARGE
        self._on_way = 0
        self._arrivals = deque[Callable[[], None]]()
        """What is on its way, in order."""
        self._last = 0.0
        self._is_end_sent = False

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        return max(0, self._options.room - self._on_way - len(self.unread))

    @property
    def is_cut(self) -> bool:
        """What is sent is lost, and nobody tells its sender."""
        return self._sent > self._options.end_at

    @property
    def _is_held(self) -> bool:
        return self.held_until > trio.current_time()

    def send(self, data: bytes) -> None:
        """No more than there is room for."""
        options, before = self._options, self._sent
        self._sent += len(data)
        if self.is_lost:
            self._on_way += len(data)
        if self.is_lost or self._is_end_sent or before >= options.end_at:
            return

        if self._sent >= options.reset_at:
            data = data[: max(0, options.reset_at - before)]
            self._carry(self.pass_on(data))
            self._schedule(self._reset)
            return

        self._carry(self.pass_on(data[: options.end_at - before]))
        if self._sent >= options.end_at:
            self._end()

    def send_end(self) -> None:
        if not (self.is_lost or self._is_end_sent):
            self._end()

    def _end(self) -> None:
        self._is_end_sent = True
        self._schedule(self._arrive_end)

    @property
    def has_shown_fault(self) -> bool:
        """Its receiver has read it."""
        return self._taken >= self._fault_at

    def _carry(self, data: bytes) -> None:
        self._carried += len(data)
        if self._fault_at == _LARGE and self.shows_fault():
            self._fault_at = self._carried
        position = 0
        while position < len(data):
            size = self._random.randint(1, self._options.pieces)
            piece = data[position : position + size]
            position += size
            self._on_way += len(piece)
            self._schedule(lambda piece=piece: self._arrive(piece))  # type: ignore[misc]

    def _schedule(self, act: Callable[[], None]) -> None:
        at = trio.current_time() + self._random.expovariate(1 / self._options.delay)
        self._last = max(self._last, at)
        self._arrivals.append(act)
        self._agenda.at(self._last, self._due)

    def _due(self) -> None:
        if self._is_held:
            self._agenda.at(self.held_until, self._due)
        elif not self.is_lost:
            # The first one, whichever was due now: TCP keeps the order of what was held.
            self._arrivals.popleft()()

    def _arrive(self, piece: bytes) -> None:
        self._on_way -= len(piece)
        self.unread += piece
        self.on_data()

    def _arrive_end(self) -> None:
        self.is_ended = True
        self.on_data()

    def take(self, size: int) -> bytes:
        data = bytes(self.unread[:size])
        del self.unread[:size]
        self._taken += len(data)
        self.on_room()
        return data

    def hold(self, seconds: float) -> None:
        """Nothing arrives for so long. No end is in sight of either side."""
        self.held_until = max(self.held_until, trio.current_time() + seconds)

    def heal(self) -> None:
        """It is held no more, and as fast as any."""
        self.held_until = 0.0
        self._options = attrs.evolve(self._options, delay=DELAY, room=max(self._options.room, 20_000))
        self.on_room()

    def lose(self) -> None:
        """What is on its way never arrives."""
        self.is_lost = True
        self.unread.clear()


class Connection:
    """``url``: where the client has connected to."""

    def __init__(
        self,
        number: int,
        url: str,
        agenda: Agenda,
        random: Random,
        up: StreamOptions,
        down: StreamOptions,
    ) -> None:
        self.number = number
        self.url = url
        self._agenda = agenda
        self.up = ByteStream(agenda, random, up, self.reset)
        self.down = ByteStream(agenda, random, down, self.reset)
        self.client = ClientEnd(self)
        self.server: ServerEnd | None = None
        self.is_over = False
        """Both sides know that it is lost."""

    def reset(self, *, client: bool = True, server: bool = True) -> None:
        """``client``, ``server``: who notices. The other one waits."""
        self.up.lose()
        self.down.lose()
        self.is_over = client and server
        if client:
            self.client.lose()
        if server and self.server is not None:
            self.server.lose()

    def hold(self, seconds: float) -> None:
        self.up.hold(seconds)
        self.down.hold(seconds)

    def accept(self, loop: HostLoop, make: Callable[[], Any]) -> None:
        """The host takes it."""

        def accept() -> None:
            if loop.is_closed:  # as the system does with what waits for a socket that is closed
                self.reset()
                return
            self.server = ServerEnd(self, loop)
            if self.is_over:
                self.server.lose()
            self.server.begin(make())

        loop.call_soon(accept)

    def closed(self) -> None:
        """Both ends are closed: nothing can happen any more."""
        if self.client.is_closed and (self.server is None or self.server.is_closed):
            self.is_over = True


class ClientEnd(anyio.abc.ByteStream):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._up, self._down = connection.up, connection.down
        self._down.on_data = self._up.on_room = self._wake
        self.is_closed = False
        self._is_lost = False
        self._changed = anyio.Event()
        self._transport: ClientTransport | None = None

    def become(self, transport: ClientTransport, protocol: Any) -> None:
        """What comes is for ``protocol`` from now on."""
        self._transport, has_room = transport, self._up.on_room

        def on_room() -> None:
            has_room()
            self._wake()

        self._up.on_room = on_room
        transport.begin(protocol)
        if self._is_lost:
            transport.lose()

    @property
    def extra_attributes(self) -> dict[Any, Any]:
        return {}

    def _wake(self) -> None:
        self._changed.set()
        if self.is_closed and self._down.unread:
            self._connection.reset()

    def lose(self) -> None:
        self._is_lost = True
        self._wake()
        if self._transport is not None:
            self._transport.lose()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            if self.is_closed:
                raise anyio.ClosedResourceError
            if self._is_lost:
                raise anyio.BrokenResourceError
            if self._down.has_shown_fault:
                raise Broken(f"{_GOES_ON}\nthe client of connection {self._connection.number}")
            if self._down.unread:
                return self._down.take(max_bytes)
            if self._down.is_ended:
                raise anyio.EndOfStream
            await self._wait()

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        position = 0
        while position < len(item):
            if self.is_closed:
                raise anyio.ClosedResourceError
            if self._is_lost:
                raise anyio.BrokenResourceError
            if room := self._up.room:
                self._up.send(item[position : position + room])
                position += room
            else:
                await self._wait()

    async def _wait(self) -> None:
        self._changed = anyio.Event() if self._changed.is_set() else self._changed
        await self._changed.wait()

    async def send_eof(self) -> None:
        self._up.send_end()
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            if self._down.unread:
                self._connection.reset()
            self._up.send_end()
            self._wake()
            self._connection.closed()
        await anyio.lowlevel.checkpoint()


class ServerEnd:
    """A transport, of which protocols use no more than this."""

    def __init__(self, connection: Connection, loop: HostLoop) -> None:
        self._connection = connection
        self._incoming, self._outgoing = self._streams(connection)
        self._incoming.on_data, self._outgoing.on_room = self._read_soon, self._room
        self._loop = loop
        self._protocol: Any = None
        self._buffer = bytearray()
        self._high = 65536
        self._is_closing = self._is_end_due = self._is_reading_paused = self._is_writing_paused = False
        self._is_reading = self._has_read_end = self._has_sent_end = False
        self.is_closed = False

    @staticmethod
    def _streams(connection: Connection) -> tuple[ByteStream, ByteStream]:
        """What comes, and what goes."""
        return connection.up, connection.down

    @property
    def _has_refused(self) -> bool:
        """What came."""
        return bool(self._protocol._is_dropping)

    def begin(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._read_soon()

    # --- what the network says -------------------------------------------------------------------

    def _read_soon(self) -> None:
        if self.is_closed and self._incoming.unread:
            self._connection.reset()
        elif not (self._is_reading or self._is_closing or self._is_reading_paused):
            self._is_reading = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._is_reading = False
        if self._is_closing or self._is_reading_paused:
            return
        if self._incoming.unread:
            room = self._protocol.get_buffer(-1)
            data = self._incoming.take(len(room))
            room[: len(data)] = data
            self._protocol.buffer_updated(len(data))
            if self._incoming.has_shown_fault and not self._has_refused and not self._is_closing:
                raise Broken(f"{_GOES_ON}\n{type(self).__name__} of connection {self._connection.number}")
            self._read_soon()
        elif self._incoming.is_ended and not self._has_read_end:
            self._has_read_end = True
            if not self._protocol.eof_received():
                self.close()

    def lose(self) -> None:
        """The connection is lost; so says the next read or write."""
        self._loop.call_soon(self._force_close, ConnectionResetError("connection reset by peer"))

    def _room(self) -> None:
        if self._buffer and not self.is_closed:
            self._loop.call_soon(self._flush)

    # --- what the server calls -------------------------------------------------------------------

    def get_extra_info(self, name: str) -> Any:
        known = {"peername": ("10.0.0.1", self._connection.number), "socket": self}
        return known.get(name)

    def fileno(self) -> ServerEnd:
        return self

    @property
    def has_unread(self) -> bool:
        return bool(self._incoming.unread)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int) -> None:
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self._buffer)

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None:
        if not self._is_closing:
            self._is_reading_paused = True

    def resume_reading(self) -> None:
        if not self._is_closing and self._is_reading_paused:
            self._is_reading_paused = False
            self._read_soon()

    def write(self, data: Any) -> None:
        if self._is_end_due:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.is_closed or (self._is_closing and not self._buffer):
            return

        # What waits is sent by the loop, as asyncio does.
        is_first = not self._buffer
        self._buffer += data
        if is_first:
            self._flush()

    def writelines(self, pieces: Iterable[Any]) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        if self._is_closing or self._is_end_due:
            return
        self._is_end_due = True
        self._flush()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._flush()

    def abort(self) -> None:
        self._force_close(None)

    # --- inside ----------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self.is_closed or not self._loop.gate.alive:
            return
        if self._buffer and (room := self._outgoing.room):
            data = bytes(self._buffer[:room])
            del self._buffer[:room]
            self._outgoing.send(data)
        is_paused = len(self._buffer) > self._high
        if is_paused is not self._is_writing_paused:
            self._is_writing_paused = is_paused
            (self._protocol.pause_writing if is_paused else self._protocol.resume_writing)()
        if self._buffer or self.is_closed:
            return
        if self._is_end_due and not self._has_sent_end:
            self._has_sent_end = True
            self._outgoing.send_end()
        if self._is_closing:
            self._loop.call_soon(self._lost, None)

    def _force_close(self, error: Exception | None) -> None:
        self._buffer.clear()
        self._is_closing = True
        self._loop.call_soon(self._lost, error)

    def _lost(self, error: Exception | None) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._protocol.connection_lost(error)
        if self._incoming.unread:
            self._connection.reset()
        if not self._has_sent_end:
            self._outgoing.send_end()
        self._connection.closed()


class ClientTransport(ServerEnd):
    """The client's end as a client on asyncio has it: what comes is a call."""

    @staticmethod
    def _streams(connection: Connection) -> tuple[ByteStream, ByteStream]:
        return connection.down, connection.up

    @property
    def _has_refused(self) -> bool:
        return self._protocol._failure is not None


async def loop_connection(stream: anyio.abc.ByteStream) -> LoopConnection:
    """``byte_connection``, as on asyncio."""
    assert isinstance(stream, ClientEnd)
    loop = client_loop(stream._connection._agenda)
    loop.enter()
    connection = LoopConnection(stream)  # type: ignore[arg-type]
    stream.become(ClientTransport(stream._connection, loop), connection)
    await anyio.lowlevel.checkpoint()
    connection._pause()
    return connection


def _nothing() -> None:
    """Nobody is there yet."""

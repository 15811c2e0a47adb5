"""The server's end of a session: many calls at once on one connection (rules N1 to N6).

A call is an ASGI request of the same application that answers HTTP, so handlers, limits, and what is passed
on to other hosts know of no difference. It begins with its frame, and ends when its answer is sent, when its
client cancels it, or with the connection. Calls do not wait for each other: each answer has a window of its
own, and only what the client has not read from the connection holds up all of them.

On a crash or a cancellation: a lost connection ends every call with ``http.disconnect``. A session that ends
by itself names the last call that it took; its client knows that nothing was done of any later one."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, TierlogError
from ...telemetry.logging import get_logger
from ..wire.session import (
    HEAD_ROOM,
    Frame,
    FrameDecoder,
    FrameEncoder,
    HeadCache,
    Kind,
    decode_number,
    decode_request,
    number_parts,
)
from .exchange import App
from .session_call import SessionCall
from .write_side import WriteSide

if TYPE_CHECKING:
    from .connections import Connections

_log = get_logger("gateway")
IDLE_SECONDS = 75.0
"""Seconds that a session without calls stays."""
FRAME_SECONDS = 30.0
"""Seconds that the rest of a frame may take."""
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 << 20
"""What is still read behind the end of a session, so that the client reads that."""
UNREAD_BYTES = 64 << 10
"""What a transport may keep for a client before its streams wait."""
UNREAD_CALLS = 64
"""Calls of a client that does not read its answers: more are not read before it does."""
TURN_CALLS = 64
"""Calls that one session begins in a turn of the event loop."""
_VIOLATION = "the session ended: {}"


class SessionConnection(WriteSide, asyncio.BufferedProtocol):
    def __init__(
        self, connections: Connections, upgraded: Mapping[str, Any], context: contextvars.Context
    ) -> None:
        """``upgraded``: the request that became the session."""
        super().__init__(asyncio.get_running_loop())
        self._connections = connections
        self._context = context
        self._buffer = memoryview(connections.received)
        # The host was checked with it, and is checked again with each call.
        hosts = [pair for pair in upgraded["headers"] if pair[0] == b"host"]
        self.base_headers = hosts
        self.base_scope = {
            name: upgraded[name] for name in ("client", "server", "scheme", "type", "asgi", "root_path")
        }
        self.frames = FrameEncoder()
        self._decoder = FrameDecoder(self._place)
        self._expects_head = False
        """The next frame is probably one more of a body that has a place."""
        self._arrived: deque[Frame] = deque()
        """What the next turns take, at most what was read at once."""
        self._heads = HeadCache()
        self._calls: dict[int, SessionCall] = {}
        self._last_call = 0
        self.large_bytes = 0
        """Of bodies that are received where they stay."""
        self._has_ended = self._is_dropping = False
        self.is_input_ended = False
        self._bytes_dropped = 0
        self._is_paused = False
        """Whether nothing is read until the client has read, or what arrived is taken."""
        self._frame_begun: float | None = None
        """When the frame began that is not complete."""
        self._frame_timer: asyncio.TimerHandle | None = None
        """Runs on when the frame is complete: to make and cancel one for each would take as long as the
        frame."""
        self._timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0

    # --- what the transport and the server call ----------------------------------------------------

    def begin(self, transport: Any) -> None:
        """Take the connection over, once the answer 101 is written."""
        self.begin_writing(transport)
        transport.set_protocol(self)
        transport.resume_reading()
        self._idle_since = self._loop.time()
        self._timer = self._loop.call_later(IDLE_SECONDS, self._check_idle)
        if self._connections.is_stopping():
            self.shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._connections.release(self)
        self._stop_write_timer()
        for timer in (self._timer, self._frame_timer):
            if timer is not None:
                timer.cancel()
        self._arrived.clear()
        # It refers to a method of this session: only the garbage collector would free both.
        self._decoder = FrameDecoder()
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.disconnect()
        self._end_waits()

    def eof_received(self) -> bool:
        """Returns whether the connection stays for answers. What waits at a tail, or for the rest of its
        body, ends (rule N6)."""
        self.is_input_ended = True
        for call in list(self._calls.values()):
            if call.more_body or call.is_watching:
                call.cancel()
            else:
                call.event.set()  # for ``wait_left``
        return bool(self._calls)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        # Shared by all connections, but for the rest of a large frame: other frames are copied out of it.
        return self._decoder.rest or (self._buffer[:HEAD_ROOM] if self._expects_head else self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_dropping:
            self._bytes_dropped += nbytes
            if self._bytes_dropped > LINGER_BYTES:
                self.close()
            return

        decoder = self._decoder
        try:
            self._arrived.extend(
                decoder.placed(nbytes) if decoder.rest else decoder.feed(self._buffer[:nbytes])
            )
        except TierlogError as error:
            self._refuse(error)
            return

        if self._arrived:
            self._expects_head = bool(self._arrived[-1].placed and not self._arrived[-1].is_last)
            self._frame_begun = None
            if self._connections.frame_bytes:
                self._connections.release(self)
        if decoder.is_inside:
            self._connections.hold(self, decoder.held)
            self._time_frame()
        self._take_arrived()

    def _take_arrived(self) -> None:
        """N2: each call costs the loop time, and one read has thousands of them: other connections have their
        turn in between."""
        room = TURN_CALLS
        try:
            while self._arrived and room:
                frame = self._arrived.popleft()
                if frame.kind == Kind.REQUEST:
                    room -= 1
                    self._begin_call(frame)
                else:
                    self._take(frame)
        except TierlogError as error:
            self._refuse(error)
        if self._arrived:
            self._loop.call_soon(self._take_arrived)
        self._limit_reading()

    def _time_frame(self) -> None:
        if self._frame_begun is None and self._decoder.is_inside:
            self._frame_begun = self._loop.time()
            if self._frame_timer is None:
                self._frame_timer = self._loop.call_later(FRAME_SECONDS, self._check_frame)

    def _check_frame(self) -> None:
        self._frame_timer = None
        if self._frame_begun is None:
            return

        left = self._frame_begun + FRAME_SECONDS - self._loop.time()
        if left > 0:
            self._frame_timer = self._loop.call_later(left, self._check_frame)
        else:
            self._refuse(InvalidArgument("a frame was not complete in time"))

    def _limit_reading(self) -> None:
        """H10: the bodies of calls whose answers are not read must not fill the memory meanwhile."""
        is_paused = bool(self._arrived) or (not self.is_writable and len(self._calls) > UNREAD_CALLS)
        if is_paused is self._is_paused or self.transport.is_closing():
            return

        self._is_paused = is_paused
        if is_paused:
            self.transport.pause_reading()
            self._frame_begun = None
        else:
            self.transport.resume_reading()
            self._time_frame()

    def shutdown(self) -> None:
        """The server stops: take no more calls, and end after the ones that are here (rule N5)."""
        self._end("the server stops")

    def make_room(self) -> bool:
        """Ends a session without calls: its client begins another one. Returns whether it ends."""
        if self.transport.is_closing():
            self.transport.abort()
        else:
            self._end("this server has as many connections as it takes")
        return True

    # --- frames in ---------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        """One that concerns a call that has begun."""
        call = self._calls.get(frame.call)
        if call is None:
            # It was answered, or cancelled, meanwhile. Or never begun, because the session ends.
            if frame.call > self._last_call and not self._has_ended:
                raise InvalidArgument(f"call {frame.call} has not begun")
        elif frame.kind == Kind.BODY:
            call.take_body(frame.payload, frame.placed, last=frame.is_last)
        elif frame.kind == Kind.WINDOW:
            call.add_credit(decode_number(frame.payload))
        elif frame.kind == Kind.CANCEL:
            call.cancel()
        else:
            raise InvalidArgument(f"a client sends no frame of kind {frame.kind}")

    def _place(self, id: int, size: int) -> memoryview | None:
        call = self._calls.get(id)
        return None if call is None else call.place(size)

    def drop_place(self, call: SessionCall) -> None:
        """Nobody takes the body of the call any more."""
        self._decoder.drop_place(call.id)

    def _begin_call(self, frame: Frame) -> None:
        if frame.call <= self._last_call:
            raise InvalidArgument(f"call {frame.call} has begun before: the last one was {self._last_call}")

        # N5: the client knows which call was the last one.
        if self._has_ended:
            return

        request = decode_request(frame.payload, self._heads)
        self._last_call = frame.call
        call = SessionCall(self, frame.call, request, is_complete=frame.is_last)
        self._calls[frame.call] = call
        self._connections.silent.pop(self, None)
        self.start(call, self._connections.app)

    def start(self, call: SessionCall, app: App) -> None:
        task = self._loop.create_task(call.run(app), context=self._context.copy())
        self._connections.tasks.add(task)
        task.add_done_callback(self._connections.task_ended)

    # --- frames out --------------------------------------------------------------------------------

    @property
    def takes_more(self) -> bool:
        """Whether the client reads. A byte that it has not read yet does not show that it reads slowly."""
        return self.is_writable or self.transport.get_write_buffer_size() <= UNREAD_BYTES

    def write(self, parts: list[Buffer]) -> None:
        """Frames, in as many parts as need not be joined."""
        if not self.transport.is_closing():
            if len(parts) == 1:
                self.transport.write(parts[0])
            else:
                self.transport.writelines(parts)

    def later(self, seconds: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, act)

    def call_ended(self, call: SessionCall) -> None:
        """Its answer is sent, or nobody waits for one."""
        if self._calls.pop(call.id, None) is None or self._calls:
            return

        if self._has_ended:
            self._linger()
        elif self.is_input_ended:
            self.close()
        else:
            self._idle_since = self._loop.time()
            self._connections.silent[self] = None

    # --- the end -----------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        left = self._idle_since + IDLE_SECONDS - self._loop.time()
        if self._calls or left > 0:
            self._timer = self._loop.call_later(IDLE_SECONDS if self._calls else left, self._check_idle)
        else:
            self._end("the session had no calls")

    def drop_frame(self) -> None:
        """The memory of the frame that has begun is needed for others."""
        self._refuse(InvalidArgument("a frame was not complete while others needed its memory"))

    def _refuse(self, error: TierlogError) -> None:
        """What came is no session: nothing more is read, and no answer is sent."""
        self._is_dropping = True
        self._arrived.clear()
        self._decoder = FrameDecoder()
        self._connections.release(self)
        calls = list(self._calls.values())
        self._end(_VIOLATION.format(error))
        for call in calls:
            call.cancel()

    def _end(self, reason: str) -> None:
        if self._has_ended or self.transport.is_closing():
            return

        self._has_ended = True
        self.write([self.frames.frame(0, Kind.END, number_parts(self._last_call, reason))])
        if not self._calls:
            self._linger()

    def _linger(self) -> None:
        """Nothing follows. A socket that is closed with unread bytes would be reset, and its client would not
        read the end."""
        if self.transport.is_closing():
            return

        self._is_dropping = True
        if self._timer is not None:
            self._timer.cancel()
        self._connections.silent.pop(self, None)
        self._connections.lingering[self] = None
        with suppress(OSError):
            self.transport.write_eof()
        self._timer = self._loop.call_later(LINGER_SECONDS, self.close)

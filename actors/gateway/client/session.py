"""The client's end of a session, without I/O: calls become frames, and frames answers (rules N1 to N5).

A call is sent once the first of its bytes is handed to the connection. A call that the server did not take is
not sent, whatever was handed over: the server says so when it ends the session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument
from ..wire.filled_bytes import FilledBytes
from ..wire.headers import parse_number
from ..wire.session import (
    BODY_WINDOW,
    CALL_MAX,
    HEAD_ROOM,
    LARGE_BYTES,
    PIECE_BYTES,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Kind,
    decode_answer,
    decode_end,
    decode_number,
    decode_text,
    joined_head,
    number_parts,
    request_parts,
)
from .requests import Request, Response

CALL_WINDOW = 4 << 20
"""Bytes of an answer that may be on their way; they are taken as they come."""
PLACED_MAX = 256 << 20
"""An answer that is larger comes in pieces: its size is the server's word, for which memory is taken."""
STREAM_WINDOW = 256 << 10
"""The same of a tail, whose reader takes them."""


_NOTHING = memoryview(b"")
_NO_HEADERS: Mapping[str, str] = {}
_OTHER_SIZE = "the body of an answer has another size than its head says"


@lru_cache(1024)
def _head(method: str, path: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    named = (text for name, value in headers for text in (name.lower(), value))
    return joined_head((method, path, *named))


class SessionCall:
    """One call and what has come of its answer."""

    __slots__ = (
        "_body",
        "_credit",
        "_placed",
        "_rest",
        "_taken",
        "_window",
        "failure",
        "headers",
        "id",
        "is_ended",
        "is_sent",
        "is_stream",
        "pieces",
        "status",
        "wake",
    )

    def __init__(
        self, id: int, body: Buffer, window: int, wake: Callable[[], None], *, is_stream: bool
    ) -> None:
        self.id = id
        self.wake = wake
        """Called when there is more of the answer, or none any more."""
        self.is_stream = is_stream
        self.is_sent = self.is_ended = False
        self.failure = ""
        """Why there is no answer, or half of one."""
        self.status = 0
        self.headers: Mapping[str, str] = _NO_HEADERS
        self.pieces: list[bytes] = []
        self._body: FilledBytes | None = None
        """The body of a large answer, of which ``_placed`` bytes have a place, in place of pieces."""
        self._placed = 0
        self._rest = memoryview(body) if body else _NOTHING
        self._credit = BODY_WINDOW
        self._window = window
        self._taken = 0

    @property
    def response(self) -> Response:
        if self._body is not None:
            return Response(self.status, self.headers, self._body.take())

        pieces = self.pieces
        return Response(self.status, self.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _expect(self, size: int, begin: bytes) -> None:
        """The answer has ``size`` bytes, and begins so."""
        self._body = FilledBytes(size)
        self._place(len(begin))[:] = begin

    def _place(self, size: int) -> memoryview:
        """Where the next bytes of its body go."""
        assert self._body is not None
        begin, self._placed = self._placed, self._placed + size
        if self._placed > len(self._body.view):
            raise InvalidArgument(_OTHER_SIZE)  # N3
        return self._body.view[begin : self._placed]

    @property
    def _is_short(self) -> bool:
        return self._body is not None and self._placed < len(self._body.view)

    @property
    def _fits_window(self) -> bool:
        return self._body is not None and len(self._body.view) <= self._window


class ClientSession:
    """``write``: called when there are frames to send."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._frames = FrameEncoder()
        self._decoder = FrameDecoder(self._place)
        self._expects_head = False
        """The next frame is probably one more of a body that has a place."""
        self._calls: dict[int, SessionCall] = {}
        self._last = 0
        self._out: list[tuple[SessionCall, Kind, tuple[Buffer, ...], bool]] = []
        self.is_open = True
        """Takes new calls."""
        self._reason = "the session has ended"
        self.received = 0
        """Frames so far."""

    @property
    def is_idle(self) -> bool:
        return not self._calls

    # --- calls -------------------------------------------------------------------------------------

    def begin(self, request: Request, wake: Callable[[], None], *, is_stream: bool = False) -> SessionCall:
        head = _head(request.method, request.path, request.headers)
        window = STREAM_WINDOW if is_stream else CALL_WINDOW
        call = SessionCall(self._last + 1, request.body, window, wake, is_stream=is_stream)
        if not self.is_open:  # it ended a moment ago
            call.is_ended, call.failure = True, self._reason
            return call

        self._last += 1
        self.is_open = self._last < CALL_MAX
        self._calls[call.id] = call
        piece = self._next_piece(call)
        parts = request_parts(head, len(request.body), window, piece)
        self._out.append((call, Kind.REQUEST, parts, not call._rest))
        self._send_body(call)
        return call

    def cancel(self, call: SessionCall) -> None:
        """Nobody waits for it any more."""
        if self._calls.pop(call.id, None) is not None:
            call.is_ended = True
            self._send(call, Kind.CANCEL)

    def take(self, call: SessionCall) -> bytes:
        """What has come of a stream."""
        pieces, call.pieces = call.pieces, []
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if data and not call.is_ended:
            self._grant(call, len(data))
        return data

    # --- frames out --------------------------------------------------------------------------------

    def take_output(self) -> list[Buffer]:
        """The frames to send now, in parts. Their calls count as sent."""
        out, self._out = self._out, []
        sent: list[Buffer] = []
        small: list[Buffer] = []
        for call, kind, parts, is_last in out:
            # N6: a call that ended before it was sent is never sent, which its caller knows.
            if call.is_ended and not call.is_sent:
                continue
            call.is_sent = True
            small.append(self._frames.head(call.id, kind, sum(map(len, parts)), last=is_last))
            small += parts
            # To join a large piece would copy it.
            if len(parts[-1] if parts else b"") >= LARGE_BYTES:
                large = small.pop()
                sent += [b"".join(small), large]
                small = []
        if small:
            sent.append(b"".join(small))
        return sent

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def _next_piece(self, call: SessionCall) -> memoryview:
        size, rest = min(PIECE_BYTES, call._credit, len(call._rest)), call._rest
        call._credit -= size
        if size == len(rest):
            call._rest = _NOTHING
            return rest
        call._rest = rest[size:]
        return rest[:size]

    def _send_body(self, call: SessionCall) -> None:
        """N3: as far as the server's window reaches."""
        while call._rest and call._credit:
            piece = self._next_piece(call)
            self._out.append((call, Kind.BODY, (piece,), not call._rest))
        self._write()

    def _grant(self, call: SessionCall, size: int) -> None:
        call._taken += size
        # A frame for each small block would cost more than it brings.
        if call._taken >= call._window // 2:
            granted, call._taken = call._taken, 0
            self._send(call, Kind.WINDOW, *number_parts(granted))

    def _send(self, call: SessionCall, kind: Kind, *parts: Buffer) -> None:
        self._out.append((call, kind, parts, False))
        self._write()

    # --- frames in ---------------------------------------------------------------------------------

    def room(self, shared: memoryview) -> memoryview:
        """Where the next bytes are received."""
        return self._decoder.rest or (shared[:HEAD_ROOM] if self._expects_head else shared)

    def filled(self, shared: memoryview, size: int) -> bool:
        """So many are there. Returns whether there is more to come. Raises as ``receive``."""
        if self._decoder.rest:
            self._take_all(self._decoder.placed(size))
        else:
            self.receive(shared[:size])
        return self.is_open or not self.is_idle

    def receive(self, data: Buffer) -> None:
        """Raises ``TierlogError`` if what comes is no session: then ``fail`` comes next."""
        self._take_all(self._decoder.feed(data))

    def _take_all(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.received += 1
            self._expects_head = bool(frame.placed and not frame.is_last)
            self._take(frame)

    def _place(self, id: int, size: int) -> memoryview | None:
        call = self._calls.get(id)
        return None if call is None or call._body is None else call._place(size)

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.END:
            self._end(*decode_end(frame.payload))
            return

        call = self._calls.get(frame.call)
        if call is None:
            if not 0 < frame.call <= self._last:
                raise InvalidArgument(f"call {frame.call} was not begun here")
            return  # cancelled meanwhile

        if frame.kind == Kind.WINDOW:
            call._credit += decode_number(frame.payload)
            self._send_body(call)
            return

        if frame.kind == Kind.BROKEN:
            self._finish(call, decode_text(frame.payload) or "the answer broke")
        elif (frame.kind == Kind.ANSWER) is not (not call.status) or frame.kind not in _ANSWERING:
            raise InvalidArgument(f"a frame of kind {frame.kind} does not belong here")
        else:
            self._take_answer(call, frame)
        # Who waits for a whole answer is not woken for each piece of it.
        if call.is_stream or call.is_ended:
            call.wake()

    def _take_answer(self, call: SessionCall, frame: Frame) -> None:
        data = frame.payload
        if frame.kind == Kind.ANSWER:
            answer = decode_answer(data)
            call.status, data = answer.status, answer.body
            call.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
            length = call.headers.get("content-length", "0")
            size = 0 if call.is_stream or frame.is_last else parse_number("content-length", length)
            if LARGE_BYTES <= size <= PLACED_MAX:
                call._expect(size, data)
        if data and call._body is None:
            call.pieces.append(data)
        if frame.is_last:
            if call._is_short:
                raise InvalidArgument(_OTHER_SIZE)  # N3
            self._finish(call)
        elif not (call.is_stream or call._fits_window):
            self._grant(call, len(data) + frame.placed)

    def _finish(self, call: SessionCall, failure: str = "") -> None:
        del self._calls[call.id]
        call.is_ended, call.failure = True, failure

    # --- the end -----------------------------------------------------------------------------------

    def _end(self, last: int, reason: str) -> None:
        """N5: the server takes no more calls, and did nothing of those behind ``last``."""
        self.is_open, self._reason = False, reason
        for call in [call for call in self._calls.values() if call.id > last]:
            call.is_sent = False
            self._finish(call, reason)
            call.wake()

    def retire(self) -> None:
        """Take no more calls."""
        self.is_open = False

    def fail(self, reason: str) -> None:
        """The connection is lost."""
        self.is_open = False
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.is_ended, call.failure = True, reason
            call.wake()


_ANSWERING = (Kind.ANSWER, Kind.BODY)

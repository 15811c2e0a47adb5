"""One call of a session, as an ASGI application sees it: as a request over HTTP (rules N2 to N4).

A block of the answer is sent as far as the call's window reaches, and the rest as the client takes it. Until
then the handler waits with the next one, so a slow reader costs one block, as in HTTP, and holds up no other
call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import anyio

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument
from ..wire.session import (
    BODY_WINDOW,
    PIECE_BYTES,
    WINDOW_MAX,
    Kind,
    RequestFrame,
    answer_parts,
    number_parts,
)
from . import write_side
from .exchange import COPIED_MAX, App, Exchange, check_headers
from .fan_out import Chunk
from .large_body import LargeBody

if TYPE_CHECKING:
    from .session import SessionConnection

LARGE_BYTES_MAX = 64 << 20
"""Of the bodies of one session that are received where they stay: each takes all its memory at its head.
Others come in pieces."""
_NOTHING = memoryview(b"")
_TOO_SLOW = "the client takes the answer too slowly"
_HALF = "the answer ended half-way"
_OTHER_SIZE = "the body of a call has another size than its head says"


class Parked(Protocol):
    """A call without a task, which waits for what it sends next."""

    def gone(self) -> None:
        """Its client has left."""
        ...


class SessionCall(Exchange):
    __slots__ = (
        "_credit",
        "_expected",
        "_granted",
        "_head",
        "_is_whole",
        "_large",
        "_parked",
        "_pending",
        "_pieces",
        "_placed",
        "_sent",
        "_session",
        "_taken",
        "_takes_body",
        "_timer",
        "id",
    )

    def __init__(
        self, session: SessionConnection, id: int, request: RequestFrame, *, is_complete: bool
    ) -> None:
        # A call's connection is the session, of which it needs less than an HTTP request does.
        super().__init__(session, keep_alive=True, expects_continue=False)  # type: ignore[arg-type]
        self._session = session
        self.id = id
        self._credit = request.window
        self._expected = request.size
        """Bytes of the body that have not arrived."""
        self._granted = BODY_WINDOW
        """Bytes of the body that the client may send now."""
        self._taken = 0
        """Bytes that the handler has taken, or that were dropped, since the last grant."""
        self._takes_body = request.head.method == "POST"
        """Whether a handler reads the body: for no other method one does, and what comes is dropped."""
        self._pieces: list[Buffer] = []
        self._large: LargeBody | None = None
        """Where the body goes, in place of pieces; ``_placed`` bytes of it have their place."""
        self._placed = 0
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        """The head of the answer, which is sent with its first block."""
        self._pending = _NOTHING
        self._is_whole = False
        """The handler has given the end of the answer."""
        self._sent: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parked: Parked | None = None
        self.scope = self._scope(request)
        self.take_body(request.body, last=is_complete)

    def _scope(self, request: RequestFrame) -> dict[str, Any]:
        head = request.head
        raw_path, _, query = head.target.partition(b"?")
        path = raw_path.decode("ascii")
        headers = [*self._session.base_headers, *head.headers]
        if self._takes_body:
            headers.append((b"content-length", b"%d" % request.size))
        return {
            **self._session.base_scope,
            "http_version": "1.1",
            "method": head.method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": headers,
            "tierlog.park": self.park,
            "tierlog.body_window": BODY_WINDOW,
            "tierlog.whole_body": self.whole_body,
            "tierlog.large_body": self.large_body,
            "tierlog.write_chunk": self.write_chunk,
            "tierlog.wait_read": self.wait_read,
            "tierlog.wait_left": self.wait_left,
        }

    # --- in ----------------------------------------------------------------------------------------

    def take_body(self, piece: Buffer, placed: int = 0, *, last: bool) -> None:
        """``placed``: bytes that came to where ``place`` has said."""
        size = len(piece) + placed
        self._expected -= size
        self._granted -= size
        if not self.more_body or self._expected < 0 or last is not (self._expected == 0):
            raise InvalidArgument(_OTHER_SIZE)
        if self._granted < 0:
            raise InvalidArgument("the body of a call is larger than its window")

        self.more_body = not last
        if self._large is not None:
            self._fill(self._large, piece, size)
            return

        if piece and not self.is_answered:
            if self._takes_body:
                self._pieces.append(piece)
            else:
                self._grant(len(piece))
        self.event.set()

    def place(self, size: int) -> memoryview | None:
        """Where the next bytes of the body go; None: they come as a piece."""
        large = self._large
        if large is None:
            return None

        begin, self._placed = self._placed, self._placed + size
        if size > large.size - begin:
            raise InvalidArgument(_OTHER_SIZE)
        return large.memory[begin : self._placed]

    def _fill(self, large: LargeBody, piece: Buffer, size: int) -> None:
        # It was decoded before the handler asked for the whole body.
        if piece and (memory := self.place(len(piece))) is not None:
            memory[:] = piece
        if self.more_body:
            self._grant(size)
        large.add(size)

    def large_body(self, size: int, admit: Callable[[int], None]) -> LargeBody | None:
        """As ``Exchange.large_body``."""
        if not self.more_body or self.is_disconnected or self._session.is_input_ended:
            return None
        if self._session.large_bytes + size > LARGE_BYTES_MAX:
            return None

        begun = b"".join(self._pieces)
        self._pieces.clear()
        self.event.is_set = False
        return LargeBody(self, begun, size, admit)

    def divert(self, body: LargeBody) -> None:
        self._large, self._placed = body, body.received
        self._session.large_bytes += body.size
        self._grant(body.received)

    def end_large_body(self) -> None:
        if self._large is not None:
            self._session.large_bytes -= self._large.size
            self._large = None

    def abandon_large_body(self) -> None:
        self.end_large_body()
        self._session.drop_place(self)

    async def receive(self) -> dict[str, Any]:
        if self._session.is_input_ended and not self.event.is_set:
            self._leave()  # a reader that waits at a tail must not outlast its client
        if not self.is_disconnected and not self.is_answered:
            self.is_receiving = True
            try:
                await self.event.wait()
            finally:
                self.is_receiving = False
            self.event.is_set = False
        if self.is_disconnected or self.is_answered:
            return {"type": "http.disconnect"}

        pieces, self._pieces = self._pieces, []
        body = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        if self.more_body:
            self._grant(len(body))
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    def whole_body(self) -> Buffer | None:
        """The body, as ``receive`` returns it; None if there is something to wait for, or nobody waits."""
        if self.more_body or self.is_disconnected or not self.event.is_set:
            return None

        self.event.is_set = False
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _grant(self, size: int) -> None:
        """N3: the handler has taken so much: as much more may come."""
        self._taken += size
        if self._taken >= BODY_WINDOW // 2:
            self._granted += self._taken
            self._write(Kind.WINDOW, number_parts(self._taken))
            self._taken = 0

    def _leave(self) -> None:
        self.cancel()  # N6: alone

    def cancel(self) -> None:
        """The client does not wait for the answer any more."""
        self.disconnect()
        self._session.call_ended(self)

    def disconnect(self) -> None:
        super().disconnect()
        self._drop_pending()
        if (large := self._large) is not None:
            self.abandon_large_body()
            large.lose()
        parked, self._parked = self._parked, None
        if parked is not None:
            parked.gone()

    # --- without a task ----------------------------------------------------------------------------

    @property
    def is_parked(self) -> bool:
        return self._parked is not None

    @property
    def is_watching(self) -> bool:
        return self._parked is not None or super().is_watching

    def park(self, parked: Parked) -> SessionCall | None:
        """The handler ends, and its answer goes on: ``write_chunk`` sends more of it, ``finish`` its end, and
        ``resume`` has a task again. None if the client has left, or has not taken what was sent."""
        if self.is_disconnected or self._pending or self._session.is_input_ended:
            return None

        self._parked = parked
        self.scope = {}  # it is larger than all the rest
        return self

    def resume(self, app: App) -> None:
        self._parked = None
        self._session.start(self, app)

    def finish(self) -> None:
        self._parked = None
        self._add(b"", more=False)

    # --- out ---------------------------------------------------------------------------------------

    def add_credit(self, size: int) -> None:
        self._credit += size
        if size == 0 or self._credit > WINDOW_MAX:
            raise InvalidArgument(f"a window has at most {WINDOW_MAX} bytes")
        if self._pending:
            self._pump()

    async def send(self, message: dict[str, Any]) -> None:
        """As ``Exchange.send``."""
        while (self._pending or not self._session.is_writable) and not self.is_disconnected:
            await (self._wait_taken() if self._pending else self._session.wait_writable())
        if self.is_disconnected:
            raise BrokenPipeError

        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._add(message["body"], more=message["more_body"])

    def _start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.is_answer_started = True
        found = check_headers(headers)
        self._head = (status, found)
        # A stream may have nothing to send for long, and its client waits for the head.
        if status == 200 and b"content-length" not in dict(found):
            self._pump()

    def _add(self, data: Any, *, more: bool) -> None:
        self._pending = memoryview(data)
        self._is_whole = not more
        if not more:
            self.is_answered = True  # for the handler; the call ends when all is sent
            self._pieces.clear()  # nobody takes them
            self.event.set()
        self._pump()

    def write_chunk(self, chunk: Chunk) -> bool:
        """As ``Exchange.write_chunk``."""
        if self.is_disconnected:
            return False

        self._add(chunk.data, more=True)
        return not self._pending and self._session.takes_more

    def _pump(self) -> None:
        """Send what the window allows."""
        written: list[Buffer] = []
        is_last = False
        while not is_last and (self._head or self._pending or self._is_whole):
            size = min(len(self._pending), self._credit, PIECE_BYTES)
            if self._head and size > COPIED_MAX:
                size = 0  # the client has a place for a large body once it has the head
            elif self._pending and not size:
                break
            piece, self._pending = self._pending[:size], self._pending[size:]
            self._credit -= size
            is_last = self._is_whole and not self._pending
            if self._head:
                parts, kind = answer_parts(*self._head, piece), Kind.ANSWER
                self._head = None
            else:
                parts, kind = (piece,), Kind.BODY
            head = self._session.frames.head(self.id, kind, sum(map(len, parts)), last=is_last)
            # As in HTTP, a large piece is not copied behind its head.
            written += (head, *parts) if size > COPIED_MAX else (b"".join((head, *parts)),)
        if written:
            self._session.write(written)
        if not self._pending:
            self._pending = _NOTHING  # an empty view, too, would keep the block while a tail waits
            if self._timer is not None or self._sent is not None:
                self._drop_pending()
        elif self._timer is None:
            # H10: as for a connection whose client does not read.
            seconds = write_side.WRITE_DELAY + len(self._pending) / write_side.WRITE_RATE
            self._timer = self._session.later(seconds, self._break_off)
        if is_last:
            self._session.call_ended(self)

    def _drop_pending(self) -> None:
        self._pending = _NOTHING
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sent is not None:
            self._sent.set()
            self._sent = None

    async def _wait_taken(self) -> None:
        if self._sent is None:
            self._sent = asyncio.Event()
        await self._sent.wait()

    async def wait_read(self, seconds: float, is_wanted: Callable[[], bool]) -> None:
        """As that of a connection; a call that is read too slowly ends alone."""
        while self._pending:
            unread = len(self._pending)
            with anyio.move_on_after(seconds):
                await self._wait_taken()
                continue
            if unread - len(self._pending) < write_side.WRITE_RATE * seconds and is_wanted():
                self._break_off()
        await self._session.wait_read(seconds, is_wanted)

    # --- the end -----------------------------------------------------------------------------------

    def _break_off(self) -> None:
        self._break(_TOO_SLOW)

    def _break(self, reason: str = _HALF) -> None:
        if self.is_answer_started and self._head is None:
            self._write(Kind.BROKEN, (reason.encode(),))
            self.cancel()
            return

        self._head = (500, [(b"content-length", b"0")])
        self.is_answer_started = True
        self._add(b"", more=False)

    def _write(self, kind: Kind, parts: Iterable[Any]) -> None:
        self._session.write([self._session.frames.frame(self.id, kind, parts)])

"""One request and its answer: reading a body up to a limit (rule H9), and sending an answer or a stream of
blocks.

A body is never read past its limit: a Content-Length above it is refused before the first byte, a chunked one
at the first byte too many, and the connection ends, because what follows on it is the rest of that body. A
client that disconnects raises ``Disconnected``, and gets no answer.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Annotated, Any, Generic, TypeVar

import anyio
import anyio.lowlevel
import attrs
from msgspec import Meta

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, TooLarge, Unavailable, shown
from ..wire.bodies import JSON_TYPE, encode_json, request_in_steps
from ..wire.errors import RequestTimeout, UnsupportedMediaType
from ..wire.headers import REQUEST_ID, only_values
from ..wire.paths import parse_query
from .context import Arrival, ServerContext
from .fan_out import Chunk
from .gateway import Gateway
from .large_body import LARGE_BYTES, LargeBody
from .request_metrics import OperationCounts

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

BYTES_TYPE = "application/octet-stream"
SMALL_BYTES = 64 << 10
"""What a transport keeps for a client that does not read: answers up to this size need no room."""
RAW = Annotated[str, Meta(extra_json_schema={"format": "binary"})]
"""Bytes, in schemas."""
_REQUEST_ID = REQUEST_ID.lower().encode()
_LENGTH = b"content-length"
_OF_BODIES = frozenset({_LENGTH, b"content-type", b"content-encoding", b"transfer-encoding"})
S = TypeVar("S", bound=ServerContext)
B = TypeVar("B")


class Disconnected(Exception):
    """The client disconnected."""


@attrs.frozen
class Answer:
    status: int = 200
    body: Buffer = b""
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = attrs.field(factory=dict)


def json_answer(value: object, status: int = 200) -> Answer:
    return Answer(status, encode_json(value))


class HttpCall(Generic[S]):
    """``S``: what the server's endpoints share."""

    __slots__ = (
        "_arrival",
        "_query_names",
        "_receive",
        "_room",
        "_send",
        "counts",
        "name",
        "scope",
        "server",
        "started",
    )

    def __init__(
        self,
        server: S,
        counts: OperationCounts,
        scope: Scope,
        receive: Receive,
        send: Send,
        query_names: Sequence[str] = (),
    ) -> None:
        self.server = server
        self.counts = counts
        self.scope = scope
        self._receive = receive
        self._query_names = query_names
        self._send = send
        self._arrival: Arrival | None = None
        """How the body arrives; None until it is read."""
        self._room = 0
        """Blocks of the answer for which it has room."""
        self.started = False
        """Whether the answer's head is on its way: from then on an error can only break the connection."""
        self.name: str = scope["path_params"].get("name", "")
        """The segment's name, not checked: every verb of the store does."""

    # --- the request -----------------------------------------------------------------------------

    @property
    def container(self) -> int:
        """The container's number in the path. Whether there is one of that number is not checked."""
        text: str = self.scope["path_params"]["container"]
        # H4: ``int`` would take signs, blanks and the digits of other scripts.
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidArgument(f"a container is a number, not {text[:50]!r}")
        return int(text)

    def header(self, name: str) -> str | None:
        """The only value of a header; twice is refused."""
        wanted = name.lower().encode()
        value = only_values(self.scope["headers"], {wanted}).get(wanted)
        return None if value is None else value.decode("latin-1")

    def query(self) -> dict[str, str]:
        """The parameters, which are among the endpoint's."""
        text: bytes = self.scope["query_string"]
        return parse_query(text, self._query_names) if text else {}

    async def json_body(self, kind: type[B], maximum: int) -> B:
        """The body of an endpoint that takes JSON."""
        body = await self.body(JSON_TYPE, maximum)
        value = None
        for value in request_in_steps(body, kind):
            if value is None and len(body) > LARGE_BYTES:
                await anyio.lowlevel.checkpoint()
        assert value is not None
        return value

    async def body(self, content_type: str, maximum: int) -> bytes:
        """The whole body, which has ``content_type`` unless it is empty, and at most ``maximum`` bytes."""
        size = self._check_head(content_type, maximum)
        # Offered by this server's own connections: under another ASGI server bodies come in pieces.
        large = self.scope.get("tierlog.large_body") if size >= LARGE_BYTES else None
        if large is not None:
            arrival = self._arrival = Arrival(self.server)
            if (body := large(size, arrival.take)) is not None:
                return await self._large_body(body, arrival)

        pieces: list[Buffer] = []

        def keep(piece: Buffer) -> tuple[int, ...]:
            pieces.append(piece)
            return ()

        await self._take_pieces(maximum, keep)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    async def _large_body(self, body: LargeBody, arrival: Arrival) -> bytes:
        with body, arrival:
            while not (body.has_ended or arrival.is_late):
                # A scope for each round: every piece that arrives moves the deadline.
                with anyio.CancelScope(deadline=arrival.deadline) as arrival.scope:
                    await body.wait()
        if body.is_lost:
            raise Disconnected
        if body.refusal is not None:
            raise body.refusal
        if arrival.is_dropped or not body.has_ended:
            raise self._incomplete()

        self.counts.request_bytes += body.received
        return body.take()

    def in_steps(
        self, content_type: str, maximum: int, steps: Callable[[Buffer], Iterable[int]]
    ) -> Awaitable[None]:
        """Take each step of ``steps(piece)``, for each piece of the body as it arrives, in a step of the
        event loop. It gives the bytes that what was made takes besides, which count as the body's do (rule
        H12)."""
        self._check_head(content_type, maximum)
        return self._take_pieces(maximum, steps)

    async def _take_pieces(self, maximum: int, steps: Callable[[Buffer], Iterable[int]]) -> None:
        size, more = 0, True
        arrival = self._arrival = Arrival(self.server)
        whole = self.scope.get("tierlog.whole_body")
        if whole is not None and (body := whole()) is not None:
            # Nothing to wait for, and so no deadline.
            await self._take_piece(arrival, body, len(body), maximum, steps)
            self.counts.request_bytes += len(body)
            return

        with arrival, anyio.CancelScope() as scope:
            arrival.scope = scope
            while more:
                scope.deadline = arrival.deadline
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected

                piece, more = message.get("body", b""), message.get("more_body", False)
                size += len(piece)
                await self._take_piece(arrival, piece, size, maximum, steps)

        if arrival.is_dropped or scope.cancelled_caught:
            raise self._incomplete()

        self.counts.request_bytes += size

    async def _take_piece(
        self,
        arrival: Arrival,
        piece: Buffer,
        size: int,
        maximum: int,
        steps: Callable[[Buffer], Iterable[int]],
    ) -> None:
        """``size``: of all pieces so far."""
        if not piece:
            return

        # H9: a chunked body has no length by which its head could be refused.
        if size > maximum:
            raise body_too_large(self.scope["path"], maximum)

        arrival.take(size)
        for number, made in enumerate(steps(piece)):
            if number:
                await anyio.lowlevel.checkpoint()
            if made:
                arrival.add(made)

    def passed_arrival(self) -> Arrival:
        """How the body arrives that is passed on with ``next_piece``."""
        arrival = self._arrival = Arrival(self.server)
        return arrival

    def whole_body(self, arrival: Arrival) -> bytes | None:
        """All of a body that is passed on, counted as by ``next_piece``; None if there is something to wait
        for."""
        whole = self.scope.get("tierlog.whole_body")
        body: Buffer | None = None if whole is None else whole()
        if body is None:
            return None

        self.counts.request_bytes += len(body)
        arrival.take_more(len(body))
        return bytes(body)

    async def next_piece(self, arrival: Arrival) -> tuple[bytes, bool]:
        """The next piece of a body that is passed on, and whether it is the last one. Its bytes count as in
        memory until ``arrival.release()``."""
        # What the receiver takes its time for is not the client's delay.
        arrival.resume()
        with arrival, anyio.CancelScope(deadline=arrival.deadline) as arrival.scope:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected

            piece: bytes = message.get("body", b"")
            self.counts.request_bytes += len(piece)
            arrival.take_more(len(piece))
            return piece, not message.get("more_body", False)
        raise self._incomplete()

    def _incomplete(self) -> Unavailable:
        if self.server.has_dropped_bodies:
            return Unavailable(
                "this server stopped before the body was complete: nothing was done, send it again"
            )

        limits = self.server.limits
        return RequestTimeout(
            f"the body stopped, or came slower than {limits.body_rate} bytes a second for "
            f"{limits.body_timeout:g} s ({limits.body_grace:g} s on a full server): "
            "nothing was done, send it again"
        )

    def _check_head(self, content_type: str, maximum: int) -> int:
        """Refuses a body by the request's head, before a byte of it is read. Returns its
        Content-Length; 0 without one."""
        found = only_values(self.scope["headers"], _OF_BODIES)
        size = self._checked_length(found, maximum, is_append=content_type == BYTES_TYPE)
        if size is None:
            if b"transfer-encoding" in found:
                _check_type(found, content_type)
            return 0

        if size:
            _check_type(found, content_type)
        # Asked for and not taken: a head whose body never comes must not hold room (rule H12).
        self.server.check_room(size)
        return size

    def checked_length(self, maximum: int, *, is_append: bool) -> int | None:
        """The Content-Length; None without one. Raises ``TooLarge`` above ``maximum``."""
        found = only_values(self.scope["headers"], {_LENGTH})
        return self._checked_length(found, maximum, is_append=is_append)

    def _checked_length(self, found: Mapping[bytes, bytes], maximum: int, *, is_append: bool) -> int | None:
        text = found.get(_LENGTH)
        if text is None:
            return None

        # 20 digits are more than any body has, and `int` raises for thousands.
        size = int(text) if text.isdigit() and len(text) < 20 else -1
        if size < 0:
            raise InvalidArgument(f"Content-Length is a number, not {shown(text.decode('latin-1'))}")
        if size <= maximum:
            return size

        if is_append:
            raise TooLarge.append(size, maximum)
        raise TooLarge(
            f"the body has {size} bytes; {self.scope['path']} takes at most {maximum}: send less at a time"
        )

    def release(self) -> None:
        """The request has ended: give back the memory of its body and of its answer."""
        if self._room:
            self.release_room()
        if self._arrival is not None:
            self._arrival.release()

    @asynccontextmanager
    async def while_connected(
        self, begins: anyio.Event | None = None, *, is_tail: bool = True
    ) -> AsyncIterator[anyio.CancelScope]:
        """Run the block until it ends, the client disconnects (raises ``Disconnected``), or the scope is
        cancelled, which is not an error. ``begins``: set when the block has read the request's body.
        ``is_tail``: a client that closes its half of the connection has left; other ones may wait for their
        answer."""
        failure: Exception | None = None
        finished = gone = False

        async def watch(scope: anyio.CancelScope) -> None:
            nonlocal gone
            if begins is not None:
                await begins.wait()
            wait_left = None if is_tail else self.scope.get("tierlog.wait_left")
            if wait_left is not None:
                await wait_left(self.server.limits.half_closed)
            else:
                while (await self._receive())["type"] != "http.disconnect":
                    pass
            gone = True
            scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, tasks.cancel_scope)
            try:
                yield tasks.cancel_scope
                finished = True
            except Exception as error:  # noqa: BLE001 - raised again below, outside the task group, which would wrap it
                failure = error
            # The watcher waits for as long as the client stays.
            tasks.cancel_scope.cancel()

        if failure is not None:
            raise failure
        if gone and not finished:
            raise Disconnected

    # --- the answer ------------------------------------------------------------------------------

    async def take_room(self, size: int = 1) -> None:
        """Wait for room for ``size`` bytes, a block at least, before they are read from the store (rule H12).
        They are sent with ``block``, which gives the room back once the client has read them."""
        if self._room:
            return

        await self.wait_read()  # an earlier answer of the connection
        blocks = min(-(-size // self.server.limits.block_bytes), self.server.unread_max)
        is_full = self.server.unread_blocks.value < blocks
        # One at a time takes many: two that each have some of what they need would wait for each other.
        async with self.server.taking_many if blocks > 1 else nullcontext():
            while self._room < blocks:
                await self.server.unread_blocks.acquire()
                self._room += 1
        if is_full:
            await self.server.wait_turn()

    def _keep_room(self, size: int) -> None:
        """Give back the room that an answer of ``size`` bytes does not need."""
        needed = -(-size // self.server.limits.block_bytes) if size > SMALL_BYTES else 0
        while self._room > needed:
            self._room -= 1
            self.server.unread_blocks.release()

    def to_keep(self, block: Buffer) -> Buffer:
        """What to keep of ``block`` until its client has read it: a copy if many blocks wait, because each
        may be a view of a larger window, which it keeps in memory (rule H10). While few wait, a copy would
        cost more than their windows."""
        return bytes(block) if self.server.has_many_unread and not isinstance(block, bytes) else block

    def release_room(self) -> None:
        while self._room:
            self._room -= 1
            self.server.unread_blocks.release()

    async def wait_read(self) -> None:
        """Wait until the client has read what it was sent, but for a little."""
        wait_read = self.scope.get("tierlog.wait_read")
        if wait_read is not None:
            await wait_read(self.server.limits.body_grace, self._is_room_wanted)

    def _is_room_wanted(self) -> bool:
        return self.server.unread_blocks.statistics().tasks_waiting > 0

    async def answer(self, answer: Answer) -> None:
        if len(answer.body) > SMALL_BYTES:
            await self.take_room(len(answer.body))
        if self._room:
            self._keep_room(len(answer.body))
        headers = answer.headers
        # RFC 9110, 8.6: a 204 has no Content-Length.
        if answer.status != 204:
            length = str(len(answer.body))
            headers = {**headers, "Content-Type": answer.content_type, "Content-Length": length}
        await self.begin(answer.status, headers)
        await self.block(answer.body, more=False)

    async def pieces(self, content_type: str, pieces: Iterator[bytes]) -> None:
        """A body that is made in pieces, one for each step of the event loop. One of more than a block has no
        length, and is sent in blocks, of which only one is in memory (rule H12)."""
        body, has_room = bytearray(), False
        # HTTP/1.0 has no bodies without a length.
        block_bytes = math.inf if self.scope["http_version"] == "1.0" else self.server.limits.block_bytes
        for number, piece in enumerate(pieces):
            if number:
                await anyio.lowlevel.checkpoint()
            body += piece
            if len(body) > SMALL_BYTES and not has_room:
                await self.take_room()
                has_room = True
            if len(body) >= block_bytes:
                if not self.started:
                    await self.begin(200, {"Content-Type": content_type})
                await self.block(bytes(body), more=True)
                body, has_room = bytearray(), False
        if self.started:
            await self.block(bytes(body), more=False)
        else:
            await self.answer(Answer(200, bytes(body), content_type))

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        self.scope["tierlog.status"] = status
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        raw.append((_REQUEST_ID, self.scope["tierlog.request_id"].encode()))
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": raw})
        except OSError:
            raise Disconnected from None

    async def block(self, data: Buffer, *, more: bool) -> None:
        """One block of the body; waits while the client does not read. The answer to HEAD ends with its
        head, a stream too."""
        is_head = self.scope["method"] == "HEAD"
        if is_head:
            data = b""
        self.counts.response_bytes += len(data)
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": more and not is_head})
        except OSError:
            raise Disconnected from None
        if is_head and more:
            # The handler ends here, or a stream would go on to read for nobody.
            raise Disconnected
        if self._room:
            await self.wait_read()
            self.release_room()

    def writer(self) -> Callable[[Chunk], bool] | None:
        """Sends a block without waiting (``Exchange.write_chunk``). None if the connection cannot."""
        write: Callable[[Chunk], bool] | None = self.scope.get("tierlog.write_chunk")
        if write is None or self.scope["method"] == "HEAD":
            return None

        def counted(chunk: Chunk) -> bool:
            self.counts.response_bytes += len(chunk.data)
            return write(chunk)

        return counted


Call = HttpCall[Gateway]


def _check_type(found: Mapping[bytes, bytes], content_type: str) -> None:
    # Strict on purpose: a browser sends forms and plain text to any server without asking, and never these
    # types.
    given = found.get(b"content-type", b"").decode("latin-1")
    if given != content_type and (given := given.partition(";")[0].strip().lower()) != content_type:
        raise UnsupportedMediaType(
            f"the body's Content-Type is {content_type}, not {shown(given) if given else 'left out'}"
        )

    if b"content-encoding" in found:
        encoding = found[b"content-encoding"].decode("latin-1").strip().lower()
        if encoding not in ("identity", ""):
            raise UnsupportedMediaType(
                f"Content-Encoding {shown(encoding)} is not supported: send the body unencoded"
            )


def body_too_large(path: str, maximum: int) -> TooLarge:
    """Of a body without a length, while it arrives."""
    return TooLarge(f"the body has more than {maximum} bytes, the most that {path} takes")

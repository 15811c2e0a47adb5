"""What is passed on between a client and an owner (rule H22): the head and the body of a request, and the
answer. Headers that concern one connection end here; bytes wait in their sender until the receiver takes
them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

import anyio
import attrs
import httpx

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import InvalidArgument, Unavailable
from ..wire import paths
from ..wire.batch import BATCH_TYPE
from ..wire.headers import FORWARDED, REQUEST_ID
from .call import HttpCall, body_too_large

CONNECT_SECONDS = 3.0
KEPT_BYTES = 256 << 10
"""Of a body up to this size, everything is kept until the owner has answered, to send it to another one."""
_READS = tuple(
    f"/{verb.value}" for verb in (paths.Verb.GET_ROWS, paths.Verb.PAGE_OF_ROWS, paths.Verb.PAGE_OF_CHANGES)
)
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_FORWARDED = FORWARDED.lower().encode()
_REQUEST_ID = REQUEST_ID.lower().encode()
_OWN = frozenset(
    {b"host", b"content-length", b"expect", b"origin", b"sec-fetch-site", _FORWARDED, _REQUEST_ID}
)
"""Headers of the exchange with the client, which was checked here (H18), or made anew for that with the
owner."""
_ACTED_ON = frozenset({b"content-type", b"content-encoding", b"content-length", b"range", b"host"})
_TRACE = frozenset({b"traceparent", b"tracestate"})
RawHeaders = list[tuple[bytes, bytes]]


def is_forwarded(scope: Mapping[str, Any]) -> bool:
    """Whether another host sent the request: it is never passed on again."""
    return any(name == _FORWARDED for name, _ in scope["headers"])


# --- the request ---------------------------------------------------------------------------------


class PassedRequest:
    """The client's request as the owner gets it. ``append_bytes_max``: what an append may have."""

    def __init__(self, call: HttpCall[Any], append_bytes_max: int) -> None:
        scope = call.scope
        self._call = call
        self._headers = passed_headers(scope["headers"], keeps_trace=call.server.tracing is None)
        self._headers += [(_FORWARDED, b"1"), (_REQUEST_ID, scope["tierlog.request_id"].encode())]
        self.is_tail = scope["path"].endswith(f"/{paths.Verb.TAIL.value}")
        self.changes = scope["method"] == "POST" and not scope["path"].endswith(_READS)
        framing = dict(scope["headers"])
        limits = call.server.limits
        is_append = scope["path"].endswith(f"/{paths.Verb.APPEND.value}")
        maximum = (
            append_bytes_max if is_append else max(limits.json_bytes, limits.commit_bytes, limits.rows_bytes)
        )
        # H9: here, because the client is asked for the body before the owner's answer to the head is read.
        length = call.checked_length(maximum, is_append=is_append)
        self.body = _PassedBody(
            call,
            has_body=b"content-length" in framing or b"transfer-encoding" in framing,
            is_chunked=b"transfer-encoding" in framing,
            maximum=maximum if length is None else length,
        )
        if b"content-length" in framing:
            self._headers.append((b"content-length", framing[b"content-length"]))
        elif b"transfer-encoding" in framing:
            self._headers.append((b"transfer-encoding", b"chunked"))

    def to(self, url: str) -> httpx.Request:
        scope = self._call.scope
        # As it was sent: decoded and encoded again, a name with ``%2F`` could become another one.
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        target = httpx.URL(url).copy_with(raw_path=raw + b"?" + query if query else raw)
        return _request(scope["method"], target, self._headers, self.body)


def _request(
    method: str, url: httpx.URL, headers: Iterable[tuple[bytes, bytes]], body: httpx.AsyncByteStream
) -> httpx.Request:
    # The client bounds the exchange: it has a deadline, and disconnects.
    timeout = {"connect": CONNECT_SECONDS, "read": None, "write": None, "pool": None}
    return httpx.Request(
        method, url, headers=[(b"host", url.netloc), *headers], stream=body, extensions={"timeout": timeout}
    )


def batch_request(call: HttpCall[Any], url: str, body: Parts) -> httpx.Request:
    headers = passed_headers(call.scope["headers"], keeps_trace=call.server.tracing is None)
    made = [
        *(pair for pair in headers if pair[0] in _TRACE),
        (b"content-type", BATCH_TYPE.encode()),
        (b"content-length", str(body.size).encode()),
        (_FORWARDED, b"1"),
        (_REQUEST_ID, call.scope["tierlog.request_id"].encode()),
    ]
    return _request("POST", httpx.URL(url + paths.BATCH), made, body)


def passed_headers(headers: Iterable[tuple[bytes, bytes]], *, keeps_trace: bool = True) -> RawHeaders:
    """Those that the other side gets too. Raises ``InvalidArgument`` if ``Connection`` names one that the
    owner would act on (RFC 9110, 7.6.1: it would have to be removed)."""
    headers = list(headers)
    named = {
        token.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for token in value.split(b",")
    }
    for token in named:
        if token.startswith(b"tierlog-") or token in _ACTED_ON:
            raise InvalidArgument(f"Connection names the header {token.decode('latin-1')[:100]!r}")

    dropped = _HOP_BY_HOP | _OWN | named | (frozenset() if keeps_trace else _TRACE)
    return [(name, value) for name, value in headers if name.lower() not in dropped]


class SentBody(httpx.AsyncByteStream):
    """A body as the pool takes it, piece by piece."""

    is_asked = False
    """The pool asks for its pieces: the head is sent."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        self.is_asked = True
        return _Pieces(self._next)

    async def _next(self) -> bytes | None:
        raise NotImplementedError


class _PassedBody(SentBody):
    """The body, from the client's connection to the owner's. What was sent counts no longer as in memory,
    unless it is kept for a second attempt."""

    def __init__(self, call: HttpCall[Any], *, has_body: bool, is_chunked: bool, maximum: int) -> None:
        self._call = call
        self._is_chunked = is_chunked
        self._maximum = self._left = maximum
        self._arrival = call.passed_arrival()
        self._kept: list[bytes] | None = []
        self._position = 0
        self.is_complete = not has_body
        self.is_begun = not has_body
        self.ended = anyio.Event()
        """The client has sent all of it."""
        self.ahead = 0
        """Bytes that may arrive before they are taken, and counted."""
        if has_body and (whole := call.whole_body(self._arrival)) is not None:
            # While the request waits for its turn, they count, and a client that leaves shows.
            self._kept.append(whole)
            self.is_complete = True
        if self.is_complete:
            self.ended.set()
        else:
            self.ahead = min(maximum, call.scope.get("tierlog.body_window", 0))

    @property
    def is_cut(self) -> bool:
        """The owner cannot have got all of it. Of a body with a length its bytes show the end too."""
        return self._is_chunked and not self.is_complete

    def rewind(self) -> bool:
        """Begin again with the first byte; returns whether that is possible."""
        self._position, self.is_asked = 0, False
        return self._kept is not None

    async def _next(self) -> bytes | None:
        self.is_begun = True
        if self._kept is not None and self._position < len(self._kept):
            self._position += 1
            return self._kept[self._position - 1]
        if self.is_complete:
            return None

        if self._kept is None:
            self._arrival.release()
        piece, is_last = await self._call.next_piece(self._arrival)
        self._left -= len(piece)
        # Of one with a length the head was refused. The owner refuses this one too, but the answer of a peer
        # that no longer reads can be lost.
        if self._is_chunked and self._left < 0:
            raise body_too_large(self._call.scope["path"], self._maximum)

        self.is_complete = is_last
        if self.is_complete:
            self.ended.set()
        if self._kept is not None:
            self._kept.append(piece)
            self._position += 1
            if self._arrival.held > KEPT_BYTES:
                self._kept = None
        return piece


class Parts(SentBody):
    """A body that is in memory."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = iter(parts)
        self.size = sum(len(part) for part in parts)
        self.is_begun = False

    async def _next(self) -> bytes | None:
        self.is_begun = True
        # An empty piece would end a chunked body, and says nothing in another one.
        return next((bytes(part) for part in self._parts if len(part)), None)


@attrs.frozen(eq=False)
class _Pieces:
    """Not a generator: that would have to be closed when the request is dropped half-way."""

    _next: Callable[[], Any]

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        piece: bytes | None = await self._next()
        if piece is None:
            raise StopAsyncIteration
        return piece


# --- the answer ----------------------------------------------------------------------------------


async def pass_back(call: HttpCall[Any], request: PassedRequest, answer: httpx.Response) -> None:
    """The next piece is taken from the owner when the client has taken this one (H10)."""
    headers = {
        name.decode("latin-1"): value.decode("latin-1") for name, value in passed_headers(answer.headers.raw)
    }
    text = answer.headers.get("content-length")
    left = -1 if text is None else int(text)
    if text is not None:
        headers["Content-Length"] = text
    if not request.body.is_complete:
        headers["Connection"] = "close"  # the rest of the body may be under way, and is not a request
    await call.begin(answer.status_code, headers)
    is_over = False
    if call.scope["method"] != "HEAD":
        # The client may leave before its end.
        async with aclosing(cast("AsyncGenerator[bytes, None]", answer.aiter_raw())) as pieces:
            async for piece in pieces:
                left -= len(piece)
                is_over = left == 0
                await call.block(piece, more=not is_over)
    if not is_over:
        await call.block(b"", more=False)


async def end_early(call: HttpCall[Any], request: PassedRequest) -> None:
    """The answer ends before the owner has ended it: a stream of a tail may (H11), any other one breaks."""
    if not request.is_tail or b"stream=" not in call.scope["query_string"]:
        raise Unavailable("the owner changed before the answer was complete")
    await call.block(b"", more=False)

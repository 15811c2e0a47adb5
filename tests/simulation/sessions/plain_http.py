"""Plain HTTP over the simulated network: a transport of httpx with a connection for each request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import httptools
import httpx

from .streams import ClientEnd

_LOST = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)
Dial = Callable[[str], Awaitable[ClientEnd]]


class PlainTransport(httpx.AsyncBaseTransport):
    def __init__(self, dial: Dial) -> None:
        self._dial = dial

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = f"{request.url.scheme}://{request.url.netloc.decode()}"
        try:
            with anyio.fail_after(request.extensions["timeout"]["connect"]):
                stream = await self._dial(url)
        except TimeoutError as error:
            raise httpx.ConnectTimeout("no connection in time") from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error

        answer = _Answer(stream)
        try:
            await self._send(stream, request)
            await answer.read_head()
        except BaseException as error:
            await anyio.aclose_forcefully(stream)
            if isinstance(error, _LOST):
                raise httpx.ReadError("the connection broke") from error
            raise
        return httpx.Response(answer.parser.get_status_code(), headers=answer.headers, stream=answer)

    @staticmethod
    async def _send(stream: ClientEnd, request: httpx.Request) -> None:
        head = b"%s %s HTTP/1.1\r\n" % (request.method.encode(), request.url.raw_path)
        head += b"".join(b"%s: %s\r\n" % pair for pair in request.headers.raw)
        await stream.send(head + b"Connection: close\r\n\r\n")
        assert isinstance(request.stream, httpx.AsyncByteStream)
        async for piece in request.stream:
            await stream.send(piece)


class _Answer(httpx.AsyncByteStream):
    def __init__(self, stream: ClientEnd) -> None:
        self._stream = stream
        self.parser = httptools.HttpResponseParser(self)
        self.headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self._has_head = self._is_complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = True

    async def read_head(self) -> None:
        while not self._has_head:
            await self._read()

    async def _read(self) -> None:
        try:
            self.parser.feed_data(await self._stream.receive())
        except httptools.HttpParserError as error:
            raise httpx.RemoteProtocolError(str(error)) from error

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self._pieces:
            if self._is_complete:
                raise StopAsyncIteration
            try:
                await self._read()
            except _LOST as error:
                raise httpx.ReadError("the connection broke") from error
        return self._pieces.pop(0)

    async def aclose(self) -> None:
        await anyio.aclose_forcefully(self._stream)


def transport_of(dial: Dial) -> Callable[[], Any]:
    return lambda: PlainTransport(dial)

"""The client's end of a session, frame by frame, for tests of the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import anyio.abc

from support.http_server import ServedStore
from tierlog.actors.gateway.wire.session import (
    AnswerFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
    Kind,
    decode_answer,
    joined_head,
    request_parts,
)
from tierlog.storage_backends.base.checksum import Buffer

UPGRADE = (
    b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: tierlog-session\r\n\r\n"
)
OCTETS = ("content-type", "application/octet-stream")
JSON = ("content-type", "application/json")


class RawSession:
    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream
        self.encoder = FrameEncoder()
        self._decoder = FrameDecoder()
        self._found: list[Frame] = []
        self._last = 0

    async def begin(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *headers: str,
        window: int = 1 << 20,
        size: int | None = None,
    ) -> int:
        """Begin a call, and return its number. ``size``: of the whole body, if more of it follows."""
        await self.stream.send(self._begun(method, target, body, *headers, window=window, size=size))
        return self._last

    async def begin_all(self, calls: Sequence[tuple[str, str, bytes, *tuple[str, ...]]]) -> None:
        """Begin many at once: each with its method, target, body and headers."""
        await self.stream.send(b"".join(self._begun(*each) for each in calls))

    def _begun(
        self,
        method: str,
        target: str,
        body: bytes = b"",
        *headers: str,
        window: int = 1 << 20,
        size: int | None = None,
    ) -> bytes:
        self._last += 1
        parts = request_parts(
            joined_head([method, target, *headers]), len(body) if size is None else size, window, body
        )
        return self.encoder.frame(self._last, Kind.REQUEST, parts, last=size is None or size == len(body))

    async def send(self, call: int, kind: Kind, *parts: Buffer, last: bool = False) -> None:
        await self.stream.send(self.encoder.frame(call, kind, parts, last=last))

    async def next(self) -> Frame:
        """The next frame; raises ``anyio.EndOfStream`` behind the last one."""
        while not self._found:
            self._found = list(self._decoder.feed(await self.stream.receive()))
        return self._found.pop(0)

    async def answer(self) -> tuple[int, AnswerFrame]:
        """The next frame, which is a whole answer, and the call that it is for."""
        frame = await self.next()
        assert frame.kind == Kind.ANSWER, frame
        assert frame.is_last, frame
        return frame.call, decode_answer(frame.payload)

    async def status(self, method: str, target: str, body: bytes = b"", *headers: str) -> int:
        await self.begin(method, target, body, *headers)
        return (await self.answer())[1].status

    async def everything(self) -> list[Frame]:
        """What comes until the end."""
        found = []
        with suppress(anyio.EndOfStream):
            while True:
                found.append(await self.next())
        return found


@asynccontextmanager
async def raw_session(served: ServedStore) -> AsyncIterator[RawSession]:
    stream = await served.raw(UPGRADE)
    async with stream:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive()
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield RawSession(stream)

"""Bytes at the end of a segment for all who follow it: read once, encoded once, written to each connection
(rule H11).

A stream that has sent all before a fan-out's position joins it and waits. It leaves when its client does not
read as fast as bytes are appended, or when the fan-out ends, whose errors it meets by itself: from its own
position it reads on by itself, and may join again. Many streams are served in slices, with pauses about as
long as the work, in which appends go on; what is appended meanwhile goes out together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import anyio
import anyio.abc
import anyio.lowlevel
import attrs

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import TierlogError
from ...kernel.slices import in_slices
from ...telemetry.logging import get_logger

_log = get_logger("gateway")
_SLICE = 32
"""Streams that one step of the event loop writes to: about a third of a millisecond."""
_PIECE = 64 << 10
"""Bytes that are sent to all before more are: a client that does not read holds two of them at most."""
_PAUSE = 10e-6
"""Seconds for each stream: about as long as to write to it."""


def encode_chunk(data: Buffer) -> bytes:
    """A chunk of an answer without a length (RFC 9112, 7.1)."""
    return b"".join((chunk_head(len(data)), data, b"\r\n"))


def chunk_head(size: int) -> bytes:
    return b"%x\r\n" % size


class Chunk:
    """A block for many streams, encoded once for all those over HTTP."""

    __slots__ = ("_encoded", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._encoded = b""

    @property
    def encoded(self) -> bytes:
        if not self._encoded:
            self._encoded = encode_chunk(self.data)
        return self._encoded


@attrs.define(eq=False)
class Stream:
    """A stream that waits in a fan-out."""

    position: int
    write: Callable[[Chunk], bool]
    """Sends a block; returns whether the client reads fast enough."""
    left: anyio.Event = attrs.field(factory=anyio.Event)


class FanOut:
    def __init__(self, position: int) -> None:
        self.position = position
        """The end of what has been, or is being, sent."""
        self._streams: dict[Stream, None] = {}
        self._scope = anyio.CancelScope()

    async def run(self, blocks: AsyncGenerator[bytes, None], check: Callable[[], Awaitable[None]]) -> None:
        """Send until all streams have left, or the tail ends. ``check`` raises unless the tail's segment is
        the one that the streams follow."""
        with self._scope:
            async with aclosing(blocks):
                is_checked = False
                async for block in blocks:
                    if not is_checked:
                        await check()
                        is_checked = True
                    # A stream whose client does not read leaves after one piece.
                    for start in range(0, len(block), _PIECE):
                        await self._send(block[start : start + _PIECE])

    async def _send(self, block: bytes) -> None:
        start, self.position = self.position, self.position + len(block)
        # All streams send the same bytes, but for one that joined in the middle of the block.
        chunk = Chunk(block)
        for streams in in_slices(list(self._streams), _SLICE):
            for stream in streams:
                # It may have left while others were written to.
                if stream in self._streams:
                    self._send_to(stream, start, chunk)
            await anyio.lowlevel.checkpoint()
        # The more streams, the more appends are gathered for the next round of writes.
        if len(self._streams) > _SLICE:
            await anyio.sleep(_PAUSE * len(self._streams))

    def _send_to(self, stream: Stream, start: int, chunk: Chunk) -> None:
        sent = max(0, stream.position - start)
        if sent < len(chunk.data):
            stream.position = self.position
            if not stream.write(Chunk(chunk.data[sent:]) if sent else chunk):
                self._release(stream)

    def _release(self, stream: Stream) -> None:
        if stream in self._streams:
            del self._streams[stream]
            stream.left.set()
        if not self._streams:
            self._scope.cancel()

    async def follow(self, stream: Stream) -> None:
        self._streams[stream] = None
        try:
            await stream.left.wait()
        finally:
            self._release(stream)

    def end(self) -> None:
        for stream in list(self._streams):
            self._release(stream)


class FanOuts:
    """The fan-outs of one server, one for each segment that is followed."""

    def __init__(self, tail: Callable[[str, int], AsyncGenerator[bytes, None]], lag_max: int) -> None:
        self._tail = tail
        self._lag_max = lag_max
        self._by_segment: dict[tuple[str, int], FanOut] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Serve until cancelled: then all streams read on by themselves."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def has_near(self, name: str, segment_id: int, position: int) -> bool:
        """Whether a stream at ``position`` loses little time in the segment's fan-out."""
        found = self._by_segment.get((name, segment_id))
        return found is not None and 0 <= position - found.position <= self._lag_max

    def begin(self, name: str, segment_id: int, position: int, check: Callable[[], Awaitable[None]]) -> None:
        """Begin one at the segment's end, ``position``, unless there is one. ``check`` raises if the segment
        of that name is another one."""
        key = (name, segment_id)
        if key not in self._by_segment and self._tasks is not None:
            made = self._by_segment[key] = FanOut(position)
            self._tasks.start_soon(self._run, key, made, check)

    async def follow(self, name: str, segment_id: int, stream: Stream) -> None:
        """Return when the stream has left."""
        await self._by_segment[name, segment_id].follow(stream)

    async def _run(self, key: tuple[str, int], made: FanOut, check: Callable[[], Awaitable[None]]) -> None:
        try:
            with suppress(TierlogError):  # each stream meets it too
                await made.run(self._tail(key[0], made.position), check)
        except Exception as error:  # noqa: BLE001 - the server survives every bug of a store
            _log.error("unexpected_error", exc_info=error)
        finally:
            del self._by_segment[key]
            made.end()

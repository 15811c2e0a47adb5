"""Bytes at the end of a segment for all who follow it: read once, encoded once, written to each connection
(rule H11).

A stream that has sent all before a fan-out's position joins it and waits. It leaves when its client does not
read as fast as bytes are appended, or when the fan-out ends, whose errors it meets by itself: from its own
position it reads on by itself, and may join again. Many streams are served in slices, with pauses about as
long as the work, in which appends go on; what is appended meanwhile goes out together.

A fan-out has a task only while it sends: at the segment's end it is a record that the container calls when
there is more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.abc
import anyio.lowlevel

from ....storage_backends.base.checksum import Buffer
from ....storage_backends.base.errors import TierlogError
from ...kernel.slices import in_slices
from ...telemetry.logging import get_logger

if TYPE_CHECKING:
    from ...container.waiters import Watch

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


class Stream(Protocol):
    """A stream that waits in a fan-out."""

    position: int

    def write(self, chunk: Chunk, /) -> bool:
        """Send a block; returns whether the client reads fast enough."""
        ...

    def leave(self) -> None:
        """From its position it reads on by itself."""
        ...


class FollowingTask:
    """A stream whose task waits until it leaves."""

    __slots__ = ("_left", "_write", "position")

    def __init__(self, position: int, write: Callable[[Chunk], bool]) -> None:
        self.position = position
        self._write = write
        self._left = anyio.Event()

    def write(self, chunk: Chunk, /) -> bool:
        return self._write(chunk)

    def leave(self) -> None:
        self._left.set()

    async def follow(self, fan_out: FanOut) -> int:
        """Returns the position from which it reads on."""
        fan_out.join(self)
        try:
            await self._left.wait()
        finally:
            fan_out.remove(self)
        return self.position


class Source(Protocol):
    """What a fan-out needs of a store."""

    async def read_or_watch(
        self, name: str, segment_id: int, offset: int, size: int, wake: Callable[[], None]
    ) -> Buffer | Watch | None: ...


class FanOut:
    __slots__ = ("_fan_outs", "_streams", "_watch", "name", "position", "segment_id")

    def __init__(self, fan_outs: FanOuts, name: str, segment_id: int, position: int) -> None:
        self._fan_outs = fan_outs
        self.name = name
        self.segment_id = segment_id
        self.position = position
        """The end of what has been, or is being, sent."""
        self._streams: dict[Stream, None] = {}
        self._watch: Watch | None = None
        """Without one, a task sends or begins to."""

    async def advance(self, source: Source, size: int) -> bool:
        """Send what there is. Returns whether it waits for more; otherwise it ends."""
        while self._streams:
            found = await source.read_or_watch(self.name, self.segment_id, self.position, size, self._wake)
            if found is None:
                return False
            if not isinstance(found, Buffer):
                self._watch = found
                return bool(self._streams)
            block = bytes(found)
            # A stream whose client does not read leaves after one piece.
            for start in range(0, len(block), _PIECE):
                await self._send(block[start : start + _PIECE])
        return False

    def _wake(self) -> None:
        self._forget()
        self._fan_outs.start(self)

    def _forget(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

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
            self.remove(stream)
            stream.leave()

    def join(self, stream: Stream) -> None:
        self._streams[stream] = None

    def remove(self, stream: Stream) -> None:
        self._streams.pop(stream, None)
        # A task that sends ends it by itself.
        if not self._streams and self._watch is not None:
            self._fan_outs.end(self)

    def end(self) -> None:
        self._forget()
        for stream in list(self._streams):
            self._release(stream)


class FanOuts:
    """The fan-outs of one server, one for each segment that is followed."""

    def __init__(self, source: Source, block_bytes: int) -> None:
        """``block_bytes``: of one read, and how far a stream may be ahead of the others."""
        self._source = source
        self._block_bytes = block_bytes
        self._by_segment: dict[tuple[str, int], FanOut] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    async def run(self) -> None:
        """Serve until cancelled, because the server stops: then nothing more is sent, and the server ends the
        streams (rule H15). To read on, each would need a task."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    def near(self, name: str, segment_id: int, position: int) -> FanOut | None:
        """The segment's fan-out, if a stream at ``position`` loses little time in it."""
        found = self._by_segment.get((name, segment_id))
        return found if found is not None and 0 <= position - found.position <= self._block_bytes else None

    def begin(self, name: str, segment_id: int, position: int) -> None:
        """Begin one at the segment's end, ``position``, unless there is one. A stream must join it in the
        same step."""
        key = (name, segment_id)
        if key not in self._by_segment and self._tasks is not None:
            made = self._by_segment[key] = FanOut(self, name, segment_id, position)
            self.start(made)

    def start(self, fan_out: FanOut) -> None:
        """Have a task send what there is."""
        if self._tasks is not None:
            self._tasks.start_soon(self._run, fan_out)

    async def _run(self, fan_out: FanOut) -> None:
        waits = False
        try:
            with suppress(TierlogError):  # each stream meets it too
                waits = await fan_out.advance(self._source, self._block_bytes)
        except Exception as error:  # noqa: BLE001 - the server survives every bug of a store
            _log.error("unexpected_error", exc_info=error)
        # Unless it was cancelled.
        if not waits:
            self.end(fan_out)

    def end(self, fan_out: FanOut) -> None:
        key = (fan_out.name, fan_out.segment_id)
        if self._by_segment.get(key) is fan_out:
            del self._by_segment[key]
        fan_out.end()

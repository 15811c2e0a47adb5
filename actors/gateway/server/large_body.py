"""A large body of known size: from the socket to where it stays, in one copy.

Owns: the connection while the rest of one body comes in, the memory it comes into, and the way back. Does not
own: whether a body is allowed (``call.py``), nor what comes before and behind it (``connection.py``).

On the usual way a body is copied five times: into a piece, out of the parser, to the request, to the
endpoint, to its other pieces. That costs more than the log and the disk together. Here the kernel writes into
the ``bytes`` that the store keeps; nothing that belongs to the next request is taken from the socket.

Order: the parser knows nothing of what comes in here, so the connection goes on with a new one. Whoever
leaves before the body is whole (too slow, cancelled) gives the connection back in the middle of a request,
which ends with its answer.

Crash and cancellation: a connection that is lost is told to its usual owner as well.
"""

from __future__ import annotations

from asyncio import BufferedProtocol
from collections.abc import Callable
from io import BytesIO
from types import TracebackType
from typing import Any, Protocol, Self

import anyio

LARGE_BYTES = 256 << 10
"""Bodies of this size are worth the way there and back."""


class Owner(Protocol):
    """The connection."""

    transport: Any
    flow: Any

    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def body_is_whole(self) -> None:
        """It came past the parser."""
        ...


class LargeBody(BufferedProtocol):
    def __init__(self, owner: Owner, begun: bytes | bytearray, size: int, clock: Callable[[], float]) -> None:
        """``begun`` came already; it is shorter than ``size``."""
        self._owner = owner
        self._clock = clock
        # ``bytes`` that nobody else refers to: what is written to the view is in them, and they are handed
        # out as they are.
        self._memory = BytesIO(bytes(size))
        self._view = self._memory.getbuffer()
        self._view[: len(begun)] = begun
        self._size = size
        self._over = anyio.Event()
        self.received = len(begun)
        self.arrived = clock()
        """When the last bytes came."""
        self.is_lost = False

    @property
    def is_over(self) -> bool:
        return self.is_lost or self.received == self._size

    def __enter__(self) -> Self:
        self._owner.flow.pause_reading()
        self._owner.transport.set_protocol(self)
        self._owner.flow.resume_reading()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_lost or self._owner.transport.is_closing():
            return

        self._owner.flow.pause_reading()
        self._owner.transport.set_protocol(self._owner)
        if self.received == self._size:
            self._owner.body_is_whole()
        self._owner.flow.resume_reading()

    async def wait(self) -> None:
        """Until it is over."""
        await self._over.wait()

    def taken(self) -> bytes:
        """All of it; once, when it is whole."""
        self._view.release()
        # Not kept here: uvloop's transport has a reference to this object until its connection ends or takes
        # another such body.
        memory, self._memory = self._memory, BytesIO()
        return memory.getvalue()

    # --- what the transport calls ----------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self.received :]

    def buffer_updated(self, nbytes: int) -> None:
        self.received += nbytes
        self.arrived = self._clock()
        if self.received == self._size:
            self._owner.flow.pause_reading()
            self._over.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = self.received < self._size
        self._over.set()
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()

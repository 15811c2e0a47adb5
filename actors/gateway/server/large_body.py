"""A large body of known size on its way from the socket into the ``bytes`` that the store keeps.

Through the parser it would be copied five times, which costs more than the log and the disk together. The
parser knows nothing of these bytes, so the connection continues with a new one. In a session the payloads of
its frames are received there."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

import anyio

from ....storage_backends.base.errors import Throttled
from ..wire.filled_bytes import FilledBytes

LARGE_BYTES = 256 << 10
"""Bodies from this size on bypass the parser."""


class Carrier(Protocol):
    """What receives the body: a connection, or a call of a session."""

    def divert(self, body: LargeBody) -> None:
        """What comes of the body from now on goes into its ``room``."""

    def end_large_body(self) -> None:
        """It is complete."""

    def abandon_large_body(self) -> None:
        """Nobody takes the rest."""


class LargeBody:
    """The memory of one body, filled by the transport."""

    def __init__(
        self,
        carrier: Carrier,
        begun: bytes | bytearray,
        size: int,
        admit: Callable[[int], None],
    ) -> None:
        """``begun`` is here already; it is shorter than ``size``."""
        self._carrier = carrier
        self._admit = admit
        self._bytes = FilledBytes(size)
        self._bytes.view[: len(begun)] = begun
        self.size = size
        self._ended = anyio.Event()
        self.received = len(begun)
        self.is_lost = False
        self.refusal: Throttled | None = None
        """The server has no room for the rest."""

    def __enter__(self) -> Self:
        self._carrier.divert(self)
        self._take_room()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_lost and self.received < self.size:
            self._carrier.abandon_large_body()
        # The refusal, once raised, refers to a frame that refers to this: the memory must not wait for the
        # garbage collector.
        if self.received < self.size or self.refusal is not None:
            self._bytes.drop()

    @property
    def has_ended(self) -> bool:
        return self.is_lost or self.refusal is not None or self.received == self.size

    @property
    def memory(self) -> memoryview:
        """All of it."""
        return self._bytes.view

    @property
    def room(self) -> memoryview:
        return self._bytes.view[self.received :]

    def add(self, size: int) -> None:
        self.received += size
        self._take_room()
        if self.received == self.size:
            self._carrier.end_large_body()
            self._ended.set()

    def _take_room(self) -> None:
        if self.refusal is None:
            try:
                self._admit(self.received)
            except Throttled as refusal:
                self.refusal = refusal
                self._ended.set()

    def lose(self) -> None:
        """The connection is lost before the end of the body. Frees the memory, whoever refers to this."""
        self.is_lost = True
        self._bytes.drop()
        self._ended.set()

    async def wait(self) -> None:
        """Wait until the body has ended."""
        await self._ended.wait()

    def take(self) -> bytes:
        """Return the whole body; once, when it is complete."""
        return self._bytes.take()

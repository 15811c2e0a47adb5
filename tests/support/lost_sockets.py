"""A connection whose socket the event loop has taken away, as uvloop does when the other side resets it."""

from __future__ import annotations

from typing import Any

import anyio.abc


class LostSocket(anyio.abc.SocketStream):
    @property
    def _raw_socket(self) -> Any:
        return None

    async def receive(self, max_bytes: int = 65536) -> bytes:
        raise anyio.EndOfStream

    async def send(self, item: bytes) -> None:
        raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        pass


def ask_lost_socket() -> None:
    """What httpcore does. Raises anyio's ``AttributeError``."""
    LostSocket().extra(anyio.abc.SocketAttribute.raw_socket, None)

"""The memory of one large body, without a connection (rule H9)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import anyio
import pytest

from tierlog.actors.gateway.server.large_body import LargeBody

pytestmark = pytest.mark.anyio

MIB = 1 << 20


class Nobody:
    """A connection that is not there."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.transport = self.flow = self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.told.append(name)

    def is_closing(self) -> bool:
        return False


def filled(body: LargeBody, piece: int) -> None:
    while not body.is_over:
        room = body.get_buffer(-1)
        size = min(piece, len(room))
        room[:size] = b"b" * size
        body.buffer_updated(size)


async def test_a_body_is_handed_out_without_a_copy() -> None:
    tracemalloc.start()
    try:
        body = LargeBody(Nobody(), b"begun", 8 * MIB, anyio.current_time)
        filled(body, 65_536)
        data = body.taken()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * len(data)
    assert data == b"begun" + b"b" * (8 * MIB - 5)


async def test_reading_pauses_at_the_last_byte_and_the_buffer_never_has_room_for_more() -> None:
    owner = Nobody()
    body = LargeBody(owner, b"12", 10, anyio.current_time)
    rooms = []
    while not body.is_over:
        rooms.append(len(body.get_buffer(-1)))
        assert owner.told == []
        body.buffer_updated(min(3, rooms[-1]))

    assert rooms == [8, 5, 2]
    assert owner.told == ["pause_reading"]

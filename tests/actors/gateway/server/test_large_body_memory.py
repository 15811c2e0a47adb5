"""The memory of one large body, without a connection (rule H9)."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest

from tierlog.actors.gateway.server.large_body import LargeBody
from tierlog.storage_backends.base.errors import Throttled

pytestmark = pytest.mark.anyio

MIB = 1 << 20


class NoConnection:
    def __init__(self) -> None:
        self.ended = 0

    def divert(self, body: LargeBody) -> None:
        pass

    def end_large_body(self) -> None:
        self.ended += 1

    def abandon_large_body(self) -> None:
        pass


async def test_a_body_is_returned_without_a_copy() -> None:
    connection: Any = NoConnection()
    tracemalloc.start()
    try:
        body = LargeBody(connection, b"begun", 8 * MIB, lambda received: None)
        while not body.has_ended:
            size = min(65_536, len(body.room))
            body.room[:size] = b"b" * size
            body.add(size)
        data = body.take()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.5 * len(data)
    assert data == b"begun" + b"b" * (8 * MIB - 5)


async def test_there_is_never_room_for_more_than_the_body() -> None:
    connection: Any = NoConnection()
    body = LargeBody(connection, b"12", 10, lambda received: None)
    rooms = []
    while not body.has_ended:
        rooms.append(len(body.room))
        assert not connection.ended
        body.add(min(3, rooms[-1]))

    assert rooms == [8, 5, 2]
    assert connection.ended == 1


@pytest.mark.parametrize("size", [8 * MIB, 100])
async def test_h12_a_refused_body_does_not_wait_for_the_garbage_collector(size: int) -> None:
    connection: Any = NoConnection()

    def admit(received: int) -> None:
        if received:
            raise Throttled("full")

    async def take() -> None:
        body = LargeBody(connection, b"", 8 * MIB, admit)
        with body:
            body.add(size)
            await body.wait()
        assert body.refusal is not None
        raise body.refusal

    gc.disable()
    tracemalloc.start()
    try:
        with pytest.raises(Throttled):
            await take()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()

    assert held < MIB

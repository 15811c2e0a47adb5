"""Writers wait at a sync point while its handler runs."""

from __future__ import annotations

import anyio
import pytest

from chaos_parts.sync_point import SyncPoint, open_sync_point

pytestmark = pytest.mark.anyio


async def test_a_writer_waits_until_the_handler_ends() -> None:
    arrived, go = anyio.Event(), anyio.Event()

    async def handler(segment: int, piece: int) -> None:
        assert (segment, piece) == (2, 7)
        arrived.set()
        await go.wait()

    async with open_sync_point(handler) as port, await anyio.connect_tcp("127.0.0.1", port) as writer:
        await writer.send(b"2 7\n")
        await arrived.wait()
        with anyio.move_on_after(0.05) as waiting:
            await writer.receive()
        assert waiting.cancelled_caught

        go.set()
        assert await writer.receive() == b"\n"


async def test_a_writer_continues() -> None:
    reached: list[tuple[int, int]] = []

    async def handler(segment: int, piece: int) -> None:
        reached.append((segment, piece))

    def reach(port: int) -> None:
        with SyncPoint(port) as point:
            point.reach(0, 1)
            point.reach(0, 2)

    async with open_sync_point(handler) as port:
        await anyio.to_thread.run_sync(reach, port)

    assert reached == [(0, 1), (0, 2)]


async def test_a_writer_whose_parent_is_gone_fails() -> None:
    async def handler(segment: int, piece: int) -> None:
        raise AssertionError("never reached")

    async with open_sync_point(handler) as port:
        point = await anyio.to_thread.run_sync(SyncPoint, port)

    with point, pytest.raises(ConnectionError):
        await anyio.to_thread.run_sync(point.reach, 0, 0)

"""Writers wait at a sync point while its handler runs."""

from __future__ import annotations

import anyio
import pytest

from chaos_parts.sync_point import SyncPoint, open_sync_point

pytestmark = pytest.mark.anyio


async def test_a_writer_waits_at_each_point_until_the_handler_ends() -> None:
    reached: list[tuple[int, int]] = []
    arrived, go = anyio.Event(), anyio.Event()

    async def handler(segment: int, piece: int) -> None:
        reached.append((segment, piece))
        arrived.set()
        await go.wait()

    def reach(port: int) -> None:
        with SyncPoint(port) as point:
            point.reach(2, 7)
            point.reach(2, 8)
        reached.append((0, 0))

    async with open_sync_point(handler) as port, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, reach, port)
        await arrived.wait()
        await anyio.sleep(0.05)
        assert reached == [(2, 7)]
        go.set()
        while len(reached) < 3:
            await anyio.sleep(0.001)
    assert reached == [(2, 7), (2, 8), (0, 0)]


async def test_a_writer_whose_parent_is_gone_fails() -> None:
    async def handler(segment: int, piece: int) -> None:
        raise AssertionError("never reached")

    async with open_sync_point(handler) as port:
        point = await anyio.to_thread.run_sync(SyncPoint, port)

    with point, pytest.raises(ConnectionError):
        await anyio.to_thread.run_sync(point.reach, 0, 0)

"""The gate at which writers wait while something is done to a service."""

from __future__ import annotations

import anyio
import pytest

from chaos_parts.gate import Passer, open_gate

pytestmark = pytest.mark.anyio


async def test_a_writer_is_held_until_its_crossing_ends() -> None:
    arrived, go = anyio.Event(), anyio.Event()

    async def crossing(share: int, piece: int) -> None:
        assert (share, piece) == (2, 7)
        arrived.set()
        await go.wait()

    async with open_gate(crossing) as port, await anyio.connect_tcp("127.0.0.1", port) as writer:
        await writer.send(b"2 7\n")
        await arrived.wait()
        with anyio.move_on_after(0.05) as waiting:
            await writer.receive()
        assert waiting.cancelled_caught

        go.set()
        assert await writer.receive() == b"\n"


async def test_a_writer_passes() -> None:
    crossings: list[tuple[int, int]] = []

    async def crossing(share: int, piece: int) -> None:
        crossings.append((share, piece))

    def cross(port: int) -> None:
        with Passer(port) as passer:
            passer.cross(0, 1)
            passer.cross(0, 2)

    async with open_gate(crossing) as port:
        await anyio.to_thread.run_sync(cross, port)

    assert crossings == [(0, 1), (0, 2)]


async def test_a_writer_whose_gate_is_gone_fails() -> None:
    async def crossing(share: int, piece: int) -> None:
        raise AssertionError("nobody crosses")

    async with open_gate(crossing) as port:
        passer = await anyio.to_thread.run_sync(Passer, port)

    with passer, pytest.raises(ConnectionError):
        await anyio.to_thread.run_sync(passer.cross, 0, 0)

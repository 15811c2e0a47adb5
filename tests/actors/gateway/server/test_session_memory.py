"""What a session keeps in memory once nobody needs it any more (rules H12, N3 and N8)."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.http_server import ServedStore, service, until
from support.patience import scaled
from support.raw_session import OCTETS, raw_session
from tierlog.actors.gateway.server import connection
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.session import SessionConnection
from tierlog.actors.gateway.server.session_call import SessionCall
from tierlog.actors.gateway.wire.session import PIECE_BYTES, FrameEncoder, Kind, RequestFrame, RequestHead
from tierlog.storage_backends.base.checksum import Buffer

pytestmark = pytest.mark.anyio
APPEND = "/v1/segments/a/append"
MIB = 1 << 20


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[SessionConnection]:
    found: list[SessionConnection] = []

    class Noted(SessionConnection):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)  # type: ignore[arg-type]
            found.append(self)

    monkeypatch.setattr(connection, "SessionConnection", Noted)
    return found


class _Block(bytearray):
    """Can be referred to weakly."""


class _Session:
    """A client that takes what it is sent at once."""

    base_headers: tuple[()] = ()
    is_writable = takes_more = True
    is_input_ended = False

    def __init__(self) -> None:
        self.base_scope: dict[str, Any] = {}
        self.frames = FrameEncoder()
        self.sent = 0

    def write(self, parts: list[Buffer]) -> None:
        self.sent += sum(map(len, parts))


@pytest.mark.parametrize("size", [10, MIB])
async def test_n8_a_waiting_tail_keeps_nothing_of_what_its_client_has(size: int) -> None:
    session: Any = _Session()
    head = RequestHead("GET", b"/v1/segments/a/tail", ())
    call = SessionCall(session, 1, RequestFrame(head, 0, 2 * MIB, b""), is_complete=True)
    block = _Block(size)
    kept = weakref.ref(block)
    await call.send({"type": "http.response.start", "status": 200, "headers": []})
    await call.send({"type": "http.response.body", "body": block, "more_body": True})
    del block

    assert session.sent > size
    assert kept() is None


async def test_a_session_that_has_ended_leaves_memory_without_the_garbage_collector(
    a: ServedStore, sessions: list[SessionConnection]
) -> None:
    gc.collect()
    gc.disable()
    try:
        async with raw_session(a) as client:
            await client.status("GET", "/health")
        session = weakref.ref(sessions.pop())
        with anyio.fail_after(scaled(2)):
            await until(lambda: session() is None)
    finally:
        gc.enable()


async def test_h12_a_refused_body_leaves_memory_although_its_frame_is_not_complete(tmp_path: Path) -> None:
    limits = ServerLimits(body_timeout=0.2)
    async with service(tmp_path, limits) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        tracemalloc.start()
        try:
            call = await client.begin("POST", APPEND, b"x", *OCTETS, size=8 * MIB)
            await until(lambda: served.gateway.held_bytes == 1)
            frame = client.encoder.frame(call, Kind.BODY, (bytes(PIECE_BYTES),))
            await client.stream.send(frame[: PIECE_BYTES // 2])
            assert (await client.answer())[1].status == 408
            del frame
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

        assert held < MIB, held
        await client.stream.send(bytes(PIECE_BYTES + 14 - PIECE_BYTES // 2))
        assert await client.status("GET", "/health") == 200

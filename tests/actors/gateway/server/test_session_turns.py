"""N2: what one session sends at once leaves other connections their turn; N1: frames that no client sends."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from pathlib import Path

import anyio
import pytest

from support.http_server import ServedStore, Wrapped, serving, until
from support.raw_session import JSON, OCTETS, raw_session
from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.gateway.server import session
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.session_call import SessionCall
from tierlog.actors.gateway.wire.session import Kind

pytestmark = pytest.mark.anyio
APPEND = "/v1/segments/a/append"


async def test_n2_many_calls_at_once_leave_other_connections_their_turn(tmp_path: Path) -> None:
    calls, turn = 2000, 0
    begun = Counter[int]()
    release = anyio.Event()

    async def flush() -> None:
        begun[turn] += 1
        await release.wait()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        serving(Wrapped(store, flush=flush), ServerLimits(requests=calls)) as served,
        raw_session(served) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(count_turns)
        await client.begin_all([("POST", "/v1/flush", b"{}", *JSON)] * calls)
        await until(lambda: begun.total() == calls)
        release.set()
        assert {(await client.answer())[1].status for _ in range(calls)} == {200}
        tasks.cancel_scope.cancel()

    assert max(begun.values()) <= session.TURN_CALLS


async def test_n2_many_frames_at_once_leave_other_connections_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames, turn = 50_000, 0
    taken = Counter[int]()
    release = anyio.Event()
    add_credit = SessionCall.add_credit

    async def flush() -> None:
        await release.wait()

    def counted(call: SessionCall, size: int) -> None:
        taken[turn] += 1
        add_credit(call, size)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(SessionCall, "add_credit", counted)
    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        serving(Wrapped(store, flush=flush), ServerLimits()) as served,
        raw_session(served) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(count_turns)
        call = await client.begin("POST", "/v1/flush", b"{}", *JSON)
        window = struct.pack(">I", 1)
        await client.stream.send(
            b"".join([client.encoder.frame(call, Kind.WINDOW, (window,)) for _ in range(frames)])
        )
        await until(lambda: taken.total() == frames)
        release.set()
        assert (await client.answer())[1].status == 200
        tasks.cancel_scope.cancel()

    assert max(taken.values()) <= 8 * session.TURN_CALLS


@pytest.mark.parametrize("kind, payload", [(Kind.END, b"\0\0\0\0"), (Kind.ANSWER, b""), (Kind.BODY, b"")])
async def test_n1_frames_that_no_client_sends_end_the_session(
    a: ServedStore, kind: Kind, payload: bytes
) -> None:
    async with raw_session(a) as client:
        call = await client.begin("POST", APPEND, b"", *OCTETS, size=10)
        await client.send(call if kind == Kind.BODY else 0, kind, payload)
        [end] = await client.everything()

    assert end.kind == Kind.END
    assert any(text in end.payload for text in (b"a client sends no frame of kind", b"has no bytes"))

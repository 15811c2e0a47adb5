"""Large bodies of a session's calls, which come into the memory that the store keeps (rules H9 and N3)."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from support.http_server import ServedStore, service, until
from support.large_bodies import note_large_bodies
from support.raw_session import OCTETS, RawSession, raw_session
from tierlog.actors.gateway.server import session_call
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.server.large_body import LargeBody
from tierlog.actors.gateway.wire.session import PIECE_BYTES, Kind, decode_number, joined_head, request_parts

pytestmark = pytest.mark.anyio
APPEND = "/v1/segments/a/append"
SIZE = 3 * PIECE_BYTES + 1234


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LargeBody]:
    """The bodies that came to where they stay."""
    return note_large_bodies(monkeypatch, session_call)


def frames(client: RawSession, calls: list[int], bodies: list[bytes]) -> Iterator[bytes]:
    """Appends of the bodies, whose frames take turns."""
    for call, body in zip(calls, bodies, strict=True):
        parts = request_parts(joined_head(["POST", APPEND, *OCTETS]), len(body), 1 << 20, b"")
        yield client.encoder.frame(call, Kind.REQUEST, parts)
    for at in range(0, max(map(len, bodies)), PIECE_BYTES):
        for call, body in zip(calls, bodies, strict=True):
            if piece := body[at : at + PIECE_BYTES]:
                is_last = at + len(piece) == len(body)
                yield client.encoder.frame(call, Kind.BODY, (piece,), last=is_last)


@pytest.mark.parametrize("seed", range(4))
async def test_bodies_in_fragments_of_odd_sizes_arrive_whole(
    a: ServedStore, made: list[LargeBody], seed: int
) -> None:
    chance = random.Random(seed)
    bodies = [chance.randbytes(SIZE + seed), chance.randbytes(SIZE - 10_000)]
    async with raw_session(a) as client:
        data = b"".join(frames(client, [1, 2], bodies))
        while data:
            size = chance.choice([1, 13, 14, 100, 5_000, 70_000, 400_000])
            await client.stream.send(data[:size])
            data = data[size:]
        answers = 0
        while answers < 2:
            answers += (await client.next()).kind == Kind.ANSWER

    found = await a.store.read("a", 0, 2 * SIZE + seed)
    assert found in (b"".join(bodies), b"".join(reversed(bodies)))
    assert len(made) == 2


async def test_n3_the_window_opens_by_what_came_to_its_place(a: ServedStore, made: list[LargeBody]) -> None:
    async with raw_session(a) as client:
        call = await client.begin("POST", APPEND, b"", *OCTETS, size=4 * PIECE_BYTES)
        await until(lambda: bool(made))
        for _ in range(3):
            await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
        frame = await client.next()

        assert frame.kind == Kind.WINDOW
        assert decode_number(frame.payload) == 2 * PIECE_BYTES
        await client.send(call, Kind.BODY, bytes(PIECE_BYTES), last=True)
        while frame.kind == Kind.WINDOW:
            frame = await client.next()
        assert frame.kind == Kind.ANSWER


@pytest.mark.parametrize("ends", ["its call", "its connection"])
async def test_n6_the_memory_of_a_body_is_free_once_nobody_sends_it(
    a: ServedStore, made: list[LargeBody], ends: str
) -> None:
    async with raw_session(a) as client:
        call = await client.begin("POST", APPEND, b"x" * PIECE_BYTES, *OCTETS, size=SIZE)
        await until(lambda: bool(made))
        if ends == "its call":
            await client.send(call, Kind.CANCEL)
            await until(lambda: made[0].is_lost)
            # What was on its way is dropped, and the session goes on.
            await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
            assert await client.status("GET", "/health") == 200
    await until(lambda: made[0].is_lost and a.gateway.held_bytes == 0)

    memory = weakref.ref(made.pop())
    gc.collect()
    assert memory() is None
    assert (await a.store.segment_info("a")).length == 0


@pytest.mark.parametrize(
    ("piece", "last"), [(PIECE_BYTES, False), (1_235, True), (1_233, True), (1_234, False)]
)
async def test_n3_a_large_body_has_the_size_that_its_head_says(
    a: ServedStore, made: list[LargeBody], piece: int, last: bool
) -> None:
    async with raw_session(a) as client:
        call = await client.begin("POST", APPEND, b"", *OCTETS, size=SIZE)
        await until(lambda: bool(made))
        for _ in range(3):
            await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
        await client.send(call, Kind.BODY, bytes(piece), last=last)
        found = await client.everything()

    assert found[-1].kind == Kind.END
    assert (await a.store.segment_info("a")).length == 0


async def test_h9_a_large_body_that_stops_is_refused(tmp_path: Path, made: list[LargeBody]) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.05)) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        call = await client.begin("POST", APPEND, b"x" * 10, *OCTETS, size=SIZE)

        assert (await client.answer())[1].status == 408
        await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
        assert await client.status("GET", "/health") == 200
        assert len(made) == 1


async def test_h12_a_large_body_counts_as_it_comes(tmp_path: Path, made: list[LargeBody]) -> None:
    limits = ServerLimits(in_flight_bytes=PIECE_BYTES + 1000)
    async with service(tmp_path, limits) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        call = await client.begin("POST", APPEND, b"x" * 100, *OCTETS, size=SIZE)
        await until(lambda: served.gateway.held_bytes == 100)
        await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
        await until(lambda: served.gateway.held_bytes == PIECE_BYTES + 100)
        await client.send(call, Kind.BODY, bytes(PIECE_BYTES))

        assert (await client.next()).kind == Kind.WINDOW
        # It asks for more than there is, or is the oldest one that is dropped for others.
        assert (await client.answer())[1].status in (408, 429)
        await until(lambda: served.gateway.held_bytes == 0)
    assert len(made) == 1


async def test_n3_a_session_has_memory_for_some_bodies_that_have_not_come(
    a: ServedStore, made: list[LargeBody], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_call, "LARGE_BYTES_MAX", 2 * SIZE)
    bodies = [bytes([number]) * SIZE for number in range(6)]
    async with raw_session(a) as client:
        for calls in ([1, 2, 3], [4, 5, 6]):
            for data in frames(client, calls, [bodies[call - 1] for call in calls]):
                await client.stream.send(data)
                await anyio.sleep(0.001)
            answers = 0
            while answers < len(calls):
                answers += (await client.next()).kind == Kind.ANSWER

    assert len(made) == 4
    found = await a.store.read("a", 0, 6 * SIZE)
    assert sorted(found[at : at + SIZE] for at in range(0, 6 * SIZE, SIZE)) == bodies

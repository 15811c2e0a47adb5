"""Sessions, frame by frame: many calls on one connection, their windows, and their ends."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.http_server import ServedStore, Wrapped, everything, service, serving, until
from support.patience import scaled
from support.raw_session import JSON, OCTETS, UPGRADE, raw_session
from support.stores import CONFIG
from tierlog import open_store
from tierlog.actors.gateway.server import session, write_side
from tierlog.actors.gateway.server.context import ServerLimits
from tierlog.actors.gateway.wire.session import (
    BODY_WINDOW,
    PIECE_BYTES,
    WINDOW_MIN,
    Kind,
    decode_answer,
    decode_end,
    decode_number,
    joined_head,
    number_parts,
    request_parts,
)
from tierlog.storage_backends.base.errors import NotOwner, TierlogError, Unavailable

pytestmark = pytest.mark.anyio
APPEND = "/v1/segments/a/append"
TAIL = "/v1/segments/a/tail?stream=true"


# --- the begin ------------------------------------------------------------------------------------


async def test_n1_a_session_takes_its_upgrade_and_no_page_of_another_site(a: ServedStore) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: tierlog-session\r\n"
    statuses = []
    for wish in (
        b"",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        upgrade + b"Content-Length: 3\r\n",
        upgrade + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        upgrade + b"Transfer-Encoding: chunked\r\n",
        upgrade + b"Origin: http://other\r\n",
        upgrade + b"Sec-Fetch-Site: cross-site\r\n",
        upgrade + b"Content-Length: 0\r\n",
    ):
        async with await a.raw(b"GET /v1/session HTTP/1.1\r\nHost: localhost\r\n" + wish + b"\r\n") as stream:
            statuses.append((await stream.receive())[9:12])

    assert statuses == [b"400"] * 5 + [b"403", b"403", b"101"]


async def test_h18_a_session_is_opened_under_a_name_of_the_server(a: ServedStore) -> None:
    async with await a.raw(UPGRADE.replace(b"localhost", b"other.example")) as stream:
        assert (await stream.receive()).startswith(b"HTTP/1.1 421 ")


async def test_n1_bytes_before_the_servers_answer_are_no_session(a: ServedStore) -> None:
    found = await everything(await a.raw(UPGRADE + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"))

    assert b"alive" not in found


async def test_n5_a_stopping_server_begins_no_session(a: ServedStore) -> None:
    a.gateway.drain()

    assert (await everything(await a.raw(UPGRADE))).startswith(b"HTTP/1.1 503 ")


# --- calls ----------------------------------------------------------------------------------------


async def test_n2_calls_get_the_answers_that_requests_get(a: ServedStore) -> None:
    async with raw_session(a) as client:
        assert await client.status("POST", APPEND, b"hello", *OCTETS) == 200
        assert await client.status("POST", APPEND, b"hello", *JSON) == 415
        assert await client.status("POST", "/v1/segments/none/append", b"hello", *OCTETS) == 404
        assert await client.status("GET", "/v1/segments/a/info?x=1") == 400
        assert await client.status("PUT", "/health") == 405
        assert await client.status("GET", "/nowhere") == 404
        assert await client.status("GET", "/v1/session") == 400
        await client.begin("GET", "/v1/segments/a/bytes", b"", "range", "bytes=1-3")
        call, answer = await client.answer()

    assert (call, answer.status, answer.body) == (8, 206, b"ell")
    assert dict(answer.headers)[b"content-range"] == b"bytes 1-3/5"
    assert a.gateway.metrics.requests(200) == 1


async def test_n2_a_request_id_is_the_calls_own(a: ServedStore) -> None:
    async with raw_session(a) as client:
        await client.begin("GET", "/health", b"", "x-request-id", "mine")
        _, answer = await client.answer()

    assert dict(answer.headers)[b"x-request-id"] == b"mine"


async def test_n2_a_call_does_not_wait_for_the_one_before(tmp_path: Path) -> None:
    release = anyio.Event()

    async def flush() -> None:
        await release.wait()

    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        serving(Wrapped(store, flush=flush)) as served,
        raw_session(served) as client,
    ):
        slow = await client.begin("POST", "/v1/flush", b"{}", *JSON)
        fast = await client.begin("GET", "/health")
        first, _ = await client.answer()
        release.set()
        second, _ = await client.answer()

    assert (first, second) == (fast, slow)


async def test_h12_a_full_server_refuses_calls_too(tmp_path: Path) -> None:
    release = anyio.Event()

    async def flush() -> None:
        await release.wait()

    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        serving(Wrapped(store, flush=flush), ServerLimits(requests=1)) as served,
        raw_session(served) as client,
    ):
        await client.begin("POST", "/v1/flush", b"{}", *JSON)
        assert await client.status("GET", "/health") == 429
        release.set()
        assert (await client.answer())[1].status == 200


async def test_h12_the_bodies_of_calls_count(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=1000)) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        await client.begin("POST", APPEND, b"x" * 600, *OCTETS, size=700)
        await until(lambda: served.gateway.held_bytes == 600)

        assert await client.status("POST", APPEND, b"x" * 600, *OCTETS) == 429


async def test_h9_a_body_that_stops_is_refused(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(body_timeout=0.05)) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        await client.begin("POST", APPEND, b"x", *OCTETS, size=2)

        assert (await client.answer())[1].status == 408
        assert await client.status("GET", "/health") == 200


# --- windows --------------------------------------------------------------------------------------


async def test_n3_a_body_comes_as_far_as_its_window_and_on_when_it_is_taken(a: ServedStore) -> None:
    size, piece = 3 * BODY_WINDOW, bytes(BODY_WINDOW // 4)
    async with raw_session(a) as client:
        call = await client.begin("POST", APPEND, b"", *OCTETS, size=size)
        sent, allowed = 0, BODY_WINDOW
        while True:
            while sent < allowed and sent < size:
                sent += len(piece)
                await client.send(call, Kind.BODY, piece, last=sent == size)
            frame = await client.next()
            if frame.kind == Kind.ANSWER:
                break
            assert frame.kind == Kind.WINDOW
            allowed += struct.unpack(">I", frame.payload)[0]

    assert decode_answer(frame.payload).status == 200
    assert (await a.store.segment_info("a")).length == size


async def test_n1_the_head_of_a_large_answer_comes_first(a: ServedStore) -> None:
    """So that its client has memory for what follows."""
    data = bytes(range(256)) * 2048
    await a.store.append("a", data)
    async with raw_session(a) as client:
        await client.begin("GET", "/v1/segments/a/bytes", b"", "range", "bytes=0-")
        frames = [await client.next()]
        while not frames[-1].is_last:
            frames.append(await client.next())

    answer = decode_answer(frames[0].payload)
    assert dict(answer.headers)[b"content-length"] == b"%d" % len(data)
    assert answer.body == b""
    assert b"".join(frame.payload for frame in frames[1:]) == data


async def test_n4_a_reader_that_takes_nothing_holds_up_no_other_call(a: ServedStore) -> None:
    await a.store.append("a", b"x" * (WINDOW_MIN + 4000))
    async with raw_session(a) as client:
        slow = await client.begin("GET", TAIL, window=WINDOW_MIN)
        frames = [await client.next()]
        while sum(len(frame.payload) for frame in frames[1:]) < WINDOW_MIN:
            frames.append(await client.next())
        assert await client.status("GET", "/health") == 200
        await client.send(slow, Kind.WINDOW, *number_parts(4000))
        rest = b""
        while len(rest) < 4000:
            rest += (await client.next()).payload

    assert {frame.call for frame in frames} == {slow}


async def test_h10_of_a_client_that_reads_nothing_not_all_calls_are_read(tmp_path: Path) -> None:
    """Else their bodies would fill the server's memory while their answers wait."""
    body = b"x" * 256_000
    async with service(tmp_path, ServerLimits(requests=64)) as served, raw_session(served) as client:
        await served.store.create_segment("a")
        for _ in range(8):
            await served.store.append("a", bytes(1 << 20))
        for _ in range(30):
            await client.begin(
                "GET", "/v1/segments/a/bytes", b"", "range", "bytes=0-8000000", window=16 << 20
            )
        sent = 0
        with anyio.move_on_after(2):
            for _ in range(1000):
                await client.begin("POST", APPEND, body, *OCTETS)
                sent += len(body)

        assert sent < 100 << 20
        with anyio.fail_after(30):
            while (await client.next()).call < 30:
                """What it had begun goes on once it reads."""


async def test_n4_a_call_whose_answer_is_not_taken_for_long_ends_alone(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_side, "WRITE_DELAY", 0.05)
    monkeypatch.setattr(write_side, "WRITE_RATE", 1 << 30)
    await a.store.append("a", b"x" * (WINDOW_MIN + 1))
    async with raw_session(a) as client:
        slow = await client.begin("GET", TAIL, window=WINDOW_MIN)
        frame = await client.next()
        while frame.kind != Kind.BROKEN:
            frame = await client.next()
        assert frame.call == slow
        assert await client.status("GET", "/health") == 200
        await until(lambda: a.gateway.tails == 0)


async def test_n4_appended_bytes_are_pushed_to_each_tail(a: ServedStore) -> None:
    async with raw_session(a) as client:
        tails = [await client.begin("GET", TAIL) for _ in range(3)]
        for _ in tails:
            assert (await client.next()).kind == Kind.ANSWER
        await until(lambda: a.gateway.tails == 3)
        await a.store.append("a", b"hello")
        found = [await client.next() for _ in tails]

    assert sorted((frame.call, frame.payload) for frame in found) == [(call, b"hello") for call in tails]


# --- tails that wait without a task ----------------------------------------------------------------


def answers(a: ServedStore) -> dict[tuple[str, int], int]:
    return a.gateway.metrics.operation("tail").answers


async def test_n8_a_waiting_tail_has_no_task(a: ServedStore) -> None:
    async with raw_session(a) as client:
        await client.status("GET", "/health")
        before = len(asyncio.all_tasks())
        for _ in range(50):
            await client.begin("GET", TAIL)
            assert (await client.next()).kind == Kind.ANSWER
        await until(lambda: len(asyncio.all_tasks()) <= before)
        assert a.gateway.tails == a.gateway.metrics.operation("tail").in_flight == 50
        assert not answers(a)

        await a.store.append("a", b"x")
        assert {(await client.next()).payload for _ in range(50)} == {b"x"}
        await until(lambda: len(asyncio.all_tasks()) <= before)

    await until(lambda: answers(a) == {("GET", 499): 50})
    assert a.gateway.tails == a.gateway.metrics.operation("tail").in_flight == 0


async def test_n3_a_body_that_no_handler_reads_is_dropped_as_it_comes(a: ServedStore) -> None:
    """Here behind the head of a tail, which has no task that could read it."""
    async with raw_session(a) as client:
        call = await client.begin("GET", TAIL, size=4 * BODY_WINDOW)
        assert (await client.next()).kind == Kind.ANSWER
        await until(lambda: a.gateway.tails == 1)
        tracemalloc.start()
        try:
            with anyio.fail_after(scaled(10)):
                for _ in range(6):
                    for _ in range(2):
                        await client.send(call, Kind.BODY, bytes(PIECE_BYTES))
                    frame = await client.next()
                    assert (frame.call, frame.kind) == (call, Kind.WINDOW)
                    assert decode_number(frame.payload) == 2 * PIECE_BYTES
            assert tracemalloc.get_traced_memory()[0] < BODY_WINDOW
        finally:
            tracemalloc.stop()
        await a.store.append("a", b"x")
        assert (await client.next()).payload == b"x"


async def test_n3_no_call_has_a_window_that_a_small_answer_does_not_fit(a: ServedStore) -> None:
    """It would be in memory until the client takes it, and nothing bounds how many there are."""
    async with raw_session(a) as client:
        await client.begin("GET", "/health", window=WINDOW_MIN - 1)
        end = await client.next()

    assert (end.kind, decode_end(end.payload)[0]) == (Kind.END, 0)


async def test_n8_a_tail_whose_window_is_full_waits_again_once_it_is_taken(a: ServedStore) -> None:
    async with raw_session(a) as client:
        # All but two bytes of its window are taken at once.
        filled = WINDOW_MIN - 2
        await a.store.append("a", bytes(filled))
        slow = await client.begin("GET", TAIL, window=WINDOW_MIN)
        received = [await client.next()]
        while sum(len(frame.payload) for frame in received[1:]) < filled:
            received.append(await client.next())
        quick = await client.begin("GET", f"{TAIL}&offset={filled}")
        await client.next()
        found = {slow: b"", quick: b""}
        await until(lambda: a.gateway.tails == 2)
        await anyio.wait_all_tasks_blocked()  # the tails' handlers have ended
        before = len(asyncio.all_tasks())
        for data in (b"abc", b"def", b"g"):
            await a.store.append("a", data)
        while found != {slow: b"ab", quick: b"abcdefg"}:
            frame = await client.next()
            found[frame.call] += frame.payload
        await anyio.wait_all_tasks_blocked()
        assert a.gateway.tails == 2, "one that is read slowly is a tail too"
        await client.send(slow, Kind.WINDOW, *number_parts(1000))
        while found[slow] != b"abcdefg":
            found[slow] += (await client.next()).payload
        await until(lambda: a.gateway.tails == 2 and len(asyncio.all_tasks()) <= before)

        await a.store.append("a", b"h")
        frames = [await client.next() for _ in found]

    assert {(frame.call, frame.payload) for frame in frames} == {(slow, b"h"), (quick, b"h")}


async def test_n8_a_waiting_tail_ends_with_its_segment(a: ServedStore) -> None:
    await a.store.create_segment("b")
    async with raw_session(a) as client:
        sealed = await client.begin("GET", TAIL)
        deleted = await client.begin("GET", TAIL.replace("/a/", "/b/"))
        for _ in range(2):
            await client.next()
        await until(lambda: a.gateway.tails == 2)
        await a.store.seal_segment("a")
        end = await client.next()
        assert (end.call, end.kind, end.is_last) == (sealed, Kind.BODY, True)

        await a.store.delete_segment("b")
        await a.store.create_segment("b")
        await a.store.append("b", b"other")
        broken = await client.next()

    assert (broken.call, broken.kind) == (deleted, Kind.BROKEN)
    await until(lambda: answers(a) == {("GET", 200): 2})


@pytest.mark.parametrize(("error", "logged"), [(NotOwner("moved"), False), (Unavailable("broken"), True)])
async def test_n8_waiting_tails_of_a_container_that_moves_break_without_a_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: TierlogError, logged: bool
) -> None:
    fails = False

    async with open_store(tmp_path / "data", containers=1) as store:

        async def read_or_watch(*args: Any) -> Any:
            found = await store.read_or_watch(*args)
            if fails:
                raise error
            return found

        def tail(*args: Any, **options: Any) -> Any:
            if fails:
                raise error
            return store.tail(*args, **options)

        await store.create_segment("a")
        wrapped = Wrapped(store, tail=tail, read_or_watch=read_or_watch)
        async with serving(wrapped) as served, raw_session(served) as client:
            call = await client.begin("GET", TAIL)
            await client.next()
            await until(lambda: served.gateway.tails == 1)
            fails = True
            await store.append("a", b"more")
            broken = await client.next()

    assert (broken.call, broken.kind) == (call, Kind.BROKEN)
    assert ("answer_aborted" in caplog.text) is logged


async def test_n8_a_waiting_tail_waits_in_no_other_segment_of_its_name(a: ServedStore) -> None:
    await a.store.append("a", b"long")
    async with raw_session(a) as client:
        tail = await client.begin("GET", f"{TAIL}&offset=4")
        await client.next()
        await until(lambda: a.gateway.tails == 1)
        await a.store.delete_segment("a")
        await a.store.create_segment("a")
        broken = await client.next()

    assert (broken.call, broken.kind) == (tail, Kind.BROKEN)


async def test_n8_a_stopping_server_ends_waiting_tails_cleanly(a: ServedStore) -> None:
    async with raw_session(a) as client:
        tail = await client.begin("GET", TAIL)
        await client.next()
        await until(lambda: a.gateway.tails == 1)
        a.gateway.drain()
        end = await client.next()

    assert (end.call, end.kind, end.is_last, end.payload) == (tail, Kind.BODY, True, b"")
    assert answers(a) == {("GET", 200): 1}


@pytest.mark.parametrize("sends", [False, True])
async def test_n8_the_end_of_a_server_gives_no_waiting_tail_a_task(tmp_path: Path, *, sends: bool) -> None:
    """Also one that was not drained before, while bytes are on their way to the tails."""
    loop, made = asyncio.get_running_loop(), list[object]()

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        AsyncExitStack() as clients,
    ):
        await store.create_segment("a")
        async with serving(store) as served:
            client = await clients.enter_async_context(raw_session(served))
            tails = {await client.begin("GET", TAIL) for _ in range(50)}
            for _ in tails:
                await client.next()
            await until(lambda: served.gateway.tails == 50)
            await anyio.wait_all_tasks_blocked()  # the tails' handlers have ended
            loop.set_task_factory(make)
            if sends:
                await store.append("a", b"x")
        loop.set_task_factory(None)
        frames = await client.everything()

    assert {frame.call for frame in frames if frame.kind == Kind.BODY and frame.is_last} == tails
    assert len(made) < 20


# --- the end --------------------------------------------------------------------------------------


async def test_n6_a_cancelled_call_ends_alone(a: ServedStore) -> None:
    async with raw_session(a) as client:
        tail = await client.begin("GET", TAIL)
        await client.next()
        await until(lambda: a.gateway.tails == 1)
        await client.send(tail, Kind.CANCEL)
        await until(lambda: a.gateway.tails == 0)

        await client.send(tail, Kind.CANCEL)  # it may have been on its way
        assert await client.status("GET", "/health") == 200


async def test_n6_a_lost_connection_ends_its_tails(a: ServedStore) -> None:
    async with raw_session(a) as client:
        await client.begin("GET", TAIL)
        await until(lambda: a.gateway.tails == 1)

    await until(lambda: a.gateway.tails == 0)


async def test_n6_a_client_that_closed_its_half_gets_its_answers_and_no_tail(tmp_path: Path) -> None:
    release = anyio.Event()

    async def flush() -> None:
        await release.wait()

    async with (
        open_store(tmp_path / "data", containers=1, config=CONFIG) as store,
        serving(Wrapped(store, flush=flush)) as served,
        raw_session(served) as client,
    ):
        await store.create_segment("a")
        flushed = await client.begin("POST", "/v1/flush", b"{}", *JSON)
        await client.begin("GET", TAIL)
        await client.begin("POST", APPEND, b"x", *OCTETS, size=2)
        await until(lambda: served.gateway.tails == 1 and served.gateway.held_bytes == 3)
        await client.stream.send_eof()
        await until(lambda: served.gateway.tails == 0)
        release.set()
        frames = await client.everything()
        length = (await store.segment_info("a")).length

    assert [frame.call for frame in frames if frame.is_last] == [flushed]
    assert length == 0


async def test_n5_a_stop_names_the_last_call_and_finishes_it(tmp_path: Path) -> None:
    release = anyio.Event()

    async def flush() -> None:
        await release.wait()

    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await store.create_segment("a")
        async with anyio.create_task_group() as tasks:
            frames: list[Any] = []

            async def use(served: ServedStore, *, task_status: anyio.abc.TaskStatus[None]) -> None:
                async with raw_session(served) as client:
                    await client.begin("POST", "/v1/flush", b"{}", *JSON)
                    await until(lambda: served.gateway.requests == 1)
                    task_status.started()
                    frames.append(await client.next())
                    await client.begin("POST", APPEND, b"late", *OCTETS)
                    release.set()
                    frames.extend(await client.everything())

            async with serving(Wrapped(store, flush=flush)) as served:
                await tasks.start(use, served)

        end, answer = frames
        assert (end.kind, decode_end(end.payload)[0]) == (Kind.END, 1)
        assert (answer.call, answer.kind) == (1, Kind.ANSWER)
        assert (await store.segment_info("a")).length == 0


async def test_n5_a_session_without_calls_ends_after_a_while(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "IDLE_SECONDS", 0.05)
    async with raw_session(a) as client:
        tail = await client.begin("GET", TAIL)
        await client.next()
        await anyio.sleep(0.15)  # longer than a session without a call stays
        await client.send(tail, Kind.CANCEL)
        [end] = await client.everything()

    assert (end.kind, decode_end(end.payload)) == (Kind.END, (tail, "the session had no calls"))


async def test_h12_a_session_without_calls_makes_room_on_a_full_server(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(connections=1)) as served, raw_session(served) as client:
        async with await served.used():
            pass
        [end] = await client.everything()

    assert end.kind == Kind.END


def _twice(call: int) -> bytes:
    return struct.pack(">IIIBB", 0, 5, call, Kind.CANCEL, 0)


VIOLATIONS: dict[str, Callable[[], bytes]] = {
    "noise": lambda: b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "out of order": lambda: _twice(1),
    "unknown call": lambda: struct.pack(">IIIBB", 0, 1, 9, Kind.CANCEL, 0),
    "call begun again": lambda: struct.pack(">IIIBBIII", 12, 1, 1, Kind.REQUEST, 1, 0, 1, 0),
    "empty head": lambda: struct.pack(">IIIBBIII", 12, 1, 2, Kind.REQUEST, 1, 0, 1, 0),
    "answer of a client": lambda: struct.pack(">IIIBB", 0, 1, 1, Kind.ANSWER, 0),
    "body of none": lambda: struct.pack(">IIIBB", 1, 1, 1, Kind.BODY, 1) + b"x",
    "no window": lambda: struct.pack(">IIIBBI", 4, 1, 1, Kind.WINDOW, 0, 0),
    "too large a window": lambda: struct.pack(">IIIBBI", 4, 1, 1, Kind.WINDOW, 0, 1 << 31),
    "too long": lambda: struct.pack(">IIIBB", 1 << 30, 1, 1, Kind.BODY, 0),
}


async def test_n5_what_is_no_session_ends_it(a: ServedStore) -> None:
    for name, violation in VIOLATIONS.items():
        async with raw_session(a) as client:
            await client.begin("GET", TAIL)
            await client.next()
            await client.stream.send(violation())
            [end] = await client.everything()

        assert end.kind == Kind.END, name
        await until(lambda: a.gateway.tails == 0)


async def test_n3_what_still_comes_of_a_body_that_is_refused_is_dropped(a: ServedStore) -> None:
    async with raw_session(a) as client:
        call = await client.begin("POST", "/v1/segments/none/seal", b"", *OCTETS, size=10)
        assert (await client.answer())[0] == call
        await client.send(call, Kind.BODY, bytes(10), last=True)
        assert await client.status("GET", "/health") == 200


async def test_n3_a_body_has_the_size_that_its_head_says(a: ServedStore) -> None:
    for body, last in ((bytes(11), True), (bytes(10), False), (bytes(9), True)):
        async with raw_session(a) as client:
            call = await client.begin("POST", APPEND, b"", *OCTETS, size=10)
            await client.send(call, Kind.BODY, body, last=last)
            [end] = await client.everything()

        assert end.kind == Kind.END
    assert (await a.store.segment_info("a")).length == 0


async def test_h12_frames_that_are_not_complete_count_and_the_oldest_makes_room(tmp_path: Path) -> None:
    async with service(tmp_path, ServerLimits(in_flight_bytes=100_000)) as served:
        await served.store.create_segment("a")
        async with raw_session(served) as first, raw_session(served) as second:
            parts = request_parts(joined_head(["POST", APPEND, *OCTETS]), 80_000, 1 << 20, bytes(80_000))
            frame, payload = first.encoder.frame(1, Kind.REQUEST, parts, last=True), sum(map(len, parts))
            # A large one has its memory once a quarter of it is there.
            await first.stream.send(frame[:15_000])
            await until(lambda: served.gateway.held_bytes == 15_000)
            await first.stream.send(frame[15_000:60_000])
            await until(lambda: served.gateway.held_bytes == payload)
            await second.stream.send(frame[:70_000])
            [end] = await first.everything()
            assert b"while others needed its memory" in end.payload
            assert served.gateway.held_bytes == payload

            await second.stream.send(frame[70_000:])
            assert (await second.answer())[1].status == 200
            assert served.gateway.held_bytes == 0
            await second.stream.send(frame[:10])
            await until(lambda: served.gateway.held_bytes == 10)
        await until(lambda: served.gateway.held_bytes == 0)


async def test_n5_half_a_frame_is_not_waited_for_forever(
    a: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "FRAME_SECONDS", 0.05)
    async with raw_session(a) as client:
        await client.stream.send(b"\0\0")
        [end] = await client.everything()

    assert end.kind == Kind.END

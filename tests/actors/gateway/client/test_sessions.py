"""Sessions as clients use them: one connection for all calls, what becomes of calls when it breaks, and
plain HTTP where there is none."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import tierlog
from support.frame_relay import CloseHalf, Cut, Fault, FrameRelay, Passing, whole
from support.http_server import Wrapped, serving, until
from support.scripted_server import Received, json_answer, scripted
from support.service import service
from tierlog import BatchItem, OutcomeUnknown, Throttled, Unavailable
from tierlog.actors.gateway.client import sessions
from tierlog.actors.gateway.client.requests import Request
from tierlog.actors.gateway.client.session import PLACED_MAX, STREAM_WINDOW, ClientSession
from tierlog.actors.gateway.server import session as server_session
from tierlog.actors.gateway.wire.session import (
    BODY_WINDOW,
    LARGE_BYTES,
    PIECE_BYTES,
    FrameDecoder,
    FrameEncoder,
    Kind,
    answer_parts,
    number_parts,
)
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import InvalidArgument

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with service(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture
def relay(url: str) -> Iterator[FrameRelay]:
    with FrameRelay(url).running() as found:
        yield found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A segment's name of the test's own."""
    return f"s{abs(hash(request.node.nodeid))}"


# --- one connection ---------------------------------------------------------------------------------


async def test_n1_all_calls_share_one_connection(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)

        async def use() -> None:
            for _ in range(5):
                await client.append(name, b"x" * 1000)
                await client.segment_info(name)

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(use)
        assert len(await client.read(name, 0, 1 << 20)) == 25_000

    assert (relay.connections, relay.sessions) == (1, 1)


async def test_n1_tails_share_it_too(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        found: list[bytes] = []

        async def follow() -> None:
            found.append(b"".join([block async for block in client.tail(name)]))

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(follow)
            for _ in range(10):
                await client.append(name, b"0123456789")
            await client.seal_segment(name)

    assert found == [b"0123456789" * 10] * 10
    assert relay.connections == 1


async def test_n3_bodies_and_answers_larger_than_their_windows_arrive(url: str, name: str) -> None:
    data = bytes(range(256)) * ((5 * BODY_WINDOW) // 256)
    async with tierlog.connect(url) as client:
        await client.create_segment(name)
        await client.append(name, data)
        await client.append(name, data)

        assert await client.read(name, 0, 2 * len(data)) == data * 2


async def test_n4_a_tail_that_is_not_read_holds_up_no_other_call(url: str, name: str) -> None:
    async with tierlog.connect(url) as client:
        await client.create_segment(name)
        await client.append(name, b"!")
        tail = client.tail(name)
        assert await anext(tail) == b"!"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(anext, tail))
            await client.append(name, b"?")
        for _ in range(8):
            await client.append(name, bytes(STREAM_WINDOW))
        read, expected = 0, 8 * STREAM_WINDOW
        while read < expected:
            read += len(await anext(tail))
        await tail.aclose()

    assert read == expected


async def test_n2_errors_are_those_of_requests(url: str, name: str) -> None:
    async with tierlog.connect(url) as client:
        with pytest.raises(tierlog.SegmentNotFound):
            await client.append(name, b"x")
        await client.create_segment(name)
        with pytest.raises(tierlog.BadOffset) as refused:
            await client.append(name, b"x", expected_offset=7)

    assert (refused.value.expected, refused.value.given) == (0, 7)


# --- plain HTTP -------------------------------------------------------------------------------------


async def test_n2_calls_leave_nothing_to_the_garbage_collector(url: str, name: str) -> None:
    """On neither side: it would stay in memory until a collection, with the bytes of an append."""
    async with tierlog.connect(url) as client:
        await client.create_segment(name)

        async def call() -> None:
            await client.append(name, bytes(1000))
            await client.append_each([BatchItem(name, b"a"), BatchItem(name, b"b")])
            await client.read(name, 0, 100)
            with pytest.raises(tierlog.BadOffset):
                await client.append(name, b"x", expected_offset=1 << 40)

        await call()
        gc.collect()
        gc.disable()
        try:
            for _ in range(50):
                await call()
            # Not none: the loops, the flushes of the store and pytest have some of their own.
            assert gc.collect() < 4 * 50
        finally:
            gc.enable()


async def test_n7_an_older_server_is_used_over_plain_http() -> None:
    with scripted(lambda received: json_answer({"offset": 5})) as server:
        async with tierlog.connect(server.url) as client:
            assert await client.append("a", b"x" * 1_000_000) == 5

    assert server.paths == ["/v1/segments/a/append"]


async def test_n7_a_server_that_refused_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def script(received: Received) -> Any:
        asked.append(received.path)
        return json_answer({"offset": 5})

    monkeypatch.setattr(sessions, "REFUSED_SECONDS", 0.0)
    with scripted(script) as server:
        async with tierlog.connect(server.url) as client:
            first = server.session_requests
            await client.append("a", b"x" * 1_000_000)

        assert (first, server.session_requests) == (1, 2)


async def test_n7_a_client_may_do_without(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url, sessions=False) as client:
        await client.create_segment(name)

    assert relay.sessions == 0


async def test_n7_a_server_that_is_gone_is_reported_as_over_http() -> None:
    with scripted(lambda received: json_answer({})) as server:
        async with tierlog.connect(server.url, deadline=0.3) as client:
            server.stop()
            with pytest.raises(Unavailable, match="Connection refused|attempts to connect"):
                await client.segment_info("a")


# --- broken sessions --------------------------------------------------------------------------------


def _on_first(from_client: bool, kind: Kind, act: Callable[[Passing], list[bytes]]) -> Fault:
    """``act`` on the first such frame behind the map's, once."""
    done = threading.Event()

    def fault(passing: Passing) -> list[bytes]:
        is_meant = passing.from_client is from_client and passing.kind == kind and passing.number > 0
        if not is_meant or done.is_set():
            return [passing.data]
        done.set()
        return act(passing)

    return fault


def _raise(error: type[Exception]) -> Callable[[Passing], list[bytes]]:
    def act(passing: Passing) -> list[bytes]:
        raise error

    return act


def _damaged(passing: Passing) -> list[bytes]:
    return [passing.data[:12] + b"\xff" + passing.data[13:]]


FAULTS: dict[str, Callable[[Passing], list[bytes]]] = {
    "cut": _raise(Cut),
    "half": _raise(CloseHalf),
    "doubled": lambda passing: [passing.data] * 2,
    "damaged": _damaged,
    "exchanged": lambda passing: [struct.pack(">IIIBB", 0, 9, 1, Kind.BODY, 0), passing.data],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("from_client", [True, False], ids=["request", "answer"])
async def test_n6_an_append_with_a_number_is_applied_once_whatever_happens_to_its_frames(
    relay: FrameRelay, name: str, fault: str, from_client: bool
) -> None:
    kind = Kind.REQUEST if from_client else Kind.ANSWER
    async with tierlog.connect(relay.url) as client:
        relay.fault = _on_first(from_client, kind, FAULTS[fault])
        await client.create_segment(name, exist_ok=True)
        for number in range(3):
            await client.append(name, b"%d" % number, writer_id=b"w", event_number=number)

        assert await client.read(name, 0, 100) == b"012"


async def test_n6_a_plain_append_whose_answer_is_lost_has_an_unknown_outcome(
    relay: FrameRelay, name: str
) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        relay.fault = _on_first(False, Kind.ANSWER, _raise(Cut))
        with pytest.raises(OutcomeUnknown, match="the connection broke|closed the connection"):
            await client.append(name, b"x")

        assert await client.append(name, b"y") == 1


async def test_n5_no_call_is_lost_where_the_server_ends_sessions_without_calls(
    url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain appends, whose outcome would be unknown."""
    monkeypatch.setattr(server_session, "IDLE_SECONDS", 0.01)
    async with tierlog.connect(url) as client:
        await client.create_segment(name)
        for number in range(12):
            await anyio.sleep(0.009 + 0.0003 * number)  # about when the server ends the session
            assert await client.append(name, b"x") == number


async def test_n6_a_cancelled_call_leaves_the_session_to_the_others(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        for _ in range(20):
            with anyio.move_on_after(0):
                await client.append(name, b"x")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.poll, name, 1 << 40, 30.0)
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        await client.segment_info(name)

    assert relay.sessions == 1


async def test_n6_a_call_of_a_cancelled_scope_is_not_sent(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        for _ in range(20):
            with anyio.CancelScope() as scope:
                scope.cancel()
                await client.seal_segment(name)
            assert not (await client.segment_info(name)).sealed


async def test_n6_a_session_that_fell_silent_is_not_used_again(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url, deadline=0.5) as client:
        await client.create_segment(name)
        first = relay.sessions
        silent = threading.Event()
        silent.set()
        relay.fault = lambda passing: [] if silent.is_set() else [passing.data]
        with pytest.raises(Unavailable):
            await client.segment_info(name)
        silent.clear()
        relay.fault = whole

        assert (await client.segment_info(name)).length == 0
        assert first < relay.sessions


async def test_n6_a_lost_session_is_opened_anew(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        relay.cut()
        assert (await client.segment_info(name)).length == 0

    assert relay.sessions == 2


async def test_n6_a_tail_goes_on_over_the_next_session(relay: FrameRelay, name: str) -> None:
    async with tierlog.connect(relay.url) as client:
        await client.create_segment(name)
        found = bytearray()

        async def follow() -> None:
            async for block in client.tail(name):
                found.extend(block)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            for number in range(3):
                await client.append(name, b"%d" % number, writer_id=b"w", event_number=number)
                await until(lambda number=number: len(found) == number + 1)
                relay.cut()
            await client.append(name, b"!", writer_id=b"w", event_number=3)
            await client.seal_segment(name)

    assert found == b"012!"


# --- frames -----------------------------------------------------------------------------------------


class Peer:
    """A client's session, and the server's frames as a test makes them."""

    def __init__(self) -> None:
        self.session = ClientSession(lambda: None)
        self.encoder = FrameEncoder()
        self._decoder = FrameDecoder()

    def get(self, path: str, *, is_stream: bool = False) -> Any:
        return self.session.begin(Request("GET", path), lambda: None, is_stream=is_stream)

    def receive(self, call: int, kind: Kind, *parts: Buffer, last: bool = False) -> None:
        self.session.receive(self.encoder.frame(call, kind, parts, last=last))

    def answer(self, call: int, body: bytes, *, last: bool = True) -> None:
        self.receive(call, Kind.ANSWER, *answer_parts(200, [], body), last=last)

    def sent(self) -> list[tuple[int, int, bytes]]:
        frames = self._decoder.feed(b"".join(self.session.take_output()))
        return [(frame.call, frame.kind, frame.payload) for frame in frames]


def test_n5_the_end_of_a_session_names_the_calls_that_were_taken() -> None:
    peer = Peer()
    taken, late = peer.get("/a"), peer.get("/b")
    peer.session.take_output()
    peer.receive(0, Kind.END, *number_parts(1, "the server stops"))

    assert not peer.session.is_open
    assert (late.is_ended, late.is_sent, late.failure) == (True, False, "the server stops")
    assert not taken.is_ended
    peer.answer(1, b"done")
    assert taken.response.body == b"done"


def test_n6_a_call_counts_as_sent_once_its_frame_is_handed_over() -> None:
    peer = Peer()
    first = peer.get("/a")
    peer.session.take_output()
    second = peer.get("/b")
    peer.session.fail("lost")

    assert (first.is_sent, second.is_sent) == (True, False)
    assert first.failure == second.failure == "lost"


def test_n6_a_call_that_ended_before_it_was_sent_is_never_sent() -> None:
    peer = Peer()
    cancelled, late, begun = peer.get("/a"), peer.get("/b"), peer.get("/c")
    peer.session.cancel(cancelled)
    assert [call for call, _, _ in peer.sent()] == [late.id, begun.id]
    peer.session.cancel(begun)
    assert [(call, kind) for call, kind, _ in peer.sent()] == [(begun.id, Kind.CANCEL)]

    assert not cancelled.is_sent
    late = peer.get("/d")
    peer.receive(0, Kind.END, *number_parts(2, "the server stops"))
    assert peer.sent() == []
    assert not late.is_sent


def test_n5_a_call_that_begins_behind_the_end_is_not_sent() -> None:
    peer = Peer()
    peer.receive(0, Kind.END, *number_parts(0, "the server stops"))
    call = peer.get("/a")

    assert (call.is_ended, call.is_sent, call.failure) == (True, False, "the server stops")
    assert peer.sent() == []


def test_n3_a_streams_window_opens_as_its_reader_takes_bytes() -> None:
    peer = Peer()
    call = peer.get("/a", is_stream=True)
    peer.sent()
    peer.answer(1, bytes(STREAM_WINDOW), last=False)
    assert not peer.session.has_output
    assert len(peer.session.take(call)) == STREAM_WINDOW

    assert peer.sent() == [(1, Kind.WINDOW, struct.pack(">I", STREAM_WINDOW))]


def _begin_large(peer: Peer, size: int, begin: bytes = b"") -> None:
    parts = answer_parts(200, [(b"content-length", b"%d" % size)], begin)
    peer.receive(1, Kind.ANSWER, *parts)


@pytest.mark.parametrize("begin", [0, 1000], ids=["head first", "with its begin"])
def test_n3_a_large_answer_is_whole_however_it_comes(begin: int) -> None:
    peer, data = Peer(), os.urandom(LARGE_BYTES)
    call = peer.get("/a")
    _begin_large(peer, len(data), data[:begin])
    peer.receive(1, Kind.BODY, data[begin:30_000])
    peer.receive(1, Kind.BODY, data[30_000:], last=True)

    assert call.is_ended
    assert call.response.body == data


def test_n3_a_large_answer_is_received_where_it_stays() -> None:
    peer, data, shared = Peer(), os.urandom(PIECE_BYTES), memoryview(bytearray(1 << 16))
    call = peer.get("/a")
    frames = [
        peer.encoder.frame(
            1, Kind.ANSWER, answer_parts(200, [(b"content-length", b"%d" % (8 * len(data)))], b"")
        )
    ]
    frames += [peer.encoder.frame(1, Kind.BODY, (data,), last=number == 7) for number in range(8)]
    sent, position = memoryview(b"".join(frames)), 0
    tracemalloc.start()
    while position < len(sent):
        size = min(len(room := peer.session.room(shared)), len(sent) - position)
        room[:size] = sent[position : position + size]
        del room
        position += size
        assert peer.session.filled(shared, size)
    body = call.response.body
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert body == data * 8
    assert peak < 9 * len(data), "it is nowhere else"


@pytest.mark.parametrize("sent", [LARGE_BYTES - 1, LARGE_BYTES + 1])
def test_n3_an_answer_of_another_size_than_its_head_says_ends_the_session(sent: int) -> None:
    peer = Peer()
    peer.get("/a")
    _begin_large(peer, LARGE_BYTES)

    with pytest.raises(InvalidArgument, match="another size"):
        peer.receive(1, Kind.BODY, bytes(sent), last=True)


def test_n3_no_memory_is_taken_for_any_size_that_a_server_names() -> None:
    peer = Peer()
    call = peer.get("/a")
    _begin_large(peer, PLACED_MAX + 1)
    peer.receive(1, Kind.BODY, b"so little", last=True)

    assert call.response.body == b"so little"


def test_n3_an_answer_within_its_window_needs_no_more_of_it() -> None:
    peer = Peer()
    peer.get("/a")
    peer.sent()
    _begin_large(peer, 4 << 20)
    for number in range(16):
        peer.receive(1, Kind.BODY, bytes(256 << 10), last=number == 15)

    assert peer.sent() == []


def test_n6_what_is_on_its_way_of_a_cancelled_calls_body_is_dropped() -> None:
    peer, shared = Peer(), memoryview(bytearray(1 << 16))
    call = peer.get("/a")
    _begin_large(peer, LARGE_BYTES)
    frame = peer.encoder.frame(1, Kind.BODY, (bytes(LARGE_BYTES),), last=True)
    peer.session.receive(frame[:1000])
    peer.session.cancel(call)
    other = peer.get("/b")
    assert peer.session.filled(shared, len(peer.session.room(shared)))
    peer.answer(2, b"next")

    assert other.response.body == b"next"


def test_n6_what_still_comes_of_a_cancelled_call_is_dropped() -> None:
    peer = Peer()
    call = peer.get("/a")
    peer.session.cancel(call)
    peer.answer(1, b"late")

    assert call.pieces == []
    assert peer.session.is_idle


@pytest.mark.parametrize(
    "act",
    [
        lambda peer: peer.answer(2, b""),
        lambda peer: peer.answer(0, b""),
        lambda peer: peer.receive(1, Kind.BODY, b"x"),
        lambda peer: peer.receive(1, Kind.REQUEST),
        lambda peer: peer.receive(1, Kind.CANCEL),
        lambda peer: (peer.answer(1, b"", last=False), peer.answer(1, b"")),
        lambda peer: peer.receive(1, Kind.ANSWER, b"\0"),
        lambda peer: peer.receive(0, Kind.END, b"\0"),
    ],
    ids=["call", "none", "body first", "request", "cancel", "second head", "short answer", "short end"],
)
def test_n1_frames_that_do_not_belong_together_are_refused(act: Callable[[Peer], object]) -> None:
    peer = Peer()
    peer.get("/a")

    with pytest.raises(InvalidArgument):
        act(peer)


def test_n6_ctrl_c_ends_its_call_and_not_the_session(relay: FrameRelay, name: str) -> None:
    with tierlog.connect_sync(relay.url) as client:
        client.create_segment(name)
        relay.fault = _on_first(True, Kind.REQUEST, _interrupting)
        with pytest.raises(KeyboardInterrupt):
            client.poll(name, 0, 30.0)
        assert client.append(name, b"x") == 0

    assert relay.sessions == 1


def _interrupting(passing: Passing) -> list[bytes]:
    os.kill(os.getpid(), signal.SIGINT)
    return [passing.data]


def test_under_asyncio_run_a_refused_append_is_sent_again(tmp_path: Path) -> None:
    """The answer arrives in a callback of the loop, where anyio does not know asyncio unless it runs it."""
    refusals = [Throttled("slow down")]

    async def main() -> int | None:
        async def append_each(items: list[BatchItem]) -> list[Any]:
            return [refusals.pop()] if refusals else await store.append_each(items)

        async with (
            tierlog.open_store(tmp_path / "data", containers=1) as store,
            serving(Wrapped(store, append_each=append_each)) as served,
            tierlog.connect(f"http://127.0.0.1:{served.port}") as client,
        ):
            await client.create_segment("s")
            return await client.append("s", b"x")

    assert asyncio.run(main()) == 0
    assert refusals == []

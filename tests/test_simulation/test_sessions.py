"""Worlds of clients with sessions: the simulator finds nothing, and finds what is planted."""

from __future__ import annotations

from random import Random

import pytest
import trio
import trio.testing
from simulation.fleets.network import Agenda
from simulation.mutants.catalogue import CATALOGUE
from simulation.run import run_seed
from simulation.sessions.middleboxes import FrameFault, UpgradeFilter
from simulation.sessions.streams import ByteStream, StreamOptions
from simulation.sessions.world import FIRST_WITH_ONE_PORT, FIRST_WITH_SESSIONS

from tierlog.actors.gateway.client.sessions import upgrade_request
from tierlog.actors.gateway.wire.session import FrameDecoder, FrameEncoder, Kind
from tierlog.storage_backends.base.errors import TierlogError


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.extended) for first in (20, 40, 60, 80))]
)
def test_worlds_with_sessions_find_nothing(first: int) -> None:
    for seed in range(first, first + (20 if first else 3)):
        verdict = run_seed(FIRST_WITH_SESSIONS + seed)
        assert verdict.violation is None, f"seed {FIRST_WITH_SESSIONS + seed}: {verdict.violation}"
        assert verdict.operations > 50


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.extended) for first in (20, 40))]
)
def test_worlds_with_one_port_find_nothing(first: int) -> None:
    for seed in range(first, first + (20 if first else 2)):
        verdict = run_seed(FIRST_WITH_ONE_PORT + seed)
        assert verdict.violation is None, f"seed {FIRST_WITH_ONE_PORT + seed}: {verdict.violation}"
        assert verdict.operations > 50


@pytest.mark.parametrize("kind", FrameFault.KINDS)
def test_frames_show_what_a_middlebox_did_to_them(kind: str) -> None:
    """And none passes that is not the sender's next one."""
    for chance in range(20):
        fault, encoder, decoder = FrameFault(kind, 3, Random(chance)), FrameEncoder(), FrameDecoder()
        box = UpgradeFilter(bytes, fault)
        head = upgrade_request("http://h0")
        assert box(head[:10]) + box(head[10:]) == head

        sent = [encoder.frame(number, Kind.BODY, [b"%d" % number]) for number in range(10)]
        received: list[bytes] = []
        with pytest.raises(TierlogError):
            for frame in sent:
                passed = box(frame[:5]) + box(frame[5:])
                received += [found.payload for found in decoder.feed(passed)]
        assert fault.shows
        assert received == [b"%d" % number for number in range(len(received))]


def test_what_the_network_holds_arrives_in_order() -> None:
    """Also if it is held for longer meanwhile, or the network heals: within a body nobody could see it."""

    async def run() -> None:
        agenda = Agenda()
        options = StreamOptions(delay=0.001, pieces=9, room=1 << 16)
        stream = ByteStream(agenda, Random(1), options, lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agenda.run)
            stream.hold(1.0)
            stream.send(b"first, ")
            await trio.sleep(0.5)
            stream.hold(1.0)
            stream.send(b"second, ")
            await trio.sleep(0.6)
            assert stream.unread == b""

            await trio.sleep(0.5)
            assert stream.unread == b"first, second, "

            stream.hold(5.0)
            stream.send(b"third, ")
            await trio.sleep(0.5)
            stream.heal()
            stream.send(b"fourth")
            await trio.sleep(10)
            assert stream.unread == b"first, second, third, fourth"
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_middlebox_leaves_plain_http_alone() -> None:
    box = UpgradeFilter(lambda head: b"", lambda rest: b"")
    request = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n1234"

    assert box(request[:7]) + box(request[7:]) + box(b"more") == request + b"more"


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("answers-are-exchanged", 1),
        ("cancelled-calls-are-kept", 1),
        ("waiting-tail-forgets-what-it-was-sent", 1),
        pytest.param("call-that-was-handed-over-is-not-sent", 9, marks=pytest.mark.extended),
        pytest.param("frame-numbers-are-not-checked", 7, marks=pytest.mark.extended),
        pytest.param("window-of-an-answer-is-not-opened", 1, marks=pytest.mark.extended),
        pytest.param("window-of-a-body-is-not-opened", 1, marks=pytest.mark.extended),
        pytest.param("slow-call-never-ends", 1, marks=pytest.mark.extended),
        pytest.param("end-names-no-call", 14, marks=pytest.mark.extended),
        pytest.param("calls-behind-the-end-are-taken", 4, marks=pytest.mark.extended),
        pytest.param("cancelled-call-is-sent", 11, marks=pytest.mark.extended),
        pytest.param("cancel-is-not-heard", 1, marks=pytest.mark.extended),
        pytest.param("lost-connection-ends-no-call", 5, marks=pytest.mark.extended),
        pytest.param("retired-session-takes-calls", 7, marks=pytest.mark.extended),
        pytest.param("cancelled-scope-sends", 2, marks=pytest.mark.extended),
        pytest.param("refusing-server-is-not-asked-again", 1, marks=pytest.mark.extended),
        pytest.param("lost-answer-of-an-owner-counts-as-nothing-done", 27, marks=pytest.mark.extended),
        pytest.param("share-of-a-cancelled-exchange-is-lost", 0, marks=pytest.mark.extended),
    ],
)
def test_a_bug_of_sessions_is_caught(name: str, seed: int) -> None:
    with CATALOGUE[name].planted():
        assert run_seed(CATALOGUE[name].worlds_from + seed).violation

"""Clients that were given several addresses: which one they use, and how they survive the loss of each.

The programs run on a clock of the test's own, against servers that are a table; the last tests are about both
clients on real sockets."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import msgspec
import pytest

import tierlog
from support.client_programs import ProgramDriver
from support.scripted_server import (
    Answer,
    Fault,
    Received,
    ScriptedServer,
    json_answer,
    one_container,
    scripted,
)
from support.sync_client import CONNECTS, KINDS
from tierlog import InvalidArgument, OutcomeUnknown, Unavailable
from tierlog.actors.gateway.client import requests
from tierlog.actors.gateway.client.addresses import ADDRESSES_MAX, check_addresses
from tierlog.actors.gateway.client.attempts import (
    HEAD_START_SECONDS,
    REFRESH_SECONDS,
    ClientContext,
    Send,
    load_first_map,
    refresh_map,
    run_call,
)
from tierlog.actors.gateway.client.container_map import ContainerMapCache
from tierlog.actors.gateway.client.requests import Response, TransportFailure
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap, encode_json
from tierlog.actors.gateway.wire.errors import UnknownHost, to_problem

A, B, C = "http://a:1", "http://b:1", "http://c:1"
ONE, TWO, THREE = "http://one:1", "http://two:1", "http://three:1"
MAP_PATH = requests.container_map().request.path
INFO = {
    "name": "s",
    "segment_id": 1,
    "length": 7,
    "start_offset": 0,
    "sealed": False,
    "attributes": {},
    "flushed_length": 0,
    "container": 0,
}
REFUSED, SILENT = "refused", "silent"


# --- what is an address --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (A, (A,)),
        (f"{A}/,{B}", (A, B)),
        (f" {A} , {B} ", (A, B)),
        ((B, A), (B, A)),
        ([f"{A},{B}", C], (A, B, C)),
        ("https://a,https://a:8470,https://[::1]:1", ("https://a", "https://a:8470", "https://[::1]:1")),
    ],
)
def test_addresses_are_a_text_with_commas_or_a_sequence(given: Any, found: tuple[str, ...]) -> None:
    assert check_addresses(given) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (f"{A},,{B}", "address 2 of 3 is empty"),
        (f"{A},", "address 2 of 2 is empty"),
        ([A, ""], "address 2 of 2 is empty"),
        ([], "no address was given"),
        (",", "not ','"),
        (f"{A},{B},{A}/", f"'{A}' is given twice: leave out one"),
        ("http://a:80,http://A", "'http://A' is given twice, as 'http://a:80' before"),
        (f"{A},https://b:1", "'https://b:1' and 'http://a:1' have different schemes"),
        (f"{A},http://b:99999", "not 'http://b:99999'"),
        (f"{A},http://b:0", "not 'http://b:0'"),
        (f"{A},http://b:x", "not 'http://b:x'"),
        (f"{A},b:1", "not 'b:1'"),
        (f"{A},http://b:1/v1", "has no path: 'http://b:1/v1'"),
        ([A, None], "not None"),
        ([A, [B]], "not \\['http://b:1'\\]"),
        (A.encode(), "not b'http://a:1'"),
        ([f"http://a:{port}" for port in range(1, ADDRESSES_MAX + 2)], "33 addresses were given"),
    ],
)
def test_a_wrong_address_is_named(given: Any, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        check_addresses(given)


def test_no_part_of_a_password_is_shown() -> None:
    with pytest.raises(InvalidArgument, match="without a user name or password") as raised:
        check_addresses("http://b:1x,http://me:hun,ter2@a:1")
    assert "hun" not in str(raised.value)


# --- which address is used -----------------------------------------------------------------------


def entry(index: int, url: str | None, epoch: int | None = None, absence: str = "") -> ContainerAssignment:
    return ContainerAssignment(index, url, epoch, absence)


def map_of(*entries: ContainerAssignment) -> ContainerMap:
    return ContainerMap(1, entries)


ALONE = map_of(entry(0, None, 3))
"""Of a server with all containers."""


class Network(ProgramDriver):
    """Servers by URL: a map, or why there is none. Those with a map answer ``info`` too, unless ``lacks``
    names them: these refuse it, as a host without the container does."""

    def __init__(
        self, servers: dict[str, ContainerMap | str], *addresses: str, deadline: float = 30.0
    ) -> None:
        self.servers = servers
        self.lacks: set[str] = set()
        self.now = 0.0
        self.sent: list[str] = []
        """Where the calls went."""
        self.asked: list[str] = []
        """Who was asked for the map."""
        cache = ContainerMapCache(*addresses)
        self.map = cache
        self.context = ClientContext(cache, deadline, 0.5, lambda: self.now, Random(0))

    def open(self) -> Network:
        self.drive(load_first_map(self.context))
        self.asked.clear()
        return self

    def info(self) -> None:
        assert self.drive(run_call(self.context, requests.segment_info("s"))).length == 7

    def refresh(self) -> list[str]:
        self.asked.clear()
        self.drive(refresh_map(self.context, 10))
        return self.asked

    def _send(self, effect: Send) -> Response | TransportFailure:
        is_map = effect.request.path == MAP_PATH
        (self.asked if is_map else self.sent).append(effect.url)
        return self._answer(effect, is_map)

    def _answer(self, send: Send, is_map: bool) -> Response | TransportFailure:
        found = self.servers.get(send.url, REFUSED)
        where = f"{send.request.method} {send.url}{send.request.path}"
        if found == SILENT:
            self.now += send.seconds
            return TransportFailure(sent=True, reason=f"{where}: no answer in time")
        if isinstance(found, str):
            return TransportFailure(sent=False, reason=f"{where}: Connection {found}")
        if is_map:
            return Response(200, {}, encode_json(found))
        if send.url in self.lacks:
            made = to_problem(tierlog.NotOwner("another host has it"))
            return Response(
                made.status, {key.lower(): text for key, text in made.headers.items()}, made.body()
            )
        return Response(200, {}, json_answer(INFO).body)


@pytest.mark.parametrize(("first", "seconds"), [(REFUSED, 0.0), (SILENT, HEAD_START_SECONDS)])
def test_h21_an_opening_goes_on_to_the_next_address_after_a_head_start(first: str, seconds: float) -> None:
    network = Network({A: first, B: ALONE}, A, B).open()
    assert (network.map.base, network.now) == (B, seconds)


def test_an_opening_gives_slow_servers_more_time_with_each_round() -> None:
    network = Network({}, A, B)
    network.servers = {A: SILENT, B: SILENT}
    with pytest.raises(Unavailable, match="any of 2 addresses"):
        network.drive(load_first_map(network.context))
    assert network.now <= 5.0
    # 0.25 s each, 0.5 s each, 1 s each, and what is left.
    assert len(network.asked) in (6, 7, 8)


def test_the_error_of_an_opening_has_the_reason_of_each_address_in_one_bounded_line() -> None:
    network = Network({A: SILENT, B: REFUSED}, A, B)
    with pytest.raises(Unavailable) as raised:
        network.drive(load_first_map(network.context))
    assert f"{A} (no answer in time); {B} (Connection refused); check the URLs" in str(raised.value)

    many = [f"http://{'a' * 200}{index}:1" for index in range(ADDRESSES_MAX)]
    with pytest.raises(Unavailable) as raised:
        network = Network({}, *many)
        network.drive(load_first_map(network.context))
    assert len(str(raised.value)) < 2300
    assert "\n" not in str(raised.value)


def test_h3_an_opening_ends_at_once_only_if_all_answers_are_final() -> None:
    """A page in place of one address says nothing about the others."""
    network = Network({A: map_of(), B: SILENT}, A, B)
    foreign = Response(404, {"content-type": "text/html"}, b"<html>")
    plain = network._answer
    network._answer = lambda send, is_map: foreign if send.url == A else plain(send, is_map)  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match=r"http://a:1 \(.*404.*; http://b:1 \(no answer"):
        network.drive(load_first_map(network.context))
    assert network.now > 1.0

    network = Network({}, A, B)
    network._answer = lambda send, is_map: foreign  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="404"):
        network.drive(load_first_map(network.context))
    assert network.now == 0.0


def test_h18_servers_that_all_refuse_their_names_are_not_silent() -> None:
    made = to_problem(UnknownHost("'a' is not a name of this server"))
    refusal = Response(made.status, {key.lower(): text for key, text in made.headers.items()}, made.body())
    network = Network({}, A, B)
    network._answer = lambda send, is_map: refusal  # type: ignore[method-assign]
    with pytest.raises(UnknownHost):
        network.drive(load_first_map(network.context))


def test_h21_a_call_whose_address_is_gone_goes_to_the_next_one_at_once() -> None:
    network = Network({A: ALONE, B: ALONE}, A, B).open()
    network.servers[A] = REFUSED
    network.info()
    assert (network.sent, network.now) == ([A, B], 0.0)
    assert network.map.assignments == ALONE.containers, "the map is kept"


def test_an_address_that_comes_back_is_used_when_the_others_are_gone() -> None:
    network = Network({A: ALONE, B: ALONE}, A, B).open()
    network.servers[A] = REFUSED
    network.info()
    network.servers |= {A: ALONE, B: REFUSED}
    network.info()
    assert network.sent == [A, B, B, A]


def test_the_loss_of_two_of_three_addresses_is_survived() -> None:
    network = Network({A: ALONE, B: ALONE, C: ALONE}, A, B, C).open()
    network.servers |= {A: REFUSED, B: SILENT}
    network.info()
    assert network.sent == [A, C]
    assert network.now == REFRESH_SECONDS


def test_a_call_that_no_address_answers_has_all_reasons() -> None:
    network = Network({A: ALONE, B: ALONE}, A, B, deadline=1.0).open()
    network.servers = {}
    with pytest.raises(Unavailable) as raised:
        network.info()
    assert f"none of the addresses answers: {A} (Connection refused); {B} (Connection refused)" in str(
        raised.value
    )


def test_the_owners_are_used_when_all_addresses_are_gone() -> None:
    """They were learned from the map, and know of each other."""
    known = map_of(entry(0, TWO, 5), entry(1, ONE, 5))
    network = Network({A: known, B: known, ONE: known, TWO: known}, A, B, deadline=5.0).open()
    moved = map_of(entry(0, TWO, 5), entry(1, TWO, 6))
    network.servers = {TWO: moved}
    network.info()
    assert network.sent == [ONE, TWO]


# --- whose word counts ---------------------------------------------------------------------------


def test_a_supervisor_is_preferred_to_a_host_that_was_given_before_it() -> None:
    """A host knows the others at second hand only."""
    host = map_of(entry(0, ONE, 5), entry(1, TWO))
    supervisor = map_of(entry(0, ONE, 5), entry(1, THREE, 8))
    network = Network({ONE: host, A: supervisor}, ONE, A).open()
    assert (network.map.base, network.map.url_of(1)) == (A, THREE)
    assert network.refresh() == [A]


def test_h21_the_map_survives_the_supervisor_behind_a_host_that_knows_less() -> None:
    supervisor = map_of(entry(0, ONE, 5), entry(1, THREE, 8))
    stale = map_of(entry(0, ONE, 5), entry(1, TWO))
    network = Network({A: supervisor, ONE: stale}, A, ONE).open()
    network.servers[A] = REFUSED
    network.refresh()
    network.refresh()
    assert (network.map.base, network.map.url_of(1)) == (ONE, THREE)
    network.servers[ONE] = map_of(entry(0, ONE, 5), entry(1, B))
    network.refresh()
    assert network.map.url_of(1) == B, "what it learned since counts"


def test_h21_an_owner_that_only_another_host_names_is_found() -> None:
    """The supervisor is gone, and so is the owner that it named. A host that was given knows of the new
    one."""
    network = Network({A: map_of(entry(0, TWO, 5)), ONE: map_of(entry(0, THREE))}, A, ONE).open()
    network.servers |= {A: REFUSED, THREE: map_of(entry(0, THREE, 6))}
    network.info()
    assert network.sent[-1] == THREE
    assert network.map.assignments[0].epoch == 6


def test_a_host_that_is_wrong_about_the_owner_is_not_believed_twice() -> None:
    """Only the owner itself knows better, and was given as the last one."""
    wrong, right = map_of(entry(0, TWO)), map_of(entry(0, THREE, 6))
    network = Network({ONE: wrong, TWO: wrong, THREE: right}, ONE, TWO, THREE)
    network.lacks = {ONE, TWO}
    network.open().info()
    assert network.sent == [THREE]


class Refusing(Network):
    """``A`` answers, and does nothing."""

    def _answer(self, send: Send, is_map: bool) -> Response | TransportFailure:
        if is_map or send.url != A:
            return super()._answer(send, is_map)
        made = to_problem(Unavailable("nothing was done"))
        return Response(made.status, {key.lower(): text for key, text in made.headers.items()}, made.body())


def test_h21_a_supervisor_that_has_lost_its_hosts_to_another_one_is_left() -> None:
    """It is cut off from the bucket, and does not learn of its successor."""
    network = Refusing({A: map_of(entry(0, ONE, 7)), ONE: map_of(entry(0, ONE, 7))}, A, B).open()
    network.info()
    taken = map_of(entry(0, TWO, 9))
    network.servers = {A: map_of(entry(0, None, None, "container 0 is unassigned")), B: taken, TWO: taken}
    network.info()
    assert (network.sent[-1], network.map.base, network.now < 3.0) == (TWO, B, True)


def test_an_address_that_is_gone_hardly_delays_a_call_that_waits_for_a_failover() -> None:
    network = Refusing({A: map_of(entry(0, None, None, "it is being opened")), B: SILENT}, A, B).open()
    network.map.asks_all = True
    assert network.refresh() == [B, A]
    assert (network.map.base, network.now) == (A, HEAD_START_SECONDS)


def test_h22_a_host_that_passes_requests_on_to_owners_of_before_is_left() -> None:
    """It is cut off from its supervisor. In one-port mode no map names another host."""
    network = Refusing({A: map_of(entry(0, None)), B: map_of(entry(0, None, 9))}, A, B).open()
    network.map.use_base(A)
    network.info()
    assert (network.sent[-1], network.map.base, network.now < 3.0) == (B, B, True)


def test_a_server_of_another_store_is_no_address_of_this_one() -> None:
    network = Network({A: ALONE, B: map_of(entry(0, None, 1), entry(1, None, 1))}, A, B, deadline=1.0).open()
    network.servers[A] = REFUSED
    with pytest.raises(Unavailable, match=r"http://b:1 \(it serves another store, which has 2 containers"):
        network.info()
    assert set(network.sent) == {A}


@pytest.mark.parametrize("first", ["11" * 16, ""])
def test_h21_a_server_of_another_store_with_as_many_containers_is_no_address_either(first: str) -> None:
    """The first one that names its store decides; one of an earlier version names none."""
    ours, other = (msgspec.structs.replace(ALONE, store=text * 16) for text in ("11", "22"))
    network = Network({A: msgspec.structs.replace(ALONE, store=first), B: ours, C: other}, A, B, C).open()
    network.servers[A] = REFUSED
    network.info()
    network.servers[B] = REFUSED
    with pytest.raises(Unavailable, match=r"http://c:1 \(it serves another store, 2222"):
        network.info()
    assert C not in network.sent


def test_requests_to_an_address_that_was_given_up_are_pointless() -> None:
    """It froze: only the map shows that it is not used any more."""
    network = Network({A: ALONE, B: ALONE}, A, B).open()
    assert not network.map.has_moved((0,), A)
    network.servers[A] = SILENT
    network.refresh()
    assert network.map.has_moved((0,), A)
    assert not network.map.has_moved((0,), B)


# --- on real sockets -----------------------------------------------------------------------------

Connect = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CONNECTS[request.param]


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def appended(received: Received) -> Answer:
    return json_answer({"results": [3]} if received.path == "/v1/batch" else {"offset": 3})


def breaks(received: Received) -> str:
    return Fault.RESET


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_a_client_opens_at_the_second_address(connect: Connect, nobody: str) -> None:
    with scripted(appended) as server:
        async with connect(f"{nobody},{server.url}") as client:
            assert await client.append("s", b"x") == 3
        async with connect([server.url, nobody]) as client:
            assert await client.append("s", b"x") == 3


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_an_address_dies_in_the_middle(connect: Connect) -> None:
    """A plain append that was not sent is sent to the next one; nothing is opened anew."""
    with ScriptedServer(appended).running() as first, scripted(appended) as second:
        async with connect([first.url, second.url]) as client:
            assert await client.append("s", b"x") == 3
            first.stop()
            assert await client.append("s", b"x", writer_id="w", event_number=1) == 3
            assert await client.append("s", b"x") == 3
    assert (len(first.received), len(second.received)) == (1, 2)


@pytest.mark.anyio
@pytest.mark.one_loop
async def test_an_append_that_may_be_applied_goes_to_the_next_address_only_with_a_number(
    connect: Connect,
) -> None:
    with ScriptedServer(breaks).running() as first, scripted(appended) as second:
        first.map = one_container()
        async with connect([first.url, second.url]) as client:
            with pytest.raises(OutcomeUnknown):
                await client.append("s", b"x")
            assert second.received == []

            def dies(received: Received) -> str:
                first.stop()
                return Fault.RESET

            first.script = dies
            assert await client.append("s", b"x", writer_id="w", event_number=1) == 3
    assert len(second.received) == 1

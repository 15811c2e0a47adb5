"""Everything that can go wrong between a client and a server, each on a real socket, for both clients.

The sync client runs in the test's own thread, the async one on both event loops: ``Door`` makes their calls
look alike.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

import tierlog
from support.patience import scaled
from support.scripted_server import (
    Answer,
    Fault,
    Received,
    ScriptedServer,
    json_answer,
    one_container,
    problem,
    script_of,
    scripted,
)
from support.service import service
from support.short_deadlines import error_of, hurried_client
from support.sync_client import connect_in_thread
from tierlog import BadOffset, OutcomeUnknown, SegmentExists, Throttled, Unavailable
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap
from tierlog.actors.gateway.wire.errors import OwnedElsewhere

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

Connect = Callable[..., AbstractAsyncContextManager[Any]]


@pytest.fixture(params=["async", "sync"])
def connect(request: pytest.FixtureRequest) -> Connect:
    return tierlog.connect if request.param == "async" else connect_in_thread


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
OFFSET = json_answer({"offset": 3})
ONE = json_answer({"results": [3]})


def appended(received: Received) -> Answer:
    """A success, in the form that was asked in."""
    return ONE if received.path == "/v1/batch" else OFFSET


def then(*acts: Answer | str) -> Callable[[Received], Answer | str]:
    """These, and successes of appends afterwards."""
    return lambda received: acts[received.number] if received.number < len(acts) else appended(received)


def reading(*acts: Answer | str) -> Callable[[Received], Answer | str]:
    return script_of(*acts, json_answer(INFO))


HTML = Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
CUT = Answer(200, b'{"offset": 3}', {"Content-Type": "application/json"}, cut=5)
NONSENSE = json_answer(["what?"])
PAGE = Answer(200, b"<html>Welcome</html>", {"Content-Type": "text/html"})
INTERNAL = problem(RuntimeError("a bug"))
LOSSES: dict[str, Answer | str] = {
    "reset": Fault.RESET,
    "closed": Fault.CLOSE,
    "cut": CUT,
    "proxy": HTML,
    "nonsense": NONSENSE,
    "page": PAGE,
    "bug": INTERNAL,
}


# --- reads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES.keys() - {"nonsense"}))
async def test_a_read_survives_every_loss(connect: Connect, loss: str) -> None:
    with scripted(reading(LOSSES[loss], LOSSES[loss])) as server:
        async with connect(server.url) as client:
            assert (await client.segment_info("s")).length == 7

    assert server.paths == ["/v1/segments/s/info"] * 3


async def test_a_read_does_not_repeat_an_answer_of_another_form(connect: Connect) -> None:
    with scripted(script_of(NONSENSE)) as server:
        async with connect(server.url) as client:
            with pytest.raises(Unavailable, match="malformed: Expected `object`, got `array`"):
                await client.segment_info("s")

    assert len(server.received) == 1


async def test_a_read_gives_up_at_its_deadline_with_the_reason(connect: Connect) -> None:
    with scripted(script_of(HTML)) as server:
        async with hurried_client(connect, server.url, 0.5) as client:
            error = await error_of(lambda: client.segment_info("s"), lambda: len(server.received), least=2)

    assert isinstance(error, Unavailable)
    assert "502" in str(error)


async def test_h3_a_permanent_foreign_answer_is_raised_at_once(connect: Connect) -> None:
    with scripted(script_of(Answer(403, b"no", {"Content-Type": "text/plain"}))) as server:
        async with connect(server.url) as client:
            with pytest.raises(Unavailable, match="403"):
                await client.segment_info("s")
            with pytest.raises(OutcomeUnknown, match="403"):
                await client.append("s", b"x", writer_id="w", event_number=1)

    assert len(server.received) == 2


async def test_a_silent_server_costs_a_call_its_deadline_and_no_more(connect: Connect) -> None:
    with scripted(script_of(Fault.SILENCE)) as server:
        async with hurried_client(connect, server.url, 0.2) as client:
            for call, outcome in (
                (lambda: client.segment_info("s"), Unavailable),
                (lambda: client.append("s", b"x"), OutcomeUnknown),
                (lambda: client.delete_segment("s"), OutcomeUnknown),
            ):
                assert type(await error_of(call, lambda: len(server.received))) is outcome
        server.release()


async def test_bytes_other_than_the_requested_ones_are_never_returned(connect: Connect) -> None:
    wrong = Answer(206, b"abc", {"Content-Range": "bytes 5-7/9"})
    right = Answer(206, b"abc", {"Content-Range": "bytes 4-6/9"})
    with scripted(script_of(wrong, Answer(206, b"abc", {}), right)) as server:
        async with connect(server.url) as client:
            assert await client.read("s", 4, 10) == b"abc"


# --- appends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
async def test_a_plain_append_that_may_be_applied_is_not_sent_twice(
    connect: Connect, loss: Answer | str
) -> None:
    with scripted(then(loss)) as server:
        async with connect(server.url) as client:
            with pytest.raises(OutcomeUnknown):
                await client.append("s", b"x")
            assert await client.append("s", b"x") == 3

    assert len(server.received) == 2


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
async def test_a_numbered_append_and_a_conditional_one_are_sent_until_they_are_answered(
    connect: Connect, loss: Answer | str
) -> None:
    for named in ({"writer_id": "w", "event_number": 1}, {"expected_offset": 3}):
        with scripted(then(loss, loss)) as server:
            async with connect(server.url) as client:
                assert await client.append("s", b"x", **named) == 3

        assert len(server.received) == 3
        assert len({received.body for received in server.received}) == 1


def refused(error: tierlog.TierlogError) -> Callable[[Received], Answer]:
    """An answer in the form that was asked in."""

    def answer(received: Received) -> Answer:
        document = problem(error)
        return (
            Answer(200, b'{"results": [' + document.body + b"]}", {"Content-Type": "application/json"})
            if received.path == "/v1/batch"
            else document
        )

    return answer


@pytest.mark.parametrize(
    "length, reported", [(2, OutcomeUnknown), (6, BadOffset), (7, OutcomeUnknown), (100, OutcomeUnknown)]
)
async def test_a_bad_offset_after_a_lost_reply_is_raised_only_if_it_proves_no_effect(
    connect: Connect, length: int, reported: type[Exception]
) -> None:
    """4 bytes at offset 3: only a segment of at least 7 bytes can hold them, and one of 2 may grow up to them
    before the request without a reply arrives."""
    bad = refused(BadOffset("x", segment="s", expected=length, given=3))
    with scripted(lambda received: bad(received) if received.number else Fault.RESET) as server:
        async with connect(server.url) as client:
            with pytest.raises(reported):
                await client.append("s", b"1234", expected_offset=3)


async def test_a_creation_that_may_find_the_segment_is_sent_until_it_is_answered(connect: Connect) -> None:
    with scripted(script_of(Fault.RESET, Answer(201, b"{}", {"Content-Type": "application/json"}))) as server:
        async with connect(server.url) as client:
            await client.create_segment("s", exist_ok=True)

    assert [json.loads(request.body) for request in server.received] == [{"exist_ok": True}] * 2


async def test_a_creation_after_a_lost_reply_may_be_another_clients(connect: Connect) -> None:
    with scripted(script_of(Fault.RESET, problem(SegmentExists("x", segment="s")))) as server:
        async with connect(server.url) as client:
            with pytest.raises(OutcomeUnknown, match="x"):
                await client.create_segment("s")
            with pytest.raises(SegmentExists):
                await client.create_segment("s")


@pytest.mark.parametrize(
    "verb",
    [
        lambda c: c.delete_segment("s"),
        lambda c: c.truncate_segment("s", 3),
        lambda c: c.merge_segments("s", ["s#1"]),
        lambda c: c.update_attributes("s", [tierlog.AttributeUpdate("a", 1)]),
        lambda c: c.expire_writers("s", ["w"]),
    ],
)
async def test_other_changes_are_not_sent_twice(
    connect: Connect, verb: Callable[[Any], Awaitable[object]]
) -> None:
    with scripted(script_of(Fault.RESET)) as server:
        async with connect(server.url) as client:
            with pytest.raises(OutcomeUnknown):
                await verb(client)

    assert len(server.received) == 1


async def test_the_client_waits_as_long_as_a_throttling_server_asks(connect: Connect) -> None:
    throttled = problem(Throttled("slow down"))
    with scripted(then(throttled, throttled)) as server:
        async with connect(server.url) as client:
            begun = anyio.current_time()
            assert await client.append("s", b"x") == 3
            assert anyio.current_time() - begun >= 0.2

    assert len(server.received) == 3


async def test_backpressure_beyond_the_deadline_is_raised_at_once(connect: Connect) -> None:
    busy = Answer(429, b"", {"Retry-After": "60"})
    with scripted(script_of(problem(Throttled("x")), busy)) as server:
        async with connect(server.url) as client:
            with pytest.raises(Unavailable, match="429"):
                await client.segment_info("s")


# --- opening ------------------------------------------------------------------------------------


@pytest.fixture
def nobody() -> Iterator[str]:
    """A URL at which nothing listens. The port is taken: no other process can begin to listen at it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


async def test_an_unreachable_url_is_reported_soon(connect: Connect, nobody: str) -> None:
    with pytest.raises(Unavailable, match=f"no tierlog server answers at {nobody}"):
        async with connect(nobody, deadline=scaled(0.2)):
            pass


async def test_h3_a_foreign_server_is_recognised_at_once(connect: Connect) -> None:
    with scripted(script_of(Answer(404, b"<html>", {"Content-Type": "text/html"}))) as server:
        server.map = None
        with pytest.raises(Unavailable, match="no tierlog server answers at .*404"):
            async with connect(server.url):
                pass

    assert len(server.received) == 1


async def test_h18_a_server_that_refuses_its_name_is_not_one_that_does_not_answer(
    connect: Connect, tmp_path: Path
) -> None:
    words = r"^'0\.0\.0\.0.*' is not a name of this server"
    with service(tmp_path) as url, pytest.raises(tierlog.InvalidArgument, match=words):
        async with connect(url.replace("127.0.0.1", "0.0.0.0")):
            pass


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8470",
        "ftp://x",
        "http://",
        "http://x:0",
        "http://x:99999",
        "http://x/?a=b",
        "http://u:p@x",
        None,
        7,
    ],
)
async def test_a_malformed_url_is_refused(connect: Connect, url: Any) -> None:
    with pytest.raises(tierlog.InvalidArgument, match="http://"):
        async with connect(url):
            pass


@pytest.mark.parametrize("deadline", [0, -1, float("nan"), float("inf"), "1", None, True])
async def test_a_deadline_is_a_number_of_seconds(connect: Connect, deadline: Any) -> None:
    with pytest.raises(tierlog.InvalidArgument, match="deadline"):
        async with connect("http://127.0.0.1:1", deadline=deadline):
            pass


# --- owners -------------------------------------------------------------------------------------


def map_of(*urls: str | None, epoch: int = 1) -> ContainerMap:
    return ContainerMap(1, tuple(ContainerAssignment(index, url, epoch) for index, url in enumerate(urls)))


async def test_calls_go_to_the_owner_and_follow_it_when_it_moves(connect: Connect) -> None:
    elsewhere = problem(tierlog.NotOwner("not here"))
    with (
        scripted(script_of(elsewhere)) as old,
        scripted(then()) as new,
        scripted(script_of(HTML)) as supervisor,
    ):
        supervisor.map = map_of(old.url)

        def moves(received: Received) -> Answer:
            supervisor.map = map_of(new.url, epoch=2)
            return elsewhere

        old.script = moves
        async with connect(supervisor.url) as client:
            assert await client.append("s", b"x") == 3

    assert (len(old.received), len(new.received), len(supervisor.received)) == (1, 1, 0)


async def test_a_named_owner_is_asked_without_a_map_refresh(connect: Connect) -> None:
    with scripted(then()) as new, scripted(script_of(Fault.RESET)) as old:
        old.map = map_of(old.url)
        old.script = script_of(problem(OwnedElsewhere("there", owner=new.url)))
        async with connect(old.url) as client:
            generation = old.map_requests
            assert await client.append("s", b"x") == 3
            assert old.map_requests == generation


async def test_a_redirect_loop_ends_at_the_deadline(connect: Connect) -> None:
    with scripted(script_of(HTML)) as one, scripted(script_of(HTML)) as two:
        one.map = map_of(one.url)
        one.script = script_of(problem(OwnedElsewhere("there", owner=two.url)))
        two.script = script_of(problem(OwnedElsewhere("there", owner=one.url)))
        two.map = None
        deadline, most = 0.5, 0

        def requests() -> int:
            return len(one.received) + len(two.received)

        async with hurried_client(connect, one.url, deadline) as client:

            async def append() -> None:
                nonlocal most
                before = requests()
                try:
                    await client.append("s", b"x")
                finally:
                    most = max(most, requests() - before)

            error = await error_of(append, requests, least=2)
            assert most < 120 * deadline

    # The deadline may strike while one more attempt is under way; then nobody knows.
    assert isinstance(error, (Unavailable, OutcomeUnknown))
    assert re.search("no owner answered|last failure was: there|no answer in time|timed out", str(error))


async def test_a_lost_host_is_replaced_by_the_one_in_the_map(connect: Connect, nobody: str) -> None:
    with scripted(then()) as new, scripted(script_of(HTML)) as supervisor:
        supervisor.map = map_of(nobody)
        async with connect(supervisor.url) as client:
            supervisor.map = map_of(new.url, epoch=2)
            assert await client.append("s", b"x") == 3


async def test_a_missing_supervisor_is_tolerated(connect: Connect) -> None:
    """Hosts know the map too."""
    with (
        scripted(then()) as new,
        scripted(script_of(problem(tierlog.NotOwner("x")))) as old,
        ScriptedServer(script_of(HTML)).running() as supervisor,
    ):
        supervisor.map = map_of(old.url)
        old.map = map_of(new.url, epoch=2)
        async with connect(supervisor.url) as client:
            supervisor.stop()
            assert await client.append("s", b"x") == 3


async def test_a_redirect_refreshes_the_map(connect: Connect) -> None:
    with scripted(then()) as owner, scripted(script_of(HTML)) as supervisor:
        supervisor.map = map_of(None)

        def redirects(received: Received) -> Answer:
            supervisor.map = map_of(owner.url)
            return Answer(307, b"", {"Location": owner.url + received.path})

        supervisor.script = redirects
        async with connect(supervisor.url) as client:
            assert await client.append("s", b"x") == 3


@pytest.mark.parametrize("count", [1, 2])
async def test_appends_without_an_owner_fail_with_the_reason_in_the_map(connect: Connect, count: int) -> None:
    """A supervisor refuses every batch, whatever is wrong with the container. Its pause is longer than the
    deadline: otherwise the deadline could end the last attempt, whose outcome would be unknown."""
    why = "container 0 is fenced: another owner opened it"
    refused = problem(tierlog.NotOwner("the supervisor serves no container"))
    document = {**json.loads(refused.body), "retry_after": 86_400}
    refusal = attrs.evolve(refused, body=json.dumps(document).encode())
    with scripted(script_of(refusal)) as supervisor:
        supervisor.map = ContainerMap(1, (ContainerAssignment(0, None, None, why),))
        async with connect(supervisor.url, deadline=scaled(30)) as client:
            outcomes = await client.append_each([tierlog.BatchItem("s", b"x")] * count)

    for outcome in outcomes:
        assert isinstance(outcome, Unavailable)
        assert why in str(outcome)
        assert "serves no container" not in str(outcome)


CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "append": lambda client: client.append("s", b"x"),
    "two appends": lambda client: client.append_each([tierlog.BatchItem("s", b"x")] * 2),
    "large append": lambda client: client.append("s", b"x" * (300 << 10)),
    "numbered append": lambda client: client.append("s", b"x", writer_id=b"w", event_number=1),
    "seal": lambda client: client.seal_segment("s"),
    "info": lambda client: client.segment_info("s"),
    "list": lambda client: client.list_segments(),
    "flush": lambda client: client.flush(),
}


def supervisor_refuses(received: Received) -> Answer:
    """As a supervisor does while no host has the container."""
    if received.path.startswith("/v1/segments/"):
        return problem(Unavailable("container 0 is fenced"))

    return problem(tierlog.NotOwner("the supervisor serves no container"))


@pytest.mark.parametrize("call", CALLS)
async def test_calls_to_a_container_that_only_an_operator_opens_fail_at_once(
    connect: Connect, call: str
) -> None:
    """V3, V8: and only if a map says so that is newer than the refusal."""
    why = "container 0 is fenced; once the cause is removed, `tierlog container open 0` opens it again"
    with scripted(supervisor_refuses) as supervisor:
        supervisor.map = map_of(None)
        async with connect(supervisor.url, deadline=scaled(10)) as client:
            supervisor.map = ContainerMap(1, (ContainerAssignment(0, None, None, why, is_withheld=True),))
            try:
                error, *_ = await CALLS[call](client)  # type: ignore[misc]
            except Unavailable as raised:
                error = raised

    assert isinstance(error, Unavailable)
    assert str(error) == why
    assert len(supervisor.received) <= 2


async def test_a_container_that_an_operator_opened_is_found_behind_an_older_map(connect: Connect) -> None:
    with scripted(then()) as owner, scripted(supervisor_refuses) as supervisor:
        supervisor.map = ContainerMap(1, (ContainerAssignment(0, None, None, "fenced", is_withheld=True),))
        async with connect(supervisor.url) as client:
            supervisor.map = map_of(owner.url)
            assert await client.append("s", b"x") == 3


async def test_a_map_of_another_store_is_ignored(connect: Connect) -> None:
    with scripted(then()) as owner, scripted(script_of(HTML)) as supervisor:
        supervisor.map = map_of(owner.url)
        async with connect(supervisor.url) as client:
            supervisor.map = one_container(5, supervisor.url)
            owner.script = then(problem(tierlog.NotOwner("x")))
            assert await client.append("s", b"x") == 3

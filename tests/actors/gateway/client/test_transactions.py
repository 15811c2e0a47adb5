"""Transactions between a client and servers that fail: what is resent, and which error follows a lost
reply (rule H17)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

import tierlog
from support.scripted_server import Act, Answer, Fault, Received, json_answer, problem, script_of, scripted
from support.service import service
from support.short_deadlines import error_of, hurried_client
from support.sync_client import CONNECTS, KINDS
from tierlog import (
    BadOffset,
    CommitResult,
    OutcomeUnknown,
    SegmentNotFound,
    StagedPart,
    TransactionEnded,
    TransactionNotFound,
)
from tierlog.actors.gateway.wire.bodies import ContainerAssignment, ContainerMap, Transactions, encode_json
from tierlog.actors.gateway.wire.errors import OwnedElsewhere
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.base.transactions import TransactionInfo, TransactionState, TransactionToken

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

Connect = Callable[..., AbstractAsyncContextManager[Any]]
Verb = Callable[[Any], Awaitable[object]]


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Connect:
    return CONNECTS[request.param]


def info(
    target: str = "s", transaction: str = "t", state: TransactionState = TransactionState.OPEN
) -> TransactionInfo:
    return TransactionInfo(transaction, target, state, None, 60.0, 59.0, "", None, 0)


INFO = Answer(200, encode_json(info()))
VERBS: dict[str, tuple[Verb, Answer]] = {
    "begin-transaction": (lambda c: c.begin_transaction("s", "t", token=TransactionToken("w", 1)), INFO),
    "stage-segment": (lambda c: c.stage_segment("s", "t", "p"), json_answer({"segment": "s#txn.t.p"})),
    "commit-transaction": (
        lambda c: c.commit_transaction("s", "t", [StagedPart("s#txn.t.p", 1)]),
        json_answer({"applied": False, "offset": 0, "length": 1}),
    ),
    "abort-transaction": (lambda c: c.abort_transaction("s", "t", reason="x"), INFO),
    "transaction-info": (lambda c: c.transaction_info("s", "t"), INFO),
}
HTML = Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
LOSSES: tuple[Act, ...] = (
    Fault.RESET,
    Fault.CLOSE,
    HTML,
    problem(OutcomeUnknown("the owner stopped")),
)
CHANGING = [name for name in VERBS if name != "transaction-info"]


@pytest.mark.parametrize("name", VERBS)
async def test_every_verb_is_sent_until_it_is_answered(connect: Connect, name: str) -> None:
    verb, success = VERBS[name]
    malformed = [json_answer(["what?"])] if name in CHANGING else []
    losses = (*LOSSES, *malformed)
    with scripted(script_of(*losses, success)) as server:
        async with connect(server.url) as client:
            await verb(client)

    assert len(server.received) == len(losses) + 1
    assert {received.path.partition("?")[0] for received in server.received} == {f"/v1/segments/s/{name}"}
    assert len({received.body for received in server.received}) == 1


@pytest.mark.parametrize("name", CHANGING)
async def test_giving_up_after_a_lost_reply_has_an_unknown_outcome(connect: Connect, name: str) -> None:
    verb, _ = VERBS[name]
    with scripted(script_of(Fault.RESET)) as server:
        async with hurried_client(connect, server.url, 0.2) as client:
            error = await error_of(lambda: verb(client), lambda: len(server.received))

    assert isinstance(error, OutcomeUnknown)


@pytest.mark.parametrize("name", VERBS)
async def test_a_refusal_arrives_unchanged(connect: Connect, name: str) -> None:
    verb, _ = VERBS[name]
    ended = problem(TransactionEnded("it was aborted: the job failed", segment="s", state="aborted"))
    with scripted(script_of(problem(TransactionNotFound("nobody knows it", segment="s")), ended)) as server:
        async with connect(server.url) as client:
            with pytest.raises(TransactionNotFound, match="nobody knows it"):
                await verb(client)
            with pytest.raises(TransactionEnded, match="the job failed") as caught:
                await verb(client)

    assert (caught.value.segment, caught.value.state) == ("s", "aborted")


@pytest.mark.parametrize(
    "error, reported",
    [
        (TransactionEnded("x", segment="s", state="aborted"), TransactionEnded),
        (BadOffset("x", segment="s", expected=1, given=2), BadOffset),
        (TransactionNotFound("x", segment="s"), OutcomeUnknown),
        (SegmentNotFound("x", segment="s"), OutcomeUnknown),
    ],
)
async def test_a_refused_commit_after_a_lost_reply_is_raised_only_if_it_proves_no_effect(
    connect: Connect, error: tierlog.TierlogError, reported: type[Exception]
) -> None:
    """A commit may have been applied before its target was deleted, and then nobody knows the transaction."""
    with scripted(script_of(Fault.RESET, problem(error))) as server:
        async with connect(server.url) as client:
            with pytest.raises(reported):
                await VERBS["commit-transaction"][0](client)


@pytest.mark.parametrize("name", VERBS)
async def test_h13_a_verb_goes_to_the_owner_of_its_target(connect: Connect, name: str) -> None:
    verb, success = VERBS[name]
    with scripted(script_of(success)) as owner, scripted(script_of(Fault.RESET)) as old:
        old.map = ContainerMap(1, (ContainerAssignment(0, old.url, 1),))
        old.script = script_of(problem(OwnedElsewhere("there", owner=owner.url)))
        async with connect(old.url) as client:
            await verb(client)

    assert (len(old.received), len(owner.received)) == (1, 1)


# --- a real server, whose first reply to each request is lost -----------------------------------


def losing_first_replies(url: str) -> Callable[[Received], Act]:
    """A way to the server at ``url`` on which the first reply to each request breaks off, after the server
    has done what was asked."""
    seen: set[tuple[str, bytes]] = set()
    names = ("content-type", "tierlog-writer-id", "tierlog-event-number")

    def script(received: Received) -> Act:
        headers = {name: received.headers[name] for name in names if name in received.headers}
        answer = httpx.request(received.method, url + received.path, content=received.body, headers=headers)
        if (received.path, received.body) not in seen:
            seen.add((received.path, received.body))
            return Fault.RESET
        return Answer(answer.status_code, answer.content, {"Content-Type": answer.headers["content-type"]})

    return script


async def test_h17_a_transaction_whose_replies_are_all_lost_is_applied_once(
    connect: Connect, tmp_path: Path
) -> None:
    token = TransactionToken("query", 0)
    with (
        service(tmp_path / "data", containers=1) as url,
        tierlog.connect_sync(url) as direct,
        scripted(losing_first_replies(url)) as way,
    ):
        direct.create_segment("s")
        async with connect(way.url) as client:
            assert (await client.begin_transaction("s", "t", token=token)).state is TransactionState.OPEN
            name = await client.stage_segment("s", "t", "p0")
            assert await client.append(name, b"bytes", writer_id="task", event_number=0) == 0
            assert await client.commit_transaction(
                "s", "t", [StagedPart(name, 5)], token=token
            ) == CommitResult(False, 0, 5)
            assert (await client.abort_transaction("s", "t")).state is TransactionState.COMMITTED

        assert direct.read("s", 0, 100) == b"bytes"
        assert direct.list_transactions()[0].length == 5


async def test_h17_an_abort_with_a_lost_reply_is_applied_and_late_appends_are_refused(
    connect: Connect, tmp_path: Path
) -> None:
    with (
        service(tmp_path / "data", containers=1) as url,
        tierlog.connect_sync(url) as direct,
        scripted(losing_first_replies(url)) as way,
    ):
        direct.create_segment("s")
        direct.begin_transaction("s", "t")
        name = direct.stage_segment("s", "t", "p0")
        async with connect(way.url) as client:
            assert (
                await client.abort_transaction("s", "t", reason="the job failed")
            ).reason == "the job failed"

        with pytest.raises(TransactionEnded, match="the job failed"):
            direct.append(name, b"late", expected_offset=0)


# --- all hosts ----------------------------------------------------------------------------------

TARGETS = [f"app/{number}" for number in range(8)]


def host_of(*containers: int) -> Callable[[Received], Answer]:
    """Answers with transactions on the targets of these containers."""
    found = [
        info(target, transaction)
        for target in TARGETS
        if container_of(target, 2) in containers
        for transaction in ("b", "a")
    ]
    return lambda received: Answer(200, encode_json(Transactions(found)))


async def test_transactions_of_all_hosts_are_listed_once(connect: Connect) -> None:
    """A host that still lists a container of another's is not believed about it."""
    with (
        scripted(host_of(0)) as one,
        scripted(host_of(0, 1)) as two,
        scripted(script_of(Answer(500))) as supervisor,
    ):
        supervisor.map = ContainerMap(
            1, (ContainerAssignment(0, one.url, 1), ContainerAssignment(1, two.url, 1))
        )
        async with connect(supervisor.url) as client:
            found = await client.list_transactions("app/")

    assert [(each.target, each.transaction_id) for each in found] == [
        (target, each) for target in TARGETS for each in ("a", "b")
    ]
    assert [one.paths, two.paths] == [["/v1/transactions?limit=128&prefix=app%2F"]] * 2

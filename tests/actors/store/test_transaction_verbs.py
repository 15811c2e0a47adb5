"""The verbs of transactions as an app sees them, in each form: embedded, a client, and a plain client
(rule H17)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import tierlog
from support.container_world import read_all
from support.service import service
from support.stores import CONFIG
from support.sync_client import connect_in_thread
from tierlog import (
    BadOffset,
    CommitResult,
    InvalidArgument,
    SegmentNotFound,
    SegmentSealed,
    StagedPart,
    TransactionEnded,
    TransactionInfo,
    TransactionNotFound,
    TransactionState,
    TransactionToken,
)
from tierlog.storage_backends.base.names import container_of

pytestmark = pytest.mark.anyio

TARGET = "app/events"
TOKEN = TransactionToken("größe of query", 7)
Verb = Callable[[Any], Awaitable[object]]


@pytest.fixture(
    params=[
        "embedded",
        *(pytest.param(kind, marks=pytest.mark.one_loop) for kind in ("client", "plain client")),
    ]
)
async def store(request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str) -> AsyncIterator[Any]:
    """With an empty target. Every test here holds for each."""
    if request.param == "embedded":
        async with tierlog.open_store(tmp_path / "data", containers=4, config=CONFIG) as opened:
            await opened.create_segment(TARGET)
            yield opened
    else:
        connect: Any = tierlog.connect if request.param == "client" else connect_in_thread
        with service(tmp_path / "data", containers=4) as url:
            async with connect(url) as client:
                await client.create_segment(TARGET)
                yield client


async def staged(store: Any, transaction: str, part: str, data: bytes) -> StagedPart:
    """A part with ``data`` in it."""
    name = await store.stage_segment(TARGET, transaction, part)
    await store.append(name, data, expected_offset=0)
    return StagedPart(name, len(data))


async def test_a_transaction_shows_all_of_its_bytes_at_once(store: Any) -> None:
    await store.append(TARGET, b"before ")
    begun = await store.begin_transaction(TARGET, "t-1", token=TOKEN, lease=60.5)
    second, first = await staged(store, "t-1", "p1", b"two"), await staged(store, "t-1", "p0", b"one ")

    assert (begun.state, begun.token, begun.lease, begun.staged) == (TransactionState.OPEN, TOKEN, 60.5, ())
    assert await read_all(store, TARGET) == b"before "
    assert await store.list_segments() == [TARGET]

    assert await store.commit_transaction(TARGET, "t-1", [first, second], token=TOKEN) == CommitResult(
        True, 7, 7
    )
    assert await read_all(store, TARGET) == b"before one two"
    info = await store.transaction_info(TARGET, "t-1")
    assert (info.state, info.offset, info.length, info.staged) == (TransactionState.COMMITTED, 7, 7, ())
    assert info.expires_in > 0


async def test_an_open_transaction_reports_what_is_staged(store: Any) -> None:
    await store.begin_transaction(TARGET, "t", lease=60.0)
    parts = [await staged(store, "t", "p0", b"one"), await staged(store, "t", "p1", b"")]

    info = await store.transaction_info(TARGET, "t")

    assert isinstance(info, TransactionInfo)
    assert (info.transaction_id, info.target, info.token, info.reason, info.offset) == (
        "t",
        TARGET,
        None,
        "",
        None,
    )
    assert (info.length, list(info.staged)) == (3, parts)
    assert 0 < info.expires_in <= 60.0


async def test_every_verb_can_be_resent(store: Any) -> None:
    for _ in range(2):
        assert (await store.begin_transaction(TARGET, "t", token=TOKEN)).state is TransactionState.OPEN
    name = await store.stage_segment(TARGET, "t", "p")
    assert await store.stage_segment(TARGET, "t", "p") == name
    await store.append(name, b"bytes", expected_offset=0)
    part = StagedPart(name, 5)

    assert await store.commit_transaction(TARGET, "t", [part], token=TOKEN) == CommitResult(True, 0, 5)
    assert await store.commit_transaction(TARGET, "t", [part], token=TOKEN) == CommitResult(False, 0, 5)
    found = await store.begin_transaction(TARGET, "t", token=TOKEN)
    assert (found.state, found.offset, found.length) == (TransactionState.COMMITTED, 0, 5)
    assert (await store.abort_transaction(TARGET, "t", reason="too late")).state is TransactionState.COMMITTED
    assert await read_all(store, TARGET) == b"bytes"


async def test_t4_a_token_is_committed_once_under_any_transaction_id(store: Any) -> None:
    await store.begin_transaction(TARGET, "one", token=TOKEN)
    await store.commit_transaction(TARGET, "one", [await staged(store, "one", "p", b"once")], token=TOKEN)

    for reached in (TOKEN, TransactionToken(TOKEN.writer, 3)):
        found = await store.begin_transaction(TARGET, "two", token=reached)
        assert (found.state, found.token, found.offset) == (TransactionState.COMMITTED, reached, None)
        with pytest.raises(TransactionNotFound):
            await store.stage_segment(TARGET, "two", "p")
        assert await store.commit_transaction(TARGET, "two", [], token=reached) == CommitResult(
            False, None, 0
        )
    following, stranger = TransactionToken(TOKEN.writer, 8), TransactionToken("another query", 7)
    for name, token in (("three", following), ("four", stranger)):
        with pytest.raises(TransactionNotFound):
            await store.commit_transaction(TARGET, name, [], token=token)
        assert (await store.begin_transaction(TARGET, name, token=token)).state is TransactionState.OPEN
        assert await store.commit_transaction(TARGET, name, []) == CommitResult(True, 4, 0)
    assert await read_all(store, TARGET) == b"once"
    assert set((await store.segment_info(TARGET)).attributes.values()) == {7, 8}


@pytest.mark.parametrize("end", ["committed", "aborted"])
async def test_a_zombie_gets_the_end_state_of_its_transaction(store: Any, end: str) -> None:
    await store.begin_transaction(TARGET, "t")
    part = await staged(store, "t", "p", b"bytes")
    if end == "committed":
        await store.commit_transaction(TARGET, "t", [part])
    else:
        assert (
            await store.abort_transaction(TARGET, "t", reason="the job größe failed")
        ).reason == "the job größe failed"
    length = (await store.segment_info(TARGET)).length

    late: list[Verb] = [
        lambda s: s.append(part.name, b"x"),
        lambda s: s.append_many(part.name, [b"x", b"y"], writer_id="w", first_event_number=1),
        lambda s: s.stage_segment(TARGET, "t", "p2"),
        lambda s: s.begin_transaction(TARGET, "t"),
    ]
    for verb in late:
        with pytest.raises(TransactionEnded) as caught:
            await verb(store)
        assert (caught.value.state, caught.value.segment) == (end, TARGET)
    assert (await store.segment_info(TARGET)).length == length


async def test_a_commit_of_another_length_changes_nothing(store: Any) -> None:
    await store.begin_transaction(TARGET, "t")
    part = await staged(store, "t", "p", b"bytes")

    with pytest.raises(BadOffset) as caught:
        await store.commit_transaction(TARGET, "t", [StagedPart(part.name, 4)])

    assert (caught.value.segment, caught.value.expected, caught.value.given) == (part.name, 5, 4)
    assert (await store.transaction_info(TARGET, "t")).state is TransactionState.OPEN
    assert await read_all(store, TARGET) == b""


async def test_a_sealed_target_leaves_the_transaction_open(store: Any) -> None:
    await store.begin_transaction(TARGET, "t")
    part = await staged(store, "t", "p", b"bytes")
    await store.seal_segment(TARGET)

    with pytest.raises(SegmentSealed):
        await store.commit_transaction(TARGET, "t", [part])
    assert (await store.transaction_info(TARGET, "t")).state is TransactionState.OPEN


async def test_transactions_are_listed_over_all_containers_by_target_and_id(store: Any) -> None:
    targets = [f"list/{number}" for number in range(6)]
    for target in reversed(targets):
        await store.create_segment(target)
        for transaction in ("b", "a"):
            await store.begin_transaction(target, transaction)
    await store.abort_transaction(targets[0], "a")
    await store.begin_transaction(TARGET, "other")

    found = await store.list_transactions("list/")

    assert len({container_of(target, 4) for target in targets}) > 1
    assert [(info.target, info.transaction_id) for info in found] == [
        (target, each) for target in targets for each in ("a", "b")
    ]
    assert [info.state.value for info in found] == ["aborted", *["open"] * 11]
    assert (await store.list_transactions())[0].target == TARGET
    assert await store.list_transactions("none") == []

    for limit in (1, 3, 5, 256):
        shown: list[TransactionInfo] = []
        token: str | None = None
        while True:
            page = await store.page_of_transactions("list/", token=token, limit=limit)
            assert len(page.transactions) <= limit
            shown += page.transactions
            if (token := page.token) is None:
                break
        assert [(info.target, info.transaction_id, info.state) for info in shown] == [
            (info.target, info.transaction_id, info.state) for info in found
        ]


async def test_m22_a_token_of_transactions_is_refused_for_another_listing(store: Any) -> None:
    for transaction in ("a", "b", "c"):
        await store.begin_transaction(TARGET, transaction)
    token = (await store.page_of_transactions(TARGET, limit=1)).token
    assert token is not None
    for prefix, wrong in ((TARGET[:-1], token), (TARGET, token[:-4]), (TARGET, "\u00e4")):
        with pytest.raises(InvalidArgument, match="of transactions with this prefix"):
            await store.page_of_transactions(prefix, token=wrong)
    with pytest.raises(InvalidArgument, match="of segments with this prefix"):
        await store.page_of_segments(TARGET, token=token)


OF_NO_TRANSACTION: list[Verb] = [
    lambda s: s.transaction_info(TARGET, "none"),
    lambda s: s.stage_segment(TARGET, "none", "p"),
    lambda s: s.commit_transaction(TARGET, "none", []),
]


async def test_an_unknown_transaction_is_not_found(store: Any) -> None:
    for verb in OF_NO_TRANSACTION:
        with pytest.raises(TransactionNotFound) as caught:
            await verb(store)
        assert caught.value.segment == TARGET


OF_NO_TARGET: list[Verb] = [
    lambda s: s.begin_transaction("none", "t"),
    lambda s: s.abort_transaction("none", "t"),
    lambda s: s.commit_transaction("none", "t", []),
]


async def test_a_target_that_is_not_there_is_not_found(store: Any) -> None:
    for verb in OF_NO_TARGET:
        with pytest.raises(SegmentNotFound):
            await verb(store)


MALFORMED: list[Verb] = [
    lambda s: s.begin_transaction(TARGET, ""),
    lambda s: s.begin_transaction(TARGET, "a b"),
    lambda s: s.begin_transaction(TARGET, "t" * 97),
    lambda s: s.begin_transaction(TARGET, None),
    lambda s: s.begin_transaction("a//b", "t"),
    lambda s: s.begin_transaction("a#txn.t.p", "t"),
    lambda s: s.begin_transaction("a" * 250, "t"),
    lambda s: s.begin_transaction(TARGET, "t", token=("w", 1)),
    lambda s: s.begin_transaction(TARGET, "t", lease=0.5),
    lambda s: s.begin_transaction(TARGET, "t", lease=float("nan")),
    lambda s: s.begin_transaction(TARGET, "t", lease=True),
    lambda s: s.stage_segment(TARGET, "t", "p.0"),
    lambda s: s.stage_segment(TARGET, "t", 7),
    lambda s: s.commit_transaction(TARGET, "t", [("a", 1)]),
    lambda s: s.commit_transaction(TARGET, "t", "parts"),
    lambda s: s.commit_transaction(TARGET, "t", None),
    lambda s: s.commit_transaction(TARGET, "t", [StagedPart("a", -1)]),
    lambda s: s.commit_transaction(TARGET, "t", [StagedPart("a", 1 << 70)]),
    lambda s: s.commit_transaction(TARGET, "t", [StagedPart(7, 1)]),  # type: ignore[arg-type]
    lambda s: s.commit_transaction(TARGET, "t", [StagedPart("\ud800", 1)]),
    lambda s: s.commit_transaction(TARGET, "t", [StagedPart("a", 1)] * 16_385),
    lambda s: s.abort_transaction(TARGET, "t", reason=7),
    lambda s: s.abort_transaction(TARGET, "t", reason="\ud800"),
    lambda s: s.abort_transaction(TARGET, "t", reason="x" * 1_001),
    lambda s: s.list_transactions(7),
    lambda s: s.list_transactions("\ud800"),
    lambda s: s.page_of_transactions(limit=0),
    lambda s: s.page_of_transactions(limit=257),
    lambda s: s.page_of_transactions(token=7),
]


async def test_invalid_arguments_are_refused_without_effect(store: Any) -> None:
    for number, verb in enumerate(MALFORMED):
        with pytest.raises(InvalidArgument):
            await verb(store)
            pytest.fail(f"MALFORMED[{number}] is accepted")
    assert await store.list_transactions() == []

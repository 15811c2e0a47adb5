"""Many appends in one call: each with its own outcome, those to one segment in order, whatever happens to the
container."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import anyio
import pytest

from support.stores import CONFIG, config
from tierlog import (
    BadOffset,
    BatchItem,
    NotOwner,
    OutOfOrder,
    SegmentNotFound,
    SegmentSealed,
    TierlogError,
    open_store,
)
from tierlog.actors.container.batch_append import append_batch
from tierlog.actors.container.local_container import RemoteContainer
from tierlog.actors.container.operations.append import AppendRequest
from tierlog.actors.kernel.reply import Reply
from tierlog.actors.settings.configuration import MailboxConfig, WalConfig
from tierlog.storage_backends.base.errors import InvalidArgument, Throttled, TooLarge, Unavailable

pytestmark = pytest.mark.anyio


async def test_each_append_has_its_own_outcome(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=4, config=CONFIG) as store:
        for name in ("a", "b", "c"):
            await store.create_segment(name)
        await store.seal_segment("c")

        outcomes = await store.append_each(
            [
                BatchItem("a", b"one"),
                BatchItem("c", b"x"),
                BatchItem("b", b"12", b"w", 1, 2),
                BatchItem("missing", b"x"),
                BatchItem("a", b"x", expected_offset=9),
                BatchItem("b", b"12", b"w", 1, 2),
                BatchItem("b", b"4", b"w", 4, 1),
                BatchItem("a", b"two", expected_offset=3),
                BatchItem("a//b", b"x"),
                BatchItem("a", bytes(store.append_bytes_max + 1)),
                BatchItem("a", b"x", b"w", 0, 0),
                BatchItem("a", b"x", b"", 1, 1),
                BatchItem("a", b"x", b"w", 3, 1, 3),
            ]
        )

        assert [outcomes[index] for index in (0, 2, 5, 7)] == [0, 0, 0, 3]
        assert [type(outcomes[index]) for index in (1, 3, 4, 6)] == [
            SegmentSealed,
            SegmentNotFound,
            BadOffset,
            OutOfOrder,
        ]
        assert [type(outcome) for outcome in outcomes[8:]] == [
            InvalidArgument,
            TooLarge,
            *[InvalidArgument] * 3,
        ]
        assert await store.read("a", 0, 99) == b"onetwo"


def _errors() -> set[int]:
    """The ids of all errors in memory."""
    return {id(each) for each in gc.get_objects() if isinstance(each, TierlogError)}


@pytest.mark.parametrize(
    "refused",
    [
        BatchItem("a", b"x", expected_offset=9),
        BatchItem("c", b"x"),
        BatchItem("missing", b"x"),
        BatchItem("a//b", b"x"),
    ],
    ids=["offset", "sealed", "missing", "name"],
)
async def test_refused_appends_leave_memory_with_their_outcomes(tmp_path: Path, refused: BatchItem) -> None:
    """Their tracebacks had all requests and outcomes of the call, which so waited for the garbage collector
    to find them."""
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await store.create_segment("a")
        await store.create_segment("c")
        await store.seal_segment("c")
        gc.collect()
        gc.disable()
        earlier = _errors()  # what other tests left in this process
        try:
            outcomes = await store.append_each([refused] * 500)
            [kind] = {type(outcome) for outcome in outcomes}
            assert issubclass(kind, TierlogError)
            del outcomes
            with suppress(kind):
                await store.append(refused.name, refused.data, expected_offset=refused.expected_offset)
            await store.append("a", b"x")  # The container remembers the latest append.
            assert _errors() <= earlier
        finally:
            gc.enable()


async def test_no_appends_are_no_work(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        assert await store.append_each([]) == []


async def test_order_is_kept_where_the_mailbox_has_no_room(tmp_path: Path) -> None:
    async with open_store(
        tmp_path / "data", containers=1, config=config(mailbox=MailboxConfig(count=16))
    ) as store:
        await store.create_segment("a")

        outcomes = await store.append_each(
            [BatchItem("a", b"%04d" % index, b"w", index, 1) for index in range(300)]
        )

        assert outcomes == [4 * index for index in range(300)]


async def test_an_item_that_is_not_an_append_is_refused_before_any_append(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await store.create_segment("a")
        with pytest.raises(InvalidArgument, match="takes items such as tierlog.BatchItem, not 1"):
            await store.append_each([BatchItem("a", b"x"), 1])  # type: ignore[list-item]

        changed = BatchItem("a", b"x", b"w", 1, 1)
        changed.writer = "w"  # type: ignore[assignment]
        outcomes = await store.append_each([BatchItem("a", "text"), changed])  # type: ignore[arg-type]
        assert [type(outcome) for outcome in outcomes] == [InvalidArgument] * 2
        assert (await store.segment_info("a")).length == 0


@pytest.mark.parametrize("appends", [None, 5, b"data", BatchItem("a", b"x")])
async def test_an_argument_that_has_no_items_is_refused(tmp_path: Path, appends: Any) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        with pytest.raises(InvalidArgument, match="appends are an iterable of items, not "):
            await store.append_each(appends)


async def test_the_writer_of_an_item_is_what_append_takes(tmp_path: Path) -> None:
    async with open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await store.create_segment("a")
        for writer in ("w", b"w2", UUID(int=1)):
            await store.append("a", b"x", writer_id=writer, event_number=1)
        repeated = [BatchItem("a", b"x", writer, 1, 1) for writer in ("w", b"w2", UUID(int=1))]
        assert all(isinstance(each, int | None) for each in await store.append_each(repeated))
        assert (await store.segment_info("a")).length == 3

    with pytest.raises(InvalidArgument, match="writer_id must be a str, bytes or UUID, not int"):
        BatchItem("a", b"x", 5, 1, 1)  # type: ignore[arg-type]


class Ownership:
    """A container that answers each append with its place, and may stop at the append of ``dies_at``."""

    def __init__(self, host: Host, *, full_at: str = "", dies_at: str = "") -> None:
        self.host = host
        self.full_at = full_at
        self.dies_at = dies_at
        self.taken: list[str] = []
        self.closed = False

    def offer_all(self, requests: list[AppendRequest]) -> bool:
        return False  # one of them will have to wait

    def offer(self, request: AppendRequest) -> bool:
        if self.closed:
            raise Unavailable("stopped")

        if request.name in self.full_at:
            return False

        self.take(request)
        return True

    async def accept(self, request: AppendRequest) -> None:
        await anyio.lowlevel.checkpoint()
        if request.name in self.dies_at:
            self.closed = True
            self.host.active = self.host.next
            raise Unavailable("stopped")

        self.take(request)

    def take(self, request: AppendRequest) -> None:
        request.reply = Reply()
        if request.name in self.host.never_done and self is not self.host.next:
            request.reply.fail(Unavailable("stopped before it started this call"))
        else:
            self.taken.append(request.name)
            request.reply.resolve(len(self.taken) - 1)


class Host:
    index = 0
    never_done = "cd"
    """What the first ownership takes in and never does."""

    def __init__(self) -> None:
        self.next = Ownership(self, full_at="dg")
        self.active: Ownership = Ownership(self, full_at="be", dies_at="e")

    async def call(self, verb: Any) -> Any:
        return await verb(self.active)


async def test_order_is_kept_when_the_container_stops_on_the_way() -> None:
    host = Host()
    first = host.active

    outcomes = await append_batch(cast(Any, host), [AppendRequest(name, b"") for name in "abcdefgh"])

    assert first.taken == ["a", "b"]
    assert host.next.taken == ["c", "d", "e", "f", "g", "h"]
    assert outcomes == [0, 1, 0, 1, 2, 3, 4, 5]


async def test_an_append_to_a_remote_container_is_refused() -> None:
    requests = [AppendRequest("a", b"x"), AppendRequest("a", b"y")]

    assert [type(outcome) for outcome in await append_batch(RemoteContainer(0), requests)] == [
        NotOwner,
        NotOwner,
    ]


async def test_too_many_unflushed_bytes_throttle_items_one_by_one(tmp_path: Path) -> None:
    full = config(wal=WalConfig(unflushed_max=1 << 20))
    async with open_store(tmp_path / "data", containers=1, config=full) as store:
        await store.create_segment("a")

        outcomes = await store.append_each([BatchItem("a", bytes(1 << 19)) for _ in range(2)])
        later = await store.append_each([BatchItem("a", bytes(1 << 19)) for _ in range(8)])

    assert outcomes == [0, 1 << 19]
    assert any(type(outcome) is Throttled for outcome in later)

"""Idempotent appends: rule C3, with every answer that a writer can get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import tierlog
from support.container_world import ContainerWorld, Owner, read_all
from support.stores import CONFIG
from tierlog import InvalidArgument, OutOfOrder, SegmentStore, UnknownWriter

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(anyio_backend: str) -> AsyncIterator[SegmentStore]:
    async with ContainerWorld().owner() as owner:
        await owner.store.create_segment("s")
        yield owner.store


async def post(
    store: SegmentStore, number: int, data: bytes | None = None, previous: int | None = None
) -> int | None:
    data = b"%d;" % number if data is None else data
    return await store.append("s", data, writer_id="w", event_number=number, previous_event_number=previous)


async def batch(store: SegmentStore, first: int, count: int, previous: int | None = None) -> int | None:
    events = [b"%d;" % number for number in range(first, first + count)]
    return await store.append_many(
        "s", events, writer_id="w", first_event_number=first, previous_event_number=previous
    )


async def test_the_first_number_is_the_writers_choice(store: SegmentStore) -> None:
    assert await post(store, 41) == 0
    assert await store.last_event_number("s", "w") == 41
    assert await store.last_event_number("s", "x") is None


async def test_a_repeat_of_the_latest_returns_its_offset_and_an_older_one_none(store: SegmentStore) -> None:
    assert [await post(store, number) for number in (7, 8, 9)] == [0, 2, 4]

    assert await post(store, 9) == 4
    assert await post(store, 9, b"other bytes") == 4
    assert await post(store, 8) is None
    assert await post(store, 0) is None
    assert await read_all(store, "s") == b"7;8;9;"


async def test_c3_an_append_that_skips_an_event_is_refused_and_can_be_repeated(store: SegmentStore) -> None:
    """Event 8 before 7: refused, retryable, nothing applied; then 7 and 8 go through."""
    await post(store, 6)
    with pytest.raises(OutOfOrder) as caught:
        await post(store, 8)

    assert caught.value.retryable
    assert (caught.value.segment, caught.value.last_event_number) == ("s", 6)
    assert [await post(store, 7), await post(store, 8)] == [2, 4]
    assert await read_all(store, "s") == b"6;7;8;"


async def test_reordered_posts_all_arrive_once_when_they_are_retried(store: SegmentStore) -> None:
    await post(store, 0)

    async def insist(number: int) -> None:
        while True:
            try:
                await post(store, number)
            except OutOfOrder:
                await anyio.lowlevel.checkpoint()
            else:
                return

    async with anyio.create_task_group() as tasks:
        for number in reversed(range(1, 30)):
            tasks.start_soon(insist, number)

    assert await read_all(store, "s") == b"".join(b"%d;" % number for number in range(30))


async def test_a_gap_is_allowed_when_the_predecessor_is_named(store: SegmentStore) -> None:
    await post(store, 5)

    assert await post(store, 9, previous=5) == 2
    assert await post(store, 9, previous=5) == 2
    with pytest.raises(OutOfOrder):
        await post(store, 20, previous=7)
    with pytest.raises(OutOfOrder):
        await post(store, 11)
    assert await post(store, 10) == 4


async def test_a_batch_is_wholly_new_or_wholly_old(store: SegmentStore) -> None:
    assert await batch(store, 0, 3) == 0
    assert await batch(store, 3, 2) == 6

    assert await batch(store, 3, 2) == 6
    assert await batch(store, 0, 3) is None
    assert await batch(store, 4, 1) is None
    assert await batch(store, 1, 4) is None
    with pytest.raises(InvalidArgument, match="partly applied"):
        await batch(store, 4, 2)
    with pytest.raises(OutOfOrder):
        await batch(store, 6, 2)
    assert await batch(store, 8, 2, previous=4) == 10
    assert await store.last_event_number("s", "w") == 9
    assert await read_all(store, "s") == b"0;1;2;3;4;8;9;"


async def test_a_repeat_is_answered_though_the_segment_was_sealed_meanwhile(store: SegmentStore) -> None:
    await post(store, 1)
    await store.seal_segment("s")

    assert await post(store, 1) == 0
    with pytest.raises(tierlog.SegmentSealed):
        await post(store, 2)


async def test_a_repeat_is_answered_before_its_expected_offset_is_checked(store: SegmentStore) -> None:
    await post(store, 1, b"abc")

    assert await store.append("s", b"abc", writer_id="w", event_number=1, expected_offset=0) == 0
    with pytest.raises(tierlog.BadOffset):
        await store.append("s", b"x", writer_id="w", event_number=2, expected_offset=0)
    assert await store.append("s", b"x", writer_id="w", event_number=2, expected_offset=3) == 3


async def test_writers_and_segments_are_independent(store: SegmentStore) -> None:
    await store.create_segment("t")
    await post(store, 5)

    assert await store.append("s", b"x", writer_id="v", event_number=5) == 2
    assert await store.append("t", b"x", writer_id="w", event_number=5) == 0


async def test_an_unknown_predecessor_is_reported(store: SegmentStore) -> None:
    """A writer that names one has written before: its state is lost, and nobody can tell what was applied."""
    with pytest.raises(UnknownWriter) as caught:
        await post(store, 5, previous=4)

    assert caught.value.segment == "s"
    assert await post(store, 5) == 0


async def test_a_call_expires_a_bounded_number_of_writers(store: SegmentStore) -> None:
    """They are one group of the log, whose size is limited."""
    with pytest.raises(InvalidArgument, match="at most 65536 writer ids, not 65537"):
        await store.expire_writers("s", [f"writer-{number}" for number in range(65_537)])


async def test_an_expired_writer_never_starts_afresh_silently(store: SegmentStore) -> None:
    await post(store, 5)
    assert await store.expire_writers("s", ["w", "nobody", "w"]) == 1
    assert await store.expire_writers("s", ["w"]) == 0

    for number in (0, 5, 6):
        with pytest.raises(UnknownWriter):
            await post(store, number)
    assert await store.last_event_number("s", "w") is None
    assert await store.append("s", b"x", writer_id="new", event_number=0) == 2


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_writers_survive_a_crash(anyio_backend: str, flush: bool, checkpoint: bool) -> None:
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        owner: Owner = await world.start(tasks)
        await owner.store.create_segment("s")
        await batch(owner.store, 3, 2)
        await owner.store.append("s", b"x", writer_id="old", event_number=1)
        await owner.store.expire_writers("s", ["old"])
        if flush:
            await owner.store.flush()
        if checkpoint:
            await owner.checkpoint()
        await owner.crash()
        owner = await world.start(tasks)

        assert await batch(owner.store, 3, 2) == 0
        assert await post(owner.store, 4) is None
        with pytest.raises(UnknownWriter):
            await owner.store.append("s", b"x", writer_id="old", event_number=2)
        assert await post(owner.store, 5) == 5
        await owner.stop()


async def test_a_writer_can_send_again_after_reopening_a_folder(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await store.create_segment("s")
        await post(store, 1)

    async with tierlog.open_store(tmp_path, config=CONFIG) as store:
        assert await post(store, 1) == 0
        assert await post(store, 2) == 2

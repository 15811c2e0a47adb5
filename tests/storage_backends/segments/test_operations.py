"""What each operation does, refuses and leaves behind, with and without the append capability."""

from __future__ import annotations

import re
from collections.abc import Awaitable

import anyio
import pytest

from support.chunked import OTHER, SID, Owner, Tier2
from tierlog.storage_backends.base.errors import (
    BadOffset,
    InvalidArgument,
    NotOwner,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
    SegmentTruncated,
)
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import BLOCK

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[True, False], ids=["append", "no-append"])
def tier2(request: pytest.FixtureRequest) -> Tier2:
    return Tier2(append=request.param)


async def test_create_makes_a_record_and_no_chunk(tier2: Tier2) -> None:
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True, rolling_size=77) as txn:
        await owner.storage.create(txn)
        assert not await owner.storage.exists(SID)
        await txn.commit()

    info = await owner.storage.info(SID)
    assert (info.segment, info.length, info.rolling_size, info.owner_epoch) == (SID, 0, 77, 1)
    assert await owner.storage.read(SID, 0, 10) == b""
    assert await owner.storage.list() == [SID]
    assert tier2.names() == []


async def test_an_unknown_segment_is_not_found(tier2: Tier2) -> None:
    owner = await tier2.owner()
    assert not await owner.storage.exists(SID)
    for verb in (
        owner.storage.info(SID),
        owner.storage.read(SID, 0, 1),
        owner.storage.chunks(SID),
        owner.truncate(0),
        owner.delete(),
    ):
        with pytest.raises(SegmentNotFound):
            await verb
    with owner.storage.begin(SID) as txn, pytest.raises(SegmentNotFound):
        await owner.storage.write(txn, 0, [b"x"])

    assert owner.storage.statistics().open_transactions == 0


async def test_written_bytes_are_read_back(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"hello", bytearray(b" "), memoryview(b"world"))
    await owner.write(11, b"!")
    await owner.write(12)

    assert await owner.content() == b"hello world!"
    assert await owner.lengths() == ([12] if tier2.append else [11, 1])
    assert await owner.storage.read(SID, 4, 3) == b"o w"
    assert await owner.storage.read(SID, 11, 100) == b"!"
    assert await owner.storage.read(SID, 12, 100) == b""


async def test_s1_chunks_hold_exactly_the_users_bytes(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"hello ", rolling_size=4)
    await owner.write(6, b"world")

    assert (
        b"".join(bytes(tier2.chunks.chunks[name].data) for _, name in await placed(owner)) == b"hello world"
    )


async def placed(owner: Owner) -> list[tuple[int, str]]:
    return [(start, record.name) for start, record in await owner.storage.chunks(SID)]


async def test_s2_chunk_names_carry_container_segment_epoch_offset_and_an_id(tier2: Tier2) -> None:
    owner = await tier2.owner(epoch=5)
    await owner.write(0, b"x" * 10, rolling_size=4)

    names = [name for _, name in await placed(owner)]
    assert [re.sub(r"-[0-9a-f]{32}$", "-id", name) for name in names] == [
        f"containers/0000/0000000100000001/0000000000000005-{offset:016x}-id" for offset in (0, 4, 8)
    ]
    assert len(set(names)) == 3


async def test_a_write_elsewhere_than_at_the_end_is_refused(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    for offset in (0, 2, 4):
        with pytest.raises(BadOffset) as caught:
            await owner.write(offset, b"x")
        assert (caught.value.expected, caught.value.given) == (3, offset)

    assert await owner.content() == b"abc"


async def test_s5_append_starts_of_a_range_come_out_of_the_records_of_its_chunks(tier2: Tier2) -> None:
    """Over rolled chunks and a truncation, bounded, and without reading a chunk."""
    storage, mib = (await tier2.owner()).storage, BLOCK
    with storage.begin(SID, create=True, rolling_size=3 * mib) as txn:
        await storage.write(txn, 0, [bytes(8 * mib)], [0, mib + 5, 3 * mib, 6 * mib + 1])
        await storage.truncate(txn, 10)
        await txn.commit()

    assert await storage.starts(SID, 0, 8 * mib, 99) == [mib + 5, 3 * mib, 6 * mib + 1]
    assert await storage.starts(SID, mib + 5, 6 * mib + 1, 99) == [mib + 5, 3 * mib]
    assert await storage.starts(SID, 0, 1 << 40, 2) == [mib + 5, 3 * mib]
    assert (
        await storage.starts(SID, 7 * mib, 1 << 40, 99)
        == await storage.starts(SID, 9 * mib, 10 * mib, 99)
        == []
    )
    assert storage.statistics().bytes_read == 0
    with pytest.raises(SegmentNotFound):
        await storage.starts(OTHER, 0, 1, 9)


async def test_append_starts_must_lie_in_the_data(tier2: Tier2) -> None:
    owner = await tier2.owner()
    for starts in ([3], [-1], [1, 0], [1, 1]):
        with owner.storage.begin(SID, create=True) as txn, pytest.raises(InvalidArgument):
            await owner.storage.write(txn, 0, [b"abc"], starts)


async def test_s5_append_starts_are_kept_by_chunk(tier2: Tier2) -> None:
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True, rolling_size=BLOCK + 10) as txn:
        await owner.storage.write(txn, 0, [bytes(3 * BLOCK)], [0, 5, BLOCK, BLOCK + 20, 2 * BLOCK + 25])
        await txn.commit()

    found = [(start, list(record.starts)) for start, record in await owner.storage.chunks(SID)]
    assert found == [(0, [0, BLOCK]), (BLOCK + 10, [10]), (2 * BLOCK + 20, [5])]


async def test_f1_length_start_and_seal_are_committed_together(tier2: Tier2) -> None:
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True) as txn:
        await owner.storage.write(txn, 0, [b"hello "])
        await owner.storage.write(txn, 6, [b"world"])
        await owner.storage.truncate(txn, 3)
        await owner.storage.seal(txn)
        assert not await owner.storage.exists(SID)
        await txn.commit()

    info = await owner.storage.info(SID)
    assert (info.length, info.start_offset, info.sealed) == (11, 3, True)
    assert len({version for version, _ in tier2.metadata.entries.values()}) == 1
    assert await owner.content() == b"lo world"


async def test_a_sealed_segment_refuses_writes_and_can_be_truncated(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abc", seal=True)
    with pytest.raises(SegmentSealed):
        await owner.write(3, b"d")
    await owner.truncate(1)
    with owner.storage.begin(SID) as txn:
        await owner.storage.seal(txn)
        await txn.commit()
    with pytest.raises(SegmentSealed):
        await owner.write(3, b"d")

    assert await owner.content() == b"bc"


async def test_a_truncated_offset_cannot_be_read(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abcdef")
    await owner.truncate(4)
    with pytest.raises(SegmentTruncated) as caught:
        await owner.storage.read(SID, 3, 1)

    assert caught.value.start_offset == 4
    assert await owner.storage.read(SID, 4, 10) == b"ef"
    await owner.truncate(2)
    assert (await owner.storage.info(SID)).start_offset == 4
    with pytest.raises(BadOffset):
        await owner.truncate(7)


async def test_truncated_chunks_are_released_after_the_commit(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abcdef", rolling_size=2)
    names = tier2.names()
    with owner.storage.begin(SID) as txn:
        await owner.storage.truncate(txn, 4)
        assert tier2.sink.released == []
        await txn.commit()

    assert tier2.sink.released == names[:2]
    assert tier2.referenced() == names[2:]
    assert tier2.names() == names, "chunks are deleted by the collector only"


async def test_delete_takes_every_record_and_releases_every_chunk(tier2: Tier2) -> None:
    tier2.options = ChunkedOptions(index_spacing=3)
    owner = await tier2.owner()
    await owner.write(0, b"abcdefghij", rolling_size=4)
    await owner.delete()

    assert list(tier2.metadata.entries) == []
    assert sorted(tier2.sink.released) == tier2.names()
    assert not await owner.storage.exists(SID)


async def test_concat_links_chunks_and_touches_none(tier2: Tier2) -> None:
    """Rule S4: no chunk of a source is changed or consumed."""
    owner = await tier2.owner()
    await owner.write(0, b"target ", rolling_size=4)
    await owner.write(0, b"source", sid=OTHER, rolling_size=4, seal=True)
    before = {name: bytes(chunk.data) for name, chunk in tier2.chunks.chunks.items()}
    calls = len(owner.chunks.calls)
    await owner.concat()

    assert owner.chunks.calls[calls:] == []
    assert {name: bytes(chunk.data) for name, chunk in tier2.chunks.chunks.items()} == before
    assert await owner.content() == b"target source"
    assert not await owner.storage.exists(OTHER)
    assert tier2.sink.released == []


async def test_concat_refuses_what_it_cannot_splice(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abc", sid=OTHER)
    with pytest.raises(SegmentNotSealed):
        await owner.concat()
    with pytest.raises(SegmentNotFound):
        await owner.concat(source=99)
    with pytest.raises(InvalidArgument):
        await owner.concat(source=SID)

    await owner.write(3, sid=OTHER, seal=True)
    await owner.truncate(1, sid=OTHER)
    with pytest.raises(InvalidArgument):
        await owner.concat()
    await owner.write(0, b"x", seal=True)
    with pytest.raises(SegmentSealed):
        await owner.concat()

    assert await owner.content(OTHER) == b"bc"
    assert owner.storage.statistics().open_transactions == 0


async def test_writing_continues_behind_a_concat(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"a")
    await owner.write(0, b"b", sid=OTHER, seal=True)
    with owner.storage.begin(SID) as txn:
        await owner.storage.write(txn, 1, [b"-"])
        await owner.storage.concat(txn, OTHER)
        await owner.storage.write(txn, 3, [b"-"])
        await owner.storage.seal(txn)
        await txn.commit()

    assert await owner.content() == b"a-b-"


async def test_s12_one_transaction_at_a_time_has_a_segment_and_the_next_waits(tier2: Tier2) -> None:
    """A concat has its source too."""
    owner = await tier2.owner()
    await owner.write(0, b"x", sid=OTHER, seal=True)
    async with anyio.create_task_group() as tasks:
        with owner.storage.begin(SID, create=True) as txn:
            await owner.storage.concat(txn, OTHER)
            assert owner.storage.statistics().open_transactions == 2
            tasks.start_soon(owner.write, 1, b"y")
            tasks.start_soon(expect_not_found, owner.delete(OTHER))
            await anyio.wait_all_tasks_blocked()
            assert not await owner.storage.exists(SID)
            await txn.commit()

    assert await owner.content() == b"xy"
    assert owner.storage.statistics().open_transactions == 0


async def expect_not_found(call: Awaitable[None]) -> None:
    with pytest.raises(SegmentNotFound):
        await call


async def test_s12_a_cancelled_wait_for_a_segment_leaves_it_to_the_next(tier2: Tier2) -> None:
    owner = await tier2.owner()
    async with anyio.create_task_group() as tasks:
        with owner.storage.begin(SID, create=True) as txn:
            await owner.storage.write(txn, 0, [b"a"])
            tasks.start_soon(owner.write, 1, b"never")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await txn.commit()

    await owner.write(1, b"b")
    assert await owner.content() == b"ab"


async def test_s12_a_task_that_begins_a_second_transaction_on_its_segment_is_a_bug(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"x")
    with owner.storage.begin(SID) as txn:
        await owner.storage.seal(txn)
        with pytest.raises(RuntimeError, match="already held"):
            await owner.truncate(1)


async def test_an_aborted_transaction_leaves_nothing_but_garbage(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abc")
    with owner.storage.begin(SID) as txn:
        await owner.storage.write(txn, 3, [b"never"])
        await owner.storage.seal(txn)

    assert await owner.content() == b"abc"
    await owner.write(3, b"d")
    assert await owner.content() == b"abcd"
    assert sorted([*tier2.referenced(), *tier2.sink.released]) == tier2.names()


async def test_an_ended_or_failed_transaction_cannot_be_used(tier2: Tier2) -> None:
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True) as txn:
        with pytest.raises(BadOffset):
            await owner.storage.write(txn, 1, [b"x"])
        with pytest.raises(RuntimeError, match="failed"):
            await txn.commit()
    with pytest.raises(RuntimeError, match="ended"):
        await owner.storage.seal(txn)

    assert not await owner.storage.exists(SID)


async def test_a_record_of_a_later_owner_is_not_changed(tier2: Tier2) -> None:
    old, new = await tier2.owner(epoch=1), await tier2.owner(epoch=2)
    await old.write(0, b"abc", seal=True)
    await new.truncate(1)
    for change in (old.truncate(2), old.write(3, b"d"), old.delete(), old.concat(source=SID, sid=OTHER)):
        with pytest.raises(NotOwner):
            await change

    assert await new.content() == b"bc"


async def test_a_write_and_a_truncate_of_it_in_one_transaction_cancel_out(tier2: Tier2) -> None:
    owner = await tier2.owner()
    with owner.storage.begin(SID, create=True) as txn:
        await owner.storage.write(txn, 0, [b"abc"])
        await owner.storage.truncate(txn, 3)
        await txn.commit()
    await owner.write(3, b"def")

    assert await owner.content() == b"def"
    assert sorted([*tier2.referenced(), *tier2.sink.released]) == tier2.names()


async def test_bad_arguments_are_refused(tier2: Tier2) -> None:
    owner = await tier2.owner()
    for segment, rolling_size in ((-1, None), (1 << 64, None), (1, 0)):
        with pytest.raises(InvalidArgument):
            owner.storage.begin(segment, rolling_size=rolling_size)
    for options in ({"rolling_size": 0}, {"read_request": BLOCK + 1}, {"read_parallelism": 0}):
        with pytest.raises(InvalidArgument):
            ChunkedOptions(**options)  # type: ignore[arg-type]  # the fields that are given are ints
    with pytest.raises(InvalidArgument):
        await tier2.owner(epoch=0)
    await owner.write(0, b"x")
    for offset, size in ((-1, 1), (0, -1)):
        with pytest.raises(InvalidArgument):
            await owner.storage.read(SID, offset, size)


async def test_statistics_count_what_happened(tier2: Tier2) -> None:
    owner = await tier2.owner()
    await owner.write(0, b"abcdef", rolling_size=4)
    await owner.content()
    owner.storage.begin(SID).abort()

    counted = owner.storage.statistics()
    assert (counted.commits, counted.aborts, counted.chunks_created) == (1, 1, 2)
    assert (counted.bytes_written, counted.bytes_read) == (6, 6)
    assert (counted.open_transactions, counted.cached_segments, counted.cached_chunks) == (0, 1, 2)

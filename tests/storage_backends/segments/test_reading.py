"""Reading: any range over any layout, verified blocks, missing chunks, commits under a reader, and the
cache's bounds."""

from __future__ import annotations

from random import Random

import anyio
import pytest

from support.chunked import OTHER, SID, CountingStore, Owner, Tier2
from tierlog.storage_backends.base.errors import (
    DataCorruption,
    SegmentNotFound,
    SegmentTruncated,
    TierlogError,
    Unavailable,
)
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.layout import SparseIndex
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import BLOCK
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, every

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]
LARGE = Random(1).randbytes(5 * BLOCK + 12345)


async def large(options: ChunkedOptions | None = None, rolling_size: int = 3 * BLOCK // 2 + 7) -> Owner:
    owner = await Tier2(options=options or ChunkedOptions(read_request=BLOCK)).owner()
    await owner.write(0, LARGE[:1000], LARGE[1000:], rolling_size=rolling_size)
    return owner


async def test_any_range_comes_back_exactly() -> None:
    owner = await large()
    random = Random(2)
    edges = [
        edge + shift
        for edge in (0, BLOCK, 3 * BLOCK // 2 + 7, 3 * BLOCK + 14, len(LARGE))
        for shift in (-1, 0, 1)
    ]
    for _ in range(60):
        offset, end = sorted(max(0, random.choice([*edges, random.randrange(len(LARGE))])) for _ in range(2))
        assert await owner.storage.read(SID, offset, end - offset) == LARGE[offset:end]


async def test_k2_bytes_that_are_not_the_records_are_read_again_where_they_were_a_copy() -> None:
    """What a cache verified may have been damaged on its way into it (rule S5)."""
    owner = await large()
    read = owner.chunks.read
    dropped: list[str] = []

    async def flipped_until_dropped(name: str, offset: int, size: int) -> bytes:
        data = await read(name, offset, size)
        return data if dropped else bytes([data[0] ^ 1]) + data[1:]

    async def drop_copy(name: str) -> bool:
        dropped.append(name)
        return True

    owner.chunks.read = flipped_until_dropped  # type: ignore[method-assign]
    owner.chunks.drop_copy = drop_copy  # type: ignore[method-assign]
    assert await owner.storage.read(SID, 0, BLOCK) == LARGE[:BLOCK]
    assert len(dropped) == 1


def noted_reads(owner: Owner) -> list[bytes]:
    """What the chunk storage gives from now on."""
    seen: list[bytes] = []
    read = owner.chunks.read

    async def remember(name: str, offset: int, size: int) -> bytes:
        seen.append(await read(name, offset, size))
        return seen[-1]

    owner.chunks.read = remember  # type: ignore[method-assign]
    return seen


async def test_whole_blocks_are_handed_on_without_a_copy() -> None:
    owner = await large(ChunkedOptions(), rolling_size=len(LARGE))
    seen = noted_reads(owner)
    data = await owner.storage.read(SID, BLOCK, 3 * BLOCK)

    assert data is seen[0]
    assert data == LARGE[BLOCK : 4 * BLOCK]


async def test_a_part_of_a_block_is_a_view_of_what_was_read_and_verified() -> None:
    owner = await large(ChunkedOptions(), rolling_size=len(LARGE))
    seen = noted_reads(owner)
    data = await owner.storage.read(SID, BLOCK + 5, BLOCK)

    assert isinstance(data, memoryview)
    assert data.obj is seen[0]
    assert data == LARGE[BLOCK + 5 : 2 * BLOCK + 5]


async def test_a_truncated_first_chunk_is_still_read_by_its_own_blocks() -> None:
    owner = await large()
    await owner.truncate(BLOCK + 17)

    assert await owner.content() == LARGE[BLOCK + 17 :]


async def test_one_call_reads_several_blocks_at_a_time_and_no_more() -> None:
    owner = await large(ChunkedOptions(read_request=BLOCK, read_parallelism=3))
    owner.chunks.script = every(Fault(FaultKind.HANG), "read")
    async with anyio.create_task_group() as group:
        group.start_soon(owner.storage.read, SID, 0, len(LARGE))
        await anyio.wait_all_tasks_blocked()
        reads = [call for call in owner.chunks.calls if call.verb == "read"]
        group.cancel_scope.cancel()

    assert len(reads) == 3


def _requests_counted(owner: Owner) -> list[tuple[str, int, int]]:
    """(chunk, offset, size) of every read that the chunk storage gets from here on."""
    asked: list[tuple[str, int, int]] = []
    read = owner.chunks.read

    async def count(name: str, offset: int, size: int) -> bytes:
        asked.append((name, offset, size))
        return await read(name, offset, size)

    owner.chunks.read = count  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("size", [1, 4096, BLOCK, 2 * BLOCK, 3 * BLOCK])
async def test_a_cold_random_read_costs_one_request_for_each_chunk_it_touches(size: int) -> None:
    """Wherever it begins: whole blocks on both sides are fetched too, and cost no request of their own."""
    rolling_size, random = 3 * BLOCK // 2 + 7, Random(size)
    owner = await large(ChunkedOptions(read_request=3 * BLOCK), rolling_size)
    for _ in range(30):
        offset = random.randrange(len(LARGE) - size)
        cold = await owner.tier2.owner()
        asked = _requests_counted(cold)
        assert await cold.storage.read(SID, offset, size) == LARGE[offset : offset + size]

        touched = range(offset // rolling_size, (offset + size - 1) // rolling_size + 1)
        assert len(asked) == len({name for name, _, _ in asked}) == len(touched)
        assert all(at % BLOCK == 0 for _, at, _ in asked)


async def test_whole_blocks_around_a_small_range_are_one_request() -> None:
    owner = await large(ChunkedOptions(read_request=BLOCK), len(LARGE))
    asked = _requests_counted(owner)
    await owner.storage.read(SID, 2 * BLOCK - 2048, 4096)

    [(_, offset, size)] = asked
    assert (offset, size) == (BLOCK, 2 * BLOCK)


async def test_a_large_range_of_one_chunk_is_divided_into_equal_requests() -> None:
    owner = await large(ChunkedOptions(read_request=2 * BLOCK), len(LARGE))
    asked = _requests_counted(owner)
    assert await owner.storage.read(SID, 0, 5 * BLOCK) == LARGE[: 5 * BLOCK]

    assert [(offset, size) for _, offset, size in asked] == [
        (0, 2 * BLOCK),
        (2 * BLOCK, 2 * BLOCK),
        (4 * BLOCK, BLOCK),
    ]


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
async def test_a_flipped_bit_is_corruption_that_names_the_chunk_and_block(place: int) -> None:
    owner = await large(rolling_size=len(LARGE))
    [name] = owner.tier2.names()
    owner.tier2.chunks.chunks[name].data[place] ^= 1
    with pytest.raises(DataCorruption) as caught:
        await owner.storage.read(SID, 0, len(LARGE))

    assert (caught.value.file, caught.value.offset) == (name, place // BLOCK * BLOCK)
    clean = 4 * BLOCK
    assert await owner.storage.read(SID, clean, BLOCK) == LARGE[clean : clean + BLOCK]


async def test_a_bit_flipped_on_the_way_is_noticed() -> None:
    owner = await large()
    owner.chunks.script = every(Fault(FaultKind.FLIP, bit=12345), "read")
    with pytest.raises(DataCorruption):
        await owner.storage.read(SID, 10, 10)


async def test_a_chunk_shorter_than_its_record_is_corruption() -> None:
    owner = await large(rolling_size=len(LARGE))
    [name] = owner.tier2.names()
    del owner.tier2.chunks.chunks[name].data[-1:]
    with pytest.raises(DataCorruption, match="shorter") as caught:
        await owner.content()

    assert (caught.value.file, caught.value.offset) == (name, len(LARGE) - 1)


async def test_a_missing_chunk_is_corruption_that_names_it() -> None:
    owner = await large()
    name = owner.tier2.names()[1]
    del owner.tier2.chunks.chunks[name]
    with pytest.raises(DataCorruption, match="missing") as caught:
        await owner.content()

    assert caught.value.file == name


async def test_a_missing_chunk_record_is_corruption_that_names_it() -> None:
    owner = await large()
    name = [record.name for _, record in await owner.storage.chunks(SID)][1]
    del owner.tier2.metadata.entries[f"c:{name}"]
    for verb in (owner.content(), owner.storage.chunks(SID), owner.delete()):
        with pytest.raises(DataCorruption) as caught:
            await verb
        assert caught.value.file == name


async def test_a_read_error_passes_and_the_next_read_works() -> None:
    owner = await large()
    owner.chunks.script = every(Fault(FaultKind.BEFORE), "read")
    with pytest.raises(Unavailable):
        await owner.content()
    owner.chunks.script = None

    assert await owner.content() == LARGE


@pytest.mark.parametrize("after", ["truncate", "delete", "nothing"])
async def test_a_reader_under_a_commit_gets_the_new_answer(after: str) -> None:
    """The chunk goes away between the plan and the read, as a collector would have it."""
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"abcdef", rolling_size=3)
    started, go_on = anyio.Event(), anyio.Event()
    read = owner.chunks.read
    outcome: list[object] = []

    async def wait(name: str, offset: int, size: int) -> bytes:
        started.set()
        await go_on.wait()
        return await read(name, offset, size)

    async def reader() -> None:
        try:
            outcome.append(await owner.storage.read(SID, 0, 6))
        except TierlogError as error:
            outcome.append(type(error))

    owner.chunks.read = wait  # type: ignore[method-assign]
    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await started.wait()
        if after == "truncate":
            await owner.truncate(4)
        if after == "delete":
            await owner.delete()
        for name in tier2.sink.released:
            del tier2.chunks.chunks[name]
        go_on.set()

    assert outcome == [{"truncate": SegmentTruncated, "delete": SegmentNotFound, "nothing": b"abcdef"}[after]]


async def test_a_chain_that_ends_too_early_is_corruption() -> None:
    owner = await large()
    chunks = await owner.storage.chunks(SID)
    first = chunks[0][1]
    owner.tier2.metadata.entries[first.key] = (
        99,
        type(first)(first.name, first.length, "", first.packed_crcs).encode(),
    )
    owner = await owner.tier2.owner()
    with pytest.raises(DataCorruption, match="end at"):
        await owner.content()


async def test_the_block_index_spares_the_walk() -> None:
    tier2 = Tier2(options=ChunkedOptions(index_spacing=10))
    owner = await tier2.owner()
    await owner.write(0, bytes(range(100)), rolling_size=1)
    store = CountingStore(tier2.metadata)
    owner = await tier2.owner(metadata=store)

    assert await owner.storage.read(SID, 57, 1) == bytes([57])
    assert store.records == 1 + 1 + 8, "the segment, the index record of 50, the chunks from there on"
    assert await owner.storage.read(SID, 99, 1) == bytes([99])
    assert store.records == 10 + 1, "the last chunk is in the segment's record"


async def test_an_index_that_is_not_built_yet_is_searched_farther_back() -> None:
    tier2 = Tier2(options=ChunkedOptions(index_spacing=10))
    await (await tier2.owner()).write(0, bytes(range(250)), rolling_size=1)
    for offset in range(200, 250, 10):
        del tier2.metadata.entries[f"i:{SID:016x}:{offset:016x}"]
    store = CountingStore(tier2.metadata)
    owner = await tier2.owner(metadata=store)

    assert await owner.storage.read(SID, 247, 1) == bytes([247])
    assert store.records < 90, "from 170 on, not from the start"


async def test_chunks_that_are_tiny_against_the_index_are_found_by_the_sparse_index() -> None:
    """A bounded number of chunk records per seek, once a walk has passed; also after commits, truncations and
    joins."""
    tier2 = Tier2()
    content = bytes(range(250)) * 16
    await (await tier2.owner()).write(0, content, rolling_size=1)
    store = CountingStore(tier2.metadata)
    owner = await tier2.owner(2, metadata=store)
    await owner.storage.read(SID, len(content) - 2, 1)
    assert store.records > len(content) - 100, "no walk before"
    for act in (
        None,
        lambda: owner.write(4000, b"abc"),
        lambda: owner.truncate(17),
        lambda: owner.truncate(1000),
    ):
        if act is not None:
            await act()
        for offset in range(1000, len(content), 331):
            store.records = 0
            assert await owner.storage.read(SID, offset, 1) == content[offset : offset + 1]
            assert store.records < 30
    await owner.run_deferred()
    store.records = 0
    assert await owner.storage.read(SID, 1003, 1500) == content[1003:2503]


async def test_entries_of_joined_chunks_mislead_no_reader() -> None:
    owner = await Tier2(options=ChunkedOptions(defrag=DefragOptions(loose_chunks=0))).owner()
    content = bytes(range(250)) * 4
    for place in range(0, len(content), 2):
        owner = await owner.tier2.owner()
        await owner.write(place, content[place : place + 2], sid=OTHER, rolling_size=200)
    assert await owner.storage.read(OTHER, 990, 1) == content[990:991]
    await owner.storage.defrag(OTHER)

    for offset in range(0, 1000, 37):
        assert await owner.storage.read(OTHER, offset, 3) == content[offset : offset + 3]


async def test_entries_are_bounded_and_dropped_with_their_chunk() -> None:
    index = SparseIndex(limit=8)
    for start in range(100):
        index.put(start, f"c{start}")
        assert len(index) <= 8
    assert index.stride > 16
    start, name = index.below(98) or (0, "")
    assert name == f"c{start}"
    assert index.below(-1) is None
    index.drop(start)
    assert (index.below(98) or (0, ""))[0] < start


async def test_the_cache_stays_within_its_bounds() -> None:
    options = ChunkedOptions(cached_segments=2, cached_chunks=10)
    owner = await Tier2(options=options).owner()
    for sid in (SID, OTHER, OTHER + 1):
        await owner.write(0, bytes(8), sid=sid, rolling_size=1)
        assert await owner.content(sid) == bytes(8)
        counted = owner.storage.statistics()
        assert counted.cached_segments <= 2
        assert counted.cached_chunks <= 10

    await owner.write(8, bytes(8), sid=SID)
    assert await owner.content(SID) == bytes(16)
    assert owner.storage.statistics().cached_chunks <= 10


async def test_readers_and_a_writer_side_by_side() -> None:
    """What is read is always a prefix of what is written, and whole once the writer is done."""
    owner = await Tier2().owner()
    await owner.write(0, b"\0", rolling_size=5)
    done = anyio.Event()

    async def writer() -> None:
        for offset in range(1, 60):
            await owner.write(offset, bytes([offset]))
        done.set()

    async def reader() -> None:
        while not done.is_set():
            data = await owner.storage.read(SID, 0, 100)
            assert data == bytes(range(len(data)))

    async with anyio.create_task_group() as group:
        for task in (writer, reader, reader):
            group.start_soon(task)

    assert await owner.content() == bytes(range(60))


def reads(calls: list[Call]) -> int:
    return sum(call.verb == "read" for call in calls)


async def test_reading_at_the_end_asks_the_storage_for_nothing() -> None:
    owner = await large()
    for offset, size in ((len(LARGE), 10), (len(LARGE) + 5, 1), (0, 0)):
        assert await owner.storage.read(SID, offset, size) == b""

    assert reads(owner.chunks.calls) == 0


async def test_the_cache_is_bounded_also_for_segments_that_are_read_at_their_end_only() -> None:
    """Only the record of such a segment is loaded."""
    owner = await Tier2(options=ChunkedOptions(cached_segments=2)).owner()
    for sid in range(SID, SID + 5):
        await owner.write(0, b"abc", sid=sid)
        assert await owner.storage.read(sid, 3, 10) == b""

    assert owner.storage.statistics().cached_segments == 2
    assert await owner.storage.read(SID, 0, 3) == b"abc"

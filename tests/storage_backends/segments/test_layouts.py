"""Layouts: rolling at tiny sizes, truncation at every offset, concat of every shape, and the block index
through all of them."""

from __future__ import annotations

from itertools import product

import pytest

from support.chunked import OTHER, SID, Owner, Tier2
from support.layouts import TEXT, build, check_index
from tierlog.storage_backends.base.errors import SegmentTruncated
from tierlog.storage_backends.segments.options import ChunkedOptions

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


@pytest.mark.parametrize("rolling_size", [1, 2, 3, 7])
@pytest.mark.parametrize("append", [True, False], ids=["append", "no-append"])
async def test_chunks_roll_at_exactly_the_rolling_size(rolling_size: int, append: bool) -> None:
    tier2 = Tier2(append=append, options=ChunkedOptions(index_spacing=2))
    owner = await tier2.owner()
    length = 0
    for size in (1, 2, 3, 1, 5):
        await owner.write(length, TEXT[length : length + size], rolling_size=rolling_size)
        length += size

    lengths = await owner.lengths()
    assert await owner.content() == TEXT[:length]
    assert max(lengths) <= rolling_size
    assert not append or lengths == [rolling_size] * (length // rolling_size) + [length % rolling_size] * (
        length % rolling_size > 0
    )
    await check_index(owner, 2)


@pytest.mark.parametrize("sizes", [[1], [4], [1, 2, 3], [3, 2, 1], [2, 2, 2, 2], [1, 1, 1, 1, 1]])
async def test_truncation_at_every_offset_then_again(sizes: list[int]) -> None:
    length = sum(sizes)
    for first, second in product(range(length + 1), range(length + 1)):
        owner = await Tier2(options=ChunkedOptions(index_spacing=2)).owner()
        data = await build(owner, sizes)
        await owner.truncate(first)
        owner = await owner.tier2.owner(epoch=2)
        await owner.truncate(second)
        start = max(first, second)

        assert await owner.content() == data[start:]
        if start:
            with pytest.raises(SegmentTruncated):
                await owner.storage.read(SID, start - 1, 1)
        live = [name for name in owner.tier2.names() if name not in owner.tier2.sink.released]
        assert [record.name for _, record in await owner.storage.chunks(SID)] == live
        await check_index(owner, 2)
        await owner.write(length, b"more")
        assert await owner.content() == data[start:] + b"more"
        await check_index(owner, 2)


@pytest.mark.parametrize("target", [[], [1], [3], [2, 2], [1, 2, 3]])
@pytest.mark.parametrize("source", [[], [1], [3], [2, 2], [1, 2, 3]])
@pytest.mark.parametrize("cut", [0, 1, 99])
async def test_concat_of_every_shape(target: list[int], source: list[int], cut: int) -> None:
    owner = await Tier2(options=ChunkedOptions(index_spacing=2)).owner()
    data = await build(owner, target)
    await owner.write(len(data))
    cut = min(cut, len(data))
    await owner.truncate(cut)
    added = await build(owner, source, OTHER)
    await owner.write(len(added), sid=OTHER, seal=True)
    await owner.concat()

    info = await owner.storage.info(SID)
    assert await owner.content() == data[cut:] + added
    assert (info.length, info.chunk_count) == (len(data) + len(added), len(await owner.lengths()))
    assert await owner.storage.list() == [SID]
    await owner.run_deferred()
    await check_index(owner, 2)
    await check_index_is_gone(owner, OTHER)
    await owner.write(info.length, b"tail")
    assert await owner.content() == data[cut:] + added + b"tail"
    await owner.delete()
    assert list(owner.tier2.metadata.entries) == []


async def check_index_is_gone(owner: Owner, sid: int) -> None:
    assert [key for key in owner.tier2.metadata.entries if key.startswith(f"i:{sid:016x}")] == []


async def test_s3_garbage_behind_the_recorded_length_is_invisible() -> None:
    """{5} and {1, 9}, each chunk with bytes that were never committed, before and after a concat."""
    owner = await Tier2().owner()
    data = await build(owner, [5])
    added = await build(owner, [1, 9], OTHER)
    await owner.write(10, sid=OTHER, seal=True)
    for chunk in owner.tier2.chunks.chunks.values():
        chunk.data += b"garbage"

    assert await owner.content() == data
    assert await owner.content(OTHER) == added
    await owner.concat()
    assert await owner.content() == data + added
    assert await owner.lengths() == [5, 1, 9]
    await owner.write(15, b"!")
    assert await owner.content() == data + added + b"!"


async def test_offsets_beyond_32_bits() -> None:
    """A huge truncated segment goes on where it was, at offsets above 2 GiB."""
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"x")
    record = await owner.storage.info(SID)
    [(_, chunk)] = await owner.storage.chunks(SID)
    huge = 5 << 30
    moved = type(record)(SID, huge + 1, huge, chunk.name, chunk.name, huge, huge, 1, owner_epoch=1)
    tier2.metadata.entries[record.key] = (9, moved.encode())
    owner = await tier2.owner()
    await owner.write(huge + 1, b"yz")
    await owner.truncate(huge + 2)

    assert await owner.content() == b"z"

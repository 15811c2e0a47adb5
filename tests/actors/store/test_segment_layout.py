"""Layouts: what a reader needs in order to fetch a segment's flushed bytes from long-term storage itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

import tierlog
from support.container_world import read_all
from support.service import service
from support.stores import CONFIG, make
from tierlog import SegmentLayout, SegmentStore
from tierlog.journal.manifest.store_record import StoreRecord
from tierlog.storage_backends.base.checksum import crc32c

pytestmark = pytest.mark.anyio
MIB = 1 << 20


@pytest.fixture(params=["embedded", pytest.param("client", marks=pytest.mark.one_loop)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[SegmentStore]:
    if request.param == "embedded":
        async with tierlog.open_store(tmp_path / "data", containers=2, config=CONFIG) as opened:
            yield opened
    else:
        with service(tmp_path / "data", containers=2) as url:
            async with tierlog.connect(url) as client:
                yield cast(SegmentStore, client)


def read_chunks(layout: SegmentLayout, start: int, end: int) -> bytes:
    """What a reader of the storage itself finds in ``start .. end``, every block checked."""
    found = bytearray()
    for extent in layout.extents:
        data = (Path(layout.place.location) / extent.chunk).read_bytes()[: extent.length]
        blocks = [data[at : at + MIB] for at in range(extent.block * MIB, extent.end - extent.start, MIB)]
        assert [crc32c(block) for block in blocks] == list(extent.checksums())
        found += b"".join(blocks)
    first = layout.extents[0].begin
    return bytes(found[start - first : end - first])


async def test_s21_a_layout_names_the_chunks_of_a_range_and_their_checksums(store: SegmentStore) -> None:
    """Of flushed bytes, without those of merged parts that are not spliced yet."""
    await make(store, "s", os.urandom(2 * MIB + 100))
    await make(store, "s#1", os.urandom(MIB + 1), sealed=True)
    await store.seal_segment("s#1")
    await store.flush()
    await store.merge_segments("s", ["s#1"])
    await store.flush()
    await store.append("s", b"unflushed")
    wanted = await read_all(store, "s")

    for start, end in ((0, 1 << 40), (5, 10), (MIB, 2 * MIB), (2 * MIB + 99, 2 * MIB + 101), (7, 3 * MIB)):
        layout = await store.segment_layout("s", start, end)
        stop = min(end, layout.flushed_length)
        assert read_chunks(layout, start, stop) == wanted[start:stop], (start, end)
        # Whole blocks, and no more of them than the range needs.
        assert layout.extents[0].begin <= start < layout.extents[0].begin + MIB
        assert layout.extents[-1].end - MIB < stop <= layout.extents[-1].end
    layout, info = await store.segment_layout("s", 0, 1 << 40), await store.segment_info("s")
    assert (layout.segment_id, layout.next_start) == (info.segment_id, None)
    assert layout.flushed_length == info.flushed_length == 3 * MIB + 101 == info.length - len(b"unflushed")
    assert (layout.epoch, layout.valid_for) == (1, CONFIG.gc.delay)
    record = (Path(layout.place.location) / "_system/store").read_bytes()
    assert StoreRecord.decode(record).store.hex() == layout.place.store


async def test_a_layout_has_nothing_of_bytes_that_are_not_there(store: SegmentStore) -> None:
    await make(store, "s", bytes(100))
    assert (await store.segment_layout("s", 0, 1 << 40)).extents == ()
    await store.flush()
    assert (await store.segment_layout("s", 100, 1 << 40)).extents == ()
    assert (await store.segment_layout("s", 5, 5)).extents == ()

    await store.truncate_segment("s", 60)

    layout = await store.segment_layout("s", 0, 60)
    assert (layout.start_offset, layout.extents, layout.next_start) == (60, (), None)
    with pytest.raises(tierlog.InvalidArgument, match="start 5 is above end 1"):
        await store.segment_layout("s", 5, 1)


async def pages_of(store: SegmentStore, end: int) -> list[SegmentLayout]:
    pages = [await store.segment_layout("s", 0, end)]
    while (start := pages[-1].next_start) is not None:
        pages.append(await store.segment_layout("s", start, end))
    return pages


@pytest.mark.parametrize("limit", ["LAYOUT_CHUNKS_MAX", "LAYOUT_BLOCKS_MAX"])
async def test_s21_a_layout_comes_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Bounded by chunks, and by checksums."""
    async with tierlog.open_store(tmp_path, containers=1, config=CONFIG) as store:
        await store.create_segment("s", rolling_size=2 * MIB)
        for _ in range(9):
            await store.append("s", os.urandom(MIB))
            await store.flush()
        [whole] = await pages_of(store, 9 * MIB - 5)
        monkeypatch.setattr(f"tierlog.storage_backends.segments.operations.extents.{limit}", 1)

        pages = await pages_of(store, 9 * MIB - 5)

        assert len(pages) == (9 if "BLOCKS" in limit else len(whole.extents))
        assert [len(page.extents) for page in pages] == [1] * len(pages)
        found = [read_chunks(page, page.extents[0].begin, page.extents[0].end) for page in pages]
        assert b"".join(found) == await read_all(store, "s")

"""What a read gives: ``bytes`` to a user, whatever the bytes came from; a view to a caller that passes them
on at once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from support.stores import config
from tierlog import SegmentStore, StoreConfig, open_store
from tierlog.actors.read.reader import ReadableSegment, Reader
from tierlog.actors.read.statistics import ReadAheadStatistics
from tierlog.actors.settings.configuration import CacheConfig, ReadAheadConfig
from tierlog.actors.settings.units import KiB, MiB
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import DataCorruption

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

NAME = "app/events"
PIECE = 64 * KiB
DATA = Random(1).randbytes(4 * MiB)
IN_CACHE = config(append_bytes_max=PIECE)
IN_STORAGE = config(append_bytes_max=PIECE, cache=CacheConfig(bytes=MiB), read_ahead=ReadAheadConfig(bytes=0))
READ_AHEAD = config(append_bytes_max=PIECE, cache=CacheConfig(bytes=MiB))


async def fill(store: SegmentStore) -> None:
    await store.create_segment(NAME)
    for start in range(0, len(DATA), PIECE):
        await store.append(NAME, DATA[start : start + PIECE])
        if start % MiB == 0:
            await store.flush()
    await store.flush()


def read_ahead(store: SegmentStore) -> ReadAheadStatistics:
    current = store.statistics().containers[0].current
    assert current is not None
    return current.read_ahead


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The types of what a container's or a view's reader gave."""
    types: list[type] = []
    read = Reader.read

    async def watched(self: Reader, segment: ReadableSegment, offset: int, size: int) -> Buffer:
        found = await read(self, segment, offset, size)
        types.append(type(found))
        return found

    monkeypatch.setattr(Reader, "read", watched)
    return types


@pytest.mark.parametrize(
    "settings", [IN_CACHE, IN_STORAGE, READ_AHEAD], ids=["cache", "storage", "read ahead"]
)
async def test_a_read_returns_bytes_from_every_source(
    tmp_path: Path, settings: StoreConfig, inside: list[type]
) -> None:
    """Sizes that no block of the cache, of long-term storage, or window has, one behind the other."""
    async with open_store(tmp_path, containers=1, config=settings) as store:
        await fill(store)
        found = bytearray()
        while len(found) < 3 * MiB:
            piece = await store.read(NAME, len(found), 50_001)
            assert type(piece) is bytes
            found += piece
        hits = read_ahead(store).hits

        assert found == DATA[: len(found)]
        assert memoryview in inside, "what was asked for was no view, so this shows nothing"
        assert bool(hits) == (settings is READ_AHEAD)
        assert type(await store.read(NAME, len(DATA), 1)) is bytes


@pytest.mark.parametrize(
    "settings", [IN_CACHE, IN_STORAGE, READ_AHEAD], ids=["cache", "storage", "read ahead"]
)
async def test_a_view_of_a_range_is_its_bytes(tmp_path: Path, settings: StoreConfig) -> None:
    random = Random(2)
    async with open_store(tmp_path, containers=1, config=settings) as store:
        await fill(store)
        for _ in range(30):
            offset, size = random.randrange(len(DATA)), random.randrange(1, 200_000)
            view = await store.read_view(NAME, offset, size)
            assert 0 < len(view) <= size
            assert view == await store.read(NAME, offset, len(view)) == DATA[offset : offset + len(view)]


async def test_a_kept_view_does_not_change_and_blocks_no_append(tmp_path: Path) -> None:
    """Small appends, which share the blocks of the cache."""
    piece = DATA[:5000]
    async with open_store(tmp_path, containers=1, config=IN_CACHE) as store:
        await store.create_segment(NAME)
        kept: list[tuple[int, Buffer]] = []
        for number in range(60):
            await store.append(NAME, piece)
            offset = number * len(piece)
            kept += [(at, await store.read_view(NAME, at, 4000)) for at in (offset, offset // 2)]
            if number == 40:
                await store.flush()

        assert any(isinstance(view, memoryview) for _, view in kept)

        everything = piece * 60
        assert all(view == everything[at : at + len(view)] for at, view in kept)


async def test_the_blocks_of_a_tail_are_bytes(tmp_path: Path, inside: list[type]) -> None:
    async with open_store(tmp_path, containers=1, config=IN_STORAGE) as store:
        await fill(store)
        await store.seal_segment(NAME)

        assert {type(block) async for block in store.tail(NAME, 5, block_size=50_001)} == {bytes}
    assert memoryview in inside


async def test_a_view_of_a_folder_returns_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: list[type]
) -> None:
    """Also by a second listing, after an owner moved what was read."""
    monkeypatch.setattr(
        "tierlog.actors.store.read_only._CACHE_BYTES", 0
    )  # flushed bytes come from their chunk
    async with open_store(tmp_path, containers=1, config=IN_STORAGE) as store:
        await fill(store)
        async with open_reader(tmp_path) as view:
            assert type(found := await view.read(NAME, 7, 1000)) is bytes
            assert found == DATA[7:1007]
            assert inside[-1] is memoryview

            await store.append(NAME, b"the log is another")
            read, failures = Reader.read, [DataCorruption("scripted")]

            async def fails_once(self: Reader, segment: ReadableSegment, offset: int, size: int) -> Buffer:
                if failures:
                    raise failures.pop()
                return await read(self, segment, offset, size)

            monkeypatch.setattr(Reader, "read", fails_once)
            assert type(found := await view.read(NAME, 7, 1000)) is bytes
            assert (found, failures) == (DATA[7:1007], [])
            assert inside[-1] is memoryview

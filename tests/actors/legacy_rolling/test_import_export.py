"""Segments of the legacy layout as they are found, imported and exported (rule S15)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.chunked import SID, Owner, Tier2
from support.legacy_layout import write_files, write_header, write_legacy
from tierlog.actors.legacy_rolling.export import Exported, export_header
from tierlog.actors.legacy_rolling.find import FoundChunk, LegacySegment, find, list_segments
from tierlog.actors.legacy_rolling.importing import read_chain
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import DataCorruption, InvalidArgument, Unsupported
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.segments.chain import Chain
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import BLOCK

pytestmark = pytest.mark.anyio

NAME = "scope/stream/0.#epoch.0"


@pytest.fixture
async def chunks() -> ChunkStorage:
    storage = MemoryChunkStorage()
    await storage.open()
    return storage


async def found(chunks: ChunkStorage, name: str = NAME) -> LegacySegment:
    segment = await find(chunks, name)
    assert segment is not None
    return segment


# --- finding ------------------------------------------------------------------------------------


async def test_the_length_of_a_segment_is_the_end_of_its_last_file(chunks: ChunkStorage) -> None:
    await write_legacy(chunks, NAME, b"0123", b"45", b"6789a", max_size=4, sealed=True)
    ranges = (
        FoundChunk(f"{NAME}$offset.0", 0, 4),
        FoundChunk(f"{NAME}$offset.4", 4, 2),
        FoundChunk(f"{NAME}$offset.6", 6, 5),
    )

    assert await find(chunks, NAME) == LegacySegment(NAME, 11, 0, True, 4, ranges)


async def test_a_plain_file_is_a_segment_without_a_header(chunks: ChunkStorage) -> None:
    await write_files(chunks, [("a/plain", b"bytes"), ("a/empty", b"")])
    await chunks.set_read_only("a/plain", True)

    assert await find(chunks, "a/plain") == LegacySegment(
        "a/plain", 5, 0, True, None, (FoundChunk("a/plain", 0, 5),)
    )
    assert await find(chunks, "a/empty") == LegacySegment("a/empty", 0, 0, False, None, ())


async def test_what_is_no_segment_is_not_found(chunks: ChunkStorage) -> None:
    await write_legacy(chunks, "a/b", b"bytes")
    await write_files(chunks, [("a/begun$header", b""), ("a/begun", b"plain")])

    for name in ("a/c", "a/begun", "a/b$header", "a/b$offset.0", "a/größe", "../a/b"):
        assert await find(chunks, name) is None


async def test_bytes_behind_a_files_range_do_not_exist(chunks: ChunkStorage) -> None:
    await write_files(chunks, [("a$offset.0", b"0123 garbage"), ("a$offset.4", b"45")])
    await write_header(chunks, "a", b"maxsize=4&0=a$offset.0&4=a$offset.4&")

    assert [(each.start, each.length) for each in (await found(chunks, "a")).chunks] == [(0, 4), (4, 2)]


async def test_files_that_are_missing_in_front_were_truncated_away(chunks: ChunkStorage) -> None:
    await write_legacy(chunks, NAME, b"0123", b"45", b"6789")
    await chunks.delete(f"{NAME}$offset.0")
    segment = await found(chunks)

    assert (segment.start_offset, segment.length, len(segment.chunks)) == (4, 10, 2)


async def test_a_rewritten_header_begins_where_its_first_file_does(chunks: ChunkStorage) -> None:
    await write_legacy(chunks, NAME, b"45", b"6789", start=4)
    segment = await found(chunks)

    assert (segment.start_offset, segment.length) == (4, 10)


async def test_a_segment_truncated_at_its_end_begins_and_ends_with_an_empty_file(
    chunks: ChunkStorage,
) -> None:
    await write_legacy(chunks, NAME, b"0123", b"")
    await chunks.delete(f"{NAME}$offset.0")

    assert await find(chunks, NAME) == LegacySegment(NAME, 4, 4, False, 1 << 20, ())


async def test_empty_files_are_no_chunks(chunks: ChunkStorage) -> None:
    await write_files(chunks, [("a$offset.0", b"01"), ("empty", b""), ("b", b"23")])
    await write_header(chunks, "a", b"maxsize=4&0=a$offset.0&2=empty&2=b&")

    assert [each.name for each in (await found(chunks, "a")).chunks] == ["a$offset.0", "b"]


@pytest.mark.parametrize(
    "broken, reason",
    [
        (["$offset.4"], "is missing"),
        (["$offset.6"], "is missing"),
        (["$offset.0", "$offset.4", "$offset.6"], "all data files"),
    ],
)
async def test_files_that_are_missing_elsewhere_are_corruption(
    chunks: ChunkStorage, broken: list[str], reason: str
) -> None:
    await write_legacy(chunks, NAME, b"0123", b"45", b"6789")
    for suffix in broken:
        await chunks.delete(NAME + suffix)

    with pytest.raises(DataCorruption, match=reason):
        await find(chunks, NAME)


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"maxsize=4&0=a$offset.0&100=b&", "shorter than the 100 bytes"),
        (b"maxsize=4&0=../a&", "cannot be a file"),
        (b"maxsize=4&0=b&4=b&", "twice"),
        (b"maxsize=4&9223372036854775807=b&", "would be"),
    ],
)
async def test_a_header_that_cannot_be_true_is_corruption(
    chunks: ChunkStorage, content: bytes, reason: str
) -> None:
    await write_files(chunks, [("a$offset.0", b"0123"), ("b", b"4")])
    await write_header(chunks, "a", content)

    with pytest.raises(DataCorruption, match=reason):
        await find(chunks, "a")


async def test_segments_with_headers_are_listed(chunks: ChunkStorage) -> None:
    for name in ("b/2", "a/1", "b/1"):
        await write_legacy(chunks, name, b"x")
    await write_files(chunks, [("b/begun$header", b""), ("b/plain", b"x")])

    assert await list_segments(chunks) == ["a/1", "b/1", "b/2"]
    assert await list_segments(chunks, "b/") == ["b/1", "b/2"]


# --- import -------------------------------------------------------------------------------------


async def imported(tier2: Tier2, owner: Owner, name: str = NAME, sid: int = SID) -> Chain:
    """The segment's records committed, as a container does it."""
    chain = await read_chain(owner.chunks, await found(owner.chunks, name), rolling_size=77)
    store = MemoryMetadataStore(tier2.metadata)
    writes = {record.key: record.encode() for record in chain.records(sid, 1, tier2.options.index_spacing)}
    await store.commit(dict.fromkeys(writes, 0), writes)
    return chain


async def test_an_imported_segment_reads_like_any_other_rule_s5() -> None:
    tier2 = Tier2(options=ChunkedOptions(index_spacing=BLOCK))
    owner = await tier2.owner()
    parts = [bytes([each]) * (BLOCK + each * 1000) for each in range(5)]
    await write_legacy(owner.chunks, NAME, *parts, sealed=True)
    progress: list[tuple[int, int]] = []
    await read_chain(
        owner.chunks, await found(owner.chunks), 77, lambda done, more: progress.append((done, more))
    )
    chain = await imported(tier2, owner)

    assert chain.broken() == []
    assert await owner.content() == b"".join(parts)
    assert [record.crcs for _, record in await owner.storage.chunks(SID)] == [
        record.crcs for _, record in chain.chunks
    ]
    for offset in range(0, chain.length, 777_777):
        assert await owner.storage.read(SID, offset, 10) == b"".join(parts)[offset : offset + 10]
    info = await owner.storage.info(SID)
    assert (info.sealed, info.rolling_size, info.chunk_count) == (True, 1 << 20, 5)
    assert (sum(done for done, _ in progress), sum(more for _, more in progress)) == (
        chain.length,
        chain.length,
    )


async def test_damage_after_the_import_is_seen_rule_s5() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await write_legacy(owner.chunks, NAME, b"0123", b"45")
    await imported(tier2, owner)
    tier2.chunks.chunks[f"{NAME}$offset.4"].data[0] ^= 1

    with pytest.raises(DataCorruption, match="checksum"):
        await owner.content()


async def test_a_file_without_a_header_rolls_at_the_stores_own_size() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await write_files(owner.chunks, [("plain", b"bytes")])

    assert (await imported(tier2, owner, "plain")).rolling_size == 77


@pytest.mark.parametrize("cut, reason", [(3, "shorter"), (None, "vanished")])
async def test_a_file_that_changes_while_it_is_read_stops_the_import(
    chunks: MemoryChunkStorage, cut: int | None, reason: str
) -> None:
    await write_legacy(chunks, NAME, b"0123", b"45")
    segment = await found(chunks)
    if cut is None:
        await chunks.delete(f"{NAME}$offset.4")
    else:
        del chunks.state.chunks[f"{NAME}$offset.0"].data[cut:]

    with pytest.raises(DataCorruption, match=reason):
        await read_chain(chunks, segment, 1)


# --- export -------------------------------------------------------------------------------------


async def exported(owner: Owner, name: str = NAME, *, replace: bool = False) -> Exported:
    return await export_header(
        owner.chunks, name, await owner.storage.info(SID), await owner.storage.chunks(SID), replace=replace
    )


async def test_an_exported_segment_is_found_by_its_header() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"0123456789", rolling_size=4, seal=True)
    names = [record.name for _, record in await owner.storage.chunks(SID)]

    assert await exported(owner) == Exported(f"{NAME}$header", 3, 10, 0, 0, True)
    assert (
        bytes(tier2.chunks.chunks[f"{NAME}$header"].data)
        == f"maxsize=4&0={names[0]}&4={names[1]}&8={names[2]}&".encode()
    )
    assert (await found(owner.chunks)).sealed


async def test_an_export_is_repeated_in_peace_and_replaced_on_purpose() -> None:
    owner = await Tier2().owner()
    await owner.write(0, b"0123", rolling_size=4)
    await exported(owner)
    await exported(owner)
    await owner.write(4, b"4567", seal=True)

    with pytest.raises(InvalidArgument, match="other content"):
        await exported(owner)
    await exported(owner, replace=True)
    assert (await found(owner.chunks)).length == 8


async def test_a_start_inside_a_chunk_is_left_out_and_reported() -> None:
    owner = await Tier2().owner()
    await owner.write(0, b"0123456789", rolling_size=4)
    await owner.truncate(6)
    done = await exported(owner)

    assert (done.start_offset, done.hidden_bytes, done.chunks) == (4, 2, 2)
    assert (await found(owner.chunks)).start_offset == 4


class NothingReadOnly(MemoryChunkStorage):
    async def _set_read_only(self, name: str, read_only: bool) -> None:
        raise Unsupported("scripted: there are no read-only objects")


async def test_a_seal_that_a_storage_cannot_express_is_reported() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"0123", seal=True)
    chunks = NothingReadOnly(tier2.chunks)
    await chunks.open()

    assert not (
        await export_header(chunks, NAME, await owner.storage.info(SID), await owner.storage.chunks(SID))
    ).sealed
    assert not (await found(owner.chunks)).sealed


async def test_segments_the_format_cannot_express_are_refused() -> None:
    tier2 = Tier2()
    owner = await tier2.owner()
    await owner.write(0, b"0123")
    (name,) = tier2.names()
    with pytest.raises(Unsupported, match="no file can have its name"):
        await exported(owner, "a/größe")

    tier2.chunks.chunks[name].data += b"garbage"
    with pytest.raises(Unsupported, match="7 bytes of an unfinished write"):
        await exported(owner)

    del tier2.chunks.chunks[name].data[3:]
    with pytest.raises(DataCorruption, match="shorter"):
        await exported(owner)

    del tier2.chunks.chunks[name]
    with pytest.raises(DataCorruption, match="missing"):
        await exported(owner)

    await owner.truncate(4)
    with pytest.raises(Unsupported, match="truncated to its end"):
        await exported(owner)
    assert f"{NAME}$header" not in tier2.chunks.chunks


steps = st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.integers(0, 40)), min_size=1, max_size=8)


@settings(max_examples=30)
@given(steps=steps, rolling=st.integers(1, 12), append=st.booleans(), seal=st.booleans())
async def test_what_was_exported_is_imported_with_the_same_bytes(
    steps: list[bytes | int], rolling: int, append: bool, seal: bool
) -> None:
    """Writes and truncations; a start inside a chunk moves back to that chunk's start, as the export
    tells."""
    tier2 = Tier2(append=append)
    owner = await tier2.owner()
    written = b""
    for step in steps:
        if isinstance(step, bytes):
            await owner.write(len(written), step, rolling_size=rolling)
            written += step
        elif step < len(written):
            await owner.truncate(step)
    if not written:
        return
    if seal:
        await owner.write(len(written), seal=True)
    done = await exported(owner)

    chunks: MemoryChunkState = tier2.chunks
    second = Tier2(chunks=chunks, metadata=MemoryMetadataState())
    reader = await second.owner()
    await imported(second, reader)
    info = await reader.storage.info(SID)

    assert (info.length, info.start_offset, info.sealed) == (len(written), done.start_offset, seal)
    assert await reader.content() == written[done.start_offset :]


async def test_a_file_too_large_for_a_header_is_refused_unread(tmp_path: Path) -> None:
    storage = FileSystemChunkStorage(LocalFiles(), str(tmp_path), system_world())
    await storage.open()
    header = tmp_path / "old$header"
    header.touch()
    os.truncate(header, 5 << 30)
    with pytest.raises(DataCorruption, match="a header of 5368709120 bytes"):
        await find(storage, "old")
    await storage.close()

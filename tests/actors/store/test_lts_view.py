"""What long-term storage alone shows of a store: what was flushed, without logs; and nothing is written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.folders import chunk_files, fingerprint, flip_bit
from tierlog import (
    ChangesIncomplete,
    ClosedError,
    DataCorruption,
    InvalidArgument,
    LtsView,
    SegmentNotFound,
    SegmentStore,
    SegmentTruncated,
    StagedPart,
    StoreConfig,
    StoreMismatch,
    TransactionNotFound,
    TransactionState,
    WrongSegmentKind,
    open_lts,
    open_store,
)
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.journal.manifest.element import Element
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.sorted_runs.run_list import RunList

pytestmark = pytest.mark.anyio

NAME = "app/events"
FLUSHED = b"flushed " * 5000
QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=3600.0))
"""Only what a test flushes is in long-term storage, and nothing is deleted there."""


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for a second makes no segment late: what a test flushes is in one cycle."""
    patient = partial(WriterOptions, segment_deadline=1000.0)
    monkeypatch.setattr("tierlog.actors.store.opening.WriterOptions", patient)


async def fill(store: SegmentStore) -> None:
    """Segments of all kinds, flushed, and changes that are not."""
    await store.create_segment(NAME)
    await store.append(NAME, FLUSHED, writer_id="w", event_number=7)
    await store.create_segment("cut")
    await store.append("cut", b"0123456789")
    await store.truncate_segment("cut", 4)
    await store.seal_segment("cut")
    await store.create_segment("empty")
    await store.create_segment("gone")
    await store.delete_segment("gone")
    await store.create_table("table")
    await store.table("table").put(b"key", b"value")
    await store.begin_transaction(NAME, "committed")
    staged = await store.stage_segment(NAME, "committed", "0")
    await store.append(staged, b"staged")
    await store.commit_transaction(NAME, "committed", [StagedPart(staged, 6)])
    await store.flush()
    await store.append(NAME, b"only in the log", writer_id="w", event_number=8)
    await store.create_segment("unflushed")
    await store.table("table").put(b"key", b"newer")


async def read_all(view: LtsView, name: str) -> bytes:
    info, data = await view.segment_info(name), b""
    while block := await view.read(name, info.start_offset + len(data), 1 << 16):
        data += block
    assert info.start_offset + len(data) == info.length
    return data


async def value_in(view: LtsView) -> bytes:
    row = await view.table("table").get(b"key")
    assert row is not None
    return row.value


async def check(view: LtsView) -> None:
    """That ``view`` shows what ``fill`` flushed."""
    assert await view.list_segments() == [NAME, "cut", "empty", "table"]
    assert await read_all(view, NAME) == FLUSHED + b"staged"
    assert await view.last_event_number(NAME, "w") == 7
    cut = await view.segment_info("cut")
    assert (cut.start_offset, cut.length, cut.flushed_length, cut.sealed) == (4, 10, 10, True)
    assert await read_all(view, "cut") == b"456789"
    with pytest.raises(SegmentTruncated, match="'cut'"):
        await view.read("cut", 3, 1)
    assert await read_all(view, "empty") == b""
    assert not (await view.segment_info("empty")).sealed
    for name in ("gone", "unflushed"):
        with pytest.raises(SegmentNotFound):
            await view.read(name, 0, 1)
    assert await value_in(view) == b"value"
    with pytest.raises(WrongSegmentKind):
        await view.read("table", 0, 1)
    assert (await view.transaction_info(NAME, "committed")).state is TransactionState.COMMITTED
    assert [each.transaction_id for each in await view.list_transactions()] == ["committed"]


@pytest.mark.parametrize("containers", [1, 3])
async def test_it_shows_what_was_flushed_without_logs(tmp_path: Path, containers: int) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    async with open_store(folder, containers=containers, config=QUIET) as store:
        await fill(store)
    shutil.copytree(folder / "lts", copy)
    shutil.rmtree(folder / "wal")
    before = fingerprint(tmp_path)
    for place in (folder, str(folder / "lts"), copy):
        async with open_lts(place) as view:
            await check(view)
    assert fingerprint(tmp_path) == before


async def test_it_names_the_chunks_of_what_was_flushed(tmp_path: Path) -> None:
    """For readers that fetch them themselves, and where they may divide a segment."""
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
        live = await store.segment_layout("cut", 0, 100)
    async with open_lts(tmp_path) as view:
        found = await view.segment_layout("cut", 0, 100)
        assert (found.extents, found.place) == (live.extents, live.place)
        assert (found.start_offset, found.flushed_length, found.valid_for) == (4, 10, 0.0)
        assert await view.append_starts(NAME, 0, 1 << 40) == [0, len(FLUSHED)]
        for name in ("empty", "cut"):
            assert await view.append_starts(name, 0, 1 << 40) == []
        assert (await view.segment_layout("empty", 0, 100)).extents == ()
        with pytest.raises(SegmentNotFound):
            await view.segment_layout("unflushed", 0, 100)


async def test_changes_of_a_table_go_on_from_a_version_that_the_store_gave(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await fill(store)
        await store.flush()
        given = await store.table("table").changes(0)
    async with open_lts(tmp_path) as view:
        seen = await view.table("table").changes(0)
        assert [(row.key, row.value) for row in seen.rows] == [(b"key", b"newer")]
        assert (await view.table("table").changes(seen.version)).rows == []
        with pytest.raises(ChangesIncomplete):  # of what was not published
            await view.table("table").changes(given.version + 1000)


async def test_changes_across_another_history_are_refused(tmp_path: Path) -> None:
    """An old log was adopted: versions before it may be those of the history that was given up."""
    folder, old = tmp_path / "data", tmp_path / "old"
    await make_store(folder)
    shutil.copytree(folder / "wal", old)
    async with open_store(folder, config=QUIET) as store:
        await store.table("table").put(b"given up", b"")
        given = await store.table("table").changes(0)
        await store.flush()
    shutil.rmtree(folder / "wal")
    shutil.copytree(old, folder / "wal")
    async with open_store(folder, adopt=True, config=QUIET) as store:
        await store.flush()
    async with open_lts(folder) as view:
        with pytest.raises(ChangesIncomplete):
            await view.table("table").changes(given.version)
        assert [row.key for row in (await view.table("table").changes(0)).rows] == [b"key"]


async def test_it_reads_on_beside_a_living_owner(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store, open_lts(tmp_path) as view:
        assert await view.list_segments() == []
        await fill(store)
        assert await view.list_segments() == []
        assert await view.refresh()
        await check(view)
        assert not await view.refresh()
        await store.flush()
        await check(view)
        assert await view.refresh()
        assert await value_in(view) == b"newer"
        assert await read_all(view, NAME) == FLUSHED + b"stagedonly in the log"
        assert await view.last_event_number(NAME, "w") == 8


async def test_a_read_that_meets_a_deleted_chunk_reads_on(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store, open_lts(tmp_path) as view:
        await fill(store)
        assert await read_all(view, NAME)
        await store.delete_segment(NAME)
        await store.flush()
        # As its owner does after the delay.
        for chunk in chunk_files(tmp_path):
            chunk.unlink()
        with pytest.raises(SegmentNotFound):
            await view.read(NAME, 0, 1)


async def test_an_open_transaction_is_not_known(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await store.create_segment(NAME)
        await store.begin_transaction(NAME, "open")
        await store.append(await store.stage_segment(NAME, "open", "0"), b"staged")
        await store.flush()
    async with open_lts(tmp_path) as view:
        assert await view.list_segments() == [NAME]
        assert await view.list_transactions() == []
        with pytest.raises(TransactionNotFound):
            await view.transaction_info(NAME, "open")


def once_during_a_flush(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    """``act`` runs before the first chunk of a segment is created."""
    left = [act]
    create = FileSystemChunkStorage._create_with_content

    async def after_act(self: FileSystemChunkStorage, name: str, data: Sequence[Buffer]) -> int:
        if left and name.startswith("containers/"):
            await left.pop()()
        return await create(self, name, data)

    monkeypatch.setattr(FileSystemChunkStorage, "_create_with_content", after_act)


async def test_of_a_segment_that_changed_during_the_flush_it_shows_the_state_at_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        await store.create_segment("source")
        await store.append("source", b"merged")
        await store.seal_segment("source")
        await store.create_segment(NAME)
        await store.append(NAME, FLUSHED, writer_id="w", event_number=7)

        async def change() -> None:
            await store.append(NAME, b"more", writer_id="w", event_number=8)
            await store.merge_segments(NAME, ["source"])
            await store.seal_segment(NAME)

        once_during_a_flush(monkeypatch, change)
        await store.flush()
    async with open_lts(tmp_path) as view:
        info = await view.segment_info(NAME)
        assert info.length == info.flushed_length
        assert not info.sealed
        assert await read_all(view, NAME) == FLUSHED
        assert await view.last_event_number(NAME, "w") == 7


# --- refusals -----------------------------------------------------------------------------------


def elements(folder: Path) -> list[Path]:
    return sorted((folder / "lts/_system/containers/0000/journal").iterdir())


async def make_store(folder: Path) -> None:
    async with open_store(folder, containers=1, config=QUIET) as store:
        await fill(store)


async def list_in(folder: Path) -> list[str]:
    async with open_lts(folder) as view:
        return await view.list_segments()


async def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="neither a data folder nor the long-term storage of one"):
        await list_in(tmp_path)
    with pytest.raises(InvalidArgument, match="is not a location in S3"):
        async with open_lts("s3://?"):
            pass
    with pytest.raises(InvalidArgument, match="config is a tierlog.StoreConfig"):
        async with open_lts(tmp_path, config="tierlog.toml"):  # type: ignore[arg-type]
            pass


async def test_a_view_that_was_closed_says_so(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment("s")
        await store.append("s", b"data")
        await store.flush()
    async with open_lts(tmp_path) as view:
        pass
    with pytest.raises(ClosedError, match="use it inside the body of its `async with`"):
        await view.read("s", 0, 4)


async def test_a_missing_store_record_is_reported(tmp_path: Path) -> None:
    await make_store(tmp_path)
    (tmp_path / "lts/_system/store").unlink()
    with pytest.raises(
        DataCorruption, match="no long-term storage of a store, or an unfinished copy"
    ) as raised:
        await list_in(tmp_path)
    assert raised.value.file == "_system/store"


async def test_a_damaged_newest_element_is_reported_and_no_older_one_shown(tmp_path: Path) -> None:
    await make_store(tmp_path)
    flip_bit(elements(tmp_path)[-1], 20)
    with pytest.raises(DataCorruption) as raised:
        await list_in(tmp_path)
    assert raised.value.file.endswith(elements(tmp_path)[-1].name)


async def test_a_lost_journal_is_not_taken_for_an_empty_store(tmp_path: Path) -> None:
    await make_store(tmp_path)
    shutil.rmtree(tmp_path / "lts/_system/containers/0000/journal")
    with pytest.raises(DataCorruption, match="its journal is lost"):
        await list_in(tmp_path)


async def test_an_element_of_another_store_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path / "first")
    await make_store(tmp_path / "second")
    journal = "lts/_system/containers/0000/journal"
    shutil.rmtree(tmp_path / "second" / journal)
    shutil.copytree(tmp_path / "first" / journal, tmp_path / "second" / journal)
    with pytest.raises(StoreMismatch, match="belongs to store"):
        await list_in(tmp_path / "second")


async def test_an_element_of_an_earlier_version_without_names_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path)
    newest = elements(tmp_path)[-1]
    element = Element.decode(newest.read_bytes())
    newest.write_bytes(attrs.evolve(element, runs=attrs.evolve(element.runs, schema=0)).encode())
    with pytest.raises(StoreMismatch, match="published no names of segments"):
        await list_in(tmp_path)


async def test_m12_a_container_whose_cycles_had_no_room_for_a_run_yet_is_refused_as_that(
    tmp_path: Path,
) -> None:
    await make_store(tmp_path)
    newest = elements(tmp_path)[-1]
    element = Element.decode(newest.read_bytes())
    newest.write_bytes(attrs.evolve(element, runs=RunList()).encode())
    with pytest.raises(StoreMismatch, match="no cycle had room for them yet"):
        await list_in(tmp_path)

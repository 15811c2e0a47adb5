"""The read-only view: the same answers as the owner's, no fence, no byte written."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from support.folders import chunk_files, fingerprint, flip_bit, newest_log_file
from tierlog import (
    DataCorruption,
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
    StoreMismatch,
    TableChange,
    TransactionInfo,
    TransactionState,
    Unavailable,
    Unsupported,
    WrongSegmentKind,
    open_store,
)
from tierlog.actors.maintenance.doctor import StoreReport, examine
from tierlog.actors.store import read_only
from tierlog.actors.store.read_only import StoreView, open_reader
from tierlog.journal.manifest.chain import journal_prefix
from tierlog.storage_backends.base.chunk_storage import ChunkInfo, ChunkRange
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.storage_backends.sorted_runs.lookup import find_rows
from tierlog.storage_backends.sorted_runs.scan import scan_rows

pytestmark = pytest.mark.anyio

NAME = "app/events"
FLUSHED = b"flushed " * 5000
"""Large enough to be a block of its own in the cache."""
UNFLUSHED = b"only in the log"
NAMES = [f"s{number}" for number in range(100)]


async def make_store(folder: Path) -> None:
    """One container; a segment with flushed and unflushed bytes, a sealed one, and a merge that is not
    spliced yet."""
    async with open_store(folder, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, FLUSHED, writer_id="w", event_number=7)
        await store.flush()
        await store.append(NAME, UNFLUSHED)
        for part in ("#1", "#2"):
            await store.create_segment(NAME + part)
            await store.append(NAME + part, part.encode())
            await store.seal_segment(NAME + part)
        await store.merge_segments(NAME, [NAME + "#1"])


async def report_on(folder: Path, *, deep: bool = False) -> StoreReport:
    async with open_reader(folder) as view:
        return await examine(view, LocalFiles(), deep=deep)


async def test_e2_a_view_waits_once_for_long_term_storage_to_say_that_the_store_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs can be read without it."""
    waits: list[float] = []

    async def hang(*_: object) -> None:
        waits.append(anyio.current_effective_deadline() - anyio.current_time())
        await anyio.sleep_forever()

    async with open_store(tmp_path, containers=3) as store:
        for index in range(3):
            await store.create_segment(next(n for n in NAMES if store.container_of(n) == index))
    monkeypatch.setattr(read_only, "refuse_older_log", hang)
    monkeypatch.setattr(read_only, "_Look", partial(read_only._Look, 0.1))
    async with open_reader(tmp_path) as view:
        assert len(await view.list_segments()) == 3
    assert len(waits) == 3
    assert sum(wait > 0 for wait in waits) == 1


async def test_it_answers_as_the_store_does(tmp_path: Path) -> None:
    await make_store(tmp_path)
    whole = FLUSHED + UNFLUSHED + b"#1"

    async with open_reader(tmp_path) as view:
        assert await view.list_segments() == [NAME, NAME + "#2"]
        assert await view.list_segments("app/events#") == [NAME + "#2"]
        assert await view.last_event_number(NAME, "w") == 7
        assert await view.last_event_number(NAME, "stranger") is None
        seen = await view.segment_info(NAME)
        data = b""
        while block := await view.read(NAME, len(data), 1 << 20):
            data += block
        assert data == whole
        assert await view.read(NAME, len(whole), 10) == b""
    async with open_store(tmp_path) as store:
        reported = await store.segment_info(NAME)

    assert seen == reported


async def test_a_read_only_view_of_a_live_folder_fences_no_owner_and_writes_nothing(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=2) as store:
        await store.create_segment(NAME)
        await store.append(NAME, FLUSHED)
        await store.flush()
        await store.append(NAME, UNFLUSHED)
        before = fingerprint(tmp_path)

        async with open_reader(tmp_path) as view:
            data = await view.read(NAME, 0, 1 << 20)
            info = await view.segment_info(NAME)
            report = await examine(view, LocalFiles(), deep=True)

        assert fingerprint(tmp_path) == before
        assert (FLUSHED + UNFLUSHED).startswith(data)
        assert info.length == len(FLUSHED + UNFLUSHED)
        assert report.sound
        assert len(report.owners) == 1
        assert await store.append(NAME, b"still the owner") == len(FLUSHED + UNFLUSHED)


async def test_a_table_has_no_bytes_to_read(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        await store.create_table(NAME)
        await store.table(NAME).put(b"k", b"v")

    async with open_reader(tmp_path) as view:
        assert (await view.segment_info(NAME)).is_table
        with pytest.raises(WrongSegmentKind, match="is a table"):
            await view.read(NAME, 0, 10)
        with pytest.raises(WrongSegmentKind, match="is a table"):
            await anext(view.tail(NAME))
        assert (await examine(view, LocalFiles(), deep=True)).sound


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_table_is_read_as_from_a_store(tmp_path: Path, is_cold: bool) -> None:
    keys = [b"%04d" % number for number in range(1500)]
    async with open_store(tmp_path) as store:
        await store.create_table(NAME)
        table = store.table(NAME)
        await table.put_many(dict.fromkeys(keys[:1000], b"1"))
        await store.flush()
        first = await table.put_many(dict.fromkeys(keys[1000:], b"2"))
        second = await table.remove(keys[0])
        if is_cold:
            await store.flush()
        stored = [row async for row in table.items()]
    assert first is not None
    assert second is not None

    async with open_reader(tmp_path) as view:
        seen = view.table(NAME)
        assert [row async for row in seen.items()] == stored
        assert [row.key async for row in seen.items(prefix=b"14", start=b"1498")] == keys[1498:]
        assert await seen.get(keys[1]) == stored[0]
        assert await seen.get_many([keys[0], keys[2]]) == [None, stored[1]]
        page = await seen.changes(first, limit=1)
        assert page.rows == [TableChange(keys[0], None, second)]
        with pytest.raises(Unsupported, match="changes nothing"):
            await seen.put(b"k", b"v")
        with pytest.raises(Unsupported, match="changes nothing"):
            async with seen.transaction() as transaction:
                transaction.remove(keys[2])
        with pytest.raises(SegmentNotFound):
            await view.table("none").get(b"k")


async def test_what_needs_a_run_that_the_owner_deleted_is_asked_of_a_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    async def fail_once(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        failures += 1
        if failures == 1:
            raise Unavailable("a run is missing")
        return await scan_rows(*arguments, **options)

    async with open_store(tmp_path) as store:
        await store.create_table(NAME)
    async with open_reader(tmp_path) as view:
        assert (await view.segment_info(NAME)).is_table  # takes the snapshot
        async with open_store(tmp_path) as store:
            await store.table(NAME).put(b"k", b"v")

        monkeypatch.setattr("tierlog.actors.container.table_pages.scan_rows", fail_once)
        assert [row.key for row in (await view.table(NAME).page()).rows] == [b"k"]
        assert failures == 2


async def test_the_doctor_reports_no_element_that_the_owner_creates_during_the_examination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its listing finds an element that the log did not have when it was read, each time."""
    async with open_store(tmp_path, containers=1) as store, open_reader(tmp_path) as view:
        await store.create_segment(NAME)
        list_chunks, listed = view.chunks.list, 0

        async def list_later(prefix: str = "", after: str = "") -> AsyncGenerator[ChunkInfo, None]:
            nonlocal listed
            if prefix == journal_prefix(0):
                listed += 1
                await store.append(NAME, b"x")
                await store.flush()
            async for info in list_chunks(prefix, after):
                yield info

        monkeypatch.setattr(view.chunks, "list", list_later)
        assert (await examine(view, LocalFiles())).problems == []
        assert listed > 1


async def test_a_snapshot_stays_until_it_is_refreshed(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        async with open_reader(tmp_path) as view:
            assert (await view.segment_info(NAME)).length == 0
            await store.append(NAME, b"more")

            assert (await view.segment_info(NAME)).length == 0
            assert await view.refresh()
            assert (await view.segment_info(NAME)).length == 4
            assert not await view.refresh()


async def test_a_tail_follows_another_owner_until_the_seal(tmp_path: Path) -> None:
    blocks: list[bytes] = []
    first = anyio.Event()
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, b"one ")

        async def follow() -> None:
            async with open_reader(tmp_path) as view:
                async for block in view.tail(NAME):
                    blocks.append(block)
                    first.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await first.wait()
            await store.append(NAME, b"two ")
            await store.flush()
            await store.append(NAME, b"three")
            await store.seal_segment(NAME)

    assert b"".join(blocks) == b"one two three"


async def test_a_tail_reports_that_its_segment_was_deleted_and_recreated(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, b"old life")
        async with open_reader(tmp_path) as view:
            tail = view.tail(NAME)
            assert await anext(tail) == b"old life"
            await store.delete_segment(NAME)
            await store.create_segment(NAME)
            await store.append(NAME, b"a new life that is longer")

            with pytest.raises(SegmentNotFound, match="another one has its name now"):
                await anext(tail)


async def test_a_read_refreshes_when_the_owner_collected_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tierlog.actors.store.read_only._CACHE_BYTES", 0
    )  # flushed bytes come from their chunk
    await make_store(tmp_path)
    async with open_reader(tmp_path) as view:
        assert (await view.segment_info(NAME)).start_offset == 0
        async with open_store(tmp_path) as store:
            await store.truncate_segment(NAME, len(FLUSHED) + 5)
            await store.flush()
        for chunk in chunk_files(tmp_path):
            if chunk.stat().st_size == len(FLUSHED):
                chunk.unlink()

        with pytest.raises(SegmentTruncated):
            await view.read(NAME, 0, 10)
        assert (await view.segment_info(NAME)).start_offset == len(FLUSHED) + 5


@pytest.mark.parametrize("is_changed", [True, False])
@pytest.mark.parametrize("error", [DataCorruption, Unavailable])
@pytest.mark.parametrize(
    "query",
    [lambda view: view.transaction_info(NAME, "t"), lambda view: view.list_transactions()],
    ids=["info", "list"],
)
async def test_a_query_of_transactions_refreshes_when_the_owner_deleted_a_run(
    query: Callable[[StoreView], Awaitable[TransactionInfo | list[TransactionInfo]]],
    error: type[DataCorruption | Unavailable],
    is_changed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = 1
    find = find_rows

    async def fail_once(*arguments: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise error("runs/1 is gone")
        return await find(*arguments)

    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        await store.begin_transaction(NAME, "t")
        await store.abort_transaction(NAME, "t")
        await store.flush()
    async with open_reader(tmp_path) as view:
        await view.segment_info(NAME)
        if is_changed:
            async with open_store(tmp_path) as store:
                await store.append(NAME, b"x")
        monkeypatch.setattr("tierlog.actors.container.transactions.find_rows", fail_once)
        if is_changed:
            found = await query(view)
            [info] = found if isinstance(found, list) else [found]
            assert (info.state, info.expires_in) == (TransactionState.ABORTED, math.inf)
        else:
            with pytest.raises(error, match="gone"):
                await query(view)
        assert not failures


async def test_a_tail_whose_chunk_was_collected_does_not_go_on_in_a_later_segment_of_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierlog.actors.store.read_only._CACHE_BYTES", 0)
    await make_store(tmp_path)
    async with open_reader(tmp_path) as view:
        tail = view.tail(NAME, block_size=4)
        assert await anext(tail) == FLUSHED[:4]
        async with open_store(tmp_path) as store:
            await store.delete_segment(NAME)
            await store.create_segment(NAME)
            await store.append(NAME, b"a later segment")
            await store.flush()
        for chunk in chunk_files(tmp_path):
            if chunk.stat().st_size == len(FLUSHED):
                chunk.unlink()

        with pytest.raises(SegmentNotFound, match="another one has its name now"):
            await anext(tail)


async def test_a_folder_that_was_never_written_to_is_empty(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=3):
        pass

    async with open_reader(tmp_path) as view:
        assert await view.list_segments() == []
        with pytest.raises(SegmentNotFound):
            await view.segment_info(NAME)


@pytest.mark.parametrize(
    "arguments", [("app//x", 0, 1), (NAME, -1, 1), (NAME, 0, 0), (NAME, 0, 1 << 40), (NAME, "0", 1)]
)
async def test_arguments_are_checked_as_the_store_checks_them(
    tmp_path: Path, arguments: tuple[str, int, int]
) -> None:
    await make_store(tmp_path)
    async with open_reader(tmp_path) as view:
        with pytest.raises(InvalidArgument) as seen:
            await view.read(*arguments)
    async with open_store(tmp_path) as store:
        with pytest.raises(InvalidArgument) as reported:
            await store.read(*arguments)

    assert str(seen.value) == str(reported.value)


async def test_a_foreign_folder_is_refused_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    before = fingerprint(tmp_path)

    for path in (tmp_path, tmp_path / "letter.txt", tmp_path / "nowhere", ""):
        with pytest.raises(InvalidArgument):
            async with open_reader(path):
                raise AssertionError(f"{path} was opened")

    assert fingerprint(tmp_path) == before


async def test_a_folder_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    await make_store(tmp_path)
    identity = tmp_path / "wal" / "store"
    identity.write_bytes(identity.read_bytes()[:4] + b"\x00\x63" + identity.read_bytes()[6:] + b"more")

    with pytest.raises(StoreMismatch, match="format version 99"):
        async with open_reader(tmp_path):
            raise AssertionError("it was opened")


async def test_its_chunk_storage_refuses_every_change(tmp_path: Path) -> None:
    await make_store(tmp_path)
    before = fingerprint(tmp_path)
    async with open_reader(tmp_path) as view:
        for change in (
            view.chunks.create("x"),
            view.chunks.create_with_content("x", [b"x"]),
            view.chunks.write("x", 0, [b"x"]),
            view.chunks.delete("x"),
            view.chunks.concat("x", [ChunkRange("a", 0, 1)]),
            view.chunks.set_read_only("x", True),
        ):
            with pytest.raises(Unsupported):
                await change

    assert fingerprint(tmp_path) == before


# --- the doctor ---------------------------------------------------------------------------------


async def test_the_doctor_counts_what_is_there(tmp_path: Path) -> None:
    await make_store(tmp_path)

    report = await report_on(tmp_path, deep=True)

    assert report.sound
    assert report.owners == ()
    (container,) = report.containers
    assert container.segments == 2
    assert container.bytes == len(FLUSHED + UNFLUSHED) + 4
    assert container.unflushed_bytes == len(UNFLUSHED) + 4
    assert container.chunks_referenced == 1
    assert container.chunks_missing == 0
    assert container.element == 2
    assert container.log_bytes == sum(
        path.stat().st_size for path in (tmp_path / "wal" / "0000").glob("*.wal")
    )
    assert container.log_allocated_bytes == 512 * sum(
        path.stat().st_blocks for path in (tmp_path / "wal" / "0000").iterdir()
    )
    assert container.log_allocated_bytes > container.log_bytes  # the reserve


async def test_the_doctor_names_damage_in_a_log_and_checks_the_other_containers(
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path, containers=2) as store:
        names = {store.container_of(name): name for name in ("a", "b", "c", "d")}
        for name in names.values():
            await store.create_segment(name)
            await store.append(name, b"data")
    damaged = newest_log_file(tmp_path, 0)
    damaged.write_bytes(damaged.read_bytes()[:40])

    report = await report_on(tmp_path)

    (problem,) = report.problems
    assert problem.file == str(damaged)
    assert problem.advice
    assert report.containers[0].problems == (problem,)
    assert report.containers[1].segments == 1
    async with open_reader(tmp_path) as view:
        assert await view.read(names[1], 0, 10) == b"data"
        with pytest.raises(DataCorruption):
            await view.read(names[0], 0, 10)


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
async def test_the_doctor_names_a_damaged_chunk(tmp_path: Path, damage: str) -> None:
    await make_store(tmp_path)
    (chunk,) = (path for path in chunk_files(tmp_path) if path.stat().st_size == len(FLUSHED))
    if damage == "missing":
        chunk.unlink()
    elif damage == "short":
        chunk.write_bytes(FLUSHED[:100])
    else:
        flip_bit(chunk, 4000)

    shallow, deep = await report_on(tmp_path), await report_on(tmp_path, deep=True)

    assert shallow.sound == (damage == "flipped")
    (problem,) = deep.problems
    assert problem.file == str(chunk)
    assert problem.offset == (100 if damage == "short" else 0)
    assert deep.containers[0].chunks_missing == (damage == "missing")


async def test_the_doctor_counts_orphans_and_reports_no_problem(tmp_path: Path) -> None:
    await make_store(tmp_path)
    (tmp_path / "lts" / "containers" / "0000" / "left").write_bytes(b"by a crash")

    report = await report_on(tmp_path)

    assert report.sound
    assert report.containers[0].chunks_unreferenced == report.containers[0].chunks_on_storage - 1


async def test_the_doctor_reports_missing_long_term_storage_once(tmp_path: Path) -> None:
    await make_store(tmp_path)
    (tmp_path / "lts").rename(tmp_path / "unmounted")

    (problem,) = (await report_on(tmp_path)).problems

    assert "mount" in problem.advice


async def test_the_doctor_recognises_a_copied_folder(tmp_path: Path) -> None:
    await make_store(tmp_path / "old")
    await make_store(tmp_path / "new")
    (tmp_path / "old" / "lts").rename(tmp_path / "lts of the old one")
    (tmp_path / "new" / "lts").rename(tmp_path / "old" / "lts")

    report = await report_on(tmp_path / "old")

    assert any("belongs to store" in problem.message for problem in report.problems)

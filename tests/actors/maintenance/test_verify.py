"""Verifying a store beside its owner: what is missing, damaged, referenced twice or by nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from support.folders import chunk_files, fingerprint, flip_bit
from support.stores_of_all_kinds import fill
from tierlog import SegmentStore, StoreConfig, Unavailable, open_store
from tierlog.actors.container.container import Container
from tierlog.actors.container.listed_chain import ListedChain, list_chain
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.maintenance.garbage import report_of
from tierlog.actors.maintenance.report import garbage_of
from tierlog.actors.maintenance.verify import StoreVerification, verify_store
from tierlog.actors.settings.configuration import GcConfig, WriterConfig
from tierlog.actors.store.read_only import StoreView, open_reader
from tierlog.journal.manifest.chain import ChainReport, read_chain
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.segments.records import ChunkRecord, segment_key

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=3600.0))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SegmentStore]:
    async with open_store(tmp_path, containers=1, config=QUIET) as opened:
        await fill(opened)
        await opened.flush()
        yield opened


async def verified(folder: Path, *, deep: bool = False) -> StoreVerification:
    before = fingerprint(folder)
    async with open_reader(folder) as view:
        found = await verify_store(view, deep=deep)
    assert fingerprint(folder) == before
    return found


async def needed_chunk(folder: Path) -> Path:
    """A chunk that a segment needs."""
    unneeded = {Path(each.name).name for each in (await verified(folder)).unreferenced}
    return next(path for path in chunk_files(folder) if path.name not in unneeded)


@pytest.mark.parametrize("deep", [False, True])
async def test_a_sound_store_refers_to_everything_once(
    tmp_path: Path, store: SegmentStore, deep: bool
) -> None:
    await store.append("s#2", b"not flushed")
    found = await verified(tmp_path, deep=deep)
    assert (found.sound, found.chunks.problems, found.problems) == (True, (), ())
    assert found.runs > 0
    assert found.elements > 1
    assert found.chunks.chunks == len(chunk_files(tmp_path)) - len(found.unreferenced)
    # The owner waits for an hour before it deletes what it does not need any more.
    assert all("s#" not in each.name for each in found.unreferenced)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("harm", ["missing", "short"])
async def test_a_chunk_that_is_not_whole_is_listed(
    tmp_path: Path, store: SegmentStore, harm: str, deep: bool
) -> None:
    file = await needed_chunk(tmp_path)
    content = file.read_bytes()
    file.unlink()
    if harm == "short":
        file.write_bytes(content[:-1])
    found = await verified(tmp_path, deep=deep)
    (problem,) = found.chunks.problems
    assert (Path(problem.chunk).name, harm in problem.message, found.sound) == (file.name, True, False)
    assert problem.segment.startswith("s#")


async def test_bytes_are_read_only_on_demand(tmp_path: Path, store: SegmentStore) -> None:
    flip_bit(await needed_chunk(tmp_path), 5)
    for run in tmp_path.glob("lts/_system/containers/*/runs/*"):
        flip_bit(run, 5)
    assert (await verified(tmp_path)).sound
    found = await verified(tmp_path, deep=True)
    assert len(found.chunks.problems) == 1
    assert len(found.problems) == found.runs


async def test_a_missing_run_and_a_damaged_element_are_listed(tmp_path: Path, store: SegmentStore) -> None:
    for run in tmp_path.glob("lts/_system/containers/*/runs/*"):
        run.unlink()
    element = max((tmp_path / "lts/_system/containers/0000/journal").iterdir())
    flip_bit(element, 50)
    found = await verified(tmp_path)
    assert {Path(each.name).parent.name for each in found.problems} == {"runs", "journal"}


async def test_what_nothing_refers_to_is_listed_and_no_problem(tmp_path: Path, store: SegmentStore) -> None:
    chunk = next((tmp_path / "lts").glob("containers/0000/*/*"))
    lost = chunk.with_name(f"{chunk.name[:-1]}{int(chunk.name[-1], 16) ^ 1:x}")
    lost.write_bytes(b"12345")
    chunk.with_name("of-another-program").write_bytes(b"12345")
    found = await verified(tmp_path)
    assert {(f"lts/{each.name}", each.length) for each in found.unreferenced} == {
        (str(lost.relative_to(tmp_path)), 5)
    }
    assert found.sound


async def test_a_chunk_of_two_segments_is_listed(tmp_path: Path, store: SegmentStore) -> None:
    async def share(owner: Container) -> None:
        first, second = [(await store.segment_info(name)).segment_id for name in ("s#2", "s#4")]
        record = await owner.storage.info(first)
        key = segment_key(second)
        entry = await owner.metadata.get(key)
        assert entry is not None
        await owner.metadata.commit({key: entry[0]}, {key: replace(record, segment=second).encode()})

    await store.on_container(0, share)
    found = await verified(tmp_path)
    messages = {(each.segment, each.message) for each in found.chunks.problems}
    assert ("s#4", "it belongs to segment s#2 too") in messages


async def test_a_record_of_no_segment_is_listed(tmp_path: Path, store: SegmentStore) -> None:
    name = "containers/0000/stray"
    (tmp_path / "lts" / name).write_bytes(b"12345")
    record = ChunkRecord(name, 5, "", bytes(4))

    async def add(owner: Container) -> None:
        await owner.metadata.commit({record.key: 0}, {record.key: record.encode()})

    await store.on_container(0, add)
    (problem,) = (await verified(tmp_path)).chunks.problems
    assert (problem.chunk, problem.message) == (name, "it belongs to no segment, and to no deferred work")


async def test_chunks_that_are_still_to_be_removed_belong_to_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a truncation and of a deletion, whose work has begun."""
    opening = "tierlog.actors.store.opening."
    few = partial(ChunkedOptions, inline_records=1, maintenance_records=2)
    monkeypatch.setattr(opening + "ChunkedOptions", few)
    monkeypatch.setattr(
        opening + "WriterOptions", partial(WriterOptions, deferred_steps=1, deferred_pause=1000.0)
    )
    async with open_store(tmp_path, containers=1, config=QUIET) as store:
        for name in ("truncated#", "deleted#"):
            await store.create_segment(name, rolling_size=65_536)
            await store.append(name, bytes(1_000_000))
        await store.flush()
        await store.truncate_segment("truncated#", 900_000)
        await store.delete_segment("deleted#")
        await store.flush()

        async def work(owner: Container) -> int:
            return len(await owner.storage.deferred_work())

        assert await store.on_container(0, work) > 0
        assert (await verified(tmp_path)).chunks.problems == ()


# --- beside an owner at work -----------------------------------------------------------------------


async def test_an_owner_that_goes_on_between_two_reads_is_not_accused(
    tmp_path: Path, store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J6. Log and chain are read at different moments: neither "a copy went on" nor "it was put back" may
    be concluded from what the owner did between them."""

    async def go_on() -> None:
        for _ in range(3):  # of older elements a log does not know the bytes
            await store.append("s#2", b"more")
            await store.flush()

    async def read_between(chunks: ChunkStorage, container: int) -> ChainReport:
        await go_on()
        chain = await read_chain(chunks, container)
        await go_on()
        return chain

    async def list_between(chunks: ChunkStorage, container: int) -> ListedChain:
        await go_on()
        listed = await list_chain(chunks, container)
        await go_on()
        return listed

    monkeypatch.setattr("tierlog.actors.maintenance.journal.read_chain", read_between)
    monkeypatch.setattr("tierlog.actors.maintenance.report.list_chain", list_between)
    async with open_reader(tmp_path) as view:
        assert (await verify_store(view)).problems == ()
        assert not any([(await garbage_of(view, each, {})).reason for each in view.containers])


async def read_garbage(view: StoreView) -> None:
    for container in view.containers:
        await garbage_of(view, container, {})


async def read_tasks(view: StoreView) -> None:
    for container in view.containers:
        await report_of(view, container, 10)


@pytest.mark.parametrize("read", [verify_store, read_garbage, read_tasks])
async def test_a_snapshot_whose_run_an_owner_deletes_meanwhile_is_replaced(
    tmp_path: Path,
    store: SegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[StoreView], Awaitable[object]],
) -> None:
    scan, failures = LoggedMetadataStore.scan, 1

    async def scan_late(self: LoggedMetadataStore, prefix: str) -> list[str]:
        nonlocal failures
        if failures:
            failures -= 1
            await store.append("s#2", b"more")
            await store.flush()
            raise Unavailable("the run is missing")
        return await scan(self, prefix)

    async with open_reader(tmp_path) as view:
        monkeypatch.setattr(LoggedMetadataStore, "scan", scan_late)
        await read(view)
    assert not failures

"""Each named predicate holds in a running container, and reports a breach made on purpose."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest
from simulation.invariants import ALL, Broken, Watch
from simulation.loop import run_virtual
from simulation.process import Process
from simulation.published import is_truncated
from simulation.records import broken_records, unfinished
from simulation.storage_invariants import ChunkHistory, check_stored, left_over
from simulation.trace import Trace
from simulation.view import View, observe
from simulation.world import ChunksKind, Site, SiteKind

from support.table_rows import records_of, write_record
from tierlog.actors.container.container import Container
from tierlog.actors.container.segments import SegmentState
from tierlog.storage_backends.segments.records import (
    ChunkRecord,
    ReleasedRecord,
    SegmentRecord,
    released_key,
)
from tierlog.storage_backends.sorted_runs.rows import Row

Body = Callable[[Site, Process, Container], Awaitable[None]]


def in_a_store(body: Body) -> None:
    """Run ``body`` beside a store with a flushed and an unflushed segment, and one that was merged into
    it."""

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            site = Site(SiteKind(chunks=ChunksKind.OBJECTS), Random(1), Trace())
            process = await site.start(tasks)
            store = process.store
            for name in ("f/s", "f/s#a", "f/s#b"):
                await store.create_segment(name, rolling_size=100)
                await store.append(name, b"x" * 250)
            await store.flush()
            await store.append("f/s", b"y" * 30)
            await store.seal_segment("f/s#a")
            await store.merge_segments("f/s", ["f/s#a"])
            await store.append("f/s#b", b"z" * 40, writer_id="w", event_number=1)
            await store.begin_transaction("f/s", "t0")
            await store.stage_segment("f/s", "t0", "p0")
            await body(site, process, process.containers()[0])
            process.kill()

    run_virtual(run, 1)


def segment(container: Container, name: str) -> SegmentState:
    found = container.state.segments.find(name)
    assert found is not None
    return found


def shorten(container: Container) -> None:
    segment(container, "f/s").length -= 1


def start_behind_the_end(container: Container) -> None:
    segment(container, "f/s").start_offset = 10_000


def seal_in_storage(container: Container) -> None:
    segment(container, "f/s#b").flushed_sealed = True


def rename(container: Container) -> None:
    segment(container, "f/s#b").name = "f/s#c"


def lose_the_epoch(container: Container) -> None:
    container.state.epoch = 0


def shorten_a_source(container: Container) -> None:
    merge = segment(container, "f/s").merges[0]
    container.state.segments.by_id[merge.source].length -= 1


def miscount_the_cache(container: Container) -> None:
    container.cache.pinned_bytes += 1


def overlap_blocks(container: Container) -> None:
    tail = container.cache._tails[segment(container, "f/s#b").sid]
    tail.starts[:] = [0, 1]
    tail.blocks[:] = [tail.blocks[0], tail.blocks[0]]
    container.cache._total, container.cache._data, container.cache.pinned_bytes = _recount(container)


def _recount(container: Container) -> tuple[int, int, int]:
    tails = container.cache._tails.values()
    blocks = [
        (tail, start, block) for tail in tails for start, block in zip(tail.starts, tail.blocks, strict=True)
    ]
    data = sum(len(block) for _, _, block in blocks)
    pinned = sum(max(0, start + len(block) - max(start, tail.flushed)) for tail, start, block in blocks)
    return data + 160 * len(blocks), data, pinned


def drop_unflushed_bytes(container: Container) -> None:
    container.cache.drop_segment(segment(container, "f/s#b").sid)


def miscount_the_mailbox(container: Container) -> None:
    container.mailbox._normal.charged += 5


def overtake_the_sequence(container: Container) -> None:
    container.state.client_sequence = container.state.sequence + 1


def truncate_the_log_too_far(container: Container) -> None:
    container.log._truncate_before = container.log.next_group  # type: ignore[attr-defined]


def lose_log_references(container: Container) -> None:
    segment(container, "f/s#b").log_references.clear()


def collect_what_is_used(container: Container) -> None:
    key = next(key for key in records_of(container) if key.startswith("c:"))
    container._components.collector.release([key.removeprefix("c:")])


def keep_what_was_staged(container: Container) -> None:
    container.state.transactions.records.clear()


BREAKING = {
    "flushed start <= flushed <= durable <= length": shorten,
    "a segment's start lies inside it": start_behind_the_end,
    "long-term storage seals only what is sealed": seal_in_storage,
    "names lead to live segments": rename,
    "ids are of owners so far": lose_the_epoch,
    "merged ranges are in order and their sources whole": shorten_a_source,
    "staged segments are those of open transactions": keep_what_was_staged,
    "the cache counts what it holds": miscount_the_cache,
    "cached blocks do not overlap": overlap_blocks,
    "what is not flushed is in the log": drop_unflushed_bytes,
    "the mailbox counts what it holds": miscount_the_mailbox,
    "sequences are ordered": overtake_the_sequence,
    "the log keeps what is not flushed": truncate_the_log_too_far,
    "unflushed bytes are marked with their groups": lose_log_references,
    "garbage is not referenced": collect_what_is_used,
}


def test_every_predicate_holds_in_a_healthy_store() -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        watch = Watch()
        watch.check(container)
        await process.store.flush()
        watch.check(container)

    in_a_store(body)


@pytest.mark.parametrize("name", BREAKING)
def test_a_predicate_finds_its_breach(name: str) -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        assert not list(ALL[name](container))
        BREAKING[name](container)
        assert list(ALL[name](container))
        with pytest.raises(Broken):
            Watch().check(container)

    in_a_store(body)


def test_what_may_only_grow_must_not_shrink() -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        watch = Watch()
        watch.check(container)
        container.state.sequence -= 1
        container.state.client_sequence = 0
        with pytest.raises(Broken, match="only grow"):
            watch.check(container)

    in_a_store(body)


def test_records_that_do_not_fit_are_found() -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        assert not list(broken_records(container))
        key = next(key for key in records_of(container) if key.startswith("c:"))
        write_record(container.state, key, None)
        assert list(broken_records(container))

    in_a_store(body)


@pytest.mark.parametrize(
    ("key", "record", "found"),
    [
        ("x:app/old$offset.0", ReleasedRecord("app/old$offset.0", 9), ""),
        ("x:app/old$offset.0", ReleasedRecord("app/old$offset.9", 9), "is the record of"),
        ("x:app/old$offset.0", ReleasedRecord("app/old$offset.0", 0), "it has bytes"),
        ("x:containers/0000/1/1-1-1", ReleasedRecord("containers/0000/1/1-1-1", 9), "a listing finds"),
    ],
)
def test_a_released_file_is_no_chunk_and_not_one_of_the_containers_own(
    key: str, record: ReleasedRecord, found: str
) -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        write_record(container.state, key, record.encode())
        wrong = list(broken_records(container))
        assert len(wrong) == (1 if found else 0)
        assert found in "".join(wrong)
        assert key in unfinished(records_of(container), 0)

    in_a_store(body)


def test_a_file_that_is_released_and_part_of_a_segment_is_found() -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        name = next(key for key in records_of(container) if key.startswith("c:"))[2:]
        write_record(container.state, released_key(name), ReleasedRecord(name, 9).encode())
        assert any("part of a segment" in wrong for wrong in broken_records(container))

    in_a_store(body)


def test_chunks_are_compared_with_what_is_shown() -> None:
    async def body(site: Site, process: Process, container: Container) -> None:
        await process.store.flush()
        await anyio.sleep(30.0)
        view: View = await observe(process.store, "f/s", {}, ("f/s",))
        contents = site.chunk_contents()
        check_stored([container], contents, view)
        assert not left_over([container], contents)

        name = next(name for name in contents if name.startswith("containers/"))
        assert left_over([container], contents | {"containers/0000/other": b""}) == ["containers/0000/other"]
        with pytest.raises(Broken, match="other bytes"):
            check_stored([container], contents | {name: bytes(len(contents[name]))}, view)
        with pytest.raises(Broken, match="missing"):
            check_stored(
                [container], {other: data for other, data in contents.items() if other != name}, view
            )

    in_a_store(body)


@pytest.mark.parametrize(
    "calls",
    [
        [(1, "create", "a"), (2, "create", "a")],
        [(1, "create", "a"), (1, "delete", "a"), (1, "create", "a")],
        [(1, "create", "a"), (2, "write", "a")],
    ],
    ids=["by another process", "again after its deletion", "written by another process"],
)
def test_a_chunks_name_is_used_once_by_one_process(calls: list[tuple[int, str, str]]) -> None:
    book = ChunkHistory()
    for call in calls:
        book.check()
        book.note(*call)
    with pytest.raises(Broken, match="used once"):
        book.check()


def test_an_owner_claims_long_term_storage_before_it_writes_there() -> None:
    """Rule J7. Creating an element of another container is no claim."""
    book, chunk = ChunkHistory(), "containers/0001/1/1-0-a"
    for process, name in [(1, "_system/containers/0001/journal/1"), (2, "_system/containers/0000/journal/1")]:
        book.note(process, "create_with_content", name)
    book.note(1, "create", f"{chunk}1")
    book.check()
    book.note(2, "create", f"{chunk}2")
    with pytest.raises(Broken, match="claims long-term storage"):
        book.check()


def test_a_zombie_may_try_a_creation_again_that_its_successor_has_collected_meanwhile() -> None:
    """The store cannot keep it from that, and the next opening lists what it left."""
    book = ChunkHistory()
    for call in [(1, "create", "a"), (2, "delete", "a"), (1, "create", "a")]:
        book.note(*call)
    book.check()


def test_g6_a_deletion_of_what_the_newest_element_names_is_a_breach() -> None:
    book = ChunkHistory({"containers/0000/1/1-0-a"}.__contains__)
    book.note(1, "delete", "containers/0000/1/1-0-b")
    book.check()
    book.note(1, "delete", "containers/0000/1/1-0-a")
    with pytest.raises(Broken, match="long-term storage alone names"):
        book.check()


def test_g6_what_a_full_storage_may_lack_ends_at_or_below_the_segments_start() -> None:
    names = [f"containers/0000/1/1-{start:x}-a" for start in (0, 100, 200)]
    chunks = [ChunkRecord(name, 100, after) for name, after in zip(names, [*names[1:], ""], strict=True)]
    segment = SegmentRecord(
        1, 300, first_chunk=names[0], last_chunk=names[2], last_chunk_start=200, chunk_count=3
    )
    records = {each.key.encode(): each.encode() for each in chunks}
    records[segment.key.encode()] = segment.encode()
    rows = {key: Row(key, 1, value) for key, value in records.items()}

    def missing(start: int) -> list[bool]:
        return [is_truncated([rows], name, lambda sid: start) for name in names]

    assert missing(0) == [False, False, False]
    assert missing(199) == [True, False, False]
    assert missing(200) == [True, True, False]
    assert not is_truncated([rows], "containers/0000/1/1-0-b", lambda sid: 300)

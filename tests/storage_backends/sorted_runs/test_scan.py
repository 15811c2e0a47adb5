"""Scans in pages, and readers that stay undisturbed (M3, M5)."""

from __future__ import annotations

import pytest

from support.sorted_runs import TableWorld
from tierlog.storage_backends.sorted_runs.rows import Row, prefix_end
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from tierlog.storage_backends.sorted_runs.table import TableView

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]


async def all_pages(
    world: TableWorld, view: TableView, keys: KeyRange, limits: PageLimits
) -> list[list[Row]]:
    pages = []
    start: bytes | None = keys.start
    while start is not None:
        page = await scan_rows(view, world.reader, KeyRange(start, keys.end), limits)
        pages.append(page.rows)
        start = page.resume
    return pages


async def filled(world: TableWorld) -> dict[bytes, Row]:
    """Two runs and a memtable over the same keys; the newest row of each."""
    newest = {}
    for step, cycle in ((1, True), (3, True), (7, False)):
        for number in range(0, 200, step):
            key = b"p%d/%04d" % (number % 2, number)
            value = None if step > 1 and number % 5 == 0 else b"%d:%d" % (step, number)
            newest[key] = Row(key, world.put(key, value), value)
        if cycle:
            await world.flush()
    return newest


@pytest.mark.parametrize("limit", [1, 7, 100_000])
async def test_pages_together_are_all_live_rows_in_order(world: TableWorld, limit: int) -> None:
    newest = await filled(world)
    expected = [newest[key] for key in sorted(newest) if newest[key].value is not None]
    if limit == 1:
        expected, keys = [row for row in expected if row.key < b"p0/0040"], KeyRange(b"", b"p0/0040")
    else:
        keys = KeyRange()

    pages = await all_pages(world, world.capture(), keys, PageLimits(limit))

    assert [row for page in pages for row in page] == expected
    assert all(len(page) <= limit for page in pages)


async def test_a_large_memtable_is_read_in_batches_while_it_changes(world: TableWorld) -> None:
    for number in range(1000):
        world.put(b"%04d" % number, b"before")
    rows: list[Row] = []
    with world.table.view() as view:
        start: bytes | None = b""
        while start is not None:
            page = await scan_rows(view, world.reader, KeyRange(start), PageLimits(300))
            rows += page.rows
            start = page.resume
            for number in range(0, 1000, 3):
                world.put(b"%04d" % number, None)
            world.put(b"%04dx" % len(rows), b"new")

    assert [row.key for row in rows] == [b"%04d" % number for number in range(1000)]
    assert {row.value for row in rows} == {b"before"}


async def test_rows_that_are_newer_than_a_view_are_passed_over_in_batches(world: TableWorld) -> None:
    world.put(b"a", b"before")
    world.put(b"z", b"before")
    with world.table.view() as view:
        for number in range(1000):
            world.put(b"m%04d" % number, b"after")
        page = await scan_rows(view, world.reader, KeyRange(), PageLimits())

    assert [row.key for row in page.rows] == [b"a", b"z"]


async def test_a_prefix_is_a_range(world: TableWorld) -> None:
    newest = await filled(world)
    world.forget_cache()
    keys = KeyRange(b"p1/00", prefix_end(b"p1/00"))

    (page,) = await all_pages(world, world.capture(), keys, PageLimits())

    assert [row.key for row in page] == [
        key for key in sorted(newest) if key.startswith(b"p1/00") and newest[key].value is not None
    ]
    assert sum(read.length for read in world.source.reads) < 40_000  # not the whole runs


async def test_a_page_ends_with_the_row_that_reaches_its_bytes(world: TableWorld) -> None:
    for number in range(10):
        world.put(b"%d" % number, bytes(99))
    await world.flush()

    page = await scan_rows(world.capture(), world.reader, KeyRange(), PageLimits(100, 250))

    assert [row.key for row in page.rows] == [b"0", b"1", b"2"]
    assert page.resume == b"2\0"


async def test_m16_a_page_ends_after_the_rows_that_it_may_consider(world: TableWorld) -> None:
    """However many of them were removed."""
    for number in range(40):
        world.put(b"%02d" % number, None)
    await world.flush()
    world.put(b"a", b"x")

    pages = await all_pages(world, world.capture(), KeyRange(), PageLimits(considered=16 * 2048))

    assert [[row.key for row in page] for page in pages] == [[], [], [b"a"]]


async def test_m16_large_rows_that_are_passed_count_with_their_size(world: TableWorld) -> None:
    for number in range(8):
        world.put(b"%02d" % number, bytes(100_000))
    since = world.put(b"z", b"")
    view = world.capture()

    page = await scan_rows(
        view, world.reader, KeyRange(), PageLimits(considered=250_000), changed_after=since - 1
    )

    assert (page.rows, page.resume) == ([], b"02\0")


async def test_a_view_shows_the_same_while_rows_change(world: TableWorld) -> None:
    for number in range(20):
        world.put(b"%02d" % number, b"before")
    with world.table.view() as view:
        first = await scan_rows(view, world.reader, KeyRange(), PageLimits(10))
        for number in range(20):
            world.put(b"%02d" % number, None if number % 2 else b"after")
        world.put(b"15x", b"new")
        await world.flush()
        assert first.resume is not None
        rest = await scan_rows(view, world.reader, KeyRange(first.resume), PageLimits())

    assert [row.value for row in (*first.rows, *rest.rows)] == [b"before"] * 20
    now = await scan_rows(world.capture(), world.reader, KeyRange(), PageLimits())
    assert [row.value for row in now.rows] == [b"after"] * 8 + [b"new"] + [b"after"] * 2


async def test_a_scan_leaves_the_cache_to_lookups(world: TableWorld) -> None:
    await filled(world)
    world.forget_cache()
    for run in world.table.runs:
        await world.reader.tail(run)
    before = world.reader.statistics().held_bytes

    await all_pages(world, world.capture(), KeyRange(), PageLimits())

    assert world.reader.statistics().held_bytes == before


async def test_a_scan_reads_ahead_in_growing_steps(world: TableWorld) -> None:
    for number in range(20_000):
        world.put(b"%06d" % number, bytes(50))
    run = await world.flush()
    world.forget_cache()

    await all_pages(world, world.capture(), KeyRange(), PageLimits(100_000, 1 << 30))

    assert run is not None
    tail, *blocks = [read.length for read in world.source.reads]
    assert (tail, sum(blocks)) == (run.tail_length, run.length - run.tail_length)
    assert len(blocks) < 10
    assert max(blocks) <= 256 << 10


async def test_changes_after_any_version_are_the_rows_with_a_greater_one(world: TableWorld) -> None:
    """M2: blocks without one are passed over, whatever hides what."""
    newest = await filled(world)
    for number in range(300):
        key = b"p1/%04d" % (number * 7 % 400)
        newest[key] = Row(key, world.put(key, bytes(200)), bytes(200))
        if number == 250:
            await world.flush()
    for since in range(0, world.table.version + 1, 9):
        page = await scan_rows(
            world.capture(), world.reader, KeyRange(), PageLimits(10_000), changed_after=since
        )

        assert page.rows == [newest[key] for key in sorted(newest) if newest[key].version > since]


async def test_changes_read_no_block_without_a_newer_row(world: TableWorld) -> None:
    for number in range(20_000):
        world.put(b"%06d" % number, bytes(50))
    run = await world.flush()
    assert run is not None
    blocks = run.length - run.tail_length
    for since, share in ((19_990, 0.01), (15_000, 0.26), (20_000, 0)):
        world.forget_cache()
        page = await scan_rows(
            world.capture(), world.reader, KeyRange(), PageLimits(100_000, 1 << 30), changed_after=since
        )

        assert len(page.rows) == 20_000 - since
        assert sum(read.length for read in world.source.reads[1:]) <= share * blocks

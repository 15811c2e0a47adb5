"""Tables end to end on one container (rules M14 to M18): updates, conditions, pages, changes, what a deleted
table leaves, and what a crash does to all of it."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, until, virtual_time
from support.stores import make
from support.table_rows import fail_runs
from tierlog import (
    ABSENT,
    AttributeUpdate,
    ChangesIncomplete,
    DataCorruption,
    InvalidArgument,
    NotOwner,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
    Table,
    TableConflict,
    TableRow,
    TableUpdate,
    TierlogError,
    TooLarge,
    WrongSegmentKind,
)
from tierlog.actors.container import row_removal, table_pages
from tierlog.actors.container.container import Container
from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.container.table_rows import row_prefix
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.sorted_runs.reader import RunReader
from tierlog.storage_backends.sorted_runs.rows import prefix_end
from tierlog.storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows

pytestmark = [pytest.mark.anyio, virtual_time]

NAME = "app/users"


async def made(owner: Owner, name: str = NAME) -> Table:
    await owner.store.create_table(name)
    return owner.store.table(name)


async def values(table: Table, **bounds: Any) -> dict[bytes, bytes]:
    return {row.key: row.value async for row in table.items(**bounds)}


async def changed(table: Table, since: int, limit: int = 1000) -> tuple[dict[bytes, bytes | None], int]:
    """All changes since a version, and the version to continue from."""
    found: dict[bytes, bytes | None] = {}
    token: str | None = None
    while True:
        page = await table.changes(since, token=token, limit=limit)
        found |= {row.key: row.value for row in page.rows}
        token = page.token
        if token is None:
            return found, page.version


async def left_rows(owner: Owner, sid: int) -> int:
    """Live rows of a table, deleted or not, and marks of deleted tables."""
    container = owner.container
    count = 0
    for start in (row_prefix(sid), MARK_PREFIX):
        with container.state.table.view() as view:
            keys = KeyRange(start, prefix_end(start))
            count += len((await scan_rows(view, container.runs, keys, PageLimits(10_000))).rows)
    return count


# --- rows ---------------------------------------------------------------------------------------


async def test_m14_rows_are_read_from_memory_and_from_runs_by_every_later_owner() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        table = await made(owner)
        first = await table.put(b"a", b"1")
        await owner.store.flush()
        second = await table.put_many({b"b": b"2", b"\xff\x00": b""})
        assert first
        assert second
        assert first < second

        expected = [
            TableRow(b"a", b"1", first),
            TableRow(b"b", b"2", second),
            TableRow(b"\xff\x00", b"", second),
        ]
        assert [row async for row in table.items()] == expected
        assert await table.get_many([b"b", b"none", b"a"]) == [expected[1], None, expected[0]]
        await owner.crash()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        assert [row async for row in table.items()] == expected
        await owner.checkpoint()
        await owner.crash()

    async with world.owner() as owner:
        assert [row async for row in owner.store.table(NAME).items()] == expected


async def test_m14_rows_of_one_table_are_not_those_of_another() -> None:
    async with ContainerWorld().owner() as owner:
        one, other = await made(owner), await made(owner, "app/others")
        await one.put(b"k", b"1")
        await other.put(b"k", b"2")
        await one.remove(b"k")

        assert (await values(one), await values(other)) == ({}, {b"k": b"2"})
        assert await owner.store.list_segments("app/") == ["app/others", NAME]


async def test_m14_verbs_of_the_other_kind_are_refused() -> None:
    async with ContainerWorld().owner() as owner:
        store, table = owner.store, await made(owner)
        await make(store, "bytes", b"abc")
        await make(store, "sealed", b"abc", sealed=True)
        await store.seal_segment("sealed")
        calls: list[Any] = [
            lambda: store.append(NAME, b"x"),
            lambda: store.append_many(NAME, [b"x"]),
            lambda: store.read(NAME, 0, 1),
            lambda: store.truncate_segment(NAME, 0),
            lambda: store.append_starts(NAME, 0, 1),
            lambda: store.segment_layout(NAME, 0, 1),
            lambda: store.merge_segments(NAME, ["sealed"]),
            lambda: store.merge_segments("bytes", [NAME]),
            lambda: store.begin_transaction(NAME, "t"),
            lambda: store.abort_transaction(NAME, "t"),
            lambda: store.create_segment(NAME, exist_ok=True),
            lambda: anext(store.tail(NAME)),
            lambda: store.table("bytes").get(b"k"),
            lambda: store.table("bytes").put(b"k", b"v"),
            lambda: store.table("bytes").page(),
            lambda: store.table("bytes").changes(),
            lambda: store.create_table("bytes", exist_ok=True),
        ]
        for cold in (False, True):
            for call in calls:
                with pytest.raises(WrongSegmentKind):
                    await call()
            if not cold:
                await store.flush()
        assert await values(table) == {}
        assert (await store.segment_info(NAME)).is_table
        assert not (await store.segment_info("bytes")).is_table


async def test_a_table_is_created_once() -> None:
    async with ContainerWorld().owner() as owner:
        await made(owner)
        with pytest.raises(SegmentExists):
            await owner.store.create_table(NAME)
        await owner.store.create_table(NAME, exist_ok=True)
        with pytest.raises(SegmentNotFound):
            await owner.store.table("none").get(b"k")
        with pytest.raises(SegmentNotFound):
            await owner.store.table("none").put(b"k", b"v", expected_version=ABSENT)


async def test_a_sealed_table_is_read_only() -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        version = await table.put(b"k", b"v")
        await owner.store.seal_segment(NAME)
        for write in (table.put(b"k", b"w"), table.remove(b"k")):
            with pytest.raises(SegmentSealed):
                await write

        assert await table.get(b"k") == TableRow(b"k", b"v", version or 0)


async def test_m14_a_cold_table_is_read_where_it_is_and_loaded_by_an_update() -> None:
    world = ContainerWorld(replace(OPTIONS, active_segments_max=1))
    async with world.owner() as owner:
        table = await made(owner)
        for number in range(10):
            await make(owner.store, f"s{number}", b"x")
        version = await table.put(b"k", b"v", writer_id="w", event_number=3)
        await owner.store.flush()
        await anyio.sleep(1)
        await owner.store.append("s9", b"")
        await anyio.sleep(1)
        assert owner.container.segments.in_memory(NAME) is None

        assert await values(table) == {b"k": b"v"}
        assert owner.container.segments.in_memory(NAME) is None
        assert await table.put(b"k", b"v", writer_id="w", event_number=3) == version
        assert await table.put(b"k", b"w", expected_version=version)
        assert owner.container.segments.in_memory(NAME) is not None
        assert await values(table) == {b"k": b"w"}


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.get(""),
        lambda table: table.get(b""),
        lambda table: table.get(bytes(8193)),
        lambda table: table.get_many(b"abc"),
        lambda table: table.get_many([b"k"] * 1001),
        lambda table: table.put(b"k", "text"),
        lambda table: table.put(b"k", bytes((1 << 20) + 1)),
        lambda table: table.put(b"k", b"v", expected_version=-1),
        lambda table: table.put(b"k", b"v", event_number=1),
        lambda table: table.put_many([(b"k", b"v")]),
        lambda table: table.put_many({}),
        lambda table: table.update([TableUpdate(b"k", b"1"), TableUpdate(b"k", None)]),
        lambda table: table.update([b"k"]),
        lambda table: table.page(limit=0),
        lambda table: table.page(prefix="k"),
        lambda table: table.page(token="other"),
        lambda table: table.page(token=7),
        lambda table: table.changes(-1),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_logged(call: Any) -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        before = owner.container.state.sequence
        with pytest.raises(InvalidArgument):
            await call(table)

        assert owner.container.state.sequence == before


async def test_the_longest_key_and_the_largest_value_are_kept() -> None:
    world = ContainerWorld()
    key, value = b"\xff" * 8192, bytes(1 << 20)
    async with world.owner() as owner:
        table = await made(owner)
        await table.put(key, value)
        await table.put(b"\xff" * 8191, b"")
        await owner.store.flush()
        assert await values(table, prefix=b"\xff" * 8192) == {key: value}

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        assert await values(table) == {key[:-1]: b"", key: value}
        assert await changed(table, 0, limit=1) == (
            {key[:-1]: b"", key: value},
            owner.container.state.table.version,
        )


# --- conditions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
async def test_m15_conditions_hold_for_rows_in_memory_and_in_runs(flushed: bool) -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        old = await table.put(b"k", b"1")
        version = await table.put(b"k", b"2")
        await table.put(b"gone", b"x")
        await table.remove(b"gone")
        if flushed:
            await owner.store.flush()
        assert old
        assert version

        for key, expected, present in (
            (b"k", ABSENT, version),
            (b"k", old, version),
            (b"none", version, ABSENT),
            (b"gone", version + 1, ABSENT),
        ):
            with pytest.raises(TableConflict) as caught:
                await table.update([TableUpdate(b"new", b"x"), TableUpdate(key, b"3", expected)])
            error = caught.value
            assert (error.key, error.expected, error.present) == (key, expected, present)

        assert await values(table) == {b"k": b"2"}
        await table.update(
            [
                TableUpdate(b"k", None, version),
                TableUpdate(b"none", b"n", ABSENT),
                TableUpdate(b"gone", b"g", 0),
            ]
        )
        assert await values(table) == {b"gone": b"g", b"none": b"n"}


async def test_m15_a_row_that_changes_between_lookup_and_decision_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if the new row is in a run by then, and no longer in memory."""
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        version = await table.put(b"k", b"1")
        await owner.store.flush()
        ask = Container.ask_update
        interrupted = False

        async def ask_late(container: Container, request: Any) -> Any:
            nonlocal interrupted
            if request.expected and not interrupted:
                interrupted = True
                await table.put(b"k", b"2")
                await owner.store.flush()
            return await ask(container, request)

        monkeypatch.setattr(Container, "ask_update", ask_late)
        with pytest.raises(TableConflict):
            await table.put(b"k", b"3", expected_version=version)

        assert await values(table) == {b"k": b"2"}


async def test_m15_a_row_that_leaves_memory_between_lookup_and_decision_keeps_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        await owner.store.flush()  # afterwards a run has these rows and no later ones
        version = await table.put(b"k", b"1")
        await table.put(b"other", b"1")
        ask = Container.ask_update

        async def ask_late(container: Container, request: Any) -> Any:
            await owner.store.flush()
            return await ask(container, request)

        monkeypatch.setattr(Container, "ask_update", ask_late)
        with pytest.raises(TableConflict):
            await table.put(b"k", b"2", expected_version=ABSENT)
        assert await table.put(b"k", b"2", expected_version=version)


async def test_m15_only_one_of_many_who_expect_the_same_version_wins() -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        won: list[int] = []

        async def add(number: int) -> None:
            try:
                await table.put(b"lock", b"%d" % number, expected_version=ABSENT)
            except TableConflict:
                return
            won.append(number)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(add, number)

        assert len(won) == 1
        assert await values(table) == {b"lock": b"%d" % won[0]}


async def test_c3_a_repeat_is_answered_before_its_conditions_are_compared() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        table = await made(owner)
        first = await table.put(b"k", b"1", expected_version=ABSENT, writer_id="w", event_number=0)
        await owner.crash()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        again = await table.put(b"k", b"1", expected_version=ABSENT, writer_id="w", event_number=0)
        assert again == first
        await table.put(b"k", b"2", writer_id="w", event_number=1)
        assert await table.put(b"k", b"1", expected_version=ABSENT, writer_id="w", event_number=0) is None
        assert await values(table) == {b"k": b"2"}
        with pytest.raises(OutOfOrder):
            await table.put(b"k", b"3", writer_id="w", event_number=9)
        assert await owner.store.last_event_number(NAME, "w") == 1


async def test_m15_an_attempt_that_comes_after_a_conflict_is_ended_by_a_later_event() -> None:
    """Its client got no answer, and sent it again: the repeat met a row that has gone since."""
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        await table.put(b"other", b"1", writer_id="w", event_number=0)
        for after_next in (False, True):
            first = 2 * after_next + 1
            late = partial(
                table.put, b"k", b"late", expected_version=ABSENT, writer_id="w", event_number=first
            )
            await table.put(b"k", b"1")
            with pytest.raises(TableConflict):
                await late()
            await table.remove(b"k")
            then = partial(
                table.put,
                b"other",
                b"2",
                writer_id="w",
                event_number=first + 1,
                previous_event_number=first - 1,
            )
            if after_next:
                await then()
                assert await late() is None
                assert await table.get(b"k") is None
            else:
                version = await late()
                assert await late() == version, "applied once"
                with pytest.raises(OutOfOrder):
                    await then()
                await table.put(b"other", b"2", writer_id="w", event_number=first + 1)
                await table.remove(b"k")


# --- transactions -------------------------------------------------------------------------------


async def test_m15_a_transaction_is_conditional_on_all_that_it_read() -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        await table.put_many({b"a": b"1", b"b": b"1"})
        async with table.transaction() as transaction:
            row, absent = await transaction.get(b"a"), await transaction.get(b"none")
            assert row is not None
            assert absent is None
            transaction.put(b"b", row.value + b"!")
            transaction.remove(b"a")
            assert await transaction.get(b"a") is None
            own = await transaction.get(b"b")
            assert own == TableRow(b"b", b"1!", 0)
        assert await values(table) == {b"b": b"1!"}
        assert (await table.get(b"b") or row).version == transaction.version

        for key in (b"b", b"none"):
            with pytest.raises(TableConflict):
                async with table.transaction() as transaction:
                    await transaction.get(key)
                    await table.put(key, b"other")
                    transaction.put(b"c", b"x")
        assert b"c" not in await values(table)


async def test_a_transaction_whose_block_raises_changes_nothing() -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        with pytest.raises(RuntimeError, match="of the block"):
            async with table.transaction() as transaction:
                transaction.put(b"k", b"v")
                raise RuntimeError("of the block")
        async with table.transaction():
            pass

        assert await values(table) == {}


# --- pages --------------------------------------------------------------------------------------


async def test_m16_pages_go_on_after_a_restart_and_not_in_another_table() -> None:
    world = ContainerWorld()
    rows = {b"k%03d" % number: b"%d" % number for number in range(100)}
    async with world.owner() as owner:
        table = await made(owner)
        await table.put_many({**rows, b"j": b"", b"l": b""})
        await owner.store.flush()
        page = await table.page(prefix=b"k", limit=30)
        found, token = [row.key for row in page.rows], page.token
        first = token
        await owner.crash()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        while token is not None:
            page = await table.page(prefix=b"k", limit=30, token=token)
            found += [row.key for row in page.rows]
            token = page.token
        assert found == list(rows)
        assert [key async for key, _, _ in table.items(start=b"k010", end=b"k012")] == [b"k010", b"k011"]
        assert [key async for key, _, _ in table.items(prefix=b"k09", start=b"k098")] == [b"k098", b"k099"]
        assert [key async for key, _, _ in table.items(start=b"k099")] == [b"k099", b"l"]

        await owner.store.delete_segment(NAME)
        await made(owner)
        with pytest.raises(SegmentNotFound):
            await owner.store.table(NAME).page(prefix=b"k", token=first)


async def test_m16_changes_are_the_rows_after_a_version_with_removals() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        table = await made(owner)
        await table.put_many({b"a": b"1", b"b": b"1", b"c": b"1"})
        all_rows, version = await changed(table, 0)
        assert all_rows == {b"a": b"1", b"b": b"1", b"c": b"1"}
        await owner.store.flush()
        await table.put(b"b", b"2")
        await table.remove(b"c")
        await owner.store.flush()
        await table.put(b"d", b"1")

        for limit in (1, 1000):
            assert (await changed(table, version, limit))[0] == {b"b": b"2", b"c": None, b"d": b"1"}
        _, version = await changed(table, version)
        await owner.crash()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        assert (await changed(table, version))[0] == {}
        await table.put(b"a", b"2")
        assert (await changed(table, version))[0] == {b"a": b"2"}


async def test_m16_changes_that_are_not_complete_any_more_are_refused() -> None:
    """A merge with the oldest run drops tombstones (rule M7)."""
    async with ContainerWorld(replace(OPTIONS, merge_fan_out=3)).owner() as owner:
        table = await made(owner)
        version = await table.put(b"k", b"1")
        assert version
        await table.remove(b"k")
        for number in range(3):  # runs of one size tier
            await table.put(b"other", bytes((number,)) * 25_000)
            await owner.store.flush()
        known = owner.container.state.table
        await until(lambda: known.runs.changes_from > version)
        with pytest.raises(ChangesIncomplete) as caught:
            await table.changes(version)

        assert version < caught.value.complete_since
        found, newest = await changed(table, 0)
        assert found == {b"other": b"\2" * 25_000}
        await table.remove(b"other")
        assert (await changed(table, newest))[0] == {b"other": None}


async def test_m16_versions_of_an_earlier_table_and_of_another_history_have_no_changes() -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        version = await table.put_many({b"a": b"1", b"b": b"1"})
        assert version is not None
        assert await changed(table, version) == ({}, version)
        for wrong in (version + 1, 1 << 60):  # of a log that was put back
            with pytest.raises(ChangesIncomplete, match="start over"):
                await table.changes(wrong)

        await owner.store.delete_segment(NAME)
        table = await made(owner)
        created = await table.put(b"c", b"1")
        assert created is not None
        with pytest.raises(ChangesIncomplete, match="start over"):
            await table.changes(version)
        assert (await changed(table, 0))[0] == {b"c": b"1"}
        assert (await changed(table, created))[0] == {}


async def test_the_rows_of_many_keys_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and the answer of a server hold them all."""
    monkeypatch.setattr(table_pages, "TABLE_BYTES_MAX", 100_000)
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        keys = [b"%02d" % number for number in range(40)]
        await table.put_many(dict.fromkeys(keys, bytes(3000)))
        assert len(await table.get_many(keys[:33])) == 33
        with pytest.raises(TooLarge, match="ask for fewer"):
            await table.get_many(keys)


@pytest.mark.parametrize("is_damaged", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.table(NAME).get(b"k"),
        lambda store: store.table(NAME).page(),
        lambda store: store.table(NAME).changes(1),
        lambda store: store.table(NAME).put(b"k", b"w", expected_version=1),
        lambda store: store.list_attributes(NAME, b""),
    ],
    ids=["get", "page", "changes", "conditional put", "attributes"],
)
async def test_reads_of_an_owner_that_was_replaced_are_refused_as_such(
    call: Any, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it lacks a run by then, which its successor has deleted."""
    world = ContainerWorld()
    async with anyio.create_task_group() as tasks:
        former = await world.start(tasks)
        table = await made(former)
        await table.put(b"k", b"v")
        await former.store.update_attributes(NAME, [AttributeUpdate(bytes(16), 1)])
        await former.store.flush()
        owner = await world.start(tasks)
        if is_damaged:

            async def fail(*_: Any) -> Any:
                raise DataCorruption("gone", file="runs/1")

            monkeypatch.setattr(RunReader, "_read", fail)
            former.container.runs._cache.clear()
        with pytest.raises(NotOwner):
            await call(former.store)

        await former.stop()
        await owner.crash()


# --- the end of a table -------------------------------------------------------------------------


@pytest.mark.parametrize("crashes", [0, 3])
async def test_m17_nothing_is_left_of_a_deleted_table(crashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_removal, "_LIMITS", PageLimits(100))
    world = ContainerWorld()
    async with world.owner() as owner:
        table, other = await made(owner), await made(owner, "app/others")
        for first in range(0, 3000, 1000):
            await table.put_many({b"%05d" % number: b"x" for number in range(first, first + 1000)})
            await owner.store.flush()
        await other.put(b"k", b"v")
        sid = (await owner.store.segment_info(NAME)).segment_id
        assert await left_rows(owner, sid) == 3000

        await owner.store.delete_segment(NAME)
        again = await made(owner)  # the name is free at once
        await again.put(b"k", b"new")
        if crashes:
            await anyio.sleep(0.02)
            await owner.crash()
    for _ in range(crashes):
        async with world.owner() as owner:
            left = await left_rows(owner, sid)
            await anyio.sleep(0.02)
            assert 0 < await left_rows(owner, sid) <= left
            await owner.crash()

    async with world.owner() as owner:
        await anyio.sleep(60)
        await owner.store.flush()
        assert await left_rows(owner, sid) == 0
        assert await values(owner.store.table(NAME)) == {b"k": b"new"}
        assert await values(owner.store.table("app/others")) == {b"k": b"v"}


async def test_m17_the_removal_waits_while_runs_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ContainerWorld().owner() as owner:
        table = await made(owner)
        await table.put_many({b"%03d" % number: b"x" for number in range(500)})
        await owner.store.flush()
        sid = (await owner.store.segment_info(NAME)).segment_id

        async def fail(*_: Any, **__: Any) -> Any:
            raise Unavailable("storage is down")

        with monkeypatch.context() as patch:
            patch.setattr(row_removal, "scan_rows", fail)
            await owner.store.delete_segment(NAME)
            await anyio.sleep(10)
            await owner.store.create_segment("goes-on")
            assert await left_rows(owner, sid) == 501
        await anyio.sleep(60)

        assert await left_rows(owner, sid) == 0


# --- bounds -------------------------------------------------------------------------------------


async def test_m18_many_rows_make_a_flush_cycle_due_before_their_age() -> None:
    admission = attrs.evolve(OPTIONS.admission, row_cycle_bytes=1 << 18)
    async with ContainerWorld(replace(OPTIONS, admission=admission)).owner() as owner:
        table = await made(owner)
        most = 0
        for batch in range(60):
            await table.put_many({b"%d-%d" % (batch, number): bytes(50) for number in range(100)})
            await anyio.sleep(0.1)
            most = max(most, owner.container.state.table.memory)

        assert most < 1 << 19
        assert len(await values(table)) == 6000


async def test_m18_updates_are_refused_while_rows_cannot_be_published() -> None:
    admission = attrs.evolve(OPTIONS.admission, row_bytes=1 << 18, row_cycle_bytes=1 << 16)
    world = ContainerWorld(replace(OPTIONS, admission=admission))
    async with world.owner() as owner:
        table = await made(owner)
        world.chunks.script = fail_runs
        with pytest.raises(TierlogError, match="wait in memory"):
            for batch in range(100):
                await table.put_many({b"%d-%d" % (batch, number): bytes(50) for number in range(100)})
        world.chunks.script = None
        await anyio.sleep(60)

        assert await table.put(b"k", b"v")

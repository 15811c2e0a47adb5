"""The verbs of tables as an app sees them: embedded, and through both clients of a server (rule H19)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

import tierlog
from support.service import service
from support.stores import CONFIG
from tierlog import (
    ABSENT,
    InvalidArgument,
    OutOfOrder,
    SegmentExists,
    SegmentNotFound,
    SegmentSealed,
    SegmentStore,
    TableChange,
    TableConflict,
    TableRow,
    TableUpdate,
    TooLarge,
    WrongSegmentKind,
)
from tierlog.actors.container import table_pages

pytestmark = pytest.mark.anyio
NAME = "app/users#1"


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


async def test_rows_are_put_read_and_removed(store: SegmentStore) -> None:
    await store.create_table(NAME)
    table = store.table(NAME)
    first = await table.put(b"\x00\xff", b"binary")
    second = await table.put_many({b"a": b"1", b"b": b""})
    assert first is not None
    assert second is not None

    assert await table.get(b"\x00\xff") == TableRow(b"\x00\xff", b"binary", first)
    assert await table.get_many([b"b", b"none"]) == [TableRow(b"b", b"", second), None]
    assert await table.get_many([]) == []
    removed = await table.remove(b"a")
    assert removed is not None
    assert [row.key async for row in table.items()] == [b"\x00\xff", b"b"]
    assert [row.key async for row in table.items(prefix=b"b")] == [b"b"]

    page = await table.page(limit=1)
    assert page.token is not None
    assert [row.key for row in (await table.page(token=page.token)).rows] == [b"b"]
    changes = await table.changes(first)
    assert changes.rows == [TableChange(b"a", None, removed), TableChange(b"b", b"", second)]
    assert (changes.token, changes.version >= removed) == (None, True)
    info = await store.segment_info(NAME)
    assert (info.is_table, info.length) == (True, 0)
    assert await store.list_segments() == [NAME]


async def test_conditions_and_transactions(store: SegmentStore) -> None:
    await store.create_table(NAME)
    table = store.table(NAME)
    version = await table.put(b"k", b"1", expected_version=ABSENT)
    assert version is not None
    with pytest.raises(TableConflict) as caught:
        await table.update([TableUpdate(b"other", b"x"), TableUpdate(b"k", b"2", ABSENT)])
    assert (caught.value.key, caught.value.expected, caught.value.present) == (b"k", ABSENT, version)

    async with table.transaction() as transaction:
        row = await transaction.get(b"k")
        assert row is not None
        transaction.put(b"copy", row.value)
    assert transaction.version
    with pytest.raises(TableConflict):
        async with table.transaction() as transaction:
            await transaction.get(b"k")
            await table.put(b"k", b"3")
            transaction.put(b"lost", b"x")
    assert {row.key async for row in table.items()} == {b"k", b"copy"}


async def test_updates_by_a_writer_are_applied_once(store: SegmentStore) -> None:
    await store.create_table(NAME)
    table = store.table(NAME)
    first = await table.put(b"k", b"1", expected_version=ABSENT, writer_id="w", event_number=7)
    assert await table.put(b"k", b"1", expected_version=ABSENT, writer_id="w", event_number=7) == first
    with pytest.raises(OutOfOrder):
        await table.remove(b"k", writer_id="w", event_number=9)
    await table.remove(b"k", writer_id="w", event_number=9, previous_event_number=7)
    assert await table.put(b"k", b"1", writer_id="w", event_number=7) is None
    assert await store.last_event_number(NAME, "w") == 9
    assert await table.get(b"k") is None


async def test_refusals(store: SegmentStore) -> None:
    await store.create_table(NAME)
    await store.create_table(NAME, exist_ok=True)
    await store.create_segment("bytes")
    table = store.table(NAME)
    version = await table.put(b"k", b"v")
    assert version is not None
    with pytest.raises(SegmentExists):
        await store.create_table(NAME)
    with pytest.raises(WrongSegmentKind):
        await store.create_table("bytes", exist_ok=True)
    with pytest.raises(WrongSegmentKind):
        await store.append(NAME, b"x")
    with pytest.raises(WrongSegmentKind):
        await store.table("bytes").get(b"k")
    with pytest.raises(SegmentNotFound):
        await store.table("none").put(b"k", b"v")
    with pytest.raises(InvalidArgument):
        store.table("_system/x")
    with pytest.raises(InvalidArgument):
        await table.page(token="nonsense")
    with pytest.raises(TooLarge):
        await table.put(b"k", bytes((1 << 20) + 1))
    with pytest.raises(TooLarge):
        await table.put_many({b"%d" % number: bytes(1 << 20) for number in range(9)})
    with pytest.raises(TableConflict):
        await table.remove(b"k", expected_version=version + 1)

    await store.seal_segment(NAME)
    with pytest.raises(SegmentSealed):
        await table.put(b"k", b"w")
    assert await table.get(b"k") == TableRow(b"k", b"v", version)
    await store.delete_segment(NAME)
    with pytest.raises(SegmentNotFound):
        await table.get(b"k")


async def test_a_token_continues_only_what_gave_it(store: SegmentStore) -> None:
    await store.create_table(NAME)
    await store.create_table("other")
    table, other = store.table(NAME), store.table("other")
    values = {b"%02d" % number: b"v" for number in range(20)}
    first = await table.put_many(values)
    assert first is not None
    await other.put_many(values)
    rows, of_prefix = await table.page(limit=3), await table.page(prefix=b"1", limit=3)
    changes = await table.changes(limit=3)
    later = await table.put_many(dict.fromkeys(values, b"w"))
    assert later is not None
    since = await table.changes(first, limit=3)

    continued = await table.page(prefix=b"1", token=of_prefix.token)
    assert [row.key for row in continued.rows] == sorted(values)[13:]
    for refused in (
        table.changes(token=rows.token),
        table.page(token=changes.token),
        table.page(prefix=b"1", token=rows.token),
        table.page(token=of_prefix.token),
        table.page(start=b"00", token=rows.token),
        table.page(end=b"9", token=rows.token),
        table.changes(later, token=since.token),
        other.page(token=rows.token),
        other.changes(token=changes.token),
    ):
        with pytest.raises(InvalidArgument, match="the token is"):
            await refused
    # The version is that of the first page: what changed after it is shown by what follows.
    for given in (first, 0):
        page = await table.changes(given, token=since.token)
        assert ([row.key for row in page.rows], page.version) == (sorted(values)[3:], since.version)

    await store.delete_segment(NAME)
    await store.create_table(NAME)
    for gone in (table.page(token=rows.token), table.changes(token=changes.token)):
        with pytest.raises(SegmentNotFound, match="was deleted, and another one has its name"):
            await gone


async def test_a_transaction_refuses_changes_after_its_block(store: SegmentStore) -> None:
    await store.create_table(NAME)
    table = store.table(NAME)
    async with table.transaction() as transaction:
        transaction.put(b"k", b"v")
    with pytest.raises(ZeroDivisionError):
        async with table.transaction() as failed:
            raise ZeroDivisionError

    for ended in (transaction, failed):
        with pytest.raises(InvalidArgument, match="has ended: begin another one"):
            ended.put(b"late", b"v")
        with pytest.raises(InvalidArgument, match="has ended: begin another one"):
            ended.remove(b"k")
        with pytest.raises(InvalidArgument, match="has ended: begin another one"):
            await ended.get(b"k")
    assert [row.key async for row in table.items()] == [b"k"]


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_segments_of_the_other_kind_are_no_bytes_and_no_table(
    store: SegmentStore, is_flushed: bool
) -> None:
    await store.create_table(NAME)
    await store.create_segment("bytes")
    if is_flushed:
        await store.flush()
    with pytest.raises(SegmentExists, match=r"name, or, if it is not a table, use it with exist_ok=True"):
        await store.create_segment(NAME)
    with pytest.raises(SegmentExists, match=r"name, or, if it is a table, use it with exist_ok=True"):
        await store.create_table("bytes")
    with pytest.raises(WrongSegmentKind, match="is a table, which has rows and no bytes"):
        await store.create_segment(NAME, exist_ok=True)
    with pytest.raises(WrongSegmentKind, match="is a segment of bytes and not a table"):
        await store.create_table("bytes", exist_ok=True)
    await store.create_segment("bytes", exist_ok=True)
    await store.create_table(NAME, exist_ok=True)
    for offset in (0, 5):
        with pytest.raises(WrongSegmentKind):
            await store.read(NAME, offset, 10)
    with pytest.raises(WrongSegmentKind):
        await anext(store.tail(NAME))
    with pytest.raises(WrongSegmentKind):
        await store.append_starts(NAME, 0, 5)
    with pytest.raises(WrongSegmentKind):
        await store.segment_layout(NAME, 0, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prefix": None},
        {"start": None},
        {"end": "z"},
        {"token": "\ud800"},
        {"token": "\xe9"},
        {"token": "A" * 30_000},
        {"token": b"A"},
    ],
    ids=str,
)
async def test_wrong_arguments_of_a_page_are_refused(store: SegmentStore, arguments: Any) -> None:
    await store.create_table(NAME)
    with pytest.raises(InvalidArgument) as caught:
        await store.table(NAME).page(**arguments)
    assert "body" not in str(caught.value)


@pytest.mark.one_loop
async def test_a_synchronous_client_has_the_same_verbs(tmp_path: Path, anyio_backend: str) -> None:
    with service(tmp_path / "data") as url, tierlog.connect_sync(url) as store:
        store.create_table(NAME)
        table = store.table(NAME)
        version = table.put(b"a", b"1", expected_version=ABSENT)
        assert version is not None
        table.put_many({b"b": b"2"})
        table.update([TableUpdate(b"c", b"3", ABSENT)])
        table.remove(b"b")

        row = TableRow(b"a", b"1", version)
        assert (table.get(b"a"), table.get_many([b"a", b"b"])) == (row, [row, None])
        assert [found.key for found in table.items()] == [b"a", b"c"]
        assert len(table.page(limit=1).rows) == 1
        assert [change.key for change in table.changes(version).rows] == [b"b", b"c"]
        with table.transaction() as transaction:
            assert transaction.get(b"a") == row
            transaction.put(b"d", b"4")
            transaction.remove(b"c")
        assert transaction.version
        with pytest.raises(InvalidArgument, match="has ended"):
            transaction.put(b"late", b"v")
        with pytest.raises(TableConflict), table.transaction() as transaction:
            transaction.get(b"a")
            table.remove(b"a")
            transaction.put(b"e", b"5")
        assert [found.key for found in table.items()] == [b"d"]


async def test_m16_a_page_over_removed_rows_ends_and_the_items_go_on(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a table that is used as a queue."""
    monkeypatch.setattr(table_pages, "PAGE_CONSIDERED_MAX", 30 * 2048)
    await store.create_table(NAME)
    table = store.table(NAME)
    await table.put_many({b"k%03d" % number: b"" for number in range(100)})
    await table.update([TableUpdate(b"k%03d" % number, None) for number in range(99)])

    page = await table.page(limit=1)
    assert (page.rows, page.token is None) == ([], False)
    assert [row.key async for row in table.items()] == [b"k099"]

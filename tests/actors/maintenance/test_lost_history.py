"""Clients that go on across a recovery from long-term storage alone: what they send again is applied once,
and what builds on lost changes is refused (rules R8 to R10)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from support.service import service
from support.stores_of_all_kinds import whole
from tierlog import (
    BadOffset,
    BatchItem,
    HistoryLost,
    InvalidArgument,
    LtsView,
    OutOfOrder,
    SegmentNotFound,
    SegmentVerbs,
    StagedPart,
    Table,
    TableUpdate,
    TierlogError,
    UnknownWriter,
    connect,
    connect_sync,
    open_lts,
)
from tierlog.actors.store.read_only import StoreView, open_reader

from .test_recover import QUIET, lose_logs, opened, recovered

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

NAME = "events"
FLUSHED = b"0123456789"
LOST = b"lost"


async def send(store: SegmentVerbs, number: int, **arguments: int) -> int | None:
    """Event ``number`` of the writer, of one byte."""
    data = f"{number % 10}".encode()
    return await store.append(NAME, data, writer_id="w", event_number=number, **arguments)


async def make(folder: Path) -> None:
    """Events 0 to 9 are flushed, and 10 to 13 are acked and then lost."""
    async with opened(folder) as store:
        await store.create_segment(NAME)
        for number in range(len(FLUSHED)):
            await send(store, number)
        await store.flush()
        for number in range(len(FLUSHED), len(FLUSHED + LOST)):
            await send(store, number)
    await lose(folder)


async def lose(folder: Path) -> None:
    lose_logs(folder)
    await recovered(folder)


async def first_block(store: SegmentVerbs, offset: int, **arguments: int) -> bytes:
    async with aclosing(store.tail(NAME, offset, **arguments)) as tail:
        return await anext(tail)


async def history(store: SegmentVerbs | StoreView | LtsView) -> int:
    return (await store.segment_info(NAME)).history


async def test_r9_lost_events_that_are_sent_again_in_order_are_applied_once(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        assert await send(store, 9) == 9  # it was not lost
        for number in range(10, 15):
            assert await send(store, number) == number
            assert await send(store, number) == number
        assert await whole(store, NAME, 0) == FLUSHED + b"01234"


async def test_r9_an_event_that_follows_a_lost_one_is_refused_for_good(tmp_path: Path) -> None:
    await make(tmp_path)
    for _ in range(2):
        async with opened(tmp_path) as store:
            with pytest.raises(HistoryLost, match="Send the events after 9 again") as lost:
                await send(store, 14)
            assert not lost.value.retryable
            assert (lost.value.recovered_length, lost.value.last_event_number) == (10, 9)
            assert lost.value.history == await history(store) > 0
            with pytest.raises(HistoryLost):
                await store.append(NAME, b"x", writer_id="w", event_number=20, previous_event_number=13)
            await store.flush()
    async with opened(tmp_path) as store:
        assert await whole(store, NAME, 0) == FLUSHED


async def test_r9_a_writer_that_appended_since_the_recovery_is_out_of_order_as_ever(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        await send(store, 10)
        with pytest.raises(OutOfOrder):
            await send(store, 12)


async def test_r9_a_writer_that_is_lost_as_a_whole_begins_again_with_its_first_event(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost, match="event 0") as lost:
            await store.append(NAME, b"x", writer_id="other", event_number=3)
        assert lost.value.last_event_number is None
        with pytest.raises(HistoryLost):
            await store.append(NAME, b"x", writer_id="other", event_number=4, previous_event_number=3)
        with pytest.raises(UnknownWriter):
            await store.append(NAME, b"x", writer_id="other", event_number=4, previous_event_number=-1)
        assert await store.append(NAME, b"a", writer_id="other", event_number=0) == 10


async def test_r9_a_writer_that_knows_the_present_history_begins_with_any_number(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost):
            await store.append(NAME, b"x", writer_id="other", event_number=3, history=0)
        now = await history(store)
        assert await store.append(NAME, b"a", writer_id="other", event_number=3, history=now) == 10
        await store.create_segment("new")
        assert await store.append("new", b"a", writer_id="other", event_number=3) == 0
        with pytest.raises(HistoryLost):
            await store.append("new", b"a", writer_id="other", event_number=9, history=0)


async def test_r9_updates_of_tables_count_as_appends(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_table("t")
        await store.table("t").put(b"key", b"0", writer_id="w", event_number=0)
        await store.flush()
        await store.table("t").put(b"key", b"1", writer_id="w", event_number=1)
    await lose(tmp_path)
    async with opened(tmp_path) as store:
        table = store.table("t")
        with pytest.raises(HistoryLost):
            await table.put(b"key", b"2", writer_id="w", event_number=2)
        await table.put(b"key", b"1", writer_id="w", event_number=1)
        with pytest.raises(OutOfOrder):
            await table.put(b"key", b"3", writer_id="w", event_number=3)
        await check_table(table, "first", (await store.segment_info("t")).history)
    with service(tmp_path, config=QUIET) as url:
        async with connect(url) as client:
            await check_table(client.table("t"), "second", (await client.segment_info("t")).history)


async def check_table(table: Table, name: str, now: int) -> None:
    """All verbs name the history of their event."""
    with pytest.raises(HistoryLost):
        await table.put(b"key", b"x", writer_id="w", event_number=9, history=0)
    with pytest.raises(HistoryLost):
        await table.put(b"key", b"x", writer_id=name, event_number=5)
    await table.put(b"key", b"x", writer_id=name, event_number=5, history=now)
    await table.remove(b"key", writer_id=name, event_number=6, history=now)
    await table.put_many({b"key": b"y"}, writer_id=name, event_number=7, history=now)
    updates = [TableUpdate(b"key", b"z")]
    await table.update(updates, writer_id=name, event_number=8, history=now)
    with pytest.raises(HistoryLost):
        await table.remove(b"key", writer_id=name, event_number=20, history=0)
    with pytest.raises(HistoryLost):
        await table.put_many({b"key": b"y"}, writer_id=name, event_number=20, history=0)
    with pytest.raises(HistoryLost):
        await table.update(updates, writer_id=name, event_number=20, history=0)
    with pytest.raises(HistoryLost):
        async with table.transaction(writer_id=name, event_number=20, history=0) as transaction:
            transaction.put(b"key", b"w")
    with pytest.raises(InvalidArgument, match="history says of which history event_number is"):
        await table.put(b"key", b"x", history=now)


async def test_r10_an_append_at_an_offset_past_the_end_is_of_the_lost_history(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost) as lost:
            await store.append(NAME, b"x", expected_offset=14)
        assert lost.value.recovered_length == 10
        await store.append(NAME, b"abcd", expected_offset=10)
        with pytest.raises(BadOffset):
            await store.append(NAME, b"x", expected_offset=10)
        # Its length is what the client knows again, by chance.
        with pytest.raises(HistoryLost):
            await store.append(NAME, b"x", expected_offset=14, history=0)
        assert await store.append(NAME, b"x", expected_offset=14, history=await history(store)) == 14


async def test_r10_a_pipelined_append_in_a_new_segment_may_arrive_too_early(tmp_path: Path) -> None:
    """As Spark's do: who sends them knows no lost history."""
    await make(tmp_path)
    async with opened(tmp_path) as store:
        await store.create_segment("new")
        with pytest.raises(BadOffset):
            await store.append("new", b"x", expected_offset=5)
        with pytest.raises(BadOffset):
            await store.append(NAME, b"x", expected_offset=14, history=await history(store))


async def test_r10_a_read_past_the_recovered_length_is_of_the_lost_history(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        assert await store.read(NAME, 10, 100, history=0) == b""
        for arguments in ({}, {"history": 0}):
            with pytest.raises(HistoryLost):
                await store.read(NAME, 12, 100, **arguments)
            with pytest.raises(HistoryLost):
                await first_block(store, 14, **arguments)
        assert await store.read(NAME, 12, 100, history=await history(store)) == b""
        await store.append(NAME, b"other")
        with pytest.raises(HistoryLost) as lost:
            await store.read(NAME, 12, 100, history=0)
        assert lost.value.recovered_length == 10
        assert await store.read(NAME, 12, 100) == b"her"
        assert await first_block(store, 10, history=0) == b"other"


async def test_r10_a_truncation_of_what_was_read_in_the_lost_history_drops_nothing(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost):
            await store.truncate_segment(NAME, 12)
        await store.append(NAME, b"other")
        with pytest.raises(HistoryLost):
            await store.truncate_segment(NAME, 12, history=0)
        await store.truncate_segment(NAME, 10, history=0)
        assert await store.read(NAME, 10, 100) == b"other"


async def test_r10_a_commit_of_a_part_that_lost_bytes_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_segment(NAME)
        await store.begin_transaction(NAME, "t")
        part = await store.stage_segment(NAME, "t", "0")
        await store.append(part, FLUSHED)
        await store.flush()
        await store.append(part, LOST)
    await lose(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost):
            await store.append(part, b"x", expected_offset=14)
        with pytest.raises(HistoryLost):
            await store.commit_transaction(NAME, "t", [StagedPart(part, 14)])
        await store.append(part, b"agin", expected_offset=10)
        await store.commit_transaction(NAME, "t", [StagedPart(part, 14)])
        assert await whole(store, NAME, 0) == FLUSHED + b"agin"


async def test_r10_a_segment_that_is_lost_as_a_whole_and_created_again_has_nothing_in_common(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        await store.create_segment("other")
        await store.flush()
        await store.create_segment(NAME)
        await store.append(NAME, LOST)
        seen = await history(store)
    await lose(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(SegmentNotFound):
            await store.read(NAME, 4, 1)
        await store.create_segment(NAME)
        await store.append(NAME, b"something else")
        with pytest.raises(HistoryLost):
            await store.read(NAME, 4, 1, history=seen)


async def test_r8_the_mark_lasts_across_openings_flushes_and_the_segments_going_cold(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        await store.append(NAME, b"abcd")
    for number in range(3):
        async with opened(tmp_path) as store:
            if number:
                await store.flush()
            with pytest.raises(HistoryLost) as lost:
                await store.read(NAME, 12, 1, history=0)
            assert lost.value.recovered_length == 10
            with pytest.raises(HistoryLost):
                await send(store, 14)


async def test_r8_two_recoveries_make_three_histories(tmp_path: Path) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        first = await history(store)
        await store.append(NAME, b"abcdef")
        await store.flush()
        await store.append(NAME, b"ghi")
    await lose(tmp_path)
    async with opened(tmp_path) as store:
        second = await history(store)
        assert second > first
        await store.append(NAME, b"uvwxyz")
    async with opened(tmp_path) as store:
        for known, common in ((0, 10), (first, 16), (second, 22)):
            await store.read(NAME, common, 1, history=known)
        for known, position in ((0, 11), (first, 17)):
            with pytest.raises(HistoryLost) as lost:
                await store.read(NAME, position, 1, history=known)
            assert lost.value.recovered_length == position - 1


async def test_r8_a_history_that_is_lost_itself_has_nothing_in_common_with_the_present_one(
    tmp_path: Path,
) -> None:
    """Nothing was published in it."""
    await make(tmp_path)
    async with opened(tmp_path) as store:
        first = await history(store)
    await lose(tmp_path)
    async with opened(tmp_path) as store:
        with pytest.raises(HistoryLost):
            await store.read(NAME, 5, 1, history=first)
        await store.read(NAME, 10, 1, history=0)


async def test_r8_a_store_that_was_never_recovered_has_one_history(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create_segment(NAME)
        assert await history(store) == 0
        assert await store.append(NAME, b"x", writer_id="w", event_number=7) == 0
        assert await store.read(NAME, 100, 1) == b""
        with pytest.raises(OutOfOrder):
            await send(store, 9)
        with pytest.raises(BadOffset):
            await store.append(NAME, b"x", expected_offset=9, history=0)


async def test_r10_readers_of_the_folder_and_of_long_term_storage_know_the_histories_too(
    tmp_path: Path,
) -> None:
    await make(tmp_path)
    async with opened(tmp_path) as store:
        await store.append(NAME, b"abcd")
        await store.flush()
    async with open_reader(tmp_path) as view, open_lts(tmp_path) as alone:
        for reader in (view, alone):
            assert await history(reader) > 0
            assert await reader.read(NAME, 10, 10, history=0) == b"abcd"
            with pytest.raises(HistoryLost):
                await reader.read(NAME, 12, 1, history=0)


async def test_r10_clients_get_the_error_with_all_that_it_says(tmp_path: Path) -> None:
    await make(tmp_path)
    with service(tmp_path, config=QUIET) as url:
        async with connect(url) as client:
            with pytest.raises(HistoryLost) as lost:
                await send(client, 14)
            now = await history(client)
            assert now > 0
            assert (lost.value.segment, lost.value.history) == (NAME, now)
            assert (lost.value.recovered_length, lost.value.last_event_number) == (10, 9)
            for call in (
                client.read(NAME, 12, 1),
                client.read(NAME, 12, 1, history=0),
                client.append(NAME, b"x", expected_offset=12),
                client.append(NAME, b"x", expected_offset=12, history=0),
                client.truncate_segment(NAME, 12, history=0),
                client.poll(NAME, 12, 30.0),
                first_block(client, 12),
            ):
                with pytest.raises(HistoryLost):
                    await call
            assert await client.append(NAME, b"abcd", expected_offset=10, history=0) == 10
            assert await client.append(NAME, b"x", writer_id="o", event_number=5, history=now) == 14
            assert await first_block(client, 10, history=0) == b"abcdx"
            with pytest.raises(HistoryLost):
                await client.read(NAME, 12, 1, history=0)


RESENT = BatchItem(NAME, b"0123", "w", 10, 4, history=0)
AHEAD = BatchItem(NAME, b"x", "w", 16, 1, history=0)
UNKNOWN = BatchItem(NAME, b"x", "o", 5, 1)


def check_each(outcomes: Sequence[int | TierlogError | None]) -> None:
    """Of ``batch_in``."""
    assert outcomes[:2] == [10, 10]
    assert [type(outcome) for outcome in outcomes[2:5]] == [HistoryLost] * 3
    assert outcomes[5:] == [14, 15]
    lost = outcomes[2]
    assert isinstance(lost, HistoryLost)
    assert (lost.segment, lost.recovered_length, lost.last_event_number) == (NAME, 10, 13)


def batch_in(now: int) -> list[BatchItem]:
    return [
        RESENT,
        RESENT,
        AHEAD,
        BatchItem(NAME, b"x", expected_offset=14, history=0),
        UNKNOWN,
        BatchItem(NAME, b"x", "o", 5, 1, history=now),
        BatchItem(NAME, b"x", expected_offset=15, history=now),
    ]


async def check_many(store: SegmentVerbs) -> None:
    """Events that are sent again in batches are applied once, or it is said what is lost."""
    now = await history(store)
    with pytest.raises(HistoryLost):
        await store.append_many(NAME, [b"x", b"x"], writer_id="w", first_event_number=14, history=0)
    with pytest.raises(HistoryLost):
        await store.append_many(NAME, [b"x"], expected_offset=12, history=0)
    for _ in range(2):
        events = [b"0", b"1", b"2"]
        assert await store.append_many(NAME, events, writer_id="w", first_event_number=10, history=0) == 10
    for known, refusal in ((0, HistoryLost), (now, OutOfOrder), (None, OutOfOrder)):
        with pytest.raises(refusal):
            await store.append_many(NAME, [b"x"], writer_id="w", first_event_number=16, history=known)
    with pytest.raises(HistoryLost):
        await store.append_many(NAME, [b"x"], writer_id="o", first_event_number=5)
    assert await store.append_many(NAME, [b"x", b"y"], expected_offset=13, history=now) == 13
    with pytest.raises(InvalidArgument, match="event_number or expected_offset"):
        await store.append_many(NAME, [b"x"], history=now)


async def test_r9_batches_of_a_store_name_their_history(tmp_path: Path) -> None:
    await make(tmp_path / "many")
    async with opened(tmp_path / "many") as store:
        await check_many(store)
    await make(tmp_path / "each")
    async with opened(tmp_path / "each") as store:
        check_each(await store.append_each(batch_in(await history(store))))
        [refused] = await store.append_each([BatchItem(NAME, b"x", history=1)])
        assert isinstance(refused, InvalidArgument)


async def test_r9_batches_of_clients_name_their_history(tmp_path: Path) -> None:
    await make(tmp_path / "many")
    with service(tmp_path / "many", config=QUIET) as url:
        async with connect(url) as client:
            await check_many(client)
    await make(tmp_path / "each")
    with service(tmp_path / "each", config=QUIET) as url:
        async with connect(url) as client:
            check_each(await client.append_each(batch_in(await history(client))))


async def test_r9_batches_of_a_blocking_client_name_their_history(tmp_path: Path) -> None:
    await make(tmp_path)

    def use(url: str) -> None:
        with connect_sync(url) as client:
            now = client.segment_info(NAME).history
            with pytest.raises(HistoryLost):
                client.append_many(NAME, [b"x", b"x"], writer_id="w", first_event_number=14, history=0)
            check_each(client.append_each(batch_in(now)))
            assert client.append_many(NAME, [b"y"], expected_offset=16, history=now) == 16

    with service(tmp_path, config=QUIET) as url:
        await anyio.to_thread.run_sync(use, url)


async def test_r10_a_blocking_client_gets_the_same(tmp_path: Path) -> None:
    await make(tmp_path)

    def use(url: str) -> None:
        with connect_sync(url) as client:
            now = client.segment_info(NAME).history
            assert client.append(NAME, b"abcd", expected_offset=10, history=0) == 10
            with pytest.raises(HistoryLost):
                client.read(NAME, 12, 1, history=0)
            assert client.read(NAME, 12, 1, history=now) == b"c"
            with pytest.raises(HistoryLost):
                client.truncate_segment(NAME, 12, history=0)
            with pytest.raises(HistoryLost):
                client.append(NAME, b"x", writer_id="w", event_number=14)
            with pytest.raises(HistoryLost):
                next(client.tail(NAME, 12, history=0))
            assert next(client.tail(NAME, 12, history=now)) == b"cd"

    with service(tmp_path, config=QUIET) as url:
        await anyio.to_thread.run_sync(use, url)

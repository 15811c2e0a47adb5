"""The verbs of a store, one after the other, as an app sees them: embedded, and through a client of a
server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace

import tierlog
from support.container_world import read_all
from support.patience import scaled
from support.service import service
from support.stores import CONFIG, KIB, follow, make
from tierlog import (
    AttributeConflict,
    AttributeUpdate,
    AttributeUpdateKind,
    BadOffset,
    SegmentInfo,
    SegmentStore,
)
from tierlog.actors.settings.configuration import StoreConfig

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["embedded", pytest.param("client", marks=pytest.mark.one_loop)])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[SegmentStore]:
    """A client has the same verbs, arguments, results and errors: every test here holds for both."""
    if request.param == "embedded":
        async with tierlog.open_store(tmp_path / "data", containers=2, config=CONFIG) as opened:
            yield opened
    else:
        with service(tmp_path / "data", containers=2) as url:
            async with tierlog.connect(url) as client:
                yield cast(SegmentStore, client)


# --- create, append, read -----------------------------------------------------------------------


async def test_a_new_segment_is_empty(store: SegmentStore) -> None:
    await store.create_segment("app/events")
    info = await store.segment_info("app/events")

    assert (info.name, info.length, info.start_offset, info.sealed) == ("app/events", 0, 0, False)
    assert (info.attributes, info.flushed_length, info.container) == ({}, 0, store.container_of("app/events"))
    assert await store.read("app/events", 0, 10) == b""


async def test_an_append_returns_where_its_data_starts_and_can_be_read_at_once(store: SegmentStore) -> None:
    await store.create_segment("s")

    assert await store.append("s", b"hello ") == 0
    assert await store.append("s", b"world") == 6
    assert await store.read("s", 0, 100) == b"hello world"
    assert await store.read("s", 4, 3) == b"o w"


async def test_an_empty_append_changes_nothing_but_is_answered(store: SegmentStore) -> None:
    await make(store, "s", b"abc")

    assert await store.append("s", b"") == 3
    assert (await store.segment_info("s")).length == 3


async def test_a_name_is_taken_until_it_is_deleted(store: SegmentStore) -> None:
    await store.create_segment("s")

    with pytest.raises(tierlog.SegmentExists) as caught:
        await store.create_segment("s")
    await store.create_segment("s", exist_ok=True)
    assert caught.value.segment == "s"


OF_A_MISSING_SEGMENT: list[Callable[[Any], Awaitable[object]]] = [
    lambda s: s.append("none", b"x"),
    lambda s: s.append("none", b"x", writer_id="w", event_number=0),
    lambda s: s.append_many("none", [b"x"]),
    lambda s: s.read("none", 0, 1),
    lambda s: anext(s.tail("none")),
    lambda s: s.segment_info("none"),
    lambda s: s.segment_layout("none", 0, 1),
    lambda s: s.seal_segment("none"),
    lambda s: s.truncate_segment("none", 0),
    lambda s: s.delete_segment("none"),
    lambda s: s.merge_segments("none", ["none#1"]),
    lambda s: s.update_attributes("none", [AttributeUpdate("a", 1)]),
    lambda s: s.list_attributes("none"),
    lambda s: s.expire_writers("none", ["w"]),
    lambda s: s.last_event_number("none", "w"),
]


async def test_every_verb_reports_a_missing_segment(store: SegmentStore) -> None:
    for verb in OF_A_MISSING_SEGMENT:
        with pytest.raises(tierlog.SegmentNotFound) as caught:
            await verb(store)
        assert caught.value.segment == "none"
        assert isinstance(caught.value, LookupError)


async def test_appends_of_many_tasks_never_mix(store: SegmentStore) -> None:
    await store.create_segment("s")
    offsets: dict[int, bytes] = {}

    async def append(number: int) -> None:
        data = bytes((number,)) * (number + 1)
        offset = await store.append("s", data)
        assert offset is not None
        offsets[offset] = data

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(append, number)

    assert b"".join(offsets[offset] for offset in sorted(offsets)) == await read_all(store, "s")


async def test_buffers_may_be_reused_once_the_call_is_made(store: SegmentStore) -> None:
    """Mutable buffers are copied when the call is made."""
    await store.create_segment("s")
    buffer = bytearray(b"first")
    both: list[Any] = [buffer, memoryview(buffer)]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.append, "s", buffer)
        tasks.start_soon(store.append_many, "s", both)
        await anyio.lowlevel.checkpoint()
        buffer[:] = b"other"
    buffer[:] = b"again"

    assert b"again" not in await store.read("s", 0, 100)


async def test_views_of_any_shape_are_taken_as_their_bytes(store: SegmentStore) -> None:
    await store.create_segment("s")
    await store.append("s", memoryview(b"abcdef")[::2])
    await store.append("s", memoryview(bytearray(8)).cast("Q"))

    assert await store.read("s", 0, 100) == b"ace" + bytes(8)


async def test_a_read_over_flushed_and_unflushed_bytes_gives_all_of_them(store: SegmentStore) -> None:
    data = bytes(range(256)) * 800
    await make(store, "s", data, flushed=True)
    await store.append("s", b"tail")

    assert await read_all(store, "s") == data + b"tail"
    assert (await store.segment_info("s")).flushed_length == len(data)


# --- append_many, expected offset ---------------------------------------------------------------


async def test_append_many_is_one_append(store: SegmentStore) -> None:
    await make(store, "s", b"0")

    assert await store.append_many("s", [b"1", b"", bytearray(b"2"), memoryview(b"3")]) == 1
    assert await store.append_many("s", (event for event in (b"4",))) == 4
    assert await store.read("s", 0, 100) == b"01234"


async def test_a_conditional_append_is_applied_at_that_offset_only(store: SegmentStore) -> None:
    await make(store, "s", b"abc")

    assert await store.append("s", b"d", expected_offset=3) == 3
    with pytest.raises(BadOffset) as caught:
        await store.append("s", b"e", expected_offset=3)
    assert (caught.value.segment, caught.value.expected, caught.value.given) == ("s", 4, 3)
    with pytest.raises(BadOffset):
        await store.append_many("s", [b"e"], expected_offset=5)
    assert await store.append_many("s", [b"e"], expected_offset=4) == 4
    assert await store.read("s", 0, 100) == b"abcde"


# --- seal, truncate, delete ---------------------------------------------------------------------


async def test_a_sealed_segment_is_read_but_not_appended_to(store: SegmentStore) -> None:
    await make(store, "s", b"abc")

    assert await store.seal_segment("s") == 3
    assert await store.seal_segment("s") == 3
    with pytest.raises(tierlog.SegmentSealed) as caught:
        await store.append("s", b"d")
    assert caught.value.segment == "s"
    assert await store.read("s", 0, 10) == b"abc"
    assert await store.read("s", 3, 10) == b""
    assert (await store.segment_info("s")).sealed


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_truncated_segment_starts_there(store: SegmentStore, flushed: bool) -> None:
    """Inside, at and after the boundaries of chunks, which roll at 64 KiB here; up to the very end."""
    data = (bytes(range(251)) * 800)[:200_000]
    offsets = {
        str(offset): offset for offset in (1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 128 * KIB, 200_000)
    }
    for name, offset in offsets.items():
        await make(store, name, data, flushed=flushed)
        await store.truncate_segment(name, offset)
        await store.truncate_segment(name, offset - 1)
        with pytest.raises(tierlog.SegmentTruncated) as caught:
            await store.read(name, offset - 1, 10)
        assert (caught.value.segment, caught.value.start_offset) == (name, offset)
        assert await read_all(store, name, offset) == data[offset:]
    await store.flush()
    for name, offset in offsets.items():
        assert await read_all(store, name, offset) == data[offset:], name
        assert await store.append(name, b"more") == len(data)
        assert await read_all(store, name, offset) == data[offset:] + b"more", name


async def test_nothing_can_be_truncated_past_the_end(store: SegmentStore) -> None:
    await make(store, "s", b"abc")

    with pytest.raises(BadOffset) as caught:
        await store.truncate_segment("s", 4)
    assert (caught.value.expected, caught.value.given) == (3, 4)


async def test_a_sealed_segment_can_be_truncated_and_deleted(store: SegmentStore) -> None:
    await make(store, "s", b"abc", sealed=True)
    await store.truncate_segment("s", 3)
    assert await store.read("s", 3, 1) == b""

    await store.delete_segment("s")
    with pytest.raises(tierlog.SegmentNotFound):
        await store.segment_info("s")


async def test_a_deleted_name_is_free_at_once_and_begins_afresh(store: SegmentStore) -> None:
    await make(store, "s", b"old")
    await store.append("s", b"e", writer_id="w", event_number=9)
    await store.update_attributes("s", [AttributeUpdate("a", 1)])
    before = await store.segment_info("s")
    await store.delete_segment("s")
    await store.create_segment("s")
    info = await store.segment_info("s")

    assert (info.length, info.attributes) == (0, {})
    assert info.segment_id != before.segment_id
    assert await store.last_event_number("s", "w") is None
    assert await store.read("s", 0, 10) == b""


# --- attributes ---------------------------------------------------------------------------------

K = AttributeUpdateKind


UPDATES = [
    (None, AttributeUpdate("a", 5, K.NONE), 5),
    (1, AttributeUpdate("a", 5, K.NONE), None),
    (None, AttributeUpdate("a", 5), 5),
    (7, AttributeUpdate("a", 5, K.REPLACE), 5),
    (None, AttributeUpdate("a", 5, K.REPLACE_IF_GREATER), 5),
    (4, AttributeUpdate("a", 5, K.REPLACE_IF_GREATER), 5),
    (5, AttributeUpdate("a", 5, K.REPLACE_IF_GREATER), None),
    (9, AttributeUpdate("a", 5, K.REPLACE_IF_GREATER), None),
    (None, AttributeUpdate("a", 5, K.ACCUMULATE), 5),
    (-7, AttributeUpdate("a", 5, K.ACCUMULATE), -2),
    ((1 << 63) - 1, AttributeUpdate("a", 1, K.ACCUMULATE), None),
    (-(1 << 63), AttributeUpdate("a", -1, K.ACCUMULATE), None),
    (None, AttributeUpdate("a", 5, K.REPLACE_IF_EQUALS), 5),
    (1, AttributeUpdate("a", 5, K.REPLACE_IF_EQUALS), None),
    (1, AttributeUpdate("a", 5, K.REPLACE_IF_EQUALS, expected=1), 5),
    (2, AttributeUpdate("a", 5, K.REPLACE_IF_EQUALS, expected=1), None),
    (None, AttributeUpdate("a", 5, K.REPLACE_IF_EQUALS, expected=0), None),
]
"""The value before, the update and the value after it: None where the condition does not hold."""


async def test_the_five_kinds_of_update(store: SegmentStore) -> None:
    """Where the condition does not hold, nothing of the call is applied."""
    other = AttributeUpdate("other", 1)
    for number, (before, update, after) in enumerate(UPDATES):
        name = f"s{number}"
        await store.create_segment(name)
        if before is not None:
            await store.update_attributes(name, [AttributeUpdate("a", before)])

        if after is None:
            words = "expects that it is (missing|0|1|less than 5): read it|would leave 64 bits"
            with pytest.raises(AttributeConflict, match=words) as caught:
                await store.update_attributes(name, [other, update])
            assert caught.value.segment == name
            expected = {} if before is None else {"a": before}
        else:
            assert await store.update_attributes(name, [other, update]) == {"other": 1, "a": after}
            expected = {"a": after, "other": 1}
        assert (await store.segment_info(name)).attributes == expected, (before, update)


async def test_updates_of_one_call_see_each_other(store: SegmentStore) -> None:
    await store.create_segment("s")
    updates = [
        AttributeUpdate("a", 2, K.ACCUMULATE),
        AttributeUpdate("a", 3, K.ACCUMULATE),
        AttributeUpdate("a", 9, K.REPLACE_IF_GREATER),
    ]

    assert await store.update_attributes("s", updates) == {"a": 9}


async def test_a_sealed_segment_keeps_taking_attributes(store: SegmentStore) -> None:
    await make(store, "s", sealed=True)

    assert await store.update_attributes("s", [AttributeUpdate("a", 1)]) == {"a": 1}


async def test_a_segment_has_any_number_of_attributes(store: SegmentStore) -> None:
    await store.create_segment("s")
    many = {f"a{number:05}": number for number in range(3000)}
    updates = [AttributeUpdate(name, value) for name, value in many.items()]
    for start in range(0, 3000, 1000):
        await store.update_attributes("s", updates[start : start + 1000])

    info = await store.segment_info("s")
    assert (info.attributes, info.more_attributes) == (dict(list(many.items())[:1024]), True)
    assert await store.update_attributes("s", [AttributeUpdate("a02999", 70)]) == {"a02999": 70}
    found: dict[str | bytes, int] = {}
    page = await store.list_attributes("s")
    while page.after is not None:
        found |= page.attributes
        page = await store.list_attributes("s", after=page.after)
    assert {**found, **page.attributes} == {**many, "a02999": 70}
    await store.flush()
    assert (await store.list_attributes("s", "a0299", limit=4096)).attributes == {
        **{name: value for name, value in many.items() if name.startswith("a0299")},
        "a02999": 70,
    }


async def test_attributes_may_have_ids_in_place_of_names(store: SegmentStore) -> None:
    await store.create_segment("s")
    values = {number.to_bytes(16, "big"): number for number in range(5)}
    updates = [AttributeUpdate(each, value) for each, value in values.items()]
    assert await store.update_attributes("s", updates) == values
    assert (await store.segment_info("s")).more_attributes
    assert (await store.list_attributes("s")).attributes == {}
    page = await store.list_attributes("s", b"", limit=3)
    assert (list(page.attributes), page.after) == (list(values)[:3], list(values)[2])
    page = await store.list_attributes("s", b"", after=page.after, limit=3)
    assert (list(page.attributes), page.after) == (list(values)[3:], None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"prefix": 7},
        {"prefix": bytes(17)},
        {"prefix": "\ud800"},
        {"limit": 0},
        {"limit": 4097},
        {"after": ""},
        {"after": bytes(16)},
        {"prefix": b"", "after": "name"},
        {"prefix": b"", "after": bytes(15)},
    ],
)
async def test_wrong_arguments_of_a_page_of_attributes_are_refused(
    store: SegmentStore, arguments: dict[str, Any]
) -> None:
    await store.create_segment("s")
    with pytest.raises(tierlog.InvalidArgument):
        await store.list_attributes("s", **arguments)


async def test_a_call_has_a_bounded_number_of_attribute_updates(store: SegmentStore) -> None:
    """They are decided in one step."""
    await store.create_segment("s")
    with pytest.raises(tierlog.InvalidArgument, match="1024"):
        await store.update_attributes("s", [AttributeUpdate(f"a{number}", 1) for number in range(1025)])


# --- list, tail ---------------------------------------------------------------------------------


async def first_block(store: SegmentStore, name: str) -> bytes:
    async with aclosing(store.tail(name)) as blocks:
        return await anext(blocks)


async def test_names_are_listed_over_all_containers_in_order(store: SegmentStore) -> None:
    names = [f"app/{number}" for number in range(8)]
    for name in [*names, "other"]:
        await store.create_segment(name)
    await store.delete_segment("app/3")

    assert {store.container_of(name) for name in names} == {0, 1}
    assert await store.list_segments("app/") == [name for name in names if name != "app/3"]
    assert await store.list_segments() == [*(name for name in names if name != "app/3"), "other"]
    assert await store.list_segments("none") == []


async def pages_of(store: SegmentStore, prefix: str, limit: int) -> AsyncIterator[list[str]]:
    token: str | None = None
    while True:
        page = await store.page_of_segments(prefix, token=token, limit=limit)
        yield page.names
        if (token := page.token) is None:
            return


@pytest.mark.parametrize("limit", [1, 3, 8, 1000])
async def test_m22_names_are_listed_in_pages_over_all_containers_in_order(
    store: SegmentStore, limit: int
) -> None:
    """Names with the same beginning up to ``#`` are in one container."""
    names = sorted([*(f"app/{number}" for number in range(8)), *(f"app/1#\u00e4{n}" for n in range(9))])
    for name in [*names, "aaa", "other"]:
        await store.create_segment(name)

    pages = [page async for page in pages_of(store, "app/", limit)]
    assert [name for page in pages for name in page] == names
    assert all(len(page) <= limit for page in pages)
    assert [page async for page in pages_of(store, "none", limit)] == [[]]


async def test_m22_a_segment_that_exists_during_the_whole_listing_is_listed_exactly_once(
    store: SegmentStore,
) -> None:
    lasting = [f"s{number:02}" for number in range(0, 40, 2)]
    for name in lasting:
        await store.create_segment(name)
    found: list[str] = []
    number = 0
    async for page in pages_of(store, "", 4):
        found += page
        # Before and behind where the next page begins; half of them go again.
        for _ in range(2 if number < 20 else 0):
            await store.create_segment(f"s{(number * 14 + 1) % 40:02}")
            if number % 2:
                await store.delete_segment(f"s{((number - 1) * 14 + 1) % 40:02}")
            number += 1

    assert number > 8
    assert len(set(found)) == len(found)
    assert [name for name in found if name in lasting] == lasting


async def test_m22_a_page_continues_where_its_last_name_is_deleted(store: SegmentStore) -> None:
    for number in range(6):
        await store.create_segment(f"s{number}")
    first = await store.page_of_segments(limit=2)
    for name in [*first.names, "s2"]:
        await store.delete_segment(name)
    left = await store.list_segments()

    found: list[str] = []
    token = first.token
    while token is not None:
        page = await store.page_of_segments(token=token, limit=2)
        found += page.names
        token = page.token
    assert found == left


async def test_m22_a_token_is_refused_for_another_prefix(store: SegmentStore) -> None:
    for number in range(4):
        await store.create_segment(f"app/{number}")
    token = (await store.page_of_segments("app/", limit=1)).token
    assert token is not None
    for prefix, wrong in (("app", token), ("app/", token[:-4]), ("app/", "\u00e4"), ("app/", "x" * 30_000)):
        with pytest.raises(tierlog.InvalidArgument, match="of segments with this prefix"):
            await store.page_of_segments(prefix, token=wrong)


@pytest.mark.parametrize(
    "arguments", [{"prefix": 7}, {"prefix": "\ud800"}, {"limit": 0}, {"limit": 1001}, {"token": 7}]
)
async def test_wrong_arguments_of_a_page_of_segments_are_refused(
    store: SegmentStore, arguments: dict[str, Any]
) -> None:
    with pytest.raises(tierlog.InvalidArgument):
        await store.page_of_segments(**arguments)


async def test_a_tail_yields_existing_bytes_waits_for_more_and_ends_at_the_seal(store: SegmentStore) -> None:
    await make(store, "s", b"abc")
    seen: list[bytes] = []

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow, store, "s", seen, 1)
        for data in (b"de", b"f"):
            await store.append("s", data)
        await store.seal_segment("s")

    assert b"".join(seen) == b"bcdef"


async def test_a_tail_of_a_sealed_segment_ends_at_once(store: SegmentStore) -> None:
    await make(store, "s", b"abc", sealed=True)

    assert [block async for block in store.tail("s", block_size=2)] == [b"ab", b"c"]
    assert [block async for block in store.tail("s", 3)] == []
    assert [block async for block in store.tail("s", 100)] == []


async def test_a_tail_ends_with_an_error_when_its_segment_is_deleted(store: SegmentStore) -> None:
    await make(store, "s", b"a")
    begun = anyio.Event()

    async def follow() -> None:
        async with aclosing(store.tail("s")) as blocks:
            assert await anext(blocks) == b"a"
            begun.set()
            with pytest.raises(tierlog.SegmentNotFound):
                await anext(blocks)

    with anyio.fail_after(scaled(10)):  # less than a poll may wait
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await begun.wait()  # a client's tail that has no answer yet would follow the new segment
            await anyio.wait_all_tasks_blocked()
            await store.delete_segment("s")
            await store.create_segment("s")


async def test_a_tail_never_continues_in_another_segment_of_the_same_name(store: SegmentStore) -> None:
    await make(store, "s", b"old")
    async with aclosing(store.tail("s", block_size=1)) as blocks:
        assert await anext(blocks) == b"o"
        await store.delete_segment("s")
        await make(store, "s", b"new, and longer")
        seen = b""
        with pytest.raises(tierlog.SegmentNotFound):
            while True:
                seen += await anext(blocks)
    assert b"old"[1:].startswith(seen), "what was on its way"


async def test_a_tail_behind_a_truncation_reports_the_start(store: SegmentStore) -> None:
    await make(store, "s", b"abc")
    await store.truncate_segment("s", 2)

    with pytest.raises(tierlog.SegmentTruncated) as caught:
        await first_block(store, "s")
    assert caught.value.start_offset == 2


async def test_a_cancelled_tail_leaves_nothing_behind(store: SegmentStore) -> None:
    await store.create_segment("s")
    with anyio.move_on_after(0.01):
        await first_block(store, "s")

    await store.append("s", b"abc")
    assert await first_block(store, "s") == b"abc"


# --- flush, reopening ---------------------------------------------------------------------------


def described(info: SegmentInfo) -> SegmentInfo:
    """What a client made it: all but how far the storage writer is."""
    return replace(info, flushed_length=0)


async def test_flush_returns_when_everything_acked_is_in_long_term_storage(store: SegmentStore) -> None:
    for name in ("a", "b", "c"):
        await make(store, name, name.encode() * 1000)
    await store.flush()

    assert [(await store.segment_info(name)).flushed_length for name in ("a", "b", "c")] == [1000, 1000, 1000]
    await store.flush()


async def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    """C1: what was acked, and nothing else; also without a flush."""
    for flush in (False, True):
        folder = tmp_path / f"data-{flush}"
        async with tierlog.open_store(folder, containers=2, config=CONFIG) as store:
            await make(store, "a", bytes(100_000))
            await make(store, "b", b"xyz", sealed=True)
            await make(store, "gone", b"x")
            await store.truncate_segment("a", 70_000)
            await store.append("a", b"event", writer_id="w", event_number=41)
            await store.update_attributes("a", [AttributeUpdate("n", -1)])
            await store.delete_segment("gone")
            if flush:
                await store.flush()
            before = [described(await store.segment_info(name)) for name in ("a", "b")]

        for _ in range(3):
            async with tierlog.open_store(folder, config=CONFIG) as store:
                assert [described(await store.segment_info(name)) for name in ("a", "b")] == before
                assert await store.list_segments() == ["a", "b"]
                assert await read_all(store, "a", 70_000) == bytes(30_000) + b"event"
                assert await store.last_event_number("a", "w") == 41
                assert await store.append("a", b"event", writer_id="w", event_number=41) == 100_000


async def test_the_number_of_containers_is_fixed_when_the_folder_is_made(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path, containers=3, config=CONFIG) as store:
        assert len(store.statistics().containers) == 3

    with pytest.raises(tierlog.StoreMismatch, match="3 containers, not 2"):
        async with tierlog.open_store(tmp_path, containers=2, config=CONFIG):
            pass
    async with tierlog.open_store(tmp_path, config=StoreConfig(containers=7)) as store:
        assert len(store.statistics().containers) == 3


async def test_the_folder_holds_wal_and_lts_and_nothing_else(tmp_path: Path) -> None:
    async with tierlog.open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await make(store, "s", b"x", flushed=True)

    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lts", "wal"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


# --- append starts ------------------------------------------------------------------------------


@pytest.mark.parametrize("flushed", [False, True])
async def test_s5_append_starts_are_returned_for_about_every_mib(store: SegmentStore, flushed: bool) -> None:
    await store.create_segment("s")
    for size in (600 * KIB, 600 * KIB, 10, 1400 * KIB, 100):
        await store.append("s", bytes(size))
    if flushed:
        await store.flush()

    found = await store.append_starts("s", 0, 1 << 40)

    assert found == [0, 1200 * KIB, 2600 * KIB + 10]
    assert await store.append_starts("s", 1, 1200 * KIB) == []
    await store.truncate_segment("s", 10)
    assert await store.append_starts("s", 0, 1 << 40) == found[1:]
    with pytest.raises(tierlog.SegmentNotFound):
        await store.append_starts("none", 0, 1)
    with pytest.raises(tierlog.InvalidArgument, match="start must be an int from 0"):
        await store.append_starts("s", -1, 1)
    with pytest.raises(tierlog.InvalidArgument, match="start 5 is above end 1"):
        await store.append_starts("s", 5, 1)


async def test_s5_append_starts_include_those_of_merged_parts(store: SegmentStore) -> None:
    """Before they are flushed and after."""
    await make(store, "s", bytes(2 << 20))
    for part in ("s#1", "s#2"):
        await make(store, part, bytes(2 << 20))
        await store.append(part, bytes(10))
        await store.seal_segment(part)
    await store.merge_segments("s", ["s#1", "s#2"])
    size = (2 << 20) + 10
    wanted = [0, 2 << 20, 4 << 20, (2 << 20) + size, (4 << 20) + size]

    assert await store.append_starts("s", 0, 1 << 40) == wanted
    await store.flush()
    assert await store.append_starts("s", 0, 1 << 40) == wanted

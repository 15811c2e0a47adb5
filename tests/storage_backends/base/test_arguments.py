"""Bad arguments: each is refused with the one error that says what to do, before anything happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tierlog
from support.stores import CONFIG, make
from tierlog import AttributeUpdate, InvalidArgument, SegmentNotFound, SegmentStore, TooLarge
from tierlog.storage_backends.base.arguments import EVENTS_MAX, ROLLING_SIZE_MAX, ROLLING_SIZE_MIN

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path: Path, anyio_backend: str) -> AsyncIterator[SegmentStore]:
    async with tierlog.open_store(tmp_path / "data", containers=4, config=CONFIG) as opened:
        await make(opened, "s", b"abc")
        yield opened
        # Whatever was refused, the containers live: nothing of it reached a sync step (C5).
        assert [host.restarts for host in opened.statistics().containers] == [0, 0, 0, 0]
        assert await opened.read("s", 0, 10) == b"abc"


BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/..",
    "a/./b",
    "/etc/passwd",
    "..\\a",
    "C:\\a",
    "a b",
    "a\n",
    "a\0b",
    "a?b",
    "a*",
    "%2e%2e/a",
    "_system",
    "_system/",
    "_system/x",
    "_system/containers/0000",
    "a" * 256,
    "é" * 128,
    "\ud800",
    None,
    7,
    b"a",
    ["a"],
]


def calls_with(store: SegmentStore, name: Any) -> list[Callable[[], Awaitable[object]]]:
    """Every verb that takes a name."""
    return [
        lambda: store.create_segment(name),
        lambda: store.append(name, b""),
        lambda: store.append_many(name, [b""]),
        lambda: store.read(name, 0, 1),
        lambda: anext(store.tail(name)),
        lambda: store.segment_info(name),
        lambda: store.seal_segment(name),
        lambda: store.truncate_segment(name, 0),
        lambda: store.delete_segment(name),
        lambda: store.merge_segments(name, ["s"]),
        lambda: store.merge_segments("s", [name]),
        lambda: store.update_attributes(name, [AttributeUpdate("a", 1)]),
        lambda: store.expire_writers(name, ["w"]),
        lambda: store.last_event_number(name, "w"),
    ]


async def refusal_of(call: Callable[[], Awaitable[object]]) -> type[BaseException] | None:
    try:
        await call()
    except Exception as error:  # noqa: BLE001 - the answer is what the test is about
        return type(error)

    return None


async def test_bad_names_are_refused_everywhere(store: SegmentStore, tmp_path: Path) -> None:
    """No name can escape the data folder: none leaves a trace in it either."""
    before = sorted(tmp_path.rglob("*"))
    refusals = {
        repr(name): {await refusal_of(call) for call in calls_with(store, name)} for name in BAD_NAMES
    }

    assert refusals == {repr(name): {InvalidArgument} for name in BAD_NAMES}
    assert sorted(tmp_path.rglob("*")) == before


GOOD_NAMES = [
    "a",
    "a/b/c",
    "é/ü",
    "x.y-z_#=@+~$:1",
    "...",
    ".hidden",
    "a/..b",
    "größe/日本語",
    "_systems",
    "a/_system",
    "a" * 255,
    "é" * 127,
    "#",
    "_x",
]


async def test_good_names_hold_their_bytes(store: SegmentStore) -> None:
    for name in GOOD_NAMES:
        await make(store, name, name.encode())

    assert [await store.read(name, 0, 1000) for name in GOOD_NAMES] == [name.encode() for name in GOOD_NAMES]
    assert await store.list_segments() == sorted([*GOOD_NAMES, "s"])


A = AttributeUpdate("a", 1)

BAD_CALLS: dict[str, Callable[[SegmentStore], Awaitable[object]]] = {
    "rolling size 0": lambda s: s.create_segment("t", rolling_size=0),
    "rolling size below the least": lambda s: s.create_segment("t", rolling_size=ROLLING_SIZE_MIN - 1),
    "rolling size above the most": lambda s: s.create_segment("t", rolling_size=ROLLING_SIZE_MAX + 1),
    "rolling size True": lambda s: s.create_segment("t", rolling_size=True),
    "text data": lambda s: s.append("s", "abc"),  # type: ignore[call-overload]
    "no data": lambda s: s.append("s", None),  # type: ignore[call-overload]
    "a number as data": lambda s: s.append("s", 5),  # type: ignore[call-overload]
    "too much data": lambda s: s.append("s", bytes((8 << 20) + 1)),
    "offset -1": lambda s: s.append("s", b"x", expected_offset=-1),
    "offset 1.0": lambda s: s.append("s", b"x", expected_offset=1.0),  # type: ignore[call-overload]
    "writer without number": lambda s: s.append("s", b"x", writer_id="w"),
    "number without writer": lambda s: s.append("s", b"x", event_number=1),
    "previous without writer": lambda s: s.append("s", b"x", previous_event_number=1),
    "number -1": lambda s: s.append("s", b"x", writer_id="w", event_number=-1),
    "number 2**63": lambda s: s.append("s", b"x", writer_id="w", event_number=1 << 63),
    "number True": lambda s: s.append("s", b"x", writer_id="w", event_number=True),
    "previous not before": lambda s: s.append(
        "s", b"x", writer_id="w", event_number=3, previous_event_number=3
    ),
    "previous -2": lambda s: s.append("s", b"x", writer_id="w", event_number=3, previous_event_number=-2),
    "empty writer": lambda s: s.append("s", b"x", writer_id="", event_number=1),
    "long writer": lambda s: s.append("s", b"x", writer_id="w" * 65, event_number=1),
    "writer 7": lambda s: s.append("s", b"x", writer_id=7, event_number=1),  # type: ignore[call-overload]
    "no events": lambda s: s.append_many("s", []),
    "bytes as events": lambda s: s.append_many("s", b"abc"),  # type: ignore[arg-type]
    "text as events": lambda s: s.append_many("s", "abc"),  # type: ignore[arg-type]
    "nothing as events": lambda s: s.append_many("s", None),  # type: ignore[call-overload]
    "numbers as events": lambda s: s.append_many("s", [5]),  # type: ignore[list-item]
    "texts as events": lambda s: s.append_many("s", ["abc"]),  # type: ignore[list-item]
    "too many events": lambda s: s.append_many("s", [b""] * (EVENTS_MAX + 1)),
    "events too large together": lambda s: s.append_many("s", [bytes(4 << 20)] * 3),
    "numbers that do not fit": lambda s: s.append_many(
        "s", [b"x"] * 2, writer_id="w", first_event_number=(1 << 63) - 1
    ),
    "events with writer, without number": lambda s: s.append_many("s", [b"x"], writer_id="w"),
    "events with number, without writer": lambda s: s.append_many("s", [b"x"], first_event_number=0),
    "read at -1": lambda s: s.read("s", -1, 1),
    "read of 0": lambda s: s.read("s", 0, 0),
    "read of too much": lambda s: s.read("s", 0, (64 << 20) + 1),
    "read of text": lambda s: s.read("s", 0, "1"),  # type: ignore[arg-type]
    "tail at -1": lambda s: anext(s.tail("s", -1)),
    "tail in blocks of 0": lambda s: anext(s.tail("s", block_size=0)),
    "truncation at -1": lambda s: s.truncate_segment("s", -1),
    "truncation at text": lambda s: s.truncate_segment("s", "1"),  # type: ignore[arg-type]
    "merge of nothing": lambda s: s.merge_segments("s", []),
    "merge of one name as text": lambda s: s.merge_segments("s", "s#1"),
    "merge of None": lambda s: s.merge_segments("s", None),  # type: ignore[arg-type]
    "merge of the same twice": lambda s: s.merge_segments("s", ["s#1", "s#1"]),
    "merge with odd updates": lambda s: s.merge_segments("s", ["s#1"], attribute_updates=["a"]),  # type: ignore[list-item]
    "merge with one update": lambda s: s.merge_segments("s", ["s#1"], attribute_updates=A),  # type: ignore[arg-type]
    "no updates": lambda s: s.update_attributes("s", []),
    "one update": lambda s: s.update_attributes("s", A),  # type: ignore[arg-type]
    "odd updates": lambda s: s.update_attributes("s", [A, None]),  # type: ignore[list-item]
    "no writers": lambda s: s.expire_writers("s", []),
    "writers as text": lambda s: s.expire_writers("s", "abc"),
    "a writer that is None": lambda s: s.expire_writers("s", [None]),  # type: ignore[list-item]
    "last event of no writer": lambda s: s.last_event_number("s", None),  # type: ignore[arg-type]
    "prefix 5": lambda s: s.list_segments(5),  # type: ignore[arg-type]
    "prefix of bytes": lambda s: s.list_segments(b"s"),  # type: ignore[arg-type]
}


async def test_bad_arguments_are_refused(store: SegmentStore) -> None:
    refusals = {case: await refusal_of(lambda call=call: call(store)) for case, call in BAD_CALLS.items()}  # type: ignore[misc]

    too_large = dict.fromkeys(("too much data", "events too large together"), TooLarge)
    assert refusals == {**dict.fromkeys(BAD_CALLS, InvalidArgument), **too_large}
    assert issubclass(InvalidArgument, ValueError)


async def test_the_error_for_a_merge_across_containers_explains_how_to_name_the_source(
    store: SegmentStore,
) -> None:
    other = next(name for name in map(str, range(100)) if store.container_of(name) != store.container_of("s"))
    await make(store, other, sealed=True)

    with pytest.raises(InvalidArgument, match="s#something"):
        await store.merge_segments("s", [other])


async def test_a_merge_of_a_name_without_a_segment_is_refused_as_that(store: SegmentStore) -> None:
    """Also if the name would be in another container."""
    for name in ("t", "u", "v", "w"):
        with pytest.raises(SegmentNotFound, match=f"'{name}'"):
            await store.merge_segments("s", [name])


async def test_writers_are_text_bytes_or_uuids(store: SegmentStore) -> None:
    await store.create_segment("t")
    writers: list[str | bytes | UUID] = ["w", b"\xff\x00", UUID(int=7), "w" * 64, "\ud800"]
    for number, writer in enumerate(writers):
        await store.append("t", b"x", writer_id=writer, event_number=(1 << 63) - 1 - number)

    assert [await store.last_event_number("t", writer) for writer in writers] == [
        (1 << 63) - 1 - number for number in range(5)
    ]


@pytest.mark.parametrize("path", ["", None, 7, b"data"])
async def test_a_data_folder_is_a_path(path: Any) -> None:
    with pytest.raises(InvalidArgument):
        async with tierlog.open_store(path):
            pass


@pytest.mark.parametrize("containers", [0, -1, 1025, True, 2.0, "4"])
async def test_the_number_of_containers_has_a_range(tmp_path: Path, containers: Any) -> None:
    with pytest.raises(InvalidArgument):
        async with tierlog.open_store(tmp_path / "data", containers=containers):
            pass

    assert not (tmp_path / "data").exists()


async def test_the_path_may_be_of_any_kind(tmp_path: Path) -> None:
    for path in (tmp_path / "a", str(tmp_path / "b")):
        async with tierlog.open_store(path, containers=1, config=CONFIG) as store:
            await make(store, "s", b"x")

"""The parts of the quickstart: what a healthy service never makes speak, and what needs no service."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import pytest

from chaos_parts.service import OwnService, Victim, processes_of_session
from chaos_parts.spark_session import in_short
from quickstart_parts import client_writer, jobs
from quickstart_parts.checking import (
    SegmentReport,
    check_chunks_were_read,
    check_names,
    check_spark,
    compare,
    read_back,
)
from quickstart_parts.display import Figures, rates
from quickstart_parts.orders import Do, read_orders, writing
from quickstart_parts.shares import (
    CACHE_BYTES,
    EVENT_BYTES_MAX,
    Part,
    QuickstartError,
    Share,
    read_input,
    split_input,
)
from quickstart_parts.spark_driver import digest
from quickstart_parts.trouble import Trouble, choose_kill_points
from tierlog import SegmentInfo
from tierlog.spark_bridge import events

pytestmark = pytest.mark.anyio

TEXT = b"one\ntwo\nthree\nfour\nfive\nsix\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_bytes(TEXT)
    return path


def shares_of(text: bytes, segments: int = 1) -> list[Share]:
    return split_input([(Path("text"), text)], segments)


# --- shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 2])
def test_the_shares_are_the_input_cut_between_lines(segments: int) -> None:
    shares = shares_of(TEXT, segments)

    assert b"".join(share.data for share in shares) == TEXT
    assert all(
        share.data.endswith(b"\n") and share.pieces_of(Part.BULK) and share.pieces_of(Part.REST)
        for share in shares
    )


def test_a_piece_is_read_where_it_is_written(file: Path) -> None:
    [share] = split_input(read_input(file, 1000), 1)
    lines = [line for piece in share.pieces for line in piece.load()]

    assert lines == TEXT.splitlines(keepends=True)
    assert events.decode(share.framed()) == lines
    assert share.count == len(lines)
    assert [piece.first_event for piece in share.pieces] == list(range(len(lines)))


def test_an_input_that_changed_meanwhile_is_told(file: Path) -> None:
    [share] = split_input(read_input(file, 1000), 1)
    file.write_bytes(TEXT.upper())

    with pytest.raises(QuickstartError, match="changed while it was being written"):
        share.pieces[0].load()


def test_a_line_never_goes_on_in_the_next_file(tmp_path: Path) -> None:
    for name, text in (("a", b"one\ntwo"), ("b", b"three\n"), ("c", b"")):
        (tmp_path / name).write_bytes(text)
    [share] = split_input(read_input(tmp_path, 1000), 1)

    assert events.decode(share.framed()) == [b"one\n", b"two", b"three\n"]


def test_the_input_ends_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n")
    (tmp_path / "b").write_bytes(b"three\n")

    assert [data for _, data in read_input(tmp_path, 10)] == [b"one\ntwo\n", b"th"]


def test_a_line_that_is_too_long_for_an_event_is_several() -> None:
    [share] = shares_of(b"short\n" + b"x" * (EVENT_BYTES_MAX + 5) + b"\n")

    assert [len(event) for event in events.decode(share.framed())] == [6, EVENT_BYTES_MAX, 6]


def test_too_little_input_for_that_many_segments_is_told() -> None:
    with pytest.raises(QuickstartError, match="fewer --segments"):
        shares_of(TEXT, 5)


# --- trouble ------------------------------------------------------------------------------------


class ObedientService:
    """Two hosts with two containers each; the first is hit, and has lost both."""

    containers = 4

    def __init__(self, failovers: int = 2) -> None:
        self.hit_at: list[Victim] = []
        self._failovers = failovers

    async def settled(self) -> dict[str, Any]:
        return {"failovers": self._failovers, "failover_seconds": [0.1, 0.2]}

    async def hosts(self) -> list[Victim]:
        return [Victim("host-0", 1, (0, 2)), Victim("host-1", 2, (1, 3))]

    def hit(self, victim: Victim, number: signal.Signals) -> bool:
        assert number is signal.SIGKILL
        self.hit_at.append(victim)
        return True


def trouble(service: ObedientService, shares: list[Share], points: list[int]) -> Trouble:
    return Trouble(cast("OwnService", service), shares, points, lambda: None)


async def test_a_host_is_killed_when_the_point_is_reached_and_not_twice() -> None:
    service, [share] = ObedientService(), shares_of(TEXT)
    made = trouble(service, [share], [len(b"one\ntwo\n")])
    killed = []
    for piece in (0, 0, 1, 1, 2):
        await made.cross(0, piece)
        killed.append(len(service.hit_at))

    assert killed == [0, 0, 1, 1, 1]
    assert made.passed == [len(b"one\ntwo\nthree\n")]
    assert await made.judge() == (2, 0.2)


async def test_fewer_failovers_than_lost_containers_are_told() -> None:
    made = trouble(ObedientService(failovers=1), shares_of(TEXT), [1])
    await made.cross(0, 0)

    with pytest.raises(QuickstartError, match="had 2 containers, but the supervisor tells of 1 failovers"):
        await made.judge()


async def test_a_job_that_ends_before_the_kill_proves_nothing() -> None:
    with pytest.raises(QuickstartError, match="still to be killed"):
        await trouble(ObedientService(), shares_of(TEXT), [1]).judge()


def test_hosts_are_killed_while_there_is_work_on_both_sides() -> None:
    shares = shares_of(TEXT)
    work = shares[0].size_of(Part.BULK)

    for seed in range(100):
        points = choose_kill_points(shares, 3, Random(seed))

        assert points == sorted(points)
        assert all(work // 10 <= point < work for point in points)


# --- orders and writers -------------------------------------------------------------------------


def test_an_order_comes_out_of_its_line_as_it_went_in() -> None:
    order = writing(shares_of(TEXT, 2), Part.REST, "http://here", 7)

    assert list(read_orders([order.line().decode()] * 2)) == [order, order]
    assert order.do is Do.WRITE
    assert all(piece.part is Part.REST for segment in order.segments for piece in segment.pieces)


def test_a_long_error_is_told_by_its_beginning_and_its_cause() -> None:
    text = "Job aborted.\n  at org.apache\nCaused by: first\ntierlog.errors.Unavailable: no host\n\tat there"

    assert in_short(RuntimeError(text)) == "Job aborted. ... tierlog.errors.Unavailable: no host"
    assert in_short(RuntimeError()) == "RuntimeError"


class Growing:
    """A store that applies what it has already."""

    def __init__(self) -> None:
        self.length = 0

    async def segment_info(self, name: str) -> Growing:
        return self

    async def append_many(
        self, name: str, events: list[bytes], *, writer_id: str, first_event_number: int
    ) -> None:
        self.length += len(b"".join(events))


async def test_repeated_events_that_are_applied_again_are_told() -> None:
    with pytest.raises(
        QuickstartError, match="2 events that were sent again made it longer, from 0 to 6 bytes"
    ):
        await client_writer.repeat_last(cast("Any", Growing()), "segment", [b"one", b"two"], 2)


def test_batches_are_full_and_in_order() -> None:
    frames = [b"12", b"34", b"5", b"6789", b"0"]

    assert list(client_writer.batches(frames, 4)) == [[b"12", b"34"], [b"5"], [b"6789"], [b"0"]]


async def test_a_writer_that_ends_by_itself_is_told_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(
        QuickstartError, match="ended by itself; its log ends: .*No module named quickstart_parts.nothing"
    ):
        async with jobs._worker("nothing", tmp_path / "log"):
            pytest.fail("it is not ready")


async def test_nothing_of_a_writers_session_is_left() -> None:
    code = (
        "import os, time; os.fork(); os.setpgid(0, 0) if os.getpid() != os.getsid(0) else None; "
        "print(flush=True); time.sleep(600)"
    )
    process = await anyio.open_process([sys.executable, "-c", code], start_new_session=True)
    assert process.stdout is not None
    said = 0
    while said < 2:
        said += len(await process.stdout.receive())

    assert len(processes_of_session(process.pid)) == 2

    await jobs._end(process)

    assert processes_of_session(process.pid) == []
    assert os.getpid() in processes_of_session(os.getsid(0))


# --- the judge ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found, what",
    [
        (b"twO\n", "segment s, offset 6: the service returned 0x4f where the input has 0x6f"),
        (TEXT[4:] + b"!", "0x21 where the input has its end"),
    ],
)
def test_the_first_byte_that_differs_is_told(found: bytes, what: str) -> None:
    with pytest.raises(QuickstartError, match=what):
        compare("s", TEXT, 4, found, "the service returned")


class Held:
    """A store with these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def segment_info(self, name: str) -> SegmentInfo:
        found: SegmentInfo = cast("Any", type("Info", (), {"length": len(self._data), "flushed_length": 5}))
        return found

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return self._data[offset : offset + min(size, 10)]


async def test_a_segment_that_holds_the_input_is_reported() -> None:
    [share] = shares_of(TEXT)
    progress: list[int] = []
    report = await read_back(Held(share.framed()), share, progress.append)

    sha256 = hashlib.sha256(TEXT).hexdigest()
    assert report == SegmentReport("quickstart/part-1", 6, len(TEXT), len(share.framed()), 5, sha256)
    assert progress == sorted(progress)
    assert progress[-1] == len(TEXT)


@pytest.mark.parametrize("change", [lambda data: data[:-4], lambda data: data[:20]])
async def test_a_lost_tail_is_told(change: Callable[[bytes], bytes]) -> None:
    [share] = shares_of(TEXT)
    data = change(share.framed())

    with pytest.raises(
        QuickstartError,
        match=f"offset {len(data)}: reading ended here, of {len(data)} bytes; the input makes 52",
    ):
        await read_back(Held(data), share, lambda _: None)


async def test_a_doubled_event_is_told() -> None:
    [share] = shares_of(TEXT)
    data = share.framed()

    with pytest.raises(
        QuickstartError,
        match="segment quickstart/part-1, offset 12: the service returned 0x6f where the input has 0x74",
    ):
        await read_back(Held(data[:8] + data[:8] + data[8:]), share, lambda _: None)


def test_segments_that_are_missing_or_strange_are_told() -> None:
    with pytest.raises(
        QuickstartError,
        match=r"missing segments: \['quickstart/part-1'\]; segments that nobody made: \['other'\]",
    ):
        check_names(["other"], shares_of(TEXT))


def test_what_spark_read_is_compared_with_the_input() -> None:
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install -e '.[spark]'")
    [share] = shares_of(TEXT)
    found = list(events.iterate(share.framed()))
    batch = pa.table(
        {"offset": [event.offset for event in found], "value": [event.data for event in found]}
    ).to_batches()[0]
    [row] = [row for made in digest(iter([batch.slice(0, 2), batch.slice(2)])) for row in made.to_pylist()]

    check_spark(share, [row])
    for rows in ([], [row, row], [{**row, "events": 5}], [{**row, "sha256": "0"}]):
        with pytest.raises(QuickstartError, match="segment quickstart/part-1: Spark read"):
            check_spark(share, rows)
    with pytest.raises(QuickstartError, match="read an event at 16 where the one before ends at 8"):
        list(digest(iter([batch.slice(0, 1), batch.slice(2)])))


def test_a_large_segment_that_no_host_read_from_chunks_is_told() -> None:
    large = SegmentReport("s", 1, 1, CACHE_BYTES + 1, CACHE_BYTES + 1, "")
    check_chunks_were_read([large], 1)

    with pytest.raises(QuickstartError, match="no host read a byte from chunks"):
        check_chunks_were_read([large], 0)


def test_the_rates_tell_what_happened() -> None:
    figures = Figures(
        [SegmentReport("s", 1, 4_000_000, 0, 0, "")], [1], 1, 2, 0.25, 0, 2.0, 0.5, 4.0, 1.0, 3_000_000
    )

    assert rates(figures) == [
        "1 host killed with SIGKILL, 2 containers failed over within 250 ms",
        "written at 2.0 MB/s (kills and failovers included), flushed in 0.50 s",
        "read back with Spark at 1.0 MB/s, without it at 4.0 MB/s, 3.0 MB of it from chunks",
    ]

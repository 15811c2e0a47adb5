"""The rounds that ``scripts/chaos_spark.py`` chooses, and what it checks."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

import pytest

import tierlog
from chaos_parts.spark import SparkReport, fault_name
from chaos_parts.spark_checker import EVENT_BYTES, Event, Poller, check_writes, lengths_allowed, parse_event
from chaos_parts.spark_scenarios import CELLS, FaultKind, Master, Point, scenario, scenarios
from chaos_parts.spark_session import first_and_last_cause
from tierlog import SegmentInfo
from tierlog.spark_bridge import events

# --- draws ---------------------------------------------------------------------------------------


def test_as_many_rounds_as_there_are_cells_meet_each_of_them_once() -> None:
    for seed in range(5):
        assert Counter(found.cell for found in scenarios(seed, len(CELLS))) == Counter(CELLS)
        assert Counter(found.cell for found in scenarios(seed, 3 * len(CELLS))) == Counter(CELLS * 3)


def test_a_round_is_the_same_alone_and_among_many() -> None:
    found = {each.number: each for each in scenarios(7, 100)}

    assert sorted(found) == list(range(1, 101))
    assert all(scenario(7, number) == each for number, each in found.items())
    assert scenario(8, 1) != scenario(7, 1)


def test_rounds_are_sorted_by_master_so_that_each_is_started_once() -> None:
    found = scenarios(3, 80)

    assert [master for master, _ in groupby(each.master for each in found)] == list(Master)
    assert found == sorted(found, key=lambda each: (list(Master).index(each.master), each.number))


def test_findings_are_plausible() -> None:
    for each in scenarios(11, 400):
        assert 0 <= each.victim < each.partitions
        assert each.partitions_later != each.partitions
        # A batch of the victim's rows is left when the fault comes midway.
        assert each.rows // each.partitions > 100 * each.batches
        assert each.stream or each.kind is not FaultKind.STREAM_RESTARTED
        assert not (each.stream and each.master is not Master.LOCAL)
        assert each.arrow or each.point is not Point.MIDWAY


# --- the checks ---------------------------------------------------------------------------------


def written(*runs: tuple[int, int, Iterable[int]]) -> list[Event]:
    """Runs of a partition, an attempt, and its rows."""
    return [
        Event(row, partition, attempt, number)
        for partition, attempt, rows in runs
        for number, row in enumerate(rows)
    ]


def checked(found: list[Event], *batches: int, shuffled: bool = False) -> list[str]:
    return check_writes(events.encode([event.encode() for event in found]), batches, shuffled=shuffled)


def test_events_say_what_they_are_and_have_one_size() -> None:
    event = Event(17, 3, 123_456, 9)

    assert parse_event(event.encode()) == event
    assert parse_event(event.encode()[:-1]) is None
    assert {len(events.encode([each.encode()])) for each in (event, Event(999_999, 0, 0, 0))} == {EVENT_BYTES}


@pytest.mark.parametrize(
    "found, batches, shuffled",
    [
        (written((0, 5, range(10)), (1, 6, range(10, 20))), (20,), False),
        (written((1, 5, range(10)), (3, 4, range(10, 20))), (20,), False),
        (written((0, 5, range(0, 20, 2)), (1, 6, [3, 1, *range(5, 20, 2)])), (20,), True),
        (written((0, 5, range(10)), (1, 6, range(10, 20)), (0, 9, range(20, 25))), (20, 5), False),
        ([], (0,), False),
    ],
)
def test_what_spark_may_write_is_accepted(
    found: list[Event], batches: tuple[int, ...], shuffled: bool
) -> None:
    assert checked(found, *batches, shuffled=shuffled) == []


TWO = ((0, 5, range(10)), (1, 6, range(10, 20)))


@pytest.mark.parametrize(
    "found, batches, what",
    [
        (written(*TWO)[:-1], (20,), "1 row of 20 lost, such as 19"),
        (written(*TWO) + written((2, 7, [4])), (20,), "1 row too many, such as 4"),
        (written(TWO[1], TWO[0]), (20,), "the partitions are in the order [1, 0]"),
        (
            written((0, 5, range(5)), (0, 8, range(5, 20))),
            (20,),
            "partition 0 has events of several attempts",
        ),
        (
            [*written((0, 5, range(20)))[:5], *written((0, 5, range(20)))[6:], Event(5, 0, 5, 5)],
            (20,),
            "are not in the order",
        ),
        (written((0, 5, [1, 0])), (2,), "the rows are not in order"),
        (
            written((0, 5, [0, 2]), (0, 6, [1])),
            (2, 1),
            "row 2 is among the rows 0 to 2, which are another write",
        ),
    ],
)
def test_what_spark_may_not_write_is_reported(
    found: list[Event], batches: tuple[int, ...], what: str
) -> None:
    assert any(what in problem for problem in checked(found, *batches))


def test_bytes_that_are_no_events_are_reported() -> None:
    whole = events.encode([Event(0, 0, 0, 0).encode()])

    assert check_writes(whole[:-1], (1,), shuffled=False)[0].startswith("the segment is torn")
    assert check_writes(whole + events.encode([b"rubbish"]), (1,), shuffled=False) == [
        "1 event found that no task wrote"
    ]


def test_a_long_error_is_shortened_to_its_beginning_and_last_cause() -> None:
    text = "Job aborted.\n  at org.apache\nCaused by: first\ntierlog.errors.Unavailable: no host\n\tat there"

    assert first_and_last_cause(RuntimeError(text)) == "Job aborted. ... tierlog.errors.Unavailable: no host"
    assert first_and_last_cause(RuntimeError()) == "RuntimeError"


def test_readers_may_see_whole_writes_only() -> None:
    assert lengths_allowed([3, 2]) == {0, 3 * EVENT_BYTES, 5 * EVENT_BYTES}


class Growing:
    """A store whose segment has these lengths, one after the other."""

    def __init__(self, *lengths: int | None) -> None:
        self._lengths = list(lengths)

    async def segment_info(self, name: str) -> SegmentInfo:
        if not self._lengths:
            raise EndOfTestError
        length = self._lengths.pop(0)
        if length is None:
            raise tierlog.Unavailable("its host was just lost")
        return SegmentInfo(
            name, 1, length, start_offset=0, sealed=False, attributes={}, flushed_length=0, container=0
        )


class EndOfTestError(Exception):
    pass


@pytest.mark.anyio
@pytest.mark.parametrize(
    "lengths, problem",
    [
        ((0, None, 3 * EVENT_BYTES, 5 * EVENT_BYTES), ""),
        ((0, EVENT_BYTES), "which is a part of a write (1 events)"),
        ((3 * EVENT_BYTES, 0), f"a reader saw 0 bytes after {3 * EVENT_BYTES}"),
    ],
)
async def test_a_polling_reader_reports_a_partial_write(
    lengths: tuple[int | None, ...], problem: str
) -> None:
    poller = Poller(Growing(*lengths), "a", lengths_allowed([3, 2]))  # type: ignore[arg-type]
    with contextlib.suppress(EndOfTestError):
        await poller.run()

    assert [problem in found for found in poller.problems] == [True] * bool(problem)
    assert (poller.polls, poller.unanswered) == (
        sum(length is not None for length in lengths),
        lengths.count(None),
    )


# --- the report --------------------------------------------------------------------------------


def test_the_report_shows_the_rate_and_the_cells() -> None:
    report = SparkReport("spark", 7, rounds=30, seconds=120.0, acked=5)
    report.count_fault(fault_name(FaultKind.RETRY, Point.MIDWAY))

    assert report.line.startswith("HOLDS  30 rounds, seed 7: 1 of 40 cells; 5 events, 15.0 rounds per minute")
    assert report.document()["rounds_per_minute"] == 15.0

"""Elements are logged as changes of the one before (rule J3): the same bytes come out, and a long run list is
not logged again with each."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from msgspec.structs import replace

from support.operations import CONSISTENT_ELEMENT, ELEMENT, consistent_elements, elements
from tierlog.journal.manifest.element import Element, Kind
from tierlog.journal.operations.log_element import LogElement, LogElementChange
from tierlog.storage_backends.base.codec import DecodeError, Decoder
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.summary import RunSummary


def _run(cycle: int) -> RunEntry:
    name = f"_system/containers/0000/runs/{1:016x}-{cycle:016x}-{'ab' * 16}"
    return RunEntry(
        name, 1 << 20, cycle, 1 << 10, cycle, cycle, RunSummary(9, 0, cycle, cycle, b"c:a" * 20, b"c:z" * 20)
    )


RUNS = RunList([_run(cycle) for cycle in range(1, 501)])
HEAD = attrs.evolve(ELEMENT, runs=RUNS)
MERGED = RUNS.runs[200:210]


@given(elements | consistent_elements, elements | consistent_elements)
def test_a_change_of_any_element_makes_exactly_the_next_one(before: Element, after: Element) -> None:
    head, op = LogElement(before.encode()), LogElement(after.encode())

    assert LogElementChange.between(head, op).made_from(head) == op


@pytest.mark.parametrize(
    "runs",
    [
        RUNS,
        RUNS.published([_run(501)], 0),
        RUNS.replaced(MERGED, [replace(MERGED[-1], name="merged", last_cycle=MERGED[0].last_cycle)], 9),
        RUNS.replaced(RUNS.runs[-10:], [], 10),
    ],
    ids=["proof", "cycle", "merge", "merge of tombstones"],
)
def test_w6_a_long_run_list_is_not_logged_again_with_each_element(runs: RunList) -> None:
    """With ten elements of 240 KiB a full disk has used up its reserve."""
    head = LogElement(HEAD.encode())
    op = LogElement(attrs.evolve(HEAD, n=HEAD.n + 1, kind=Kind.PROOF, time_ms=1, runs=runs).encode())
    change = LogElementChange.between(head, op)

    assert len(change.encode()) < 700 < len(op.content) // 100
    assert change.made_from(head) == op
    assert change.made_from(head).element.runs == runs


def test_w6_nor_is_it_where_other_segments_are_held_back() -> None:
    runs = attrs.evolve(RUNS, schema=CONSISTENT_ELEMENT.runs.schema)
    before = attrs.evolve(CONSISTENT_ELEMENT, runs=runs)
    cycle = runs.published([_run(501)], runs.schema, 501, 510, (7,))
    after = attrs.evolve(before, n=before.n + 1, runs=cycle)
    head, op = LogElement(before.encode()), LogElement(after.encode())
    change = LogElementChange.between(head, op)

    assert len(change.encode()) < 700
    assert change.made_from(head) == op


def test_replay_decodes_only_the_entries_that_changed() -> None:
    """1,349 entries took 7 ms, for each element of a log."""
    merged = replace(MERGED[-1], name="merged", last_cycle=MERGED[0].last_cycle)
    head = LogElement(HEAD.encode())
    op = LogElement(attrs.evolve(HEAD, n=HEAD.n + 1, runs=RUNS.replaced(MERGED, [merged])).encode())
    known = {id(run) for run in head.element.runs}
    change = LogElementChange.decode(Decoder(LogElementChange.between(head, op).encode()))
    runs = change.made_from(head).element.runs

    assert [run for run in runs if id(run) not in known] == [merged]
    assert runs == op.element.runs


def test_a_change_of_another_element_is_refused() -> None:
    head, op = LogElement(HEAD.encode()), LogElement(attrs.evolve(HEAD, n=HEAD.n + 1).encode())
    change = LogElementChange.between(head, op)

    with pytest.raises(DecodeError, match="there is none"):
        change.made_from(None)
    with pytest.raises(DecodeError, match="the element before has"):
        change.made_from(LogElement(ELEMENT.encode()))
    other = attrs.evolve(HEAD, runs=RunList([replace(run, crc=7) for run in RUNS]))
    with pytest.raises(DecodeError, match="is damaged"):
        _ = change.made_from(LogElement(other.encode())).element

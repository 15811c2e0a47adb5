"""When a flush cycle is due: the whole table (rule F5)."""

from __future__ import annotations

import pytest

from tierlog.actors.flush.cycle_due import Due, decide_due

AGE = 30.0


@pytest.mark.parametrize(
    ("requested", "segments", "dirty_since", "not_before", "due"),
    [
        (False, 0, None, 0.0, Due(False)),
        (False, 0, 90.0, 0.0, Due(False, wait=20.0)),
        (False, 0, 70.0, 0.0, Due(True, full=True)),
        (False, 0, 10.0, 0.0, Due(True, full=True)),
        (False, 2, None, 0.0, Due(True, full=False)),
        (False, 2, 90.0, 0.0, Due(True, full=False)),
        (False, 2, 60.0, 0.0, Due(True, full=True)),
        (True, 0, None, 0.0, Due(True, full=True)),
        (True, 2, 90.0, 0.0, Due(True, full=True)),
        (True, 0, None, 103.0, Due(False, wait=3.0)),
        (False, 2, None, 103.0, Due(False, wait=3.0)),
        (False, 0, 10.0, 103.0, Due(False, wait=3.0)),
        (False, 0, None, 103.0, Due(False)),
        (False, 0, 90.0, 103.0, Due(False, wait=20.0)),
        (True, 0, None, 100.0, Due(True, full=True)),
    ],
)
def test_the_table(
    requested: bool, segments: int, dirty_since: float | None, not_before: float, due: Due
) -> None:
    """F5 and C8: size, age and requests, seen at second 100."""
    found = decide_due(
        requested=requested,
        segments_by_size=segments,
        by_size_at=100.0,
        dirty_since=dirty_since,
        now=100.0,
        flush_age=AGE,
        not_before=not_before,
    )

    assert found == due


@pytest.mark.parametrize(
    ("requested", "dirty_since", "not_before", "due"),
    [
        (False, None, 0.0, Due(False, wait=2.0)),
        (False, 90.0, 0.0, Due(False, wait=2.0)),
        (False, 71.0, 0.0, Due(False, wait=1.0)),
        (False, None, 105.0, Due(False, wait=2.0)),
        (False, 60.0, 0.0, Due(True, full=True)),
        (True, None, 0.0, Due(True, full=True)),
    ],
)
def test_f5_only_size_waits_for_the_interval_between_two_cycles(
    requested: bool, dirty_since: float | None, not_before: float, due: Due
) -> None:
    """Seen at second 100; a cycle by size may begin at second 102."""
    found = decide_due(
        requested=requested,
        segments_by_size=2,
        by_size_at=102.0,
        dirty_since=dirty_since,
        now=100.0,
        flush_age=AGE,
        not_before=not_before,
    )

    assert found == due

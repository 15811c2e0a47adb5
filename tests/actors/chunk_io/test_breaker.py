"""The breaker's table (rules A16 and S7)."""

from __future__ import annotations

import itertools

import pytest

from support.state_tables import check_table
from tierlog.actors.chunk_io.breaker import STATES, Breaker, BreakerEvent, BreakerState
from tierlog.storage_backends.base.errors import InvalidArgument


def opened(failures: int = 3, interval: float = 5.0) -> Breaker:
    """A breaker that opened at time 100."""
    breaker = Breaker(failures, interval)
    for _ in range(failures):
        breaker.failure(100.0)
    return breaker


def test_the_table() -> None:
    """In the closed state everybody passes, so nobody is a probe."""
    check_table(STATES, BreakerState.CLOSED, BreakerEvent)
    steps = set(itertools.product(BreakerState, BreakerEvent))
    assert steps - set(STATES.steps) == {(BreakerState.CLOSED, BreakerEvent.PROBE)}
    assert {STATES.next(state, BreakerEvent.SUCCESS) for state in BreakerState} == {BreakerState.CLOSED}


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = Breaker(3, 5.0)
    states = []
    for failed in (True, True, False, True, True, True):
        (breaker.failure if failed else breaker.success)(0.0)
        states.append(breaker.state)
    assert states == [BreakerState.CLOSED] * 5 + [BreakerState.OPEN]


@pytest.mark.parametrize("probing", [False, True])
def test_any_success_closes(probing: bool) -> None:
    breaker = opened()
    if probing:
        assert breaker.admit(105.0)
    breaker.success(106.0)
    assert (breaker.state, breaker.failures, breaker.retry_in(106.0)) == (BreakerState.CLOSED, 0, 0.0)
    breaker.failure(107.0)
    assert breaker.state is BreakerState.CLOSED


def test_a_probe_that_never_reports_blocks_one_interval_only() -> None:
    breaker = opened()
    assert breaker.admit(105.0)
    assert not breaker.admit(109.9)
    assert breaker.admit(110.0)


def test_stragglers_do_not_push_the_next_probe_away() -> None:
    breaker = opened()
    breaker.failure(104.0)
    assert breaker.admit(105.0)


def test_a_failure_once_the_probe_is_due_has_been_the_probe() -> None:
    """Lists are not admitted. While only they were called, nothing was refused after the first interval."""
    breaker = opened(interval=5.0)
    assert breaker.retry_in(105.0) == 0.0
    breaker.failure(105.5)
    assert breaker.retry_in(106.0) == 4.5
    assert not breaker.admit(110.0)
    assert breaker.admit(110.5)


def test_repr_and_arguments() -> None:
    assert repr(opened()) == "<Breaker open, 3 failures in a row>"
    for failures, interval in ((0, 1.0), (1, 0.0)):
        with pytest.raises(InvalidArgument):
            Breaker(failures, interval)

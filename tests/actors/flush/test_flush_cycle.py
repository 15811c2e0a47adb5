"""What becomes of a flush cycle: its cut, what did not reach it, and when it may be published."""

from __future__ import annotations

import pytest

from support.container_parts import NAME, Parts, append
from tierlog.actors.container.cycle_cut import CycleCut
from tierlog.actors.flush.aggregation import SegmentFlush, capture
from tierlog.actors.flush.flush_cycle import CYCLE_PHASES, CycleEvent, CyclePhase, FlushCycle
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.state_table import IllegalTransition


@pytest.fixture
def parts() -> Parts:
    parts = Parts()
    parts.create()
    parts.do(append(NAME, b"abc"))
    return parts


def begin(parts: Parts) -> tuple[FlushCycle, SegmentFlush]:
    cut = CycleCut(parts.state)
    plan = cut.flush_of(parts.segment(NAME))
    assert plan is not None
    cycle = FlushCycle(1, cut.cut, 1, cut)
    cycle.unreached[plan.sid] = None
    return cycle, plan


def held(cycle: FlushCycle) -> set[int]:
    assert cycle.cut is not None
    for _ in cycle.cut.hold_back():
        pass
    return set(cycle.cut.held)


def test_every_phase_follows_from_the_beginning() -> None:
    assert CYCLE_PHASES.reachable(CyclePhase.FLUSHING) == frozenset(CyclePhase)


def test_a_flush_up_to_the_cut_makes_the_cycle_whole(parts: Parts) -> None:
    cycle, plan = begin(parts)
    cycle.flushed(plan)
    cycle.end({})
    assert cycle.is_whole
    assert held(cycle) == set()


def test_f10_a_flush_that_ends_after_the_cycle_counts_for_the_next_one(parts: Parts) -> None:
    cycle, plan = begin(parts)
    cycle.end({})
    cycle.flushed(plan)
    assert not cycle.is_whole
    assert held(cycle) == {plan.sid}


def test_f10_a_flush_of_an_earlier_cut_does_not_reach_a_later_one(parts: Parts) -> None:
    earlier = capture(parts.segment(NAME), parts.state.sequence)
    parts.do(append(NAME, b"d"))
    cycle, _ = begin(parts)
    cycle.flushed(earlier)
    cycle.end({})
    assert not cycle.is_whole


def test_a_cycle_with_an_error_is_not_whole(parts: Parts) -> None:
    cycle, plan = begin(parts)
    cycle.flushed(plan)
    cycle.end({plan.sid: Unavailable("down")})
    assert not cycle.is_whole


def test_f10_a_cycle_is_not_published_while_it_flushes(parts: Parts) -> None:
    cycle, _ = begin(parts)
    with pytest.raises(IllegalTransition, match="flushing"):
        cycle.step(CycleEvent.PUBLISH)


def test_f10_what_is_held_back_is_not_known_before_the_end(parts: Parts) -> None:
    cut = CycleCut(parts.state)
    with pytest.raises(RuntimeError, match="F10"):
        list(cut.rows())
    cut.finish(())
    with pytest.raises(RuntimeError, match="F10"):
        len(cut.held)


def test_a_cycle_is_published_again_after_an_attempt_failed_and_only_once(parts: Parts) -> None:
    cycle, _ = begin(parts)
    cycle.end({})
    cycle.step(CycleEvent.PUBLISH)
    cycle.step(CycleEvent.FAIL)
    cycle.step(CycleEvent.COUNT)
    with pytest.raises(IllegalTransition, match="published"):
        cycle.step(CycleEvent.PUBLISH)


def test_an_abandoned_cycle_is_never_published(parts: Parts) -> None:
    cycle, _ = begin(parts)
    cycle.end({})
    cycle.step(CycleEvent.ABANDON)
    with pytest.raises(IllegalTransition, match="abandoned"):
        cycle.step(CycleEvent.PUBLISH)

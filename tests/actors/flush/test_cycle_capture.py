"""What a cycle captures, in slices, while others change what it captures."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs
import pytest

from tierlog.actors.flush.aggregation import SegmentFlush, capture
from tierlog.actors.flush.cycle_capture import capture_all
from tierlog.journal.operations.segment_image import MergedRange, MergedRanges, SegmentStatus

pytestmark = pytest.mark.anyio
CUT = 100


@attrs.define
class Segment:
    """As the container has it."""

    sid: int
    merges: MergedRanges = attrs.field(factory=MergedRanges)
    status: SegmentStatus = SegmentStatus.LIVE
    touched: int = 1
    needs_flush: bool = True
    name: str = "s"
    length: int = 1
    start_offset: int = 0
    sealed: bool = False
    rolling_size: int = 1
    flushed: int = 0
    has_record: bool = False
    append_boundaries: tuple[int, ...] = ()
    is_flushed: bool = False


def merged(table: dict[int, Segment], target: int, sources: range, touched: int = 1) -> None:
    for number, source in enumerate(sources):
        table[source] = Segment(source, status=SegmentStatus.MERGED, touched=touched, needs_flush=False)
        table[target].merges.append(MergedRange(number, source, 1))


@attrs.define
class Capture:
    """A capture, and the turns that others had during it."""

    table: dict[int, Segment]
    under_way: set[int] = attrs.field(factory=set)
    left_out: list[int] = attrs.field(factory=list)
    turns: int = 0

    async def run(self) -> dict[int, SegmentFlush]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._others)
            plans, left_out = await capture_all(
                list(self.table.values()),
                lambda segment: capture(segment, CUT),
                segment_of=self.table.get,
                is_under_way=self.under_way.__contains__,
                leave_out=self.left_out.append,
            )
            tasks.cancel_scope.cancel()
        assert [*left_out] == self.left_out
        return {plan.sid: plan for plan in plans}

    async def _others(self) -> None:
        while True:
            self.turns += 1
            self.change()
            await anyio.lowlevel.checkpoint()

    def change(self) -> None:
        """What they do in each turn."""


async def test_a_target_with_6000_sources_is_captured_in_slices() -> None:
    """F3: a step that captures 6,000 takes 60 ms."""
    table = {1: Segment(1)}
    merged(table, 1, range(2, 6002))
    taking = Capture(table)
    plans = await taking.run()

    assert next(iter(plans)) == 1
    assert sorted(plans) == list(range(1, 6002))
    assert taking.turns > 60


async def test_sources_of_sources_are_captured_behind_what_they_are_merged_into() -> None:
    table = {1: Segment(1)}
    merged(table, 1, range(10, 200))
    merged(table, 10, range(1000, 1200))
    plans = [*await Capture(table).run()]

    assert sorted(plans) == sorted(table)
    assert plans.index(1) < plans.index(10) < min(map(plans.index, range(1000, 1200)))


async def test_what_is_merged_during_the_capture_of_its_target_comes_with_the_next_cycle() -> None:
    """F1: the target was captured without it."""
    table = {1: Segment(1)}
    merged(table, 1, range(2, 1002))

    @attrs.define
    class Merging(Capture):
        def change(self) -> None:
            if self.turns == 5:
                merged(self.table, 1, range(5000, 5001), touched=CUT + 1)

    plans = await Merging(table).run()
    assert 5000 in table
    assert 5000 not in plans
    assert len(plans[1].merges) == 1000


async def test_a_target_that_is_deleted_during_its_capture_leaves_no_source_alive_in_the_plans() -> None:
    """F4: the flush of the target is refused, and that is no error."""
    table = {1: Segment(1)}
    merged(table, 1, range(2, 1002))

    @attrs.define
    class Deleting(Capture):
        def change(self) -> None:
            if self.turns == 5:
                for segment in self.table.values():
                    segment.status = SegmentStatus.DELETED

    plans = await Deleting(table).run()
    assert sorted(plans) == sorted(table)
    assert {plan.deleted for plan in plans.values()} == {False, True}


async def test_a_target_is_left_out_while_a_flush_of_one_source_is_under_way() -> None:
    """F7."""
    table = {1: Segment(1), 2: Segment(2)}
    merged(table, 1, range(10, 1010))
    taking = Capture(table, under_way={500})
    assert [*await taking.run()] == [2]
    assert taking.left_out == [1]

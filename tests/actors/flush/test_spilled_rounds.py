"""Rounds of flushes of spilled bytes (rule F8)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import anyio
import attrs
import pytest
from msgspec.structs import replace

from support.container_parts import append
from support.container_world import virtual_time
from support.flushing import FlushWorld
from tierlog.actors.flush.aggregation import SegmentFlush, capture
from tierlog.actors.flush.flush_tasks import FlushTasks
from tierlog.actors.flush.spilled_rounds import SpilledRounds

pytestmark = [pytest.mark.anyio, virtual_time]


@attrs.define(eq=False)
class Pieces:
    """Loads ten bytes at a time of a segment with 30."""

    segment: Any
    loaded: list[int] = attrs.field(factory=list)

    def is_spilled(self, plan: SegmentFlush) -> bool:
        return bool(self.segment.flushed < 30)

    async def load_spilled(
        self, plans: Mapping[int, SegmentFlush], *, is_probe: bool
    ) -> dict[int, SegmentFlush]:
        self.loaded += plans
        return {sid: replace(plan, limit=self.segment.flushed + 10) for sid, plan in plans.items()}

    def release(self, sid: int) -> None: ...


async def test_f7_a_late_flush_that_has_committed_is_not_begun_a_second_time() -> None:
    """Its bytes are flushed, and it has not ended yet: it would release what the next round loads."""
    world = await FlushWorld().open()
    world.parts.create("s")
    world.parts.do(append("s", bytes(30)))
    plan = capture(world.parts.segment("s"), world.sequence)
    segment: Any = SimpleNamespace(flushed=0)
    pieces: Any = Pieces(segment)
    ends = anyio.Event()

    async def flush(plan: SegmentFlush) -> None:
        segment.flushed = plan.limit
        if plan.limit == 20:
            await ends.wait()

    flushes = FlushTasks(flush, lambda: 0.0, lambda sids: None, lambda failed: None, limit=8, deadline=1.0)
    rounds = SpilledRounds(pieces, flushes, lambda sid: segment, lambda: 0.0, lambda: None)
    async with anyio.create_task_group() as tasks:
        left = await rounds.flush(tasks, [plan], is_probe=lambda: False)
        assert (pieces.loaded, segment.flushed) == ([plan.sid] * 2, 20)
        assert plan.sid in left.waiting
        assert plan.sid in flushes
        ends.set()

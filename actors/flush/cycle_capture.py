"""What a flush cycle captures at its cut: the segments that need it, each with everything merged into it
(rules F1, F3).

Segments are captured in slices, between which others run; one with its sources in one step. What came after
the cut may be captured too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio.lowlevel

from ...journal.operations.segment_image import SegmentStatus
from ..kernel.slices import in_slices
from .aggregation import FlushableSegment, SegmentFlush, capture


async def capture_all(
    wanted: Iterable[FlushableSegment],
    cut: int,
    *,
    segment_of: Callable[[int], FlushableSegment | None],
    is_under_way: Callable[[int], bool],
    leave_out: Callable[[int], None],
) -> tuple[dict[int, SegmentFlush], dict[int, None]]:
    """The wanted segments and everything merged into them, targets before their sources; and those that are
    left out, because a flush of an earlier cycle is under way there.

    ``leave_out(sid)`` is called for these in the step that finds it out: a late flush may end before the
    next slice."""
    plans: dict[int, SegmentFlush] = {}
    left_out: dict[int, None] = {}
    for segments in in_slices(wanted):
        for segment in segments:
            if segment.sid in plans or not _is_wanted(segment, cut):
                continue

            closure = _closure_of(segment, cut, segment_of)
            if any(map(is_under_way, closure)):
                left_out[segment.sid] = None
                leave_out(segment.sid)
                continue

            for sid in closure if len(closure) > 1 else ():
                plans.pop(sid, None)  # captured before it was merged
            plans |= closure
        await anyio.lowlevel.checkpoint()

    return plans, left_out


def _is_wanted(segment: FlushableSegment, cut: int) -> bool:
    """Whether a cycle captures the segment for itself. What is merged at the cut comes with its target; the
    target of a later merge may be captured already, or be clean."""
    return segment.needs_flush or (segment.status is SegmentStatus.MERGED and segment.touched > cut)


def _closure_of(
    segment: FlushableSegment, cut: int, segment_of: Callable[[int], FlushableSegment | None]
) -> dict[int, SegmentFlush]:
    """A segment and everything merged into it, directly or not."""
    plans: dict[int, SegmentFlush] = {}
    stack = [segment]
    while stack:
        plan = capture(stack.pop(), cut)
        plans[plan.sid] = plan
        if not plan.deleted:
            sources = (segment_of(merge.source) for merge in plan.merges)
            stack.extend(source for source in sources if source is not None)

    return plans

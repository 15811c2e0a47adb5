"""What a flush cycle captures at its cut: the segments that need it, each with everything merged into it
(rules F1, F3).

Segments are captured in slices, between which others run. What came after the cut may be captured too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import anyio.lowlevel

from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import in_slices, list_in_slices, turn_after
from .aggregation import FlushableSegment, SegmentFlush, capture

_SLICE = 64
"""Sources that one slice captures; each takes about 10 µs."""


async def capture_all(
    wanted: Iterable[FlushableSegment],
    cut: int,
    *,
    segment_of: Callable[[int], FlushableSegment | None],
    is_under_way: Callable[[int], bool],
    leave_out: Callable[[int], None],
) -> tuple[list[SegmentFlush], dict[int, None]]:
    """The wanted segments and everything merged into them, targets before their sources; and those that are
    left out, because a flush of an earlier cycle is under way there.

    ``leave_out(sid)`` is called for these in the step that finds it out: a late flush may end before the
    next slice."""
    single: ShardedDict[int, SegmentFlush] = ShardedDict()
    left_out: dict[int, None] = {}
    targets: list[int] = []
    for segments in in_slices(wanted):
        for segment in segments:
            # After all others: what is merged into it comes with it, and replaces what was captured of a
            # source alone.
            if segment.merges:
                targets.append(segment.sid)
            elif _is_wanted(segment, cut):
                if is_under_way(segment.sid):
                    left_out[segment.sid] = None
                    leave_out(segment.sid)
                else:
                    single[segment.sid] = capture(segment, cut)
        await turn_after(segments)

    closures: ShardedDict[int, SegmentFlush] = ShardedDict()
    plans: list[SegmentFlush] = []
    for sid in targets:
        target = segment_of(sid)
        if target is None or sid in closures or sid in single or not _is_wanted(target, cut):
            continue

        closure = await _capture_closure(sid, cut, segment_of, is_under_way)
        # F7: without the sources that are under way the target would have a gap, so none of it is flushed.
        if closure is None:
            left_out[sid] = None
            leave_out(sid)
            continue

        for part in in_slices(closure):
            for plan in part:
                closures[plan.sid] = plan
                single.pop(plan.sid, None)  # captured before it was merged
            plans += part
            await anyio.lowlevel.checkpoint()
    return plans + await list_in_slices(single.values()), left_out


def _is_wanted(segment: FlushableSegment, cut: int) -> bool:
    """Whether a cycle captures the segment for itself. What is merged at the cut comes with its target; the
    target of a later merge may be captured already, or be clean."""
    return segment.needs_flush or (segment.status is SegmentStatus.MERGED and segment.touched > cut)


async def _capture_closure(
    target: int,
    cut: int,
    segment_of: Callable[[int], FlushableSegment | None],
    is_under_way: Callable[[int], bool],
) -> list[SegmentFlush] | None:
    """A segment and everything merged into it, directly or not; None if a flush is under way there.

    The target first: what is merged into it later is not part of this capture. Its sources follow in slices,
    because what is merged does not change any more: at most it is deleted with its target (rule F4)."""
    plans: list[SegmentFlush] = []
    visited = 0
    levels: list[Iterator[int]] = [iter((target,))]
    while levels:
        visited += 1
        if visited % _SLICE == 0:
            await anyio.lowlevel.checkpoint()
        sid = next(levels[-1], None)
        if sid is None:
            levels.pop()
            continue

        segment = segment_of(sid)
        # Spliced by an earlier cycle, whose commit removed the source (F3).
        if segment is None:
            continue

        if is_under_way(sid):
            return None

        plan = capture(segment, cut)
        plans.append(plan)
        # The sources of a deleted target were deleted with it: each is dirty for itself, and removes its own
        # record.
        if not plan.deleted:
            levels.append(merge.source for merge in plan.merges)
    return plans

"""What a flush cycle captures at its cut: the segments that need it, each with everything merged into it
(rules F1, F3).

Segments are captured in slices, between which others run. A cycle that is published captures all of them as
of its cut; another one may include what came later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import anyio.lowlevel

from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import in_slices, list_in_slices, turn_after
from .aggregation import FlushableSegment, SegmentFlush

_SLICE = 64
"""Sources that one slice captures; each takes about 10 µs."""
Capture = Callable[[FlushableSegment], SegmentFlush | None]
"""A segment's part in the cycle; None if it has none."""


async def capture_all(
    wanted: Iterable[FlushableSegment],
    capture: Capture,
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
                continue

            plan = capture(segment)
            if plan is None:
                continue
            if plan.merges:
                targets.append(segment.sid)
            elif plan.is_wanted:
                if is_under_way(segment.sid):
                    left_out[segment.sid] = None
                    leave_out(segment.sid)
                else:
                    single[segment.sid] = plan
        await turn_after(segments)

    closures: ShardedDict[int, SegmentFlush] = ShardedDict()
    plans: list[SegmentFlush] = []
    for sid in targets:
        target = segment_of(sid)
        plan = None if target is None or sid in closures or sid in single else capture(target)
        if plan is None or not plan.is_wanted:
            continue

        closure = await _capture_closure(plan, capture, segment_of, is_under_way)
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


async def _capture_closure(
    target: SegmentFlush,
    capture: Capture,
    segment_of: Callable[[int], FlushableSegment | None],
    is_under_way: Callable[[int], bool],
) -> list[SegmentFlush] | None:
    """A captured segment and everything merged into it, directly or not; None if a flush is under way there.

    What is merged into it later is not part of this capture. Its sources follow in slices, because what is
    merged does not change any more: at most it is deleted with its target (rule F4)."""
    if is_under_way(target.sid):
        return None

    plans = [target]
    visited = 0
    # The sources of a deleted target were deleted with it: each is dirty for itself, and removes its own
    # record.
    levels = [] if target.deleted else [_sources(target)]
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

        plan = capture(segment)
        if plan is None:
            continue
        plans.append(plan)
        if not plan.deleted:
            levels.append(_sources(plan))
    return plans


def _sources(plan: SegmentFlush) -> Iterator[int]:
    return (merge.source for merge in plan.merges)

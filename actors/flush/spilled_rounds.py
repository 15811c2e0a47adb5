"""The rounds in which a cycle flushes what is not in memory (rule F8): load some of it in the order of the
log, flush the segments up to there, and so on.

A flush that fails or is late takes its segment, and what that is merged into, out of the cycle, as outside of
rounds (rules F4, F7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import anyio.abc
import anyio.lowlevel
import attrs

from ...storage_backends.base.errors import TierlogError
from ..kernel.slices import SLICE, in_slices
from .aggregation import FlushableSegment, SegmentFlush
from .flush_order import Bucket, bucket_of
from .flush_tasks import FlushTasks
from .segment_flusher import SegmentFlusher


@attrs.frozen
class LeftOut:
    """Segments that are not flushed in this cycle, and have no error."""

    ended: dict[int, None]
    """Their late flush has ended meanwhile: they are due at once."""
    waiting: dict[int, None]
    """They wait for a late flush to end."""


def _with_targets(sids: Iterable[int], targets: Mapping[int, int]) -> dict[int, None]:
    """The segments and what they are merged into, directly or not. ``targets``: by source."""
    found: dict[int, None] = {}
    for sid in sids:
        each: int | None = sid
        while each is not None and each not in found:
            found[each] = None
            each = targets.get(each)
    return found


class SpilledRounds:
    def __init__(
        self,
        flusher: SegmentFlusher,
        flushes: FlushTasks,
        segment_of: Callable[[int], FlushableSegment | None],
        retry_in: Callable[[], float],
        on_progress: Callable[[], None],
    ) -> None:
        """``retry_in()``: seconds for which long-term storage refuses every change. ``on_progress()`` is
        called after each round, when memory was freed."""
        self._flusher = flusher
        self._flushes = flushes
        self._segment_of = segment_of
        self._retry_in = retry_in
        self._on_progress = on_progress

    async def flush(
        self, tasks: anyio.abc.TaskGroup, plans: dict[int, SegmentFlush], is_probe: Callable[[], bool]
    ) -> LeftOut:
        """Flush the spilled bytes of ``plans`` that come before any splice. Removes from ``plans`` what is
        not flushed to the end in this cycle: the segments that failed, and those that are returned.
        ``is_probe()``: flushes have been failing, and none has succeeded yet."""
        left: dict[int, SegmentFlush] = {}
        targets: dict[int, int] = {}
        for part in in_slices(plans.values()):
            targets |= {merge.source: plan.sid for plan in part for merge in plan.merges}
            left |= {plan.sid: plan for plan in part if self._is_spilled(plan)}
            await anyio.lowlevel.checkpoint()
        late: list[int] = []
        failed: dict[int, TierlogError] = {}
        # S7: for flushes that are refused at once the log would be read for nothing.
        while left and not self._retry_in():
            await anyio.lowlevel.checkpoint()
            first = dict(islice(left.items(), SLICE))
            oldest = {sid: plan for sid, plan in first.items() if self._flusher.is_spilled(plan)}
            for sid in [sid for sid in first if sid not in oldest]:
                del left[sid]
            if not oldest:
                continue

            prefixes = await self._flusher.load_spilled(oldest, is_probe=is_probe())
            # Late flushes hold the memory. Waiting for it here would hold up the cycle: what is left is
            # flushed once they have ended (F7).
            if not prefixes:
                break

            await self._flushes.run(tasks, dict(prefixes))
            for sid, prefix in prefixes.items():
                segment = self._segment_of(sid)
                if segment is None or prefix.limit is None or segment.flushed < prefix.limit:
                    del left[sid]  # late, failed, or changed meanwhile
                if sid in self._flushes:
                    late.append(sid)
                    continue

                # A late flush, skipped above, still reads its bytes and releases them at its end.
                self._flusher.release(sid)
                if (error := self._flushes.errors.get(sid)) is not None:
                    failed |= dict.fromkeys(_with_targets([sid], targets), error)
            self._on_progress()
        spilled: list[int] = []
        for part in in_slices(left.values()):
            spilled += [plan.sid for plan in part if self._flusher.is_spilled(plan)]
            await anyio.lowlevel.checkpoint()
        self._flushes.errors.update(failed)
        found = self._left_out(late, spilled, targets)
        for sid in (*failed, *found.ended, *found.waiting):
            plans.pop(sid, None)
        return found

    def _left_out(self, late: list[int], spilled: list[int], targets: Mapping[int, int]) -> LeftOut:
        """``late``: segments whose flush was late; ``spilled``: those for which there was no room."""
        blocked = [sid for sid in late if sid in self._flushes]
        if self._flushes.late:
            blocked += spilled  # a late flush holds the memory that they need
        ended = (sid for sid in late if sid not in self._flushes)
        return LeftOut(_with_targets(ended, targets), _with_targets(blocked, targets))

    def _is_spilled(self, plan: SegmentFlush) -> bool:
        return bucket_of(plan.name) is Bucket.USER and self._flusher.is_spilled(plan)

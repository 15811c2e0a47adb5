"""The rounds in which a cycle flushes what is not in memory (rule F8): load some of it in the order of the
log, flush the segments up to there, and so on.

A flush that fails or is late takes its segment, and what that is merged into, out of the cycle, as outside of
rounds (rules F4, F7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import anyio.abc
import anyio.lowlevel
from msgspec import Struct

from ...journal.operations.segment_image import MergedRange
from ...storage_backends.base.errors import TierlogError
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import SLICE, in_slices
from .aggregation import FlushableSegment, SegmentFlush
from .flush_tasks import FlushTasks
from .segment_flusher import SegmentFlusher


class LeftOut(Struct, frozen=True, eq=False):
    """Segments that are not flushed to the end in this cycle."""

    ended: ShardedDict[int, None]
    """Their late flush has ended meanwhile: they are due at once."""
    waiting: ShardedDict[int, None]
    """They wait for a late flush to end."""
    failed: ShardedDict[int, TierlogError]
    """Their flush has failed, or that of a segment that is merged into them."""

    def __contains__(self, sid: object) -> bool:
        return sid in self.ended or sid in self.waiting or sid in self.failed


def _with_targets(sids: Iterable[int], targets: Mapping[int, int]) -> ShardedDict[int, None]:
    """The segments and what they are merged into, directly or not. ``targets``: by source."""
    found: ShardedDict[int, None] = ShardedDict()
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
        self, tasks: anyio.abc.TaskGroup, plans: Iterable[SegmentFlush], is_probe: Callable[[], bool]
    ) -> LeftOut:
        """Flush the spilled bytes of ``plans`` that come before any splice. Returns what must be left out of
        the rest of the cycle. ``is_probe()``: flushes have been failing, and none has succeeded yet."""
        left: deque[SegmentFlush] = deque()
        targets: ShardedDict[int, int] = ShardedDict()
        for _ in in_slices(self._classified(plans, left, targets)):
            await anyio.lowlevel.checkpoint()
        late: list[int] = []
        failed: ShardedDict[int, TierlogError] = ShardedDict()
        # S7: for flushes that are refused at once the log would be read for nothing.
        while left and not self._retry_in():
            await anyio.lowlevel.checkpoint()
            first = [left.popleft() for _ in range(min(SLICE, len(left)))]
            oldest = {plan.sid: plan for plan in first if self._flusher.is_spilled(plan)}
            if not oldest:
                continue

            prefixes = await self._flusher.load_spilled(oldest, is_probe=is_probe())
            # Late flushes hold the memory. Waiting for it here would hold up the cycle: what is left is
            # flushed once they have ended (F7).
            if not prefixes:
                left.extendleft(reversed(oldest.values()))
                break

            await self._flushes.run(tasks, list(prefixes.values()))
            for sid, prefix in prefixes.items():
                if sid in self._flushes:
                    # Not in the next round, though these bytes may be flushed already: a late flush releases
                    # what is loaded at its end.
                    del oldest[sid]
                    late.append(sid)
                    continue

                segment = self._segment_of(sid)
                if segment is None or prefix.limit is None or segment.flushed < prefix.limit:
                    del oldest[sid]  # failed, or changed meanwhile
                self._flusher.release(sid)
                if (error := self._flushes.errors.get(sid)) is not None:
                    failed.update(dict.fromkeys(_with_targets([sid], targets), error))
            left.extendleft(reversed(oldest.values()))
            self._on_progress()
        spilled: list[int] = []
        for part in in_slices(left):
            spilled += [plan.sid for plan in part if self._flusher.is_spilled(plan)]
            await anyio.lowlevel.checkpoint()
        self._flushes.errors.update(failed)
        # In the step that returns: a late flush may end before the next one.
        blocked = [sid for sid in late if sid in self._flushes]
        if self._flushes.late:
            blocked += spilled  # a late flush holds the memory that they need
        ended = (sid for sid in late if sid not in self._flushes)
        return LeftOut(_with_targets(ended, targets), _with_targets(blocked, targets), failed)

    def _classified(
        self, plans: Iterable[SegmentFlush], spilled: deque[SegmentFlush], targets: ShardedDict[int, int]
    ) -> Iterator[SegmentFlush | MergedRange]:
        """Find what is spilled, and the targets of merges, one after the other."""
        for plan in plans:
            if self._flusher.is_spilled(plan):
                spilled.append(plan)
            yield plan
            for merge in plan.merges:
                targets[merge.source] = plan.sid
                yield merge

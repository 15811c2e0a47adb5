"""The flushes that are under way: how many at a time, in which order, and how long a cycle waits for one.

A cycle waits for each flush up to a deadline. One that takes longer is late: it goes on by itself, and the
cycle ends without it and without what it is merged into (rule F7). So a call of long-term storage that hangs
holds up its own segment only. A late flush is never cancelled, because the outcome of its call would be
unknown, and its segment begins no other one until it has ended.

A flush that fails harms only itself (rule F4). If long-term storage refuses every change, the rest of the
cycle is not tried (rule S7); and after a cycle in which nothing could be flushed, one flush goes first.

Cancellation of the task group ends all flushes; each leaves its segment as it last committed it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence

import anyio
import anyio.abc
import anyio.lowlevel
from msgspec import Struct

from ...journal.operations.segment_image import MergedRange
from ...storage_backends.base.errors import TierlogError, Unavailable
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import in_slices, turn_after
from .aggregation import SegmentFlush
from .flush_order import FlushOrder

_PATIENCE_MAX = 16
"""A cycle waits for a segment that was late again and again up to this many times as long."""


class _Flush(Struct, eq=False):
    """One flush of a segment."""

    late_at: float
    is_late: bool = False


def _added(
    order: FlushOrder, plans: Iterable[SegmentFlush], among: Container[int]
) -> Iterator[SegmentFlush | MergedRange]:
    """Add all ``plans`` to ``order``, one after the other."""
    for plan in plans:
        for merge in () if plan.deleted else plan.merges:
            if merge.source in among:
                order.add_source(plan.sid, merge.source)
            yield merge
        order.add(plan.sid)
        yield plan


class FlushTasks:
    def __init__(
        self,
        flush: Callable[[SegmentFlush], Awaitable[TierlogError | None]],
        retry_in: Callable[[], float],
        on_late: Callable[[Iterable[int]], None],
        on_late_end: Callable[[dict[int, TierlogError]], None],
        *,
        limit: int,
        deadline: float,
    ) -> None:
        """``flush(plan)`` flushes one segment and returns its error. ``retry_in()``: for how many seconds
        long-term storage refuses every change. ``on_late(sids)`` is called when a flush becomes late, with
        its segment and what that is merged into; ``on_late_end(failed)`` when a late flush has ended, maybe
        in the same cycle, with its error if it has one. ``limit``: flushes that a cycle has under way; as
        many late ones may be under way besides. ``deadline``: seconds for which a cycle waits for a flush."""
        self._flush = flush
        self._retry_in = retry_in
        self._on_late = on_late
        self._on_late_end = on_late_end
        self._limit = limit
        self._deadline = deadline
        self._order = FlushOrder()
        self._under_way: dict[int, _Flush] = {}
        self._late = 0
        self._patience: dict[int, float] = {}
        """For how many seconds a cycle waits for segments that were late the last time."""
        self._is_cautious = False
        self._ended = anyio.Event()
        self.done = 0
        """Flushes without an error since ``take_errors``."""
        self.errors: ShardedDict[int, TierlogError] = ShardedDict()
        """Errors of the cycle, and of late flushes that ended since ``take_errors``."""

    @property
    def late(self) -> int:
        """Flushes that go on although their cycle is over."""
        return self._late

    def __contains__(self, sid: object) -> bool:
        return sid in self._under_way

    def is_late(self, sid: int) -> bool:
        flush = self._under_way.get(sid)
        return flush is not None and flush.is_late

    def late_sids(self) -> list[int]:
        """The segments of the flushes that are late."""
        return [sid for sid, flush in self._under_way.items() if flush.is_late]

    def take_errors(self) -> ShardedDict[int, TierlogError]:
        """The errors of the cycle, and of late flushes that ended since the last one."""
        errors, self.errors = self.errors, ShardedDict()
        self.done = 0
        return errors

    async def run(self, tasks: anyio.abc.TaskGroup, plans: Sequence[SegmentFlush]) -> bool:
        """Flush ``plans``, none of which is under way, and in which targets precede their sources. Returns
        whether no flush was late: then each of them is flushed or has an error."""
        left: ShardedDict[int, SegmentFlush] = ShardedDict()
        for part in in_slices(plans):
            left.update((plan.sid, plan) for plan in part)
            await turn_after(part)
        order = self._order = FlushOrder()
        for added in in_slices(_added(order, plans, left)):
            await turn_after(added)
        done_before, in_time, had_plans, is_refused = self.done, True, bool(left), False
        while True:
            # The slot first: what is taken from the order must be begun.
            while self._has_slot() and (sid := order.take()) is not None:
                seconds = self._patience.get(sid, self._deadline)
                flush = self._under_way[sid] = _Flush(anyio.current_time() + seconds)
                tasks.start_soon(self._run_one, left.pop(sid), flush)
            if order.is_done:
                break

            if self._is_refused():
                await self._give_up_rest()
                is_refused = True
                break

            await self._wait()
            if late := self._leave_late():
                in_time = False
                self._on_late(late)

        # `in_time`: a late flush may still succeed, so it proves no failure.
        self._is_cautious = is_refused or (had_plans and self.done == done_before and in_time)
        return in_time

    def be_cautious(self) -> None:
        """Nothing could be flushed: let one flush go first."""
        self._is_cautious = True

    def be_bold(self) -> None:
        """Long-term storage accepts changes again: the other flushes need not wait for that one's end."""
        self._is_cautious = False
        self._ended.set()

    async def fail(self, sids: Iterable[int], error: TierlogError) -> None:
        """Give up these segments in this cycle: they are not tried, or not again."""
        for part in in_slices(sids):
            self.errors.update(dict.fromkeys(part, error))
            await anyio.lowlevel.checkpoint()

    def _has_slot(self) -> bool:
        running = len(self._under_way) - self._late
        # F5: while nothing can be flushed, one flush is enough to find out whether that is still so.
        limit = 1 if self._is_cautious else self._limit
        # F7: late flushes take no slot from others, up to as many as may run. Above that no flush begins, or
        # a storage that hangs would gather flushes without end, each with its bytes in memory.
        return running < limit and len(self._under_way) < 2 * self._limit and not self._retry_in()

    def _is_refused(self) -> bool:
        """Nothing of this cycle is under way, and nothing more is begun because storage refuses it."""
        return len(self._under_way) == self._late and bool(self._retry_in())

    async def _give_up_rest(self) -> None:
        refused = Unavailable(
            f"long-term storage does not answer: nothing is flushed for {self._retry_in():.1f} s"
        )
        await self.fail(self._order.open(), refused)

    async def _wait(self) -> None:
        """Return when a flush has ended, or the next one of this cycle is late."""
        self._ended = anyio.Event()
        late_at = min(
            (flush.late_at for flush in self._under_way.values() if not flush.is_late), default=None
        )
        with anyio.CancelScope(deadline=float("inf") if late_at is None else late_at):
            await self._ended.wait()

    def _leave_late(self) -> list[int]:
        """Let flushes whose deadline is over go on by themselves; returns them, with what they are merged
        into."""
        now = anyio.current_time()
        left: list[int] = []
        for sid, flush in self._under_way.items():
            if not flush.is_late and flush.late_at <= now:
                flush.is_late = True
                self._late += 1
                # F7: or a segment whose flushes take long would be held back for good.
                waited = self._patience.get(sid, self._deadline)
                self._patience[sid] = min(2 * waited, _PATIENCE_MAX * self._deadline)
                left += [sid, *self._order.give_up(sid)]

        return left

    async def _run_one(self, plan: SegmentFlush, flush: _Flush) -> None:
        error = await self._flush(plan)
        del self._under_way[plan.sid]
        if error is None:
            if not flush.is_late:
                self._patience.pop(plan.sid, None)
            self.done += 1
            self._is_cautious = False
            # It may be that of a late flush of the segment, which has ended since the last cycle.
            self.errors.pop(plan.sid, None)
        else:
            self.errors[plan.sid] = error
        if flush.is_late:
            self._late -= 1
            self._on_late_end({} if error is None else {plan.sid: error})
        elif error is None:
            # Not for a late one: its cycle has given up the segment, and the order may be that of the next
            # cycle.
            self._order.flushed(plan.sid)
        else:
            self.errors.update(dict.fromkeys(self._order.give_up(plan.sid), error))
        self._ended.set()

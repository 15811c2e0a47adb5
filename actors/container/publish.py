"""Publishing: makes durable operations visible, live and in replay (rule C1).

Durable lengths, the tail cache and the log references change only here and in the ``publish`` functions of
``operations/``. All of it is synchronous; an exception poisons the container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from ...journal.operations.abort_transaction import AbortTransaction
from ...journal.operations.append import Append
from ...journal.operations.begin_transaction import BeginTransaction
from ...journal.operations.commit_transaction import CommitTransaction
from ...journal.operations.operation import Operation
from ...journal.operations.relog_data import RelogData
from ...journal.operations.segment_image import SegmentStatus
from ..read.tail_cache import TailCache
from .operations import PUBLISH
from .operations.append import publish_appends
from .segments import SegmentState
from .state import ContainerState

_UNLOAD_STEP = 512
"""Segments that are considered for unloading in one step."""
JOIN_BYTES_MAX = 16 << 10
"""Up to this size on average, appends of one group are joined before they are cached."""


class Listeners(Struct, frozen=True, eq=False):
    """Functions that are called in the step in which something becomes durable."""

    segment_due: Callable[[int], None] = lambda sid: None
    """A segment has enough unflushed bytes to be flushed."""
    transaction_changed: Callable[[BeginTransaction | CommitTransaction | AbortTransaction], None] = (
        lambda op: None
    )
    """A transaction began or ended."""
    record_changed: Callable[[int], None] = lambda sid: None
    """A segment's record in long-term storage was committed or removed."""
    cycle_completed: Callable[[], None] = lambda: None
    """A flush cycle is complete."""


_NO_LISTENERS = Listeners()


class Publisher:
    def __init__(
        self,
        state: ContainerState,
        cache: TailCache,
        *,
        due_bytes: int,
        aggregate_bytes: int = 0,
        listeners: Listeners = _NO_LISTENERS,
    ) -> None:
        """``due_bytes``: unflushed bytes of a segment that make it due. ``aggregate_bytes``: for long-term
        storage in which chunks cannot grow, unflushed bytes of the container up to which a segment waits for
        a whole chunk; 0 otherwise (rule F5)."""
        self.segments = state.segments
        self.by_id = state.segments.by_id
        self.cache = cache
        self.due_bytes = due_bytes
        self._aggregate_bytes = aggregate_bytes
        self.listeners = listeners
        self._unload_above = 0
        """The next search for idle segments begins above this number of active ones: the last search left so
        many that another one would find few. A flush cycle resets it."""
        self._visits_left = 0
        """Visits that the search under way may still make."""

    def publish(self, operations: Iterable[Operation], group: int) -> None:
        """Make the operations of durable group ``group`` visible, in order.

        Hot path: appends to one segment with only appends between them become visible as one run. All of it
        happens in one step, so no reader can tell, and the cost of a group depends on its segments and bytes
        more than on its number of appends.
        """
        runs: dict[int, list[Append]] = {}
        for op in operations:
            if type(op) is Append:
                run = runs.get(op.sid)
                if run is None:
                    runs[op.sid] = [op]
                else:
                    run.append(op)
                continue

            if runs:
                self._publish_runs(runs, group)
                runs = {}
            publish = PUBLISH.get(type(op))
            if publish is not None:
                publish(self, op, group)

        self._publish_runs(runs, group)

    def _publish_runs(self, runs: dict[int, list[Append]], group: int) -> None:
        for run in runs.values():
            if len(run) == 1 or run[-1].offset - run[0].offset < JOIN_BYTES_MAX * (len(run) - 1):
                publish_appends(self, run, group)
                continue

            for op in run:  # large data is cached as it is: joining would copy it
                publish_appends(self, [op], group)

    def is_due(self, segment: SegmentState, unflushed: int) -> bool:
        """Whether a segment with at least ``due_bytes`` unflushed bytes is to be flushed now."""
        return unflushed >= segment.rolling_size or self.cache.unflushed_bytes >= self._aggregate_bytes

    # --- recovery --------------------------------------------------------------------------------

    def restore(self, segment: SegmentState) -> None:
        """Start caching a segment of a checkpoint."""
        if segment.status is not SegmentStatus.DELETED:
            self.cache.open_segment(segment.sid, segment.flushed)

    def restore_data(self, op: Append | RelogData, group: int) -> None:
        """Cache bytes that the checkpoint's state includes, if long-term storage does not have them yet."""
        if op.sid not in self.cache:
            return  # deleted

        segment, end = self.segments.get(op.sid), op.offset + len(op.data)
        if op.data and segment is not None and end > segment.flushed:
            self.cache.append(op.sid, op.offset, op.data, group)
            segment.add_log_reference(end, group)
            if type(op) is Append:  # re-logged data may begin inside an append
                segment.add_append_boundaries([op], end)

    # --- unloading of idle segments ------------------------------------------------------------

    def runs_published(self) -> None:
        """The runs have what a flush cycle made idle, so searching for it is worthwhile again."""
        self._unload_above = 0

    def has_too_many(self, active_max: int) -> bool:
        """Whether so many segments are in memory that idle ones should be unloaded."""
        return bool(self._visits_left) or self.segments.count > max(active_max, self._unload_above)

    def find_idle(self, active_max: int) -> list[int] | None:
        """The ids of some idle segments, if those in memory are to go from above ``active_max`` to a tenth
        below it; None if that is done."""
        if not self.has_too_many(active_max):
            return None

        goal = active_max - active_max // 10
        # Two rounds: the first may only find out which segments do not change.
        left = self._visits_left or 2 * self.segments.count
        visits = max(0, min(_UNLOAD_STEP, left, self.segments.count - goal))
        self._visits_left = left - visits if self.segments.count > goal else 0
        if not self._visits_left:
            # If few were idle, do not search them all again after every group: only a flush cycle makes many
            # of them idle.
            self._unload_above = self.segments.count + active_max // 10
        return self.segments.find_idle(visits)

"""One flush cycle: its cut, what did not reach it, and what becomes of it (rules F2, F10). Sync."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

from ...storage_backends.base.errors import TierlogError
from ...storage_backends.base.sharded_dict import ShardedDict
from ...storage_backends.base.state_table import StateTable
from .aggregation import SegmentFlush


class CyclePhase(enum.Enum):
    FLUSHING = "flushing"
    ENDED = "ended"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


class CycleEvent(enum.Enum):
    END = "end"
    PUBLISH = "publish"
    FAIL = "fail"
    """An attempt to publish it failed: it is tried again."""
    COUNT = "count"
    """An element counts that records it (rule J5)."""
    ABANDON = "abandon"


CYCLE_PHASES: StateTable[CyclePhase, CycleEvent] = StateTable(
    {
        (CyclePhase.FLUSHING, CycleEvent.END): CyclePhase.ENDED,
        (CyclePhase.ENDED, CycleEvent.PUBLISH): CyclePhase.PUBLISHING,
        (CyclePhase.ENDED, CycleEvent.ABANDON): CyclePhase.ABANDONED,
        (CyclePhase.PUBLISHING, CycleEvent.FAIL): CyclePhase.PUBLISHING,
        (CyclePhase.PUBLISHING, CycleEvent.COUNT): CyclePhase.PUBLISHED,
    }
)


class FlushCut(Protocol):
    """The cut of a full cycle that is published: what its run will say of each segment."""

    @property
    def cut(self) -> int:
        """The sequence of the newest operation before it."""
        ...

    @property
    def held(self) -> Collection[int]:
        """After ``hold_back``: the segments that are held back, with those that are published together with
        them (rule F10)."""
        ...

    def flush_of(self, segment: Any) -> SegmentFlush | None:
        """The segment's part in the cycle; None if it was published before."""
        ...

    def finish(self, unreached: Collection[int]) -> None:
        """The cycle ends, and the flushes of ``unreached`` did not reach the cut."""

    def hold_back(self) -> Iterator[None]:
        """Decide which segments are held back, some in each step."""
        ...


class FlushCycle:
    def __init__(self, number: int, sequence: int, attempt: int, cut: FlushCut | None) -> None:
        """``attempt``: that of the callers of ``flush``; 0 if the cycle is not full. ``cut``: what of the
        cycle can be published, if anything."""
        self.number = number
        self.sequence = sequence
        """The newest operation before the cut."""
        self.attempt = attempt
        self.cut = cut
        self.phase = CyclePhase.FLUSHING
        self.unreached: ShardedDict[int, None] = ShardedDict()
        """Of a full cycle, the segments that are not flushed up to the cut."""
        self.failed: Mapping[int, TierlogError] = {}
        """The errors of the cycle, once it has ended."""

    @property
    def is_full(self) -> bool:
        return self.attempt > 0

    @property
    def is_whole(self) -> bool:
        """Whether everything up to the cut was flushed."""
        return self.is_full and not self.unreached and not self.failed

    def flushed(self, plan: SegmentFlush) -> None:
        """A flush has ended. After the end of the cycle it counts for the next one (rules F2, F10)."""
        if self.phase is CyclePhase.FLUSHING and plan.cut == self.sequence:
            self.unreached.pop(plan.sid, None)

    def end(self, failed: Mapping[int, TierlogError]) -> None:
        """No flush counts for this cycle any more. ``failed``: the errors of its flushes."""
        self.step(CycleEvent.END)
        self.failed = failed
        if self.cut is not None:
            self.cut.finish(self.unreached)

    def step(self, event: CycleEvent) -> None:
        self.phase = CYCLE_PHASES.next(self.phase, event)
        if self.phase in (CyclePhase.PUBLISHED, CyclePhase.ABANDONED):
            self.cut = None  # frees what it has saved

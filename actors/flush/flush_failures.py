"""Which segments cannot be flushed, and what is logged about it: that some cannot, and that all are flushed
again, as one event each (rules F5, S7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio.lowlevel

from ...storage_backends.base.errors import StorageFull, TierlogError
from ...storage_backends.base.sharded_dict import ShardedDict
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .aggregation import FlushableSegment

_log = get_logger("writer")

_NAMED = 10
"""The most segments that one log event names."""


class FlushFailures:
    def __init__(self, segment_of: Callable[[int], FlushableSegment | None]) -> None:
        self._segment_of = segment_of
        self.errors: ShardedDict[int, TierlogError] = ShardedDict()
        """By segment, those of flushes that failed and were not repeated successfully."""
        self.has_errors = False
        """Whether any segment fails. Admission reads it for every append."""
        self.lacks_room = False
        """Whether long-term storage had no room for a segment's data since none failed."""
        self._unflushed: ShardedDict[int, None] = ShardedDict()
        """Segments that the last cycle with them did not flush, tried or not."""
        self.is_failing = False
        """Whether some segments could not be flushed, as of the last cycle."""

    def failed(self, sid: int, error: TierlogError) -> None:
        self.errors[sid] = error
        self.has_errors = True
        self.lacks_room |= isinstance(error, StorageFull)

    def flushed(self, sid: int) -> None:
        self.errors.pop(sid, None)
        self._note_errors()
        self._unflushed.pop(sid, None)

    async def note(self, failed: Mapping[int, TierlogError], *, is_refused: bool) -> None:
        """A cycle has ended with these errors. ``is_refused``: long-term storage refuses every change now."""
        new: list[int] = []
        for part in in_slices(failed):
            new += [sid for sid in part if sid not in self._unflushed]
            self._unflushed.update(dict.fromkeys(part))
            await anyio.lowlevel.checkpoint()
        # During an outage the others follow one by one, and their events would say nothing new.
        if new and not (self.is_failing and is_refused):
            names = [s.name for s in map(self._segment_of, new[:_NAMED]) if s is not None]
            error = str(failed[new[0]])
            _log.warning("flush_failed", count=len(self._unflushed), segments=names, error=error)
        await self._drop_gone(self.errors)
        self._note_errors()
        await self._drop_gone(self._unflushed)
        if self.is_failing and not self._unflushed:
            _log.info("flush_recovered")
        self.is_failing = bool(self._unflushed)

    def _note_errors(self) -> None:
        self.has_errors = bool(self.errors)
        self.lacks_room &= self.has_errors

    async def _drop_gone(self, sids: ShardedDict[int, TierlogError] | ShardedDict[int, None]) -> None:
        for part in in_slices(sids):
            for sid in part:
                if self._segment_of(sid) is None:
                    sids.pop(sid, None)
            await anyio.lowlevel.checkpoint()

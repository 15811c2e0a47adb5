"""Admission: the gates that a client's append must pass before it enters the mailbox (rule C6).

There are three, in this order: free disk space (rule W6), all unflushed bytes, and those of a segment that
cannot be flushed (rule F4). What is not flushed is in the log, so the disk bounds it and not memory (rule
C10). Internal requests pass no gate, because they relieve what the gates measure.

From ``cycle_bytes`` on, flush cycles follow each other. Between the soft and the hard limit an append waits
in proportion, until a flush cycle makes progress or its delay is over. Above the hard limit it is refused as
``Throttled``, or as ``StorageFull`` if flushes fail because long-term storage has no room. Nothing was done
for a refused append. Cancellation leaves nothing behind."""

from __future__ import annotations

import anyio
import attrs

from ...journal.log.contract import DurableDataLog
from ...storage_backends.base.errors import StorageFull, Throttled
from ...storage_backends.base.statistics import counter
from ..flush.writer import StorageWriter
from ..read.tail_cache import TailCache
from .state import ContainerState


@attrs.frozen
class AdmissionOptions:
    soft_bytes: int
    """Unflushed bytes above which appends are delayed."""
    hard_bytes: int
    """Unflushed bytes above which appends are refused."""
    segment_bytes: int
    """Unflushed bytes of one segment that keeps failing to flush, above which only its own appends are
    refused."""
    cycle_bytes: int = attrs.field(default=attrs.Factory(lambda self: self.soft_bytes, takes_self=True))
    """Unflushed bytes above which appends make a flush cycle due: they fill most of memory."""
    delay_max: float = 2.0
    """Seconds that an append waits just below the hard limit."""
    space_interval: float = 1.0
    """Seconds between two checks of a full disk."""


@attrs.frozen
class AdmissionStatistics:
    delayed: int = attrs.field(metadata=counter("Appends that waited because much is unflushed."))
    throttled: int = attrs.field(metadata=counter("Appends refused because too much is unflushed."))
    refused_full: int = attrs.field(metadata=counter("Appends refused because the disk is nearly full."))


class Admission:
    def __init__(
        self,
        state: ContainerState,
        cache: TailCache,
        log: DurableDataLog,
        writer: StorageWriter,
        options: AdmissionOptions,
    ) -> None:
        self._state = state
        self._cache = cache
        self._log = log
        self._writer = writer
        self._options = options
        self._next_check = 0.0
        self._delayed = self._throttled = self._full = 0

    def is_open(self, size: int) -> bool:
        """Whether an append of ``size`` bytes to any segment may go on at once. Cheap: it is called for every
        append."""
        return (
            self._cache.unflushed_bytes < self._options.cycle_bytes
            and not self._writer.failing
            and self._log.has_room(size)
        )

    async def admit(self, name: str, size: int) -> None:
        """Return when an append of ``size`` bytes may go on; raises ``StorageFull`` or ``Throttled``
        otherwise. Does not suspend while every gate is open."""
        if not self._log.has_room(size) and not await self._has_room_again(size):
            self._full += 1
            raise self._log.room_error()

        if self._cache.unflushed_bytes >= self._options.cycle_bytes:
            # Many small segments may fill memory long before one of them is due by size or age.
            self._writer.request_cycle()
        if self._cache.unflushed_bytes >= self._options.soft_bytes:
            await self._delay()
        if self._writer.failing:
            self._check_segment(name)

    async def _has_room_again(self, size: int) -> bool:
        """Refused appends do not write, so only a check of the disk from time to time finds space that was
        freed (rule W6)."""
        now = anyio.current_time()
        if now < self._next_check:
            return False

        # Before the await, so that of many appends that wait one measures.
        self._next_check = now + self._options.space_interval
        await self._log.check_space()
        return self._log.has_room(size)

    def _check_segment(self, name: str) -> None:
        segment = self._state.segments.find(name)
        if segment is None or segment.sid not in self._writer.failing:
            return

        # The speculative length: appends that are accepted and not durable yet count too.
        if segment.length - segment.flushed > self._options.segment_bytes:
            self._throttled += 1
            raise self._refusal(
                f"segment {name!r} cannot be flushed and has {segment.length - segment.flushed} unflushed "
                f"bytes"
            )

    async def _delay(self) -> None:
        options = self._options
        unflushed = self._cache.unflushed_bytes
        if unflushed >= options.hard_bytes:
            self._throttled += 1
            raise self._refusal(
                f"{unflushed} bytes wait to be flushed (limit {options.hard_bytes}): slow down and try again"
            )

        self._delayed += 1
        share = (unflushed - options.soft_bytes) / max(1, options.hard_bytes - options.soft_bytes)
        # At its end the append goes on in any case: only the hard limit refuses.
        with anyio.move_on_after(options.delay_max * share):
            await self._writer.progress.wait()

    def _refusal(self, why: str) -> StorageFull | Throttled:
        full = next(
            (error for error in self._writer.failing.values() if isinstance(error, StorageFull)), None
        )
        return Throttled(why) if full is None else StorageFull(f"{why}; flushes wait for room: {full}")

    def statistics(self) -> AdmissionStatistics:
        return AdmissionStatistics(self._delayed, self._throttled, self._full)

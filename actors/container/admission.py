"""Admission: the gates that a client's append must pass before it enters the mailbox (rule C6).

There are five, in this order: free disk space (rule W6), records that wait to be published (rule M12), the
number of segments in memory (rule M5), all unflushed bytes, and those of a segment that cannot be flushed
(rule F4). What is not flushed is in the log, so the disk bounds it and not memory (rule C10). The first gate
is that of everything else, too, that makes something new: a segment, an attribute, a transaction. The third
one is that of all that brings a segment into memory. Internal requests pass no gate, because they relieve
what the gates measure.

From ``cycle_bytes`` on, flush cycles follow each other. Between the soft and the hard limit an append waits
in proportion, until a flush cycle makes progress or its delay is over. Above the hard limit it is refused as
``Throttled``, or as ``StorageFull`` if flushes fail because long-term storage has no room. Nothing was done
for a refused append. Cancellation leaves nothing behind."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from ...journal.log.contract import DurableDataLog
from ...storage_backends.base.errors import StorageFull, Throttled
from ...storage_backends.base.values import Value
from ..flush.writer import StorageWriter
from ..read.tail_cache import TailCache
from .state import ContainerState

if TYPE_CHECKING:
    from .statistics import AdmissionStatistics

SEGMENTS_MAX = 100_000


@attrs.frozen(eq=False, repr=False)
class AdmissionOptions(Value):
    soft_bytes: int
    """Unflushed bytes above which appends are delayed."""
    hard_bytes: int
    """Unflushed bytes above which appends are refused."""
    segment_bytes: int
    """Unflushed bytes of one segment that keeps failing to flush, above which only its own appends are
    refused."""
    cycle_bytes: int = attrs.field(default=attrs.Factory(lambda self: self.soft_bytes, takes_self=True))
    """Unflushed bytes above which appends make a flush cycle due: they fill most of memory."""
    row_bytes: int = 512 << 20
    """Bytes of records in memory above which appends are refused: far more than a flush cycle makes, so runs
    cannot be published (rule M12)."""
    row_cycle_bytes: int = 32 << 20
    """Bytes of records in memory that make a flush cycle due (rule M18)."""
    segments: int = SEGMENTS_MAX
    """Segments in memory above which requests that bring another one there are refused; from half of it on
    they are delayed. About 2 KiB for each that was created and not published yet (rule M5)."""
    delay_max: float = 2.0
    """Seconds that an append waits just below the hard limit."""
    space_interval: float = 1.0
    """Seconds between two checks of a full disk."""
    publish_interval: float = 10.0
    """Seconds between two cycles that appends refused for ``row_bytes`` request."""


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
        self._failures = writer.failures
        self._options = options
        self._next_check = self._next_publish = 0.0
        self._delayed = self._throttled = self._rows = self._segments = self._full = 0

    def is_open(self, size: int) -> bool:
        """Whether an append of ``size`` bytes to any segment may go on at once. Cheap: it is called for every
        append."""
        return (
            self._cache.unflushed_bytes < self._options.cycle_bytes
            and not self._failures.has_errors
            and self._state.table.memory < self._options.row_bytes
            and 2 * self._state.segments.count < self._options.segments  # as ``is_crowded``
            and self._log.has_room(size)
        )

    async def admit(self, name: str, size: int) -> None:
        """Return when an append of ``size`` bytes may go on; raises ``StorageFull`` or ``Throttled``
        otherwise. Does not suspend while every gate is open."""
        if not self._log.has_room(size):
            await self.require_room(size)
        if self._state.table.memory >= self._options.row_bytes:
            self._refuse_rows()
        if self.is_crowded:
            await self.admit_segments((name,))
        if self._cache.unflushed_bytes >= self._options.cycle_bytes:
            # Many small segments may fill memory long before one of them is due by size or age.
            self._writer.request_cycle()
        if self._cache.unflushed_bytes >= self._options.soft_bytes:
            await self._delay()
        if self._failures.has_errors:
            self._check_segment(name)

    async def require_room(self, size: int) -> None:
        """Raises ``StorageFull`` if the disk is nearly full, of ``size`` bytes of an append or of anything
        else that stays in the log, and ``Throttled`` if too many rows wait in memory."""
        if not self._log.has_room(size) and not await self._has_room_again(size):
            self._full += 1
            raise self._log.room_error()

        if self._state.table.memory >= self._options.row_bytes:
            self._refuse_rows()

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

    @property
    def is_crowded(self) -> bool:
        """Whether so many segments are in memory that ``admit_segments`` must be asked."""
        return 2 * self._state.segments.count >= self._options.segments

    async def admit_segments(self, names: Sequence[str], *, deletes: bool = False) -> None:
        """Return when a request may go on that brings these segments into memory; raises ``Throttled`` if
        there are too many. Those that are flushed and published leave it (rule M5). ``deletes``: it may use
        twice the memory, because what it deletes may be what long-term storage has no room for."""
        segments, most = self._state.segments, self._options.segments * (2 if deletes else 1)
        if 2 * segments.count < most or all(segments.in_memory(name) is not None for name in names):
            return

        if segments.count < most:
            # The others leave without one, or are in use.
            if 4 * self._state.unpublished_segments >= segments.count:
                self._writer.request_cycle()
            # Most of the progress of a cycle lets no segment leave memory.
            await self._wait(segments.count - most // 2, most - most // 2, segments.wait_for_removal)
        # Others have waited for the same progress, and came first.
        if segments.count >= most:
            self._request_publication()
            self._segments += 1
            raise Throttled(
                f"{segments.count} segments in memory wait to be flushed and published by a flush cycle, or "
                f"are in use (limit {most}): try again later; the errors of flushes have the cause, and "
                f"segments.active_max raises the limit"
            )

    def _request_publication(self) -> None:
        """Refused requests make no cycle due, so one is requested from time to time: it may have room."""
        now = anyio.current_time()
        if now >= self._next_publish:
            self._next_publish = now + self._options.publish_interval
            self._writer.request_cycle()

    def _refuse_rows(self) -> None:
        self._request_publication()
        self._rows += 1
        raise Throttled(
            f"{self._state.table.memory} bytes of records wait in memory to be published by a flush cycle "
            f"(limit {self._options.row_bytes}): try again later; the log event rows_not_published and "
            f"the errors of flushes have the cause"
        )

    def _check_segment(self, name: str) -> None:
        segment = self._state.segments.in_memory(name)
        if segment is None or segment.sid not in self._failures.errors:
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

        room = options.hard_bytes - options.soft_bytes
        await self._wait(unflushed - options.soft_bytes, room, self._writer.progress.wait)

    async def _wait(self, above: int, room: int, relief: Callable[[], Awaitable[None]]) -> None:
        """``above``: how much of ``room`` between the limits is used. ``relief()`` returns once less is."""
        self._delayed += 1
        # At its end the request goes on in any case: only the hard limit refuses.
        with anyio.move_on_after(self._options.delay_max * above / max(1, room)):
            await relief()

    def _refusal(self, why: str) -> StorageFull | Throttled:
        full = next(
            (error for error in self._failures.errors.values() if isinstance(error, StorageFull)), None
        )
        return Throttled(why) if full is None else StorageFull(f"{why}; flushes wait for room: {full}")

    def statistics(self) -> AdmissionStatistics:
        from .statistics import AdmissionStatistics

        return AdmissionStatistics(self._delayed, self._throttled, self._rows, self._segments, self._full)

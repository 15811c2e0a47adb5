"""What reads and the tail cache count."""

from __future__ import annotations

import attrs

from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.values import Value


@attrs.frozen(eq=False, repr=False)
class ReadAheadStatistics(Value):
    streams: int = attrs.field(metadata=gauge("Sequential readers of long-term storage that are tracked."))
    held_bytes: int = attrs.field(metadata=gauge("Bytes of read-ahead windows, fetched or being fetched."))
    windows: int = attrs.field(metadata=counter("Windows fetched ahead."))
    unread: int = attrs.field(metadata=counter("Windows dropped before they were read to their end."))
    hits: int = attrs.field(metadata=counter("Reads answered by a window."))
    misses: int = attrs.field(metadata=counter("Reads that went to long-term storage themselves."))


@attrs.frozen(eq=False, repr=False)
class TailCacheStatistics(Value):
    segments: int = attrs.field(metadata=gauge("Segments with cached bytes."))
    total_bytes: int = attrs.field(metadata=gauge("Charged bytes: data plus overhead."))
    unflushed_bytes: int = attrs.field(metadata=gauge("Data that is not in long-term storage yet."))
    pinned_bytes: int = attrs.field(metadata=gauge("Unflushed data in memory; the rest is in the log only."))
    limit_bytes: int = attrs.field(metadata=gauge("The limit of charged bytes."))
    evicted_bytes: int = attrs.field(metadata=counter("Flushed data dropped to make room."))
    spilled_bytes: int = attrs.field(metadata=counter("Unflushed data dropped to make room."))


@attrs.frozen(eq=False, repr=False)
class UnflushedStatistics(Value):
    windows_read: int = attrs.field(metadata=counter("Windows of the log read for unflushed bytes."))
    window_bytes: int = attrs.field(metadata=counter("Bytes of groups in those windows."))
    loaded_bytes: int = attrs.field(metadata=gauge("Spilled bytes loaded for flushes under way."))

"""What the storage writer counts."""

from __future__ import annotations

import attrs

from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.values import Value


@attrs.frozen(eq=False, repr=False)
class WriterStatistics(Value):
    cycles: int = attrs.field(metadata=counter("Flush cycles begun."))
    flushed_bytes: int = attrs.field(metadata=counter("Bytes written to long-term storage."))
    failing_segments: int = attrs.field(metadata=gauge("Segments whose last flush failed."))
    late_segments: int = attrs.field(
        metadata=gauge("Segments whose flush takes longer than a cycle waits for it.")
    )
    last_cut: int = attrs.field(
        metadata=gauge("The operation sequence up to which the newest full cycle flushed.")
    )
    due_segments: int = attrs.field(metadata=gauge("Segments with enough unflushed bytes for a cycle."))
    deferred_work: int = attrs.field(
        metadata=gauge("Deferred work of metadata operations in long-term storage.")
    )
    deferred_steps: int = attrs.field(metadata=counter("Steps of deferred work done."))
    newer_deferred_work: int = attrs.field(
        metadata=gauge("Deferred work of kinds that only a newer version of tierlog can run.")
    )

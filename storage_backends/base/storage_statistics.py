"""What files and chunk storages count."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .statistics import counter, gauge
from .values import Value


@attrs.frozen(eq=False, repr=False)
class FilesStatistics(Value):
    programs: int = attrs.field(metadata=counter("Programs begun."))
    running: int = attrs.field(
        metadata=gauge(
            "Programs in threads now; after a close that passed its deadline, threads leaked on purpose."
        )
    )


@attrs.frozen(eq=False, repr=False)
class ChunkVerbStatistics(Value):
    calls: int = attrs.field(metadata=counter("Calls of the verb."))
    failures: int = attrs.field(metadata=counter("Calls that raised an error."))
    seconds: float = attrs.field(metadata=counter("Total seconds spent in the verb's calls."))


@attrs.frozen(eq=False, repr=False)
class ChunkErrorStatistics(Value):
    raised: int = attrs.field(metadata=counter("Errors of this kind raised."))


@attrs.frozen(eq=False, repr=False)
class ChunkCacheStatistics(Value):
    """Of the local chunk cache, as this process sees it."""

    hits: int = attrs.field(metadata=counter("Reads served by the local chunk cache alone."))
    misses: int = attrs.field(metadata=counter("Reads for which the storage was asked."))
    hit_bytes: int = attrs.field(metadata=counter("Bytes read from the cache."))
    filled_bytes: int = attrs.field(metadata=counter("Bytes written to the cache."))
    held_bytes: int = attrs.field(
        metadata=gauge("Bytes in the cache when it was last listed, and added by this process since.")
    )
    evicted: int = attrs.field(metadata=counter("Cached chunks removed to keep the bound."))
    unlisted: int = attrs.field(metadata=counter("Cached chunks removed because no record names them."))
    damaged: int = attrs.field(metadata=counter("Cached chunks found damaged or unreadable."))
    failures: int = attrs.field(metadata=counter("Failures of the local disk in the cache's folder."))
    bypassed: int = attrs.field(metadata=gauge("1 while nothing can be cached, else 0."))


@attrs.frozen(eq=False, repr=False)
class ChunkStorageStatistics(Value):
    """Counts since the storage was made; bytes are user bytes."""

    creates: int = attrs.field(default=0, metadata=counter("Chunks created."))
    writes: int = attrs.field(default=0, metadata=counter("Writes to existing chunks."))
    reads: int = attrs.field(default=0, metadata=counter("Reads."))
    deletes: int = attrs.field(default=0, metadata=counter("Chunks deleted."))
    bytes_written: int = attrs.field(default=0, metadata=counter("Bytes written."))
    bytes_read: int = attrs.field(default=0, metadata=counter("Bytes read."))
    verbs: Mapping[str, ChunkVerbStatistics] = attrs.field(factory=dict)
    """Counts by the verb's name."""
    errors: Mapping[str, ChunkErrorStatistics] = attrs.field(factory=dict)
    """Counts by the error's ``code``."""
    cache: ChunkCacheStatistics | None = None

"""What the segments of a container count."""

from __future__ import annotations

import attrs

from ..base.statistics import counter, gauge
from ..base.values import Value


@attrs.frozen(eq=False, repr=False)
class ChunkedStatistics(Value):
    """Counts since the instance was made; bytes are user bytes."""

    commits: int = attrs.field(metadata=counter("Metadata transactions committed."))
    aborts: int = attrs.field(metadata=counter("Metadata transactions aborted."))
    chunks_created: int = attrs.field(metadata=counter("Chunks created."))
    bytes_written: int = attrs.field(metadata=counter("User bytes written to chunks."))
    bytes_read: int = attrs.field(metadata=counter("User bytes read from chunks."))
    chunks_joined: int = attrs.field(metadata=counter("Small chunks replaced by a larger one."))
    chunks_relocated: int = attrs.field(
        metadata=counter("Mostly truncated chunks whose live end was moved to a new one.")
    )
    bytes_joined: int = attrs.field(metadata=counter("User bytes copied by joins and relocations."))
    joins_refused: int = attrs.field(
        metadata=counter("Joins and relocations refused because a chunk is damaged.")
    )
    open_transactions: int = attrs.field(metadata=gauge("Open metadata transactions."))
    cached_segments: int = attrs.field(metadata=gauge("Segments in the layout cache."))
    cached_chunks: int = attrs.field(metadata=gauge("Chunk records in the layout cache."))

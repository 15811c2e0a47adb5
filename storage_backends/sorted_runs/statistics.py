"""What the parts of a table count."""

from __future__ import annotations

import attrs

from ..base.statistics import counter, gauge
from ..base.values import Value


@attrs.frozen(eq=False, repr=False)
class BlockCacheStatistics(Value):
    held_bytes: int = attrs.field(
        metadata=gauge("Bytes of blocks and tails in the cache, which all containers share.")
    )
    hits: int = attrs.field(metadata=counter("Blocks and tails found in the cache."))
    loads: int = attrs.field(metadata=counter("Blocks and tails read because the cache did not have them."))
    evictions: int = attrs.field(metadata=counter("Blocks and tails evicted for others."))


@attrs.frozen(eq=False, repr=False)
class LocalCopyStatistics(Value):
    copies: int = attrs.field(metadata=gauge("Sorted runs with a copy on the local disk."))
    copy_bytes: int = attrs.field(metadata=gauge("Bytes of local copies of sorted runs."))
    local_reads: int = attrs.field(metadata=counter("Reads of sorted runs served by local copies."))
    remote_reads: int = attrs.field(metadata=counter("Reads of sorted runs served by long-term storage."))
    damaged: int = attrs.field(metadata=counter("Local copies of sorted runs found damaged."))

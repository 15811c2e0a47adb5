"""The statistics of a store in one process."""

from __future__ import annotations

import attrs

from ...storage_backends.base.values import Value
from ...storage_backends.chunks.s3_request_counts import S3RequestStatistics
from ..chunk_io.statistics import StorageActorStatistics
from ..container.statistics import LocalContainerStatistics
from ..kernel.statistics import EventLoopStatistics


@attrs.frozen(eq=False, repr=False)
class StoreStatistics(Value):
    """What ``SegmentStore.statistics()`` returns: counters and gauges as of one moment."""

    containers: tuple[LocalContainerStatistics, ...]
    storage: StorageActorStatistics | None = None
    """Calls to long-term storage, of all containers."""
    event_loop: EventLoopStatistics | None = None
    s3: S3RequestStatistics | None = None
    """Requests to the bucket of the store, or of its long-term storage."""

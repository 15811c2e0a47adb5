"""What the collector counts."""

from __future__ import annotations

import attrs

from ...storage_backends.base.statistics import counter, gauge
from ...storage_backends.base.values import Value


@attrs.frozen(eq=False, repr=False)
class CollectorStatistics(Value):
    queued: int = attrs.field(metadata=gauge("Names that wait for deletion."))
    released: int = attrs.field(metadata=counter("Names that this owner has released for deletion."))
    deleted: int = attrs.field(metadata=counter("Chunks deleted."))
    attempts: int = attrs.field(metadata=counter("Deletions tried."))
    seconds: float = attrs.field(
        metadata=counter("Seconds from release to deletion, summed over the chunks deleted.")
    )
    postponed: int = attrs.field(
        metadata=counter("Names examined that are still referenced, or of a transaction under way.")
    )
    already_gone: int = attrs.field(
        metadata=counter("Chunks that were missing when they were to be deleted.")
    )
    retried: int = attrs.field(metadata=counter("Failed deletions that are tried again."))
    retry_later: int = attrs.field(
        metadata=gauge(
            "Names whose deletion failed repeatedly; they are tried again after ever longer pauses."
        )
    )
    given_up: int = attrs.field(
        metadata=counter("Names given up because too many deletions failed; the next opening finds them.")
    )
    orphans_found: int = attrs.field(metadata=gauge("Names of dead owners found by listings."))
    unpublished: int = attrs.field(
        metadata=gauge("Names that wait until an element records that no segment has them.")
    )
    paused: int = attrs.field(metadata=gauge("1 while an operator has paused garbage collection."))
    unconfirmed: int = attrs.field(
        metadata=gauge("1 while nothing is deleted because an operator has not confirmed the container.")
    )

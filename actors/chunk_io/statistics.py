"""What the actor for long-term storage and its parts count."""

from __future__ import annotations

import attrs

from ...storage_backends.base.statistics import counter, gauge, state
from ...storage_backends.base.storage_statistics import ChunkStorageStatistics
from ...storage_backends.base.values import Value
from ..kernel.statistics import MailboxStatistics
from .health import StorageHealthStatistics


@attrs.frozen(eq=False, repr=False)
class BreakerStatistics(Value):
    state: str = attrs.field(
        metadata=state("Whether long-term storage is called: closed (yes), open (no), probing (one caller).")
    )
    failures: int = attrs.field(metadata=gauge("Failures in a row."))
    opened: int = attrs.field(metadata=counter("Times it opened, a failed probe included."))
    probes: int = attrs.field(metadata=counter("Calls let through to see whether long-term storage is back."))
    refused: int = attrs.field(metadata=counter("Calls refused while it was open."))


@attrs.frozen(eq=False, repr=False)
class PoolStatistics(Value):
    queue: MailboxStatistics
    limit: int = attrs.field(metadata=gauge("Calls to long-term storage at the same time, at most."))
    running: int = attrs.field(metadata=gauge("Calls running."))
    late: int = attrs.field(
        metadata=gauge(
            "Calls past their deadline: answered, but they keep their slot until the backend returns."
        )
    )
    went_late: int = attrs.field(metadata=counter("Calls that went past their deadline."))
    done: int = attrs.field(metadata=counter("Calls carried out with success."))
    failed: int = attrs.field(metadata=counter("Calls that failed."))
    dropped: int = attrs.field(metadata=counter("Calls never begun, because their caller had gone."))
    bytes: int = attrs.field(metadata=counter("User bytes read or written with success."))


@attrs.frozen(eq=False, repr=False)
class QuotaStatistics(Value):
    safe_size_bytes: int = attrs.field(
        metadata=gauge("Space in use above which flushes stop; 0 means no limit.")
    )
    used_bytes: int = attrs.field(metadata=gauge("Space in use: last measured, and what was written since."))
    measured: int = attrs.field(metadata=counter("Measurements that succeeded."))
    missed: int = attrs.field(metadata=counter("Measurements that failed; the last good one is kept."))
    refused: int = attrs.field(metadata=counter("Writes refused because of the limit."))


@attrs.frozen(eq=False, repr=False)
class AttemptsStatistics(Value):
    retries: int = attrs.field(metadata=counter("Calls to long-term storage that were repeated."))
    read_backs: int = attrs.field(metadata=counter("Creations of unknown outcome that were read back."))


@attrs.frozen(eq=False, repr=False)
class StorageActorStatistics(Value):
    state: str = attrs.field(metadata=state("The storage actor's state."))
    reads: PoolStatistics
    writes: PoolStatistics
    attempts: AttemptsStatistics
    quota: QuotaStatistics
    breaker: BreakerStatistics
    health: StorageHealthStatistics
    backend: ChunkStorageStatistics
    failed_at_exit: int = attrs.field(metadata=counter("Calls still running when the actor ended."))

"""The statistics of a container: those of all its parts in one frozen snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...journal.log.contract import LogStatistics
from ...journal.manifest.element import RUN_LIST_BYTES_MAX
from ...storage_backends.base.statistics import counter, gauge, label, state
from ...storage_backends.base.values import Value
from ...storage_backends.segments.statistics import ChunkedStatistics
from ...storage_backends.sorted_runs.statistics import BlockCacheStatistics, LocalCopyStatistics
from ..flush.statistics import WriterStatistics
from ..gc.statistics import CollectorStatistics
from ..kernel.statistics import MailboxStatistics
from ..read.statistics import ReadAheadStatistics, TailCacheStatistics, UnflushedStatistics
from .recovery import RecoveryReport

if TYPE_CHECKING:
    from .components import ContainerComponents
    from .container import Container


@attrs.frozen(eq=False, repr=False)
class AdmissionStatistics(Value):
    delayed: int = attrs.field(metadata=counter("Requests that waited because much is unflushed."))
    throttled: int = attrs.field(metadata=counter("Appends refused because too much is unflushed."))
    refused_rows: int = attrs.field(
        metadata=counter("Appends refused because too many records wait in memory to be published.")
    )
    refused_segments: int = attrs.field(
        metadata=counter("Requests refused because too many segments in memory wait to be published.")
    )
    refused_full: int = attrs.field(
        metadata=counter("Appends and other additions refused because the disk is nearly full.")
    )


@attrs.frozen(eq=False, repr=False)
class CheckpointStatistics(Value):
    checkpoints: int = attrs.field(metadata=counter("Checkpoints completed."))
    last_bytes: int = attrs.field(metadata=gauge("Size of the newest checkpoint in bytes."))
    relogged_bytes: int = attrs.field(metadata=counter("Unflushed bytes logged again at the log's tail."))


@attrs.frozen(eq=False, repr=False)
class TransactionStatistics(Value):
    open: int = attrs.field(metadata=gauge("Open transactions."))
    tombstones: int = attrs.field(metadata=gauge("Ends of transactions that are still remembered."))
    committed: int = attrs.field(metadata=counter("Transactions committed by this owner."))
    aborted: int = attrs.field(metadata=counter("Transactions aborted by this owner, for any reason."))
    expired: int = attrs.field(metadata=counter("Transactions aborted because their lease expired."))


@attrs.frozen(eq=False, repr=False)
class LoaderStatistics(Value):
    loaded: int = attrs.field(metadata=counter("Segments loaded from the runs of the system table."))
    lookups: int = attrs.field(
        metadata=counter("Lookups for requests that wait for segments, each for up to 256 of them.")
    )
    lookup_seconds: float = attrs.field(
        metadata=counter("Total seconds from the beginning of these lookups to the decision of the requests.")
    )
    waiting: int = attrs.field(metadata=gauge("Requests that wait for segments to be loaded."))
    waiting_bytes: int = attrs.field(metadata=gauge("Bytes of these requests."))


@attrs.frozen(eq=False, repr=False)
class JournalStatistics(Value):
    elements: int = attrs.field(metadata=counter("Elements of the journal that this owner created."))
    head: int = attrs.field(metadata=gauge("The number of the newest element; 0 if there is none."))
    newest_age_seconds: float = attrs.field(
        metadata=gauge("Seconds since an element last counted; since the opening if none has.")
    )
    unconfirmed_creations: int = attrs.field(
        metadata=gauge("1 while the creation of an element has no known outcome.")
    )


@attrs.frozen(eq=False, repr=False)
class PinStatistics(Value):
    backups: int = attrs.field(metadata=gauge("Backups that keep something of the container."))
    oldest_seconds: float = attrs.field(metadata=gauge("The age of the oldest of them, in seconds."))


@attrs.frozen(eq=False, repr=False)
class PipelineStatistics(Value):
    operations: int = attrs.field(metadata=counter("Operations made durable by this owner."))
    groups: int = attrs.field(metadata=counter("Groups made durable by this owner."))
    payload_bytes: int = attrs.field(metadata=counter("Payload bytes made durable by this owner."))
    refused: int = attrs.field(metadata=counter("Requests answered with an error."))


@attrs.frozen(eq=False, repr=False)
class TableStatistics(Value):
    rows: int = attrs.field(metadata=gauge("Rows of the system table in memory: those that no run has yet."))
    row_bytes: int = attrs.field(metadata=gauge("Bytes of memory that these rows take, about."))
    resident_records: int = attrs.field(
        metadata=gauge("Resident records: in memory also once a run has them.")
    )
    runs: int = attrs.field(metadata=gauge("Sorted runs of the system table."))
    run_rows: int = attrs.field(
        metadata=gauge("Rows of these runs, each as often as it is in one of them; tombstones count.")
    )
    run_bytes: int = attrs.field(metadata=gauge("Bytes of the sorted runs of the system table."))
    list_bytes: int = attrs.field(
        metadata=gauge(f"Bytes of the run list in an element, which has room for {RUN_LIST_BYTES_MAX}.")
    )
    published: int = attrs.field(metadata=counter("Runs published by flush cycles."))
    published_bytes: int = attrs.field(metadata=counter("Bytes of runs published by flush cycles."))
    unpublished: int = attrs.field(
        metadata=counter("Flush cycles that completed without their run, because there was no room for it.")
    )
    merges: int = attrs.field(metadata=counter("Merges of runs completed."))
    merged_bytes: int = attrs.field(metadata=counter("Bytes of runs written by merges."))
    due_runs: int = attrs.field(metadata=gauge("Runs that the next merge takes; 0 if none is due."))
    due_bytes: int = attrs.field(metadata=gauge("Bytes of the runs that the next merge takes."))
    held_segments: int = attrs.field(
        metadata=gauge("Segments whose rows are held back: the runs have those of an earlier cycle.")
    )
    cache: BlockCacheStatistics
    copies: LocalCopyStatistics


@attrs.frozen(eq=False, repr=False)
class TablesStatistics(Value):
    updates: int = attrs.field(metadata=counter("Updates of tables."))
    rows: int = attrs.field(metadata=counter("Rows put and removed by updates of tables."))
    conflicts: int = attrs.field(metadata=counter("Updates of tables refused because of a condition."))
    removed_rows: int = attrs.field(metadata=counter("Rows removed that deleted segments left."))


@attrs.frozen(eq=False, repr=False)
class ContainerStatistics(Value):
    container: int = attrs.field(metadata=label())
    epoch: int = attrs.field(metadata=gauge("The epoch of this ownership."))
    segments: int = attrs.field(metadata=gauge("Live segments."))
    active_segments: int = attrs.field(metadata=gauge("Segments in memory."))
    recovery: RecoveryReport
    log: LogStatistics
    mailbox: MailboxStatistics
    pipeline: PipelineStatistics
    cache: TailCacheStatistics
    admission: AdmissionStatistics
    writer: WriterStatistics
    checkpoints: CheckpointStatistics
    collector: CollectorStatistics
    transactions: TransactionStatistics
    chunked: ChunkedStatistics
    read_ahead: ReadAheadStatistics
    unflushed: UnflushedStatistics
    journal: JournalStatistics
    table: TableStatistics
    loader: LoaderStatistics
    user_tables: TablesStatistics
    pins: PinStatistics


@attrs.frozen(eq=False, repr=False)
class LocalContainerStatistics(Value):
    container: int = attrs.field(metadata=label())
    state: str = attrs.field(
        metadata=state("The container's state: starting, active, recovering, or how it ended.")
    )
    restarts: int = attrs.field(metadata=counter("Recoveries after a failure."))
    current: ContainerStatistics | None


def statistics_of(
    container: Container, components: ContainerComponents, recovery: RecoveryReport
) -> ContainerStatistics:
    return ContainerStatistics(
        container=container.index,
        epoch=container.state.epoch,
        segments=container.state.live_segments,
        active_segments=container.segments.count,
        recovery=recovery,
        log=container.log.statistics(),
        mailbox=container.mailbox.statistics(),
        pipeline=components.pipeline.statistics(),
        cache=container.cache.statistics(),
        admission=components.admission.statistics(),
        writer=components.writer.statistics(),
        checkpoints=components.checkpointer.statistics(),
        collector=components.collector.statistics(),
        transactions=components.leases.statistics(),
        chunked=components.storage.statistics(),
        read_ahead=components.read_ahead.statistics(),
        unflushed=components.unflushed.statistics(),
        journal=container.ownership.statistics(),
        table=components.table_runs.statistics(),
        loader=components.loader.statistics(),
        user_tables=components.tables.statistics(components.row_removal.removed),
        pins=components.pins.statistics(),
    )

"""The statistics of a container: those of all its parts in one frozen snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...journal.log.contract import LogStatistics
from ...storage_backends.base.statistics import gauge, label
from ...storage_backends.base.values import Value
from ...storage_backends.segments.context import ChunkedStatistics
from ..flush.writer import WriterStatistics
from ..gc.collector import CollectorStatistics
from ..kernel.mailbox import MailboxStatistics
from ..read.read_ahead import ReadAheadStatistics
from ..read.tail_cache import TailCacheStatistics
from ..read.unflushed import UnflushedStatistics
from .admission import AdmissionStatistics
from .checkpoint import CheckpointStatistics
from .leases import TransactionStatistics
from .loader import LoaderStatistics
from .ownership import JournalStatistics
from .pins import PinStatistics
from .pipeline import PipelineStatistics
from .recovery import RecoveryReport
from .table_runs import TableStatistics
from .tables import TablesStatistics

if TYPE_CHECKING:
    from .components import ContainerComponents
    from .container import Container


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

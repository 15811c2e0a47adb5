"""The statistics of a container: those of all its parts in one frozen snapshot."""

from __future__ import annotations

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

"""What a container tells of itself: the numbers of all its parts in one frozen snapshot.

Owns: the shape. Does not own: any number (each part counts its own).
"""

from __future__ import annotations

import attrs

from ...storage_backends.base.data_log import LogStatistics
from ...storage_backends.base.statistics import gauge, label
from ...storage_backends.chunked.core import ChunkedStatistics
from ..core.mailbox import MailboxStatistics
from ..gc.collector import CollectorStatistics
from ..reading.read_ahead import ReadAheadStatistics
from ..reading.tail_cache import TailCacheStatistics
from ..writer.writer import WriterStatistics
from .admission import AdmissionStatistics
from .checkpointer import CheckpointStatistics
from .leases import TransactionStatistics
from .pipeline import PipelineStatistics
from .recovery import RecoveryReport


@attrs.frozen
class ContainerStatistics:
    container: int = attrs.field(metadata=label())
    epoch: int = attrs.field(metadata=gauge("The epoch of this ownership."))
    segments: int = attrs.field(metadata=gauge("Live segments."))
    active_segments: int = attrs.field(metadata=gauge("Segments kept in full in memory."))
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

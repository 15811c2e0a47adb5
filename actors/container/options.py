"""The options of a container: what its components are built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...storage_backends.base.segment_layout import StoragePlace
from ...storage_backends.base.segments import ATTRIBUTES_SHOWN_MAX
from ...storage_backends.segments.options import ChunkedOptions
from ...storage_backends.sorted_runs.block_cache import BlockCache
from ...storage_backends.sorted_runs.compaction_policy import FAN_OUT
from ...storage_backends.sorted_runs.tail import Tail
from ..flush.writer import WriterOptions
from ..gc.collector import CollectorOptions
from ..kernel.event_source import EventSource
from ..kernel.mailbox import MailboxOptions
from ..read.read_ahead import ReadAheadBudget, ReadAheadOptions
from ..telemetry.tracing import SpanHook
from .admission import AdmissionOptions
from .checkpoint import CheckpointOptions
from .parked import ParkedOptions
from .pipeline import PipelineOptions, Protect, unprotected
from .shared_store_record import SharedStoreRecord

if TYPE_CHECKING:
    from ...storage_backends.chunks.chunk_cache import ChunkCache

TABLE_CACHE_BYTES = 64 << 20


class ContainerOptions(Struct, frozen=True, eq=False):
    cache_bytes: int
    flush_bytes: int
    """A segment with this many unflushed bytes is flushed before its age makes it due."""
    admission: AdmissionOptions
    active_segments_max: int = 25_000
    """Segments in memory; idle ones above it are unloaded once the runs have them."""
    image_entries: int = ATTRIBUTES_SHOWN_MAX
    """Attributes of a segment that are in memory with it, and writers; further ones are rows."""
    mailbox: MailboxOptions = MailboxOptions()
    pipeline: PipelineOptions = PipelineOptions()
    parked: ParkedOptions = ParkedOptions()
    writer: WriterOptions = WriterOptions()
    collector: CollectorOptions = CollectorOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    tombstone: float = 86_400.0
    """Seconds for which an ended transaction is remembered (rule T5)."""
    read_ahead: ReadAheadOptions = ReadAheadOptions()
    read_ahead_budget: ReadAheadBudget = field(default_factory=ReadAheadBudget)
    """Shared by all containers that have these options."""
    table_cache: BlockCache[Tail | bytes] = field(default_factory=lambda: BlockCache(TABLE_CACHE_BYTES))
    """Caches blocks and tails of the runs of system tables; shared likewise (rule M5)."""
    merge_fan_out: int = FAN_OUT
    """How many runs of one size are merged into one (rule M7)."""
    close_timeout: float = 10.0
    events: Callable[[], EventSource] = EventSource
    """Makes the events that replies wait on: the running loop's cheapest kind."""
    protect: Protect = unprotected
    """Keeps Ctrl-C out of the container's tasks (rule C5)."""
    span: SpanHook | None = None
    """Called around the log's append of a group that holds traced appends."""
    chunked: ChunkedOptions = ChunkedOptions()
    chunk_cache: ChunkCache | None = None
    """The cache in front of the chunk storage, if there is one (rule K5)."""
    place: StoragePlace = StoragePlace()
    """Where long-term storage is, for readers that fetch chunks themselves."""
    store_record: SharedStoreRecord | None = None
    """Shared by all containers of a store in this process."""
    adopt: bool = False
    """Open although long-term storage was claimed by an owner that this log does not know: a restored or
    copied folder, on purpose. It deletes nothing until an operator confirms it (rule G4)."""
    is_built: bool = False
    """The folder is under construction: a log that holds nothing is a new one, not a lost one (rule R11)."""
    migrates: bool = False
    """Open also a container that was moved to another place, unless that has it: to complete the move, or to
    give it up (rule E3)."""

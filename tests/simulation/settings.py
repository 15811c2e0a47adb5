"""The kind of world a simulation runs in, as plain values.

Limits are so small that a few hundred operations reach rolls, checkpoints, truncation, throttling, eviction,
flushes by size and by age, and garbage collection. The options are made by the same functions as a real
store's, then made smaller than an operator may configure.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

import attrs
from msgspec.structs import replace

from tierlog.actors.chunk_io.options import StorageOptions
from tierlog.actors.container.admission import AdmissionOptions
from tierlog.actors.container.checkpoint import CheckpointOptions
from tierlog.actors.container.options import TABLE_CACHE_BYTES
from tierlog.actors.container.pipeline import PipelineOptions
from tierlog.actors.flush.writer import WriterOptions
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.kernel.backoff import Backoff
from tierlog.actors.kernel.supervision import RestartPolicy
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.actors.store.opening import runtime_options
from tierlog.actors.store.runtime import RuntimeOptions
from tierlog.actors.store.store import RollingSizes
from tierlog.journal.log.bookkeeper_layout import BookKeeperLogOptions
from tierlog.journal.log.local_layout import LocalLogOptions
from tierlog.journal.log.s3_layout import S3LogOptions
from tierlog.storage_backends.segments.defrag_rules import DefragOptions
from tierlog.storage_backends.segments.options import ChunkedOptions
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache


class WalKind(StrEnum):
    DISK = "disk"
    """Local log files on the host's simulated disk."""
    SERVICE = "service"
    """A log service elsewhere."""
    BUCKET = "bucket"
    """Objects in the bucket of the chunks, beside the store's identity."""
    LEDGERS = "ledgers"
    """Ledgers of a service elsewhere."""


class ChunksKind(StrEnum):
    FOLDER = "folder"
    """Files on the host's simulated disk."""
    APPEND = "append"
    """A service elsewhere, whose chunks can grow."""
    OBJECTS = "objects"
    """A service elsewhere, whose objects are put once."""


@attrs.frozen
class Latency:
    """Mean virtual seconds of a call, by its kind. Of the calls, ``share`` wait, uniformly up to twice the
    mean; the others only let other tasks run. Waiting costs the simulation much more than running on, so few
    calls should."""

    files: float = 0.0
    sync: float = 0.0
    log: float = 0.0
    chunks: float = 0.0
    share: float = 0.1

    def draw(self, mean: float, random: Random) -> float:
        if not mean or random.random() >= self.share:
            return 0.0
        return 2 * mean * random.random()


@attrs.frozen
class Limits:
    """Sizes in bytes, times in seconds."""

    flush_bytes: int = 1500
    flush_age: float = 2.0
    error_pause: float = 0.2
    rolling_size: int = 4096
    index_spacing: int = 500
    small_max: int = 1000
    native_min: int = 100
    growth: int = 2
    loose_chunks: int = 3
    join_inline: bool = False
    relocate_above: int = 100
    inline_records: int = 2
    maintenance_records: int = 8
    adopt_bytes: int = 256 << 10
    cache_bytes: int = 24_000
    soft_bytes: int = 8000
    hard_bytes: int = 16_000
    segment_bytes: int = 6000
    active_segments: int = 4
    segments: int = 24
    idle_segments: int = 2
    merge_fan_out: int = 3
    group_bytes: int = 2000
    group_count: int = 8
    append_bytes_max: int = 4096
    collect_after: float = 1.0
    checkpoint_bytes: int = 3000
    pinned_bytes: int = 9000
    table_cache_bytes: int = TABLE_CACHE_BYTES
    wal_file_bytes: int = 3000
    wal_reserve: int = 4096
    wal_length_step: int = 1000
    wal_low_water: int = 0
    log_files: int = 8
    """Small files, or groups in a bucket, after which a checkpoint is due."""
    small_group: int = 4 << 20
    costly_files: int = 0
    """The same for what costs more than a checkpoint, if that is more."""
    few_segments: int = 16
    tombstone: float = 60.0
    deadline: float = 5.0
    """Seconds of a call to long-term storage."""
    drain: float = 2.0
    """Seconds of the clean end of each part."""
    flush_budget: float = 0.0
    """Seconds in which a process that is stopped flushes; 0: it does not."""
    unavailable_wait: float = 5.0
    restarts: int = 1000

    def log_options(self) -> LocalLogOptions:
        return LocalLogOptions(
            file_size=self.wal_file_bytes,
            reserve=self.wal_reserve,
            allocation_step=8192,
            length_step=self.wal_length_step,
            low_water=self.wal_low_water,
        )

    def serving(self, *, adopt: bool = False, layout: LayoutMode = LayoutMode.INSTALL_NEW) -> RuntimeOptions:
        """A real store's options with these limits. Call it inside the event loop."""
        usual = runtime_options(StoreConfig(), adopt=adopt)
        container = replace(
            usual.container,
            cache_bytes=self.cache_bytes,
            flush_bytes=self.flush_bytes,
            admission=AdmissionOptions(
                self.soft_bytes,
                self.hard_bytes,
                self.segment_bytes,
                segments=self.segments,
                delay_max=0.5,
                space_interval=0.2,
            ),
            active_segments_max=self.active_segments,
            image_entries=-(-self.active_segments // 2),
            merge_fan_out=self.merge_fan_out,
            table_cache=BlockCache(self.table_cache_bytes),
            pipeline=PipelineOptions(self.group_bytes, self.group_count),
            writer=WriterOptions(self.flush_age, 4, self.error_pause),
            collector=CollectorOptions(self.collect_after, listings=(0.0, 30.0)),
            checkpoint=CheckpointOptions(
                self.checkpoint_bytes,
                self.pinned_bytes,
                small_file_bytes=self.small_group,
                files_max=self.log_files,
                costly_files_max=self.costly_files,
                few_segments=self.few_segments,
                idle_segments=self.idle_segments,
            ),
            tombstone=self.tombstone,
            chunked=self._chunked(),
            close_timeout=self.drain,
        )
        return replace(
            usual,
            flush_budget=self.flush_budget,
            layout=layout,
            container=container,
            storage=self._storage(usual.storage),
            restart=RestartPolicy(Backoff(first=0.01, maximum=0.5), self.restarts, window=60.0),
            unavailable_wait=self.unavailable_wait,
            append_bytes_max=self.append_bytes_max,
            rolling_sizes=RollingSizes(self.rolling_size, smallest=1),
        )

    def _chunked(self) -> ChunkedOptions:
        defrag = DefragOptions(
            small_max=self.small_max,
            native_min=self.native_min,
            growth=self.growth,
            loose_chunks=self.loose_chunks,
            inline=self.join_inline,
            relocate_above=self.relocate_above,
            relocate_share=0.5,
        )
        return ChunkedOptions(
            index_spacing=self.index_spacing,
            inline_records=self.inline_records,
            maintenance_records=self.maintenance_records,
            adopt_bytes=self.adopt_bytes,
            defrag=defrag,
        )

    def _storage(self, usual: StorageOptions) -> StorageOptions:
        return replace(
            usual,
            backoff=Backoff(first=0.01, maximum=0.1),
            read_deadline=self.deadline,
            write_deadline=self.deadline,
            breaker_interval=0.5,
            drain_deadline=self.drain,
        )


@attrs.frozen
class SiteKind:
    wal: WalKind = WalKind.DISK
    chunks: ChunksKind = ChunksKind.FOLDER
    layout: LayoutMode = LayoutMode.INSTALL_NEW
    containers: int = 1
    limits: Limits = Limits()
    latency: Latency = Latency()
    s3_log: S3LogOptions = S3LogOptions(pace=0.0)
    ledgers: BookKeeperLogOptions = BookKeeperLogOptions(ledger_bytes=3000)
    chunk_cache: int = 0
    """Bytes of the local chunk cache; 0 for none."""
    storage_reserve: int = 0
    """Bytes that the chunks' file system keeps for the store's own objects; 0 for none."""
    capacity: int | None = None
    """Bytes that the host's disk holds; None for no limit."""
    interleave: bool = True
    """Whether other tasks run between the calls of one file program; without it a simulation is faster and
    meets fewer orders."""

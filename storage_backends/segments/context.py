"""What the operations of one ``ChunkedSegmentStorage`` share: its parts, options and volatile state.

All of the state is lost with the instance, on purpose: a new owner never appends to a chunk that it did not
create (rules S2, S3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.chunk_storage import ChunkStorage
from ..base.errors import InvalidArgument
from ..base.lock_table import LockTable
from ..base.world import World
from .deferred_work_index import DeferredWorkIndex
from .garbage_sink import GarbageSink
from .layout import LayoutCache
from .metadata_store import ChunkMetadataStore
from .options import ChunkedOptions
from .transaction import DecodedRecords

if TYPE_CHECKING:
    from .statistics import ChunkedStatistics

APPENDABLE_MAX = 1 << 16
"""Chunks remembered as appendable: one per recently written segment."""


class StorageContext:
    """One instance's parts and state. Private to this package."""

    def __init__(
        self,
        chunks: ChunkStorage,
        metadata: ChunkMetadataStore,
        container: int,
        epoch: int,
        world: World,
        garbage: GarbageSink,
        options: ChunkedOptions,
    ) -> None:
        if not 0 <= container <= 9999 or epoch < 1:
            raise InvalidArgument(f"container {container} must be 0 to 9999 and epoch {epoch} at least 1")

        self.chunks = chunks
        self.metadata = metadata
        self.prefix = f"containers/{container:04d}/"
        """The prefix of the names of this container's own chunks."""
        self.epoch = epoch
        self.world = world
        self.garbage = garbage
        self.options = options
        self.layouts = LayoutCache(
            metadata, options.index_spacing, options.cached_segments, options.cached_chunks
        )
        self.deferred_work = DeferredWorkIndex(metadata)
        self.decoded = DecodedRecords()
        self.appendable: dict[str, int] = {}
        """Exact lengths of the chunks that this instance created and whose last write it committed (rule
        S3)."""
        self.spare: dict[int, tuple[int, str]] = {}
        """By segment, the (offset, name) of a tracked chunk that was certainly not created: the next attempt
        uses it."""
        self.adopting: set[int] = set()
        """Segment ids whose adoption is under way: its deferred work is not due yet (rule S14)."""
        self.writers: LockTable[int] = LockTable()
        """Each transaction holds its segments here, so that one at a time changes a segment (rule S12)."""
        self.commits = self.aborts = self.chunks_created = self.bytes_written = self.bytes_read = 0
        self.chunks_joined = self.chunks_relocated = self.bytes_joined = self.joins_refused = 0

    def new_chunk_name(self, segment: int, offset: int) -> str:
        """A name that is never used twice (rule S2). ``offset`` is the segment's length when the chunk is
        created."""
        return f"{self.prefix}{segment:016x}/{self.epoch:016x}-{offset:016x}-{self.world.new_id()}"

    def remember(self, name: str, length: int) -> None:
        """This instance may append to the chunk. Evicting the oldest entry costs a new chunk and nothing
        else."""
        self.appendable[name] = length
        if len(self.appendable) > APPENDABLE_MAX:
            del self.appendable[next(iter(self.appendable))]

    def statistics(self) -> ChunkedStatistics:
        from .statistics import ChunkedStatistics

        return ChunkedStatistics(
            self.commits,
            self.aborts,
            self.chunks_created,
            self.bytes_written,
            self.bytes_read,
            self.chunks_joined,
            self.chunks_relocated,
            self.bytes_joined,
            self.joins_refused,
            len(self.writers),
            len(self.layouts),
            self.layouts.chunk_count,
        )

"""What the operations of one ``ChunkedSegmentStorage`` share: its parts, its options and its volatile state.

Owns: the options, the counters, which chunks this instance may still append to, and which segments have an
open transaction. All of it is lost with the instance, on purpose: a new owner appends to no chunk that it did
not create (rules S2, S3).
"""

from __future__ import annotations

import attrs

from ..base.chunk_storage import ChunkStorage
from ..base.errors import InvalidArgument
from ..base.statistics import counter, gauge
from ..base.world import World
from .deferred_work_index import DeferredWorkIndex
from .defrag_rules import DefragOptions
from .garbage import GarbageSink
from .layout import LayoutCache
from .metadata_store import ChunkMetadataStore
from .records import BLOCK
from .transaction import DecodedRecords

APPENDABLE_MAX = 1 << 16
"""Chunks remembered as appendable; one per segment that was written lately."""


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 1")


def _several(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 2:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 2")


def _whole_blocks(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < BLOCK or value % BLOCK:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be a multiple of {BLOCK} bytes")


@attrs.frozen
class ChunkedOptions:
    rolling_size: int = attrs.field(default=128 << 20, validator=_positive)
    """Bytes after which a chunk is not appended to, for segments created from now on."""
    index_spacing: int = attrs.field(default=64 << 20, validator=_positive)
    """Bytes between index records. Part of a store's format: once there are segments it must not change."""
    read_request: int = attrs.field(default=16 << 20, validator=_whole_blocks)
    """Bytes of one chunk above which a read is divided into several requests; whole blocks around it come on
    top."""
    read_parallelism: int = attrs.field(default=16, validator=_positive)
    """Requests in flight for one call."""
    cached_segments: int = attrs.field(default=1024, validator=_positive)
    cached_chunks: int = attrs.field(default=16384, validator=_positive)
    """Bounds of the layout cache: segments, and chunk records over all of them."""
    defrag: DefragOptions = attrs.field(factory=DefragOptions)
    """When small chunks are joined, and the rest of a truncated one is moved."""
    inline_records: int = attrs.field(default=16, validator=_positive)
    """The most chunk and index records that an operation looks at itself, beyond a fixed handful; for more it
    leaves deferred work (rule S11)."""
    maintenance_records: int = attrs.field(default=256, validator=_several)
    """The most chunk and index records that one step of deferred work reads; 2 at least, for one chunk is
    joined with nothing."""
    adopt_bytes: int = attrs.field(default=256 << 10, validator=_positive)
    """The bytes of records, about, above which an import or a restore of one segment lays them in several
    transactions (rule S14)."""


@attrs.frozen
class ChunkedStatistics:
    """Counts since the instance was made; bytes are user bytes."""

    commits: int = attrs.field(metadata=counter("Metadata transactions committed."))
    aborts: int = attrs.field(metadata=counter("Metadata transactions given up."))
    chunks_created: int = attrs.field(metadata=counter("Chunks created."))
    bytes_written: int = attrs.field(metadata=counter("User bytes written to chunks."))
    bytes_read: int = attrs.field(metadata=counter("User bytes read from chunks."))
    chunks_joined: int = attrs.field(metadata=counter("Small chunks that were replaced by a larger one."))
    chunks_relocated: int = attrs.field(
        metadata=counter("Mostly truncated chunks whose rest was moved to a new one.")
    )
    bytes_joined: int = attrs.field(metadata=counter("User bytes copied to join or relocate chunks."))
    joins_refused: int = attrs.field(
        metadata=counter("Joins and relocations given up because a chunk is damaged.")
    )
    open_transactions: int = attrs.field(metadata=gauge("Metadata transactions under way."))
    cached_segments: int = attrs.field(metadata=gauge("Segments whose records are in memory."))
    cached_chunks: int = attrs.field(metadata=gauge("Chunks whose records are in memory."))


class Core:
    """One instance's parts and state. Only this package uses it."""

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
        """What the names of this container's own chunks begin with."""
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
        """Chunks created in this instance's life whose last write succeeded and was committed, with that
        exact length (rule S3)."""
        self.spare: dict[int, tuple[int, str]] = {}
        """By segment the (offset, name) of a chunk that was tracked and surely never came to be: the next
        attempt takes it."""
        self.adopting: set[int] = set()
        """Segment ids whose records are being laid in pieces: their deferred work is not due (rule S14)."""
        self.held: set[int] = set()
        """Segments with an open transaction."""
        self.commits = self.aborts = self.chunks_created = self.bytes_written = self.bytes_read = 0
        self.chunks_joined = self.chunks_relocated = self.bytes_joined = self.joins_refused = 0

    def new_chunk_name(self, segment: int, offset: int) -> str:
        """A name that is never used again (rule S2): ``offset`` is the segment's length when the chunk is
        created."""
        return f"{self.prefix}{segment:016x}/{self.epoch:016x}-{offset:016x}-{self.world.new_id()}"

    def hold(self, segment: int) -> None:
        if segment in self.held:
            raise RuntimeError(
                f"segment {segment:016x} has an open transaction; only one may be open at a time"
            )

        self.held.add(segment)

    def remember(self, name: str, length: int) -> None:
        """This instance may append to the chunk. Forgetting the oldest of too many costs a new chunk and
        nothing else."""
        self.appendable[name] = length
        if len(self.appendable) > APPENDABLE_MAX:
            del self.appendable[next(iter(self.appendable))]

    def statistics(self) -> ChunkedStatistics:
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
            len(self.held),
            len(self.layouts),
            self.layouts.chunk_count,
        )

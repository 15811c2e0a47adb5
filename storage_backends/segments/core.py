"""What the operations of one ``ChunkedSegmentStorage`` share: its parts, options and volatile state.

All of the state is lost with the instance, on purpose: a new owner never appends to a chunk that it did not
create (rules S2, S3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs

from ..base.chunk_storage import ChunkStorage
from ..base.errors import InvalidArgument
from ..base.statistics import counter, gauge
from ..base.world import World
from .defrag_rules import DefragOptions
from .layout import LayoutCache
from .metadata_store import ChunkMetadataStore
from .records import BLOCK, DEFERRED_WORK_PREFIX, DeferredWorkRecord
from .records.deferred_work import is_of_newer_kind
from .transaction import DecodedRecords, decode_record

APPENDABLE_MAX = 1 << 16
"""Chunks remembered as appendable: one per recently written segment."""


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 1")


def _at_least_two(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 2:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be at least 2")


def _whole_blocks(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < BLOCK or value % BLOCK:
        raise InvalidArgument(f"{attribute.name} is {value}, it must be a multiple of {BLOCK} bytes")


@attrs.frozen
class ChunkedOptions:
    rolling_size: int = attrs.field(default=128 << 20, validator=_positive)
    """Bytes at which a chunk is full. Applies to segments created from now on."""
    index_spacing: int = attrs.field(default=64 << 20, validator=_positive)
    """Bytes between index records. Part of the store's format: it must not change once segments exist."""
    read_request: int = attrs.field(default=16 << 20, validator=_whole_blocks)
    """A read of more bytes of one chunk is split into several requests. Rounding to whole blocks may add to
    it."""
    read_parallelism: int = attrs.field(default=16, validator=_positive)
    """Requests in flight for one call."""
    cached_segments: int = attrs.field(default=1024, validator=_positive)
    cached_chunks: int = attrs.field(default=16384, validator=_positive)
    """Bounds of the layout cache: segments, and chunk records over all of them."""
    defrag: DefragOptions = attrs.field(factory=DefragOptions)
    """When small chunks are joined and mostly truncated ones are rewritten."""
    inline_records: int = attrs.field(default=16, validator=_positive)
    """The most chunk and index records that an operation reads itself, beyond a fixed handful; more become
    deferred work (rule S11)."""
    maintenance_records: int = attrs.field(default=256, validator=_at_least_two)
    """The most chunk and index records that one step of deferred work reads; at least 2, because a join needs
    two."""
    adopt_bytes: int = attrs.field(default=256 << 10, validator=_positive)
    """Above about this many bytes of records, an import or a restore of one segment takes several
    transactions (rule S14)."""


@attrs.frozen
class ChunkedStatistics:
    """Counts since the instance was made; bytes are user bytes."""

    commits: int = attrs.field(metadata=counter("Metadata transactions committed."))
    aborts: int = attrs.field(metadata=counter("Metadata transactions aborted."))
    chunks_created: int = attrs.field(metadata=counter("Chunks created."))
    bytes_written: int = attrs.field(metadata=counter("User bytes written to chunks."))
    bytes_read: int = attrs.field(metadata=counter("User bytes read from chunks."))
    chunks_joined: int = attrs.field(metadata=counter("Small chunks replaced by a larger one."))
    chunks_relocated: int = attrs.field(
        metadata=counter("Mostly truncated chunks whose live end was moved to a new one.")
    )
    bytes_joined: int = attrs.field(metadata=counter("User bytes copied by joins and relocations."))
    joins_refused: int = attrs.field(
        metadata=counter("Joins and relocations refused because a chunk is damaged.")
    )
    open_transactions: int = attrs.field(metadata=gauge("Open metadata transactions."))
    cached_segments: int = attrs.field(metadata=gauge("Segments in the layout cache."))
    cached_chunks: int = attrs.field(metadata=gauge("Chunk records in the layout cache."))


class GarbageSink(Protocol):
    """What chunked segments report to the garbage collector. Nothing in this package deletes a chunk (rules
    F2, G1).

    ``track`` is awaited before a chunk is created, so that a crash at any later moment leaves a trace of the
    name (PDP-53). Once the outcome of the transaction is known, each of its names is reported exactly once
    with ``keep``, ``release`` or ``doubt``. A name whose chunk was certainly not created may instead stay
    tracked for the segment's next transaction to use. The three are plain functions, so that they run even
    while a task is being cancelled.
    """

    async def track(self, names: Sequence[str]) -> None:
        """Remember ``names`` before they are created. If this raises, they must not be created."""

    def keep(self, names: Sequence[str]) -> None:
        """Tracked names that a successful commit refers to."""

    def release(self, names: Sequence[str]) -> None:
        """Names that nothing refers to: dropped by a commit, or perhaps created by a failed transaction. The
        chunk may not exist."""

    def doubt(self, names: Sequence[str]) -> None:
        """Names of a commit with unknown outcome: new ones are garbage if it failed, dropped ones if it
        succeeded. The durable metadata decides."""


class DeferredWorkIndex:
    """The deferred work of the segments, read once and then kept current by this instance's own commits (rule
    S11).

    Only this instance commits, so what it knows is what is stored. After a commit of unknown outcome it reads
    again.
    """

    def __init__(self, store: ChunkMetadataStore) -> None:
        self._store = store
        self._known: dict[str, DeferredWorkRecord] | None = None
        self.newer: frozenset[str] = frozenset()
        """Keys of work of kinds that only a newer version knows, as of the last read. It is left alone."""

    async def read(self) -> list[DeferredWorkRecord]:
        """All deferred work, in the order in which to run it."""
        if self._known is None:
            self._known = await self._load()
        return sorted(self._known.values(), key=lambda work: (work.kind, work.segment))

    async def _load(self) -> dict[str, DeferredWorkRecord]:
        known: dict[str, DeferredWorkRecord] = {}
        newer: list[str] = []
        for key in await self._store.scan(DEFERRED_WORK_PREFIX):
            found = await self._store.get(key)
            if found is None:
                continue

            if is_of_newer_kind(found[1]):
                newer.append(key)
            else:
                known[key] = decode_record(DeferredWorkRecord, key, found[1])
        self.newer = frozenset(newer)
        return known

    def committed(self, written: Mapping[str, DeferredWorkRecord | None]) -> None:
        """A commit has written these, None for removed."""
        if self._known is None:
            return

        for key, work in written.items():
            if work is None:
                self._known.pop(key, None)
            else:
                self._known[key] = work

    def invalidate(self) -> None:
        """A commit's outcome is unknown: read again."""
        self._known = None


class Core:
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
        self.held: set[int] = set()
        """Ids of segments with an open transaction."""
        self.commits = self.aborts = self.chunks_created = self.bytes_written = self.bytes_read = 0
        self.chunks_joined = self.chunks_relocated = self.bytes_joined = self.joins_refused = 0

    def new_chunk_name(self, segment: int, offset: int) -> str:
        """A name that is never used twice (rule S2). ``offset`` is the segment's length when the chunk is
        created."""
        return f"{self.prefix}{segment:016x}/{self.epoch:016x}-{offset:016x}-{self.world.new_id()}"

    def hold(self, segment: int) -> None:
        if segment in self.held:
            raise RuntimeError(
                f"segment {segment:016x} has an open transaction; only one may be open at a time"
            )

        self.held.add(segment)

    def remember(self, name: str, length: int) -> None:
        """This instance may append to the chunk. Evicting the oldest entry costs a new chunk and nothing
        else."""
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

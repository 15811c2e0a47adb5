"""A container's state beside long-term storage in memory: metadata commits are durable at once, appends
too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager

import anyio
import attrs

from support.chunked import RememberingSink, storage_on
from support.container_parts import NAME, Parts
from support.table_rows import NO_RUNS
from tierlog.actors.container.cycle_cut import CycleCut
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.actors.container.requests import Request
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.flush.aggregation import FlushableSegment, capture
from tierlog.actors.flush.segment_flusher import SegmentFlusher
from tierlog.actors.flush.writer import StorageWriter, WriterOptions
from tierlog.actors.kernel.exits import first_leaf
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.operation import Operation
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.segments.storage import ChunkedSegmentStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

FLUSHING = WriterOptions(flush_age=30.0, error_pause=5.0)


async def run_cycle(writer: StorageWriter, *, full: bool) -> None:
    """One cycle, the end of what it left under way, and one attempt to publish it. Raises what ends the
    writer."""
    try:
        async with anyio.create_task_group() as tasks:
            await writer.cycle(tasks, full=full)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer._publisher.run)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    except ExceptionGroup as group:
        raise first_leaf(group) from None


@attrs.define
class FlushWorld:
    """The world of a ``StorageWriter``: also its ``FlushSource`` and ``CycleObserver``."""

    parts: Parts = attrs.field(factory=Parts)
    sink: RememberingSink = attrs.field(factory=RememberingSink)
    chunks: FaultyChunkStorage = attrs.field(factory=lambda: FaultyChunkStorage(MemoryChunkStorage()))
    commits: int = 0
    commit_bytes: int = 0
    """Bytes of the largest commit."""
    logged: list[Operation] = attrs.field(factory=list)
    claims: int = 0
    proofs: int = 0
    claim_error: BaseException | None = None
    published_cuts: list[int] = attrs.field(factory=list)
    held: Collection[int] = ()
    publish_error: BaseException | None = None
    publish_pause: float = 0.0
    """Seconds that an attempt takes."""
    settled: int = 0
    storage: ChunkedSegmentStorage = attrs.field(init=False)
    flusher: SegmentFlusher = attrs.field(init=False)

    async def open(self) -> FlushWorld:
        await self.chunks.open()
        self.storage = storage_on(
            self.chunks, LoggedMetadataStore(self.parts.state, self._commit, NO_RUNS), self.sink
        )
        self.flusher = SegmentFlusher(
            self.storage, self.parts.unflushed, self.segment_of, self.forget, self.keep_proven
        )
        return self

    async def _commit(self, request: Request, size: int) -> object:
        self.commits += 1
        self.commit_bytes = max(self.commit_bytes, size)
        return self.parts.do(request)

    async def flush(self, name: str = NAME) -> int:
        return await self.flusher.flush(capture(self.parts.segment(name), self.sequence))

    async def stored(self, segment: SegmentState) -> bytes:
        """What long-term storage gives back."""
        info = await self.storage.info(segment.sid)
        return bytes(await self.storage.read(segment.sid, info.start_offset, info.length))

    # --- FlushSource -----------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.parts.state.epoch

    @property
    def sequence(self) -> int:
        return self.parts.state.sequence

    @property
    def client_sequence(self) -> int:
        return self.parts.state.client_sequence

    @property
    def refuses_rows(self) -> bool:
        return False

    @property
    def has_unpublished_rows(self) -> bool:
        return False

    def dirty_segments(self) -> Iterator[FlushableSegment]:
        return self.parts.state.segments.dirty_segments()

    def segment_of(self, sid: int) -> FlushableSegment | None:
        return self.parts.state.segments.get(sid)

    async def wait_durable(self) -> None:
        self.settled += 1
        await anyio.lowlevel.checkpoint()

    async def log(self, op: Operation) -> None:
        self.logged.append(op)
        self.parts.log(op)

    async def forget(self, sid: int) -> None:
        await self.log(ForgetSegment(sid))

    async def claim(self, age: float) -> None:
        self.claims += 1
        if self.claim_error is not None:
            raise self.claim_error

    async def keep_proven(self) -> None:
        self.proofs += 1

    def begin_cut(self) -> CycleCut:
        return CycleCut(self.parts.state)

    async def abandon(self, cut: CycleCut) -> None:
        cut.close()
        for _ in cut.give_back():
            await anyio.lowlevel.checkpoint()

    async def publish(self, cut: CycleCut) -> None:
        error = self.publish_error
        await anyio.sleep(self.publish_pause)
        if error is not None:
            raise error

        for _ in cut.rows():
            pass
        cut.close()
        self.held = cut.held
        self.published_cuts.append(cut.cut)


@asynccontextmanager
async def running(
    last_cut: int = 0, world: FlushWorld | None = None, options: WriterOptions = FLUSHING
) -> AsyncIterator[tuple[FlushWorld, StorageWriter]]:
    world = await (world or FlushWorld()).open()
    writer = StorageWriter(world, world.flusher, world.storage, world.claim, world.publish, options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, last_cut)
        await anyio.wait_all_tasks_blocked()
        yield world, writer
        tasks.cancel_scope.cancel()


def completed(world: FlushWorld) -> list[Operation]:
    return [op for op in world.logged if isinstance(op, CycleComplete)]


def hangs(world: FlushWorld, name: str) -> anyio.Event:
    """Writes of this segment do not return before the event is set; then their outcome is unknown."""
    sid, back = f"{world.parts.segment(name).sid:016x}", anyio.Event()
    world.chunks._hang = back.wait

    def script(call: Call) -> Fault | None:
        is_write = call.verb in ("create", "write", "create_with_content") and sid in call.name
        return Fault(FaultKind.HANG) if is_write and not back.is_set() else None

    world.chunks.script = script
    return back

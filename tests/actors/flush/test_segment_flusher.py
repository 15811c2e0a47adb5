"""One segment's flush: pieces, then one commit with length, start and seal."""

from __future__ import annotations

import pytest

from support.container_parts import NAME, append
from support.flushing import FlushWorld
from support.table_rows import records_in_memory
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.operations.truncate import TruncateRequest
from tierlog.actors.flush import segment_flusher
from tierlog.actors.flush.aggregation import capture
from tierlog.actors.flush.segment_flusher import PIECE_BYTES
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.storage_backends.base.errors import SegmentNotFound, Unavailable
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind

pytestmark = pytest.mark.anyio


async def test_data_start_and_seal_are_one_commit() -> None:
    """F1."""
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(append(NAME, b"abcdef"), TruncateRequest(NAME, 2), SealRequest(NAME))

    assert await world.flush() == 6
    info = await world.storage.info(segment.sid)
    assert (info.length, info.start_offset, info.sealed) == (6, 2, True)
    assert await world.stored(segment) == b"cdef"
    assert world.commits == 1
    assert segment.is_flushed


async def test_a_plan_ends_at_its_cut() -> None:
    """What is appended after the capture belongs to the next cycle."""
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(append(NAME, b"abc"))
    plan = capture(segment, 0)
    world.parts.do(append(NAME, b"def"), SealRequest(NAME))

    assert await world.flusher.flush(plan) == 3
    info = await world.storage.info(segment.sid)
    assert (info.length, info.sealed) == (3, False)
    assert segment.needs_flush


async def test_an_empty_segment_gets_a_record_and_no_chunk() -> None:
    world = await FlushWorld().open()
    segment = world.parts.create()

    assert await world.flush() == 0
    assert segment.is_flushed
    assert await world.storage.chunks(segment.sid) == []


async def test_a_long_backlog_is_committed_in_steps() -> None:
    """So memory is given back as it goes, and a failure loses little."""
    world = await FlushWorld().open()
    segment = world.parts.create()
    data = bytes(PIECE_BYTES)
    world.parts.do(*(append(NAME, data) for _ in range(6)))

    assert await world.flush() == 6 * PIECE_BYTES
    assert world.commits == 2
    assert world.proofs == 6, "W8: before each write, because the one before may have taken long"
    assert segment.is_flushed
    assert world.parts.cache.pinned_bytes == 0


async def test_s6_a_segment_that_rolls_after_each_byte_is_committed_in_small_steps() -> None:
    """Headers of the legacy layout may say so: one commit of 16 MiB in such chunks would be gigabytes."""
    world = await FlushWorld().open()
    segment = world.parts.create()
    segment.rolling_size = 1
    world.parts.do(append(NAME, bytes(3000)))

    assert await world.flush() == 3000
    assert (await world.storage.info(segment.sid)).chunk_count == 3000
    assert (world.commits, world.commit_bytes < 1 << 20) == (3, True)


async def test_s6_a_commit_with_large_records_takes_no_more_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a chunk of a terabyte has 12 MiB of checksums and append starts."""
    monkeypatch.setattr(segment_flusher, "_COMMIT_BYTES", 1000)
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(*(append(NAME, bytes(PIECE_BYTES)) for _ in range(3)))

    assert await world.flush() == 3 * PIECE_BYTES
    assert (world.commits, segment.is_flushed) == (3, True)


async def test_a_failed_flush_keeps_its_committed_steps() -> None:
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(*(append(NAME, bytes(PIECE_BYTES)) for _ in range(6)))
    fault = Fault(FaultKind.BEFORE)
    world.chunks.script = lambda call: (
        fault if world.commits and call.verb in ("write", "create", "create_with_content") else None
    )
    with pytest.raises(Unavailable):
        await world.flush()

    assert segment.flushed == 4 * PIECE_BYTES
    world.chunks.script = None
    assert await world.flush() == 2 * PIECE_BYTES
    assert await world.stored(segment) == bytes(6 * PIECE_BYTES)


async def test_a_source_that_was_spliced_already_is_nothing_to_do() -> None:
    world = await FlushWorld().open()
    world.parts.create("t")
    source = world.parts.create("s")
    world.parts.do(append("s", b"sss"), SealRequest("s"))
    plan = capture(source, 0)
    world.parts.do(MergeRequest("t", ["s"], []))
    await world.flusher.flush(plan)
    await world.flush("t")

    assert await world.flusher.flush(plan) == 0


async def test_a_deleted_segment_loses_its_record_then_its_id() -> None:
    """F2: its chunks are only released here; the collector waits for the end of the cycle."""
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(append(NAME, b"abc"))
    await world.flush()
    chunks = [chunk.name for _, chunk in await world.storage.chunks(segment.sid)]
    world.parts.do(DeleteRequest(NAME))

    assert await world.flusher.flush(capture(segment, 0)) == 0
    assert world.logged == [ForgetSegment(segment.sid)]
    assert records_in_memory(world.parts.state) == {}
    assert world.sink.released == chunks
    assert all([await world.chunks.exists(chunk) for chunk in chunks])


async def test_a_deleted_segment_that_was_never_flushed_is_just_forgotten() -> None:
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(append(NAME, b"abc"), DeleteRequest(NAME))
    await world.flusher.flush(capture(segment, 0))

    assert world.commits == 0
    assert world.parts.state.segments.get(segment.sid) is None


async def test_a_delete_in_the_middle_ends_the_flush() -> None:
    world = await FlushWorld().open()
    segment = world.parts.create()
    world.parts.do(append(NAME, b"abc"))
    plan = capture(segment, 0)
    world.parts.do(DeleteRequest(NAME))
    with pytest.raises(SegmentNotFound, match="deleted while it was flushed"):
        await world.flusher.flush(plan)

    assert records_in_memory(world.parts.state) == {}

"""Checkpoints: when they are due, what they hold, what the log may drop, and what is said again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import attrs
import pytest
from msgspec.structs import replace

from support.container_parts import NAME, ROLLING, append, record_of
from support.pipeline import PipelineWorld
from support.recovered import recover
from support.table_rows import records_in_memory
from tierlog.actors.container.checkpoint import Checkpointer, CheckpointOptions
from tierlog.actors.container.operations.create import CreateRequest
from tierlog.actors.container.operations.delete import DeleteRequest
from tierlog.actors.container.operations.merge import MergeRequest
from tierlog.actors.container.operations.metadata import CommitMetadataRequest
from tierlog.actors.container.operations.seal import SealRequest
from tierlog.actors.container.requests import LogRequest
from tierlog.actors.container.segment_rows import name_key
from tierlog.actors.container.segments import SegmentState
from tierlog.journal.log.contract import DurableDataLog, LogStatistics
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.checkpoint import (
    CheckpointBegin,
    CheckpointCounters,
    CheckpointEnd,
    CheckpointImages,
    CheckpointPiece,
    CheckpointRows,
)
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.segment_image import WriterState
from tierlog.storage_backends.base.errors import Unavailable

pytestmark = pytest.mark.anyio

NEVER_RELOG = CheckpointOptions(wal_bytes=1000, pinned_groups_bytes=1 << 40)
ALWAYS_RELOG = CheckpointOptions(wal_bytes=1000, pinned_groups_bytes=0)


@asynccontextmanager
async def running(
    options: CheckpointOptions = NEVER_RELOG,
) -> AsyncIterator[tuple[PipelineWorld, Checkpointer]]:
    async with PipelineWorld().running() as world:
        yield (
            world,
            Checkpointer(
                world.parts.state,
                world.parts.cache,
                world.parts.unflushed,
                world.log,
                world.ask_internal,
                options,
            ),
        )


async def created(world: PipelineWorld, *names: str) -> None:
    for name in names or (NAME,):
        await world.ask(CreateRequest(name, ROLLING))


async def flushed(world: PipelineWorld, name: str = NAME, **changes: object) -> None:
    writes = record_of(world.parts.segment(name), **changes)
    await world.ask(
        CommitMetadataRequest(
            {key: records_in_memory(world.parts.state).get(key, (0, b""))[0] for key in writes}, writes
        )
    )


class CountedFiles:
    """A log that has so many ``files``."""

    def __init__(self, log: DurableDataLog) -> None:
        self._log = log
        self.files = 8

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)

    def statistics(self) -> LogStatistics:
        return attrs.evolve(self._log.statistics(), files=self.files)


def retained(world: PipelineWorld) -> list[int]:
    """The numbers of the groups that the log still has."""
    return [stored.info.number for stored in world.service._states["c"].groups]


async def test_a_checkpoint_is_begin_parts_and_end() -> None:
    """C7."""
    async with running() as (world, checkpointer):
        await created(world, "a", "b")
        await checkpointer.checkpoint()
        ops = [op for _, group in world.groups() for op in group]
        number = world.log.statistics().epoch << 32 | 1
        images = {segment.image() for segment in world.parts.state.segments.by_id.values()}

        assert ops[0] == CheckpointBegin(number)
        assert ops[1] == RelogData(world.parts.state.newest_segment, 0, b"")
        assert ops[2] == CheckpointCounters(number, 2)
        assert isinstance(ops[3], CheckpointImages)
        assert {image for _, image in ops[3].images} == images
        assert isinstance(ops[4], CheckpointRows)
        assert {row.key for row in ops[4].rows} == {name_key("a"), name_key("b")}
        assert ops[5] == CheckpointEnd(number, 3, 3, world.parts.state.cycle)
        assert world.parts.state.snapshot is None


async def test_the_log_keeps_the_oldest_group_with_unflushed_bytes() -> None:
    async with running() as (world, checkpointer):
        await created(world, "a", "b")
        await world.ask(append("a", b"flushed"))
        for _ in range(20):
            await world.ask_internal(LogRequest(Barrier()), 0)
        await world.ask(append("a", b"unflushed"))
        await world.ask(append("b", b"unflushed"))
        await flushed(world, "a", length=7)
        await checkpointer.checkpoint()

        assert retained(world)[0] == 24


async def test_a_deleted_segment_pins_nothing() -> None:
    async with running() as (world, checkpointer):
        await created(world)
        await world.ask(append(NAME, b"abc"))
        await world.ask(DeleteRequest(NAME))
        await checkpointer.checkpoint()

        assert retained(world)[0] == 4


async def test_a_checkpoint_that_failed_can_be_retried() -> None:
    async with PipelineWorld().running() as world:
        await created(world)
        failing = True

        async def ask(request: object, size: int) -> object:
            if failing and isinstance(request, LogRequest) and isinstance(request.op, CheckpointImages):
                raise Unavailable("mailbox closed")
            return await world.ask_internal(request, size)  # type: ignore[arg-type]

        checkpointer = Checkpointer(
            world.parts.state, world.parts.cache, world.parts.unflushed, world.log, ask, NEVER_RELOG
        )
        with pytest.raises(Unavailable):
            await checkpointer.checkpoint()
        failing = False
        await checkpointer.checkpoint()

        assert checkpointer.statistics().checkpoints == 1


def fill_with_attributes(segment: SegmentState) -> None:
    segment.attributes = {f"{index:0250}": index for index in range(16_384)}


def fill_with_writers(segment: SegmentState) -> None:
    """Live and expired ones."""
    writers = [f"{index:064}".encode() for index in range(1 << 14)]
    segment.writers = {writer: WriterState(1, 2, 3) for writer in writers[::2]}
    segment.expired = dict.fromkeys(writers[1::2])


@pytest.mark.parametrize("fill", [fill_with_attributes, fill_with_writers])
async def test_a_part_is_bounded_by_bytes_and_a_larger_image_comes_in_pieces(
    fill: Callable[[SegmentState], None],
) -> None:
    """C7: such segments were one group once, whatever their size; a group cannot hold 16 of them."""
    async with running() as (world, checkpointer):
        await created(world, *(f"s{number}" for number in range(6)))
        for name in ("s0", "s1", "s2", "s4", "s5"):
            fill(world.parts.segment(name))
        await checkpointer.checkpoint()
        sizes = [stored.info.size for stored in world.service._states["c"].groups]
        kinds = {type(op) for _, group in world.groups() for op in group}
        assert max(sizes) < 6 << 20
        assert {CheckpointImages, CheckpointPiece} <= kinds
        names = sum(len(name_key(f"s{number}")) + 8 for number in range(6))
        assert checkpointer.statistics().last_bytes == names + sum(
            len(segment.image()) for segment in world.parts.state.segments.by_id.values()
        )

        recovered = await recover(world.service)
    expected = {segment.image() for segment in world.parts.state.segments.by_id.values()}
    assert {segment.image() for segment in recovered.parts.state.segments.by_id.values()} == expected


async def test_chunk_records_are_bounded_by_bytes_too() -> None:
    """C7: a record grows by 12 bytes a MiB of its chunk, so 256 of them may be larger than a group."""
    async with running() as (world, checkpointer):
        await created(world)
        writes = {f"chunk/{number:04}": bytes(100_000) for number in range(200)}
        await world.ask(CommitMetadataRequest(dict.fromkeys(writes, 0), writes))
        before = len(world.service._states["c"].groups)
        await checkpointer.checkpoint()
        sizes = [stored.info.size for stored in world.service._states["c"].groups[before:]]
        assert sum(sizes) > 20_000_000
        assert max(sizes) < 6 << 20


# --- when ---------------------------------------------------------------------------------------


async def test_a_large_checkpoint_makes_the_next_one_later() -> None:
    """Its cost stays a small share of what is logged: at least four times its size lies between two."""
    async with running() as (world, checkpointer):
        await created(world, *(f"segment-with-a-long-name-{number}" for number in range(100)))
        await checkpointer.checkpoint()
        size = checkpointer.statistics().last_bytes
        assert 4 * size > 1000 * 2
        await world.ask(append("segment-with-a-long-name-1", bytes(4 * size - 200)))
        assert not checkpointer.is_due()
        await world.ask(append("segment-with-a-long-name-1", bytes(200)))
        assert checkpointer.is_due()


async def test_what_the_log_held_at_open_counts() -> None:
    """An owner that crashes often must come to its checkpoint too."""
    async with running() as (world, _):
        await created(world)
        await world.ask(append(NAME, bytes(2000)))
        later = Checkpointer(
            world.parts.state,
            world.parts.cache,
            world.parts.unflushed,
            world.log,
            world.ask_internal,
            NEVER_RELOG,
        )

        assert later.is_due()


async def test_a_clean_close_needs_less_log_for_a_checkpoint() -> None:
    """The next opening replays at most this much, or four times what the checkpoint costs it."""
    async with running(CheckpointOptions(wal_bytes=64_000)) as (world, checkpointer):
        await created(world)
        assert not checkpointer.is_due(closing=True)
        await world.ask(append(NAME, bytes(1000)))
        assert checkpointer.is_due(closing=True)
        assert not checkpointer.is_due()
        await checkpointer.checkpoint()
        assert not checkpointer.is_due(closing=True)

        again = await recover(world.service)
        assert again.parts.state.checkpoint_bytes == checkpointer.statistics().last_bytes > 0


async def test_many_small_files_make_a_checkpoint_due_once() -> None:
    """If it cannot remove them, the next one waits for as many more."""
    async with PipelineWorld().running() as world:
        await created(world)
        log = CountedFiles(world.log)
        parts = world.parts
        checkpointer = Checkpointer(
            parts.state,
            parts.cache,
            parts.unflushed,
            cast("DurableDataLog", log),
            world.ask_internal,
            NEVER_RELOG,
        )
        assert not checkpointer.is_due()
        log.files = 9
        assert checkpointer.is_due()
        await checkpointer.checkpoint()
        assert not checkpointer.is_due()
        log.files = 18
        assert checkpointer.is_due()


async def test_many_unflushed_bytes_are_logged_again_once_they_keep_too_many_files() -> None:
    """Checkpoints in between leave these files, and count them as left."""
    options = replace(NEVER_RELOG, files_max=8, costly_files_max=30, few_segments=1)
    async with PipelineWorld().running() as world:
        await created(world, NAME, "other")
        await world.ask(append(NAME, b"abc"))
        await world.ask(append("other", b"d"))
        log = CountedFiles(world.log)
        parts = world.parts
        checkpointer = Checkpointer(
            parts.state,
            parts.cache,
            parts.unflushed,
            cast("DurableDataLog", log),
            world.ask_internal,
            options,
        )
        relogged = []
        for log.files in range(9, 9 * 9, 9):
            assert checkpointer.is_due()
            await checkpointer.checkpoint()
            relogged.append(checkpointer.statistics().relogged_bytes)

        assert relogged == [0, 0, 0, 4, 4, 4, 4, 8]


# --- saying it again (F4) -----------------------------------------------------------------------


async def said_again(world: PipelineWorld) -> list[tuple[int, bytes]]:
    ops = [op for _, group in world.groups() for op in group]
    return [(op.offset, bytes(op.data)) for op in ops if isinstance(op, RelogData) and op.data]


async def test_bytes_relogged_in_pieces_all_stay_in_the_log() -> None:
    """F4: every piece is its own group, and the log is cut below the first one."""
    async with running(ALWAYS_RELOG) as (world, checkpointer):
        await created(world, NAME, "flushed")
        data = bytes(range(256)) * (3 << 12)
        await world.ask(append(NAME, data))
        await world.ask(append("flushed", data + data))
        await flushed(world, "flushed")
        for _ in range(5):
            await world.ask_internal(LogRequest(Barrier()), 0)
        await checkpointer.checkpoint()
        pieces = await said_again(world)
        recovered = await recover(world.service)

    assert [offset for offset, _ in pieces] == [0, 1 << 20, 2 << 20]
    assert recovered.parts.content(recovered.parts.segment().sid) == data


async def test_bytes_behind_a_merged_source_are_relogged_too() -> None:
    async with running(ALWAYS_RELOG) as (world, checkpointer):
        await created(world, "t", "s")
        await world.ask(append("t", b"tt"))
        await world.ask(append("s", b"sss"))
        await world.ask(SealRequest("s"))
        await world.ask(MergeRequest("t", ["s"], []))
        await world.ask(append("t", b"uu"))
        for _ in range(20):
            await world.ask_internal(LogRequest(Barrier()), 0)
        await checkpointer.checkpoint()

        assert sorted(await said_again(world)) == [(0, b"sss"), (0, b"tt"), (5, b"uu")]
        assert retained(world)[0] > 20
        await recover(world.service)


async def test_only_the_older_half_is_relogged() -> None:
    async with running(ALWAYS_RELOG) as (world, checkpointer):
        await created(world, "old", "new")
        await world.ask(append("old", b"old"))
        for _ in range(10):
            await world.ask_internal(LogRequest(Barrier()), 0)
        await world.ask(append("new", b"new"))
        await checkpointer.checkpoint()

        assert await said_again(world) == [(0, b"old")]


async def test_a_segment_deleted_meanwhile_is_left_alone() -> None:
    async with running(ALWAYS_RELOG) as (world, checkpointer):
        await created(world)
        await world.ask(append(NAME, b"abc"))
        segment = world.parts.segment()
        segment.log_references.append((99, 2))
        await checkpointer._relog(segment)
        assert await said_again(world) == [(0, b"abc")]

        world.parts.cache.drop_segment(segment.sid)
        await checkpointer._relog(segment)
        assert len(await said_again(world)) == 1

"""Recovery: what a log's groups mean, and which logs are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from support.container_parts import NAME, ROLLING, Parts, record_of
from support.operations import SAMPLES
from support.recovered import Script
from support.table_rows import records_in_memory
from tierlog.actors.container.checkpoint import TAG_CHECKPOINT_END
from tierlog.actors.container.recovery import Recovery
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.container.state import NO_CYCLE
from tierlog.journal.log.contract import GroupInfo
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.checkpoint import (
    CheckpointBegin,
    CheckpointEnd,
    CheckpointPart,
    CheckpointPiece,
)
from tierlog.journal.operations.commit_metadata import CommitMetadata
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.journal.operations.delete_segment import DeleteSegment
from tierlog.journal.operations.merge_segments import MergeSegments
from tierlog.journal.operations.operation import Operation
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.seal_segment import SealSegment
from tierlog.journal.operations.segment_image import MergedRange, SegmentStatus
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.base.ids import segment_id

pytestmark = pytest.mark.anyio

SID = segment_id(1, 1)
OTHER = segment_id(1, 2)
CREATE = CreateSegment(SID, NAME, ROLLING)
CYCLE = CycleComplete(1, 2, 1, True)


def data_at(offset: int, data: bytes, sid: int = SID) -> Append:
    return Append(sid, offset, data, b"", 0, 0)


def image_of(
    length: int, *, sid: int = SID, name: str = NAME, merges: Sequence[MergedRange] = (), **fields: object
) -> bytes:
    segment = SegmentState(sid, name, ROLLING)
    segment.length = length
    for merge in merges:
        segment.add_merge(merge)
    for field, value in fields.items():
        setattr(segment, field, value)
    return segment.image()


def record(length: int, sid: int = SID) -> tuple[str, bytes]:
    segment = SegmentState(sid, NAME, ROLLING)
    segment.length = length
    return next(iter(record_of(segment).items()))


def checkpoint(
    script: Script, *images: bytes, entries: tuple[tuple[str, int, bytes], ...] = (), truncate_before: int = 0
) -> None:
    """Begin, one part, end; in three groups."""
    begin_group, begin_sequence = len(script.groups) + 1, script.sequence + 1
    script.group(CheckpointBegin(9))
    script.group(CheckpointPart(9, images, entries))
    end = CheckpointEnd(9, begin_group, begin_sequence, CYCLE)
    script.group(end, tag=TAG_CHECKPOINT_END, truncate_before=truncate_before or begin_group)


async def test_a_checkpoint_with_an_image_in_pieces_is_loaded() -> None:
    script = Script()
    image = image_of(0, attributes={"a": 1})
    script.group(CheckpointBegin(9))
    script.group(CheckpointPiece(9, False, image[:7]))
    script.group(CheckpointPiece(8, True, b"of an unfinished checkpoint"))
    script.group(CheckpointPiece(9, True, image[7:]))
    script.group(CheckpointEnd(9, 1, 1, NO_CYCLE), tag=TAG_CHECKPOINT_END, truncate_before=1)
    recovered = await script.recover()

    assert recovered.parts.segment().image() == image


async def test_a_checkpoint_stands_for_everything_before_it() -> None:
    """C7: replay starts right behind its begin, with the same apply."""
    script = Script()
    script.group(CREATE, data_at(0, b"abc"))
    key, value = record(3)
    checkpoint(script, image_of(3), entries=((key, 3, value),))
    script.group(data_at(3, b"def"))
    recovered = await script.recover()
    segment = recovered.parts.segment()

    assert recovered.report.checkpoint_sequence == 3
    assert recovered.report.operations == 3, "part, end and the append"
    assert recovered.parts.state.sequence == 6
    assert recovered.parts.state.cycle == CYCLE
    assert records_in_memory(recovered.parts.state)[key] == (3, value)
    assert (segment.flushed, segment.length, segment.durable_length) == (3, 6, 6)
    assert recovered.parts.content(SID) == b""
    assert recovered.parts.cache.slices(SID, 3, 6) == [b"def"]


async def test_unflushed_bytes_from_before_the_checkpoint_are_taken_from_the_log() -> None:
    """W5: the end of the checkpoint names the oldest group that is needed, which may lie before its begin."""
    script = Script()
    script.group(CREATE)
    script.group(data_at(0, b"abc"))
    script.group(data_at(3, b"def"))
    key, value = record(3)
    checkpoint(script, image_of(6), entries=((key, 3, value),), truncate_before=3)
    recovered = await script.recover()
    segment = recovered.parts.segment()

    assert recovered.report.groups == 4
    assert recovered.parts.cache.slices(SID, 3, 6) == [b"def"]
    assert list(segment.log_references) == [(6, 3)]


async def test_operations_in_the_group_of_the_begin_count_as_before_it() -> None:
    script = Script()
    script.group(CREATE)
    script.group(data_at(0, b"abc"), CheckpointBegin(9), data_at(3, b"def"))
    script.group(CheckpointPart(9, (image_of(3),), ()))
    script.group(CheckpointEnd(9, 2, 3, NO_CYCLE), tag=TAG_CHECKPOINT_END, truncate_before=2)
    recovered = await script.recover()

    assert recovered.parts.content(SID) == b"abcdef"
    assert recovered.parts.segment().length == 6
    assert recovered.report.operations == 3


async def test_parts_of_an_abandoned_checkpoint_are_not_mixed_into_the_next() -> None:
    script = Script()
    script.group(CREATE)
    script.group(CheckpointBegin(10), CheckpointPart(8, (image_of(99),), ()))
    script.group(CheckpointPart(8, (image_of(98),), ()), CheckpointPart(10, (image_of(0),), ()))
    script.group(CheckpointEnd(10, 2, 2, NO_CYCLE), tag=TAG_CHECKPOINT_END, truncate_before=2)
    recovered = await script.recover()

    assert recovered.parts.segment().length == 0


async def test_the_newest_complete_checkpoint_counts() -> None:
    script = Script()
    script.group(CREATE)
    checkpoint(script, image_of(0), truncate_before=1)
    script.group(data_at(0, b"abc"))
    checkpoint(script, image_of(3), truncate_before=1)
    script.group(CheckpointBegin(11))
    recovered = await script.recover()

    assert recovered.report.checkpoint_sequence == 6
    assert recovered.parts.content(SID) == b"abc"


async def test_re_logged_bytes_stand_for_groups_that_are_gone() -> None:
    """F4: the first group with bytes was truncated; the log's tail says them again."""
    script = Script()
    script.group(CREATE, data_at(0, b"abc"))
    script.group(data_at(3, b"def"))
    script.group(RelogData(SID, 0, b"abcd"))
    script.group(RelogData(SID, 4, b"ef"))
    checkpoint(script, image_of(6), truncate_before=3)
    recovered = await script.recover()

    assert recovered.parts.content(SID) == b"abcdef"
    assert min(group for _, group in recovered.parts.segment().log_references) == 3


async def test_merges_that_are_not_spliced_come_back_with_their_sources() -> None:
    script = Script()
    script.group(
        CREATE,
        CreateSegment(OTHER, "s", ROLLING),
        data_at(0, b"tt"),
        data_at(0, b"sss", OTHER),
        SealSegment(OTHER),
    )
    script.group(MergeSegments(SID, 2, ((OTHER, 3),), ()), data_at(5, b"u"))
    merged = image_of(6, merges=[MergedRange(2, OTHER, 3)])
    source = image_of(3, sid=OTHER, name="s", sealed=True, status=SegmentStatus.MERGED)
    checkpoint(script, merged, source, truncate_before=1)
    recovered = await script.recover()

    assert recovered.parts.state.segments.names() == [NAME]
    assert recovered.parts.content(SID) == b"tt"
    assert recovered.parts.content(OTHER) == b"sss"
    assert recovered.parts.cache.slices(SID, 5, 6) == [b"u"]
    assert list(recovered.parts.segment().merges) == [MergedRange(2, OTHER, 3)]


async def test_a_deleted_segment_needs_no_bytes() -> None:
    script = Script()
    script.group(CREATE, data_at(0, b"abc"))
    script.group(DeleteSegment(SID))
    checkpoint(script, image_of(3, status=SegmentStatus.DELETED))
    recovered = await script.recover()

    assert recovered.parts.state.segments.find(NAME) is None
    deleted = recovered.parts.state.segments.get(SID)
    assert deleted is not None
    assert deleted.needs_flush


# --- refusals -----------------------------------------------------------------------------------


async def refused(script: Script, match: str) -> DataCorruption:
    with pytest.raises(DataCorruption, match=match) as error:
        await script.recover()

    return error.value


async def test_missing_bytes_are_refused() -> None:
    """Acked bytes are missing: the log was cut too far, or its checkpoint is wrong."""
    script = Script()
    script.group(CREATE, data_at(0, b"abc"))
    checkpoint(script, image_of(3))
    await refused(script, f"{NAME}.*bytes from 0 on are neither in the log nor flushed")


async def test_a_gap_between_merged_ranges_is_seen() -> None:
    script = Script()
    script.group(CREATE, CreateSegment(OTHER, "s", ROLLING))
    script.group(data_at(0, b"sss", OTHER))
    source = image_of(3, sid=OTHER, name="s", sealed=True, status=SegmentStatus.MERGED)
    checkpoint(script, image_of(6, merges=[MergedRange(2, OTHER, 3)]), source, truncate_before=2)
    await refused(script, f"{NAME}.*bytes from 0")


async def test_a_log_that_begins_late_without_a_checkpoint_is_refused() -> None:
    script = Script()
    script.group(CREATE)
    script.group(data_at(0, b"abc"), truncate_before=2)
    error = await refused(script, "begins at group 2 and holds no checkpoint")

    assert error.file == "group 2"


@pytest.mark.parametrize(
    "payload", [b"", bytes(7), bytes(8) + b"\xff", bytes(8) + b"\x63\0\0\0\1"], ids=bytes.hex
)
async def test_a_group_that_does_not_decode_is_refused_with_its_address(payload: bytes) -> None:
    script = Script()
    script.group(CREATE)
    script.raw(payload)
    error = await refused(script, "group 2 of the log does not decode")

    assert error.file == "group 2"


async def test_an_operation_of_a_later_version_is_no_corruption() -> None:
    """Its group has its checksum: to restore the log from a backup would lose what was acked since."""
    script = Script()
    script.group(CREATE)
    script.raw(bytes(8) + b"\x63\0\0\0\0")
    with pytest.raises(StoreMismatch, match="group 2 of the log has an operation of type 99.*newer tierlog"):
        await script.recover()


@pytest.mark.parametrize(
    "op",
    [
        data_at(7, b"x"),
        data_at(0, b"x", 99),
        CREATE,
        MergeSegments(SID, 0, ((99, 1),), ()),
        CommitMetadata((("s:zz", b"x"),)),
    ],
    ids=repr,
)
async def test_an_operation_that_cannot_be_applied_is_refused_with_its_sequence(op: Operation) -> None:
    """A restart would meet the same operation again: corruption is terminal."""
    script = Script()
    script.group(CREATE)
    script.group(SAMPLES["barrier"], op)
    error = await refused(script, "operation 3 in group 2")

    assert (error.file, error.offset) == ("group 2", 3)


async def test_a_gap_in_the_sequence_is_refused() -> None:
    script = Script()
    script.group(CREATE)
    script.group(data_at(0, b"x"), first=3)
    await refused(script, "group 2 begins with operation 3, after 1")


async def test_a_damaged_image_in_a_checkpoint_is_refused() -> None:
    script = Script()
    script.group(CREATE)
    checkpoint(script, image_of(0)[:-1])
    await refused(script, "checkpoint at group 2 is damaged")


async def test_a_segment_twice_in_a_checkpoint_is_refused() -> None:
    script = Script()
    script.group(CREATE)
    checkpoint(script, image_of(0), image_of(0))
    await refused(script, "checkpoint at group 2 is damaged")


async def test_a_tag_without_its_end_is_refused() -> None:
    script = Script()
    script.group(CREATE, tag=TAG_CHECKPOINT_END)
    await refused(script, "tagged as the end of a checkpoint and holds none")


async def test_the_checkpoint_is_found_without_reading_every_group() -> None:
    """A log may have a million groups: one step of the event loop went over all of them."""

    class Groups(Sequence[GroupInfo]):
        def __len__(self) -> int:
            return len(opened.groups)

        def __getitem__(self, index: Any) -> Any:
            reads.append(index)
            return opened.groups[index]

    reads: list[int] = []
    script, parts = Script(), Parts()
    for _ in range(20):
        script.group(Barrier())
    checkpoint(script)
    for _ in range(20):
        script.group(Barrier())
    await script.recover()
    log = script.service.log("c")
    opened = await log.open()
    parts.state.epoch = opened.epoch
    counted = replace(opened, groups=Groups())
    recovery = Recovery(log, counted, parts.state, parts.publisher, parts.cache)
    report = await recovery.run()

    assert (report.checkpoint_sequence, reads) == (21, [])

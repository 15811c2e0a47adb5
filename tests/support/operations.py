"""Every operation of a container's log: one sample of each with fixed bytes, and a strategy for each."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st
from msgspec.structs import replace

from tierlog.journal.manifest.element import (
    CONSISTENT,
    NUMBER_MAX,
    SEGMENTS,
    TRANSACTIONS,
    Element,
    Kind,
    Owner,
    Pin,
    Position,
    Progress,
)
from tierlog.journal.operations.abort_transaction import AbortTransaction
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.attribute_rows import SpillAttributes, UpdateAttributeIds
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.begin_history import BeginHistory
from tierlog.journal.operations.begin_transaction import BeginTransaction
from tierlog.journal.operations.checkpoint import (
    CheckpointBegin,
    CheckpointCounters,
    CheckpointEnd,
    CheckpointImages,
    CheckpointPart,
    CheckpointPiece,
    CheckpointRows,
)
from tierlog.journal.operations.checkpoint_closures import CheckpointClosures, ClosureChange
from tierlog.journal.operations.commit_metadata import CommitMetadata
from tierlog.journal.operations.commit_transaction import CommitTransaction
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.journal.operations.delete_segment import DeleteSegment
from tierlog.journal.operations.ended_transactions import CheckpointEnds, ForgetEnds, TransactionEnd
from tierlog.journal.operations.expire_writers import ExpireWriters
from tierlog.journal.operations.forget_rows import ForgetRows
from tierlog.journal.operations.forget_segment import ForgetSegment
from tierlog.journal.operations.forget_transactions import ForgetTransactions
from tierlog.journal.operations.import_segment import ImportSegment
from tierlog.journal.operations.load_segment import LoadSegment, UnloadSegments
from tierlog.journal.operations.log_element import (
    CheckpointManifest,
    Copied,
    ElementCreated,
    LogElement,
    LogElementChange,
)
from tierlog.journal.operations.merge_segments import MergeSegments
from tierlog.journal.operations.operation import Operation
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.seal_segment import SealSegment
from tierlog.journal.operations.segment_image import (
    NO_MERGES,
    MergedRange,
    MergedRanges,
    SegmentImage,
    SegmentStatus,
    WriterState,
)
from tierlog.journal.operations.spill_writers import SpillWriters
from tierlog.journal.operations.transaction_image import TransactionImage, TransactionStatus
from tierlog.journal.operations.truncate_segment import TruncateSegment
from tierlog.journal.operations.update_attributes import UpdateAttributes
from tierlog.journal.operations.update_table import CreateTable, UpdateTable
from tierlog.storage_backends.base.backups import NAME_PATTERN
from tierlog.storage_backends.base.ids import EPOCH_MAX
from tierlog.storage_backends.sorted_runs.rows import Row
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_list import RunList
from tierlog.storage_backends.sorted_runs.summary import RunSummary

SID = 0x7_0000_0002

_IMPORTED = SegmentImage(
    SID,
    SegmentStatus.LIVE,
    True,
    4106,
    17,
    128 << 20,
    "app/events",
    (("txn", 5),),
    ((b"w", WriterState(-3, -2, 4096)),),
    (b"gone",),
)

ELEMENT = Element(
    n=0x12,
    kind=Kind.CYCLE_COMPLETE,
    epoch=7,
    owner=Owner(b"S" * 16, b"L" * 16, b"O" * 16, b"F" * 16, "here:/data/wal"),
    predecessor=Position(0x11, 0xCAFE),
    time_ms=1_700_000_000_123,
    progress=Progress(cycle=3, cut=1200, newest_segment=SID, highest_version=1201, highest_cycle=4),
    runs=RunList(
        (
            RunEntry("tables/0/a", 4096, 0xBEEF, 300, 2, 3, RunSummary(17, 1, 900, 1200, b"a/x", b"n/y")),
            RunEntry(
                "tables/0/größer", 1 << 33, 1, 1 << 20, 1, 1, RunSummary(1 << 20, 0, 1, 899, b"a", b"w")
            ),
        ),
        changes_from=899,
    ),
    pins=(Pin("daily", 2),),
)


def element_of(container: int, like: Element = ELEMENT) -> Element:
    """``like``, with the names that the runs of that container have."""
    prefix = f"_system/containers/{container:04d}/runs/"
    runs = [replace(run, name=prefix + run.name.replace("/", "-")) for run in like.runs]
    return attrs.evolve(like, runs=attrs.evolve(like.runs, runs=runs))


ELEMENT_WITH_SEGMENTS = attrs.evolve(ELEMENT, runs=attrs.evolve(ELEMENT.runs, schema=SEGMENTS))
ELEMENT_WITH_TRANSACTIONS = attrs.evolve(ELEMENT, runs=attrs.evolve(ELEMENT.runs, schema=TRANSACTIONS))
CONSISTENT_ELEMENT = attrs.evolve(
    ELEMENT,
    runs=attrs.evolve(
        ELEMENT.runs, schema=CONSISTENT, rows_to=1200, records_to=1204, held=(SID, (1 << 64) - 1)
    ),
)

SAMPLES: dict[str, Operation] = {
    "abort_transaction": AbortTransaction(SID, "job-7", "größer als gedacht", (SID + 1, SID + 2)),
    "append": Append(SID, 4096, b"some bytes", b"", 0, 0),
    "append_by_writer": Append(SID, 4096, b"some bytes", b"writer-1", -3, 2),
    "barrier": Barrier(),
    "begin_history": BeginHistory(1 << 20),
    "begin_transaction": BeginTransaction(SID, "job-7", ("query", 7), 3_600_000),
    "begin_transaction_without_token": BeginTransaction(SID, "job-7", None, 1_000),
    "checkpoint_begin": CheckpointBegin(9),
    "checkpoint_counters": CheckpointCounters(9, 1_000_000),
    "checkpoint_end": CheckpointEnd(9, 40, 1234, CycleComplete(7, 3, 1200, True)),
    "checkpoint_images": CheckpointImages(9, ((1233, b"image"), (7, b""))),
    "checkpoint_manifest": CheckpointManifest(9, ELEMENT.encode(), b""),
    "checkpoint_piece": CheckpointPiece(9, True, b"piece"),
    "checkpoint_part": CheckpointPart(
        9, (b"image", b""), (("s:1", 12, b"record"), ("c:n", 13, b"")), (b"transaction", b"")
    ),
    "checkpoint_rows": CheckpointRows(
        9, (Row(b"c:m", 13, b""), Row(b"c:n", 14, None), Row(b"s:1", 12, b"record"))
    ),
    "checkpoint_closures": CheckpointClosures(
        (6 << 32) | 2, (ClosureChange(1201, SID), ClosureChange(1203, SID + 1, SID))
    ),
    "checkpoint_ends": CheckpointEnds(9, 100_000),
    "commit_metadata": CommitMetadata((("s:1", b"record"), ("c:n", None), ("c:m", b""))),
    "commit_transaction": CommitTransaction(
        SID, 4096, "job-7", ((SID + 1, 10), (SID + 2, 0)), (SID + 3,), (("txn:query", 7),)
    ),
    "create_segment": CreateSegment(SID, "app/events#part-1", 128 << 20),
    "create_table": CreateTable(SID, "app/users"),
    "cycle_complete": CycleComplete(7, 3, 1200, False),
    "delete_segment": DeleteSegment(SID),
    "element_created": ElementCreated(Position(0x12, 0xCAFE)),
    "expire_writers": ExpireWriters(SID, (b"writer-1", b"w")),
    "forget_ends": ForgetEnds(
        (TransactionEnd(1233, True, "app/events", "job-7"), TransactionEnd(7, False, "app/größe", "8"))
    ),
    "forget_rows": ForgetRows((b"key", b"\xff\x00")),
    "forget_segment": ForgetSegment(SID),
    "forget_transactions": ForgetTransactions((("app/events", "job-7"), ("app/größe", "8"))),
    "import_segment": ImportSegment(_IMPORTED, (("s:1", b"record"), ("c:n", b""))),
    "load_segment": LoadSegment(1233, b"image", 1200, b"record"),
    "log_element": LogElement(ELEMENT.encode()),
    "log_element_change": LogElementChange(
        b"begin", Copied(159, 1 << 17), b"changed", Copied(0, 20), b"\0CRC"
    ),
    "merge_segments": MergeSegments(SID, 4096, ((SID + 1, 10), (SID + 2, 0)), (("txn", 5),)),
    "relog_data": RelogData(SID, 4096, b"some bytes"),
    "seal_segment": SealSegment(SID),
    "spill_attributes": SpillAttributes(SID, 1024),
    "spill_writers": SpillWriters(SID, (b"writer-1", b"w")),
    "unload_segments": UnloadSegments((SID, SID + 1)),
    "truncate_segment": TruncateSegment(SID, 4096),
    "update_attribute_ids": UpdateAttributeIds(SID, ((bytes(range(16)), -1), (bytes(16), 1 << 40))),
    "update_attributes": UpdateAttributes(SID, (("txn", -1), ("größe", 1 << 40))),
    "update_table": UpdateTable(SID, b"", 0, 0, ((b"key", b"value"), (b"\xff\x00", None), (b"empty", b""))),
    "update_table_by_writer": UpdateTable(SID, b"writer-1", -3, 2, ((b"key", b"value"),)),
}

IMAGE = SegmentImage(
    SID,
    SegmentStatus.LIVE,
    True,
    4106,
    17,
    128 << 20,
    "app/events",
    (("txn", 5),),
    ((b"writer-1", WriterState(-3, -2, 4096)),),
    (b"gone",),
    MergedRanges.of([MergedRange(100, SID + 1, 10)]),
)

IMAGE_AFTER_RECOVERY = IMAGE._replace(histories=((1 << 20, 100), (1 << 21, 4096)))

TABLE_IMAGE = IMAGE._replace(length=0, start_offset=0, merges=NO_MERGES, is_table=True)

TRANSACTION = TransactionImage(
    SID, "app/events", "job-7", TransactionStatus.COMMITTED, ("query", 7), 3_600_000, "because", 4096, 10
)

u64 = st.integers(0, (1 << 64) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
data = st.binary(max_size=40)
blobs = st.lists(data, max_size=3).map(tuple)
text = st.text(max_size=12)
writer = st.binary(min_size=1, max_size=64)
table_rows = st.lists(st.tuples(data, st.none() | data), max_size=3).map(tuple)
values = st.lists(st.tuples(text, i64), max_size=3).map(tuple)
cycles = st.builds(CycleComplete, u64, u64, u64, st.booleans())
statuses = st.sampled_from(SegmentStatus)

images = st.builds(
    SegmentImage,
    u64,
    statuses,
    st.booleans(),
    u64,
    u64,
    u64,
    text,
    values,
    st.lists(st.tuples(writer, st.builds(WriterState, i64, i64, u64)), max_size=3).map(tuple),
    st.lists(writer, max_size=3).map(tuple),
    st.lists(st.builds(MergedRange, u64, u64, u64), max_size=3).map(MergedRanges.of),
    st.booleans(),
    histories=st.lists(st.tuples(u64, u64), max_size=3).map(tuple),
)

tokens = st.none() | st.tuples(text, i64)
sids = st.lists(u64, max_size=3).map(tuple)
sources = st.lists(st.tuples(u64, u64), max_size=3).map(tuple)
transactions = st.builds(
    TransactionImage, u64, text, text, st.sampled_from(TransactionStatus), tokens, u64, text, u64, u64
)

_keys = st.tuples(st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9)).map(sorted)
_counts = st.integers(0, NUMBER_MAX)


def _run_lists(
    versions: st.SearchStrategy[int], schemas: st.SearchStrategy[int]
) -> st.SearchStrategy[RunList]:
    summaries = st.builds(
        lambda versions, keys, rows, tombstones: RunSummary(rows, min(rows, tombstones), *versions, *keys),
        st.tuples(versions, versions).map(sorted),
        _keys,
        st.integers(1, (1 << 32) - 1),
        u32,
    )
    return st.builds(
        lambda cycles, names, summaries, changes_from, schema: RunList(
            [
                RunEntry(f"r{name}", 1 << 32, name, name, cycle, cycle, summary)
                for cycle, name, summary in zip(cycles, names, summaries, strict=False)
            ],
            changes_from,
            schema,
        ),
        st.lists(u64, max_size=3, unique=True),
        st.lists(u32, max_size=3),
        st.lists(summaries, max_size=3),
        versions,
        schemas,
    )


positions = st.builds(Position, _counts, u32)
ids = st.binary(min_size=16, max_size=16)
_backup_names = st.from_regex(NAME_PATTERN, fullmatch=True)
elements = st.builds(
    Element,
    n=_counts,
    kind=st.sampled_from(Kind),
    epoch=st.integers(0, EPOCH_MAX),
    owner=st.builds(Owner, ids, ids, ids, ids, text),
    predecessor=positions,
    time_ms=u64,
    progress=st.builds(Progress, _counts, _counts, _counts, _counts, _counts),
    runs=_run_lists(u64, st.sampled_from((0, SEGMENTS, TRANSACTIONS))),
    pins=st.lists(st.builds(Pin, _backup_names, _counts), max_size=3).map(tuple),
)
consistent_elements = st.builds(
    lambda element, runs, more, held: attrs.evolve(
        element,
        runs=attrs.evolve(
            runs,
            rows_to=min(more, runs.rows_to),
            records_to=max(more, runs.rows_to),
            held=tuple(sorted(held)),
        ),
    ),
    elements,
    _run_lists(_counts, st.just(CONSISTENT)),
    _counts,
    st.sets(u64, max_size=3),
)
_copied = st.builds(Copied, u32, u32)

operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(AbortTransaction, u64, text, text, sids),
    st.builds(Append, u64, u64, data, st.just(b""), st.just(0), st.just(0)),
    st.builds(Append, u64, u64, data, writer, i64, u32),
    st.just(Barrier()),
    st.builds(BeginHistory, u64),
    st.builds(BeginTransaction, u64, text, tokens, u64),
    st.builds(CheckpointBegin, u64),
    st.builds(CheckpointEnd, u64, u64, u64, cycles),
    st.builds(CheckpointCounters, u64, u64),
    st.builds(CheckpointImages, u64, st.lists(st.tuples(u64, data), max_size=3).map(tuple)),
    st.builds(CheckpointManifest, u64, data, data),
    st.builds(CheckpointPiece, u64, st.booleans(), data),
    st.builds(CheckpointPart, u64, blobs, st.lists(st.tuples(text, u64, data), max_size=3).map(tuple), blobs),
    st.builds(
        CheckpointRows, u64, st.lists(st.builds(Row, data, u64, st.none() | data), max_size=3).map(tuple)
    ),
    st.builds(CommitMetadata, st.lists(st.tuples(text, st.none() | data), max_size=3).map(tuple)),
    st.builds(CommitTransaction, u64, u64, text, sources, sids, values),
    st.builds(CreateSegment, u64, text, u64),
    st.builds(CreateTable, u64, text),
    cycles,
    st.builds(DeleteSegment, u64),
    st.builds(ElementCreated, positions),
    st.builds(LoadSegment, u64, data, u64, data),
    st.builds(UnloadSegments, sids),
    st.builds(LogElement, elements.map(lambda element: element.encode())),
    st.builds(LogElementChange, data, _copied, data, _copied, data),
    st.builds(ExpireWriters, u64, st.lists(writer, max_size=3).map(tuple)),
    st.builds(ForgetRows, blobs),
    st.builds(SpillWriters, u64, st.lists(writer, max_size=3).map(tuple)),
    st.builds(ForgetSegment, u64),
    st.builds(
        CheckpointClosures,
        u64,
        st.lists(st.builds(ClosureChange, u64, u64, u64), max_size=3).map(tuple),
    ),
    st.builds(CheckpointEnds, u64, u64),
    st.builds(
        ForgetEnds,
        st.lists(st.builds(TransactionEnd, u64, st.booleans(), text, text), max_size=3).map(tuple),
    ),
    st.builds(ForgetTransactions, st.lists(st.tuples(text, text), max_size=3).map(tuple)),
    st.builds(
        ImportSegment,
        images.map(lambda image: image._replace(status=SegmentStatus.LIVE, merges=NO_MERGES)),
        st.lists(st.tuples(text, data), max_size=3).map(tuple),
    ),
    st.builds(MergeSegments, u64, u64, sources, values),
    st.builds(RelogData, u64, u64, data),
    st.builds(SealSegment, u64),
    st.builds(TruncateSegment, u64, u64),
    st.builds(SpillAttributes, u64, st.integers(0, (1 << 32) - 1)),
    st.builds(
        UpdateAttributeIds,
        u64,
        st.lists(st.tuples(st.binary(min_size=16, max_size=16), i64), max_size=3).map(tuple),
    ),
    st.builds(UpdateAttributes, u64, values),
    st.builds(UpdateTable, u64, st.just(b""), st.just(0), st.just(0), table_rows),
    st.builds(UpdateTable, u64, writer, i64, u32, table_rows),
)

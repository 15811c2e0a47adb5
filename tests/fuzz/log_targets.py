"""The decoders of a container's log: operations, groups, WAL files, the register, and recovery over all of
them.

Each checksummed record is a target twice: as it lies on the disk, where damage must never be taken for
another value, and as a body behind a right checksum, where the decoder itself has to stand up to any bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from hypothesis import strategies as st

from fuzz.target import Target
from support.operations import IMAGE, SAMPLES, SID, TRANSACTION, images, operations, transactions
from support.recovered import Recovered, Script
from tierlog.actors.container.checkpoint import TAG_CHECKPOINT_END
from tierlog.actors.read.tail_cache import TailCache
from tierlog.actors.read.unflushed import UnflushedBytes
from tierlog.journal.group_payload import PayloadBuilder, decode_group
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.operations.abort_transaction import AbortTransaction
from tierlog.journal.operations.append import Append
from tierlog.journal.operations.barrier import Barrier
from tierlog.journal.operations.begin_transaction import BeginTransaction
from tierlog.journal.operations.checkpoint import CheckpointBegin, CheckpointEnd, CheckpointPart
from tierlog.journal.operations.commit_metadata import CommitMetadata
from tierlog.journal.operations.commit_transaction import CommitTransaction
from tierlog.journal.operations.create_segment import CreateSegment
from tierlog.journal.operations.cycle_complete import CycleComplete
from tierlog.journal.operations.delete_segment import DeleteSegment
from tierlog.journal.operations.expire_writers import ExpireWriters
from tierlog.journal.operations.forget_transactions import ForgetTransactions
from tierlog.journal.operations.merge_segments import MergeSegments
from tierlog.journal.operations.operation import HEAD, Operation, decode_operations, encode_operation
from tierlog.journal.operations.relog_data import RelogData
from tierlog.journal.operations.seal_segment import SealSegment
from tierlog.journal.operations.segment_image import (
    SegmentImage,
    SegmentStatus,
    decode_image,
    encode_image,
    sid_of_image,
)
from tierlog.journal.operations.spill_writers import SpillWriters
from tierlog.journal.operations.transaction_image import (
    TransactionImage,
    TransactionStatus,
    decode_transaction,
    encode_transaction,
)
from tierlog.journal.operations.truncate_segment import TruncateSegment
from tierlog.journal.operations.update_attributes import UpdateAttributes
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.segments.records import SegmentRecord, segment_key

# --- operations and groups -----------------------------------------------------------------------


def _encode_operations(ops: list[Operation]) -> bytes:
    return b"".join(map(encode_operation, ops))


def _encode_group(group: tuple[int, list[Operation]]) -> bytes:
    builder = PayloadBuilder(group[0])
    for op in group[1]:
        builder.add(op)
    return b"".join(builder.parts)


def _decode_body(number: int, body: bytes) -> Operation:
    """One operation's body, with other operations around it that it must not touch."""
    around = encode_operation(DeleteSegment(SID))
    head = struct.pack(">BI", number, len(body))
    before, op, after = decode_operations(memoryview(around + head + body + around), 0)
    assert before == after == DeleteSegment(SID)
    return op


def _encode_body(op: Operation) -> bytes:
    return encode_operation(op)[HEAD.size :]


def _operation_targets() -> list[Target]:
    examples: dict[int, list[bytes]] = {}
    names: dict[int, str] = {}
    for name, op in SAMPLES.items():
        number = encode_operation(op)[0]
        names.setdefault(number, name)
        examples.setdefault(number, []).append(_encode_body(op))

    return [
        Target(f"operation {names[n]}", partial(_decode_body, n), examples[n], encode=_encode_body)
        for n in names
    ]


def _decode_image(data: bytes) -> SegmentImage:
    image = decode_image(data)
    assert sid_of_image(data) == image.sid
    return image


_GROUPS = [
    _encode_group((100, list(SAMPLES.values()))),
    _encode_group((1, [SAMPLES["append"], SAMPLES["append_by_writer"]])),
]
_VOCABULARY = [
    *_operation_targets(),
    Target("segment image", _decode_image, [encode_image(IMAGE)], encode=encode_image, values=images),
    Target(
        "transaction image",
        decode_transaction,
        [encode_transaction(TRANSACTION)],
        encode=encode_transaction,
        values=transactions,
    ),
    Target(
        "operations",
        lambda data: decode_operations(memoryview(data), 0),
        [_encode_operations(list(SAMPLES.values()))],
        encode=_encode_operations,
        values=st.lists(operations, max_size=4),
    ),
    Target(
        "group payload",
        lambda data: decode_group(memoryview(data)),
        _GROUPS,
        encode=_encode_group,
        values=st.tuples(st.integers(0, (1 << 64) - 1), st.lists(operations, max_size=4)),
    ),
]


# --- recovery: decoded operations meet a container's state --------------------------------------

_runner = asyncio.Runner()


def _recovered(make: Callable[[Script], None]) -> Recovered:
    """What recovery makes of a log in memory. One event loop serves all calls: to make one costs more than a
    recovery."""

    async def recover() -> Recovered:
        script = Script()
        make(script)
        return await script.recover()

    recovering: Callable[[], Awaitable[Recovered]] = recover
    return _runner.run(recovering())  # type: ignore[arg-type]  # a coroutine function's result is a coroutine


def _segments_of(recovered: Recovered) -> dict[str, Any]:
    state = recovered.parts.state
    return {name: recovered.parts.segment(name).info(0) for name in state.segments.names()}


def _recover_group(data: bytes) -> object:
    return _segments_of(_recovered(lambda script: script.raw(data)))


def _recover_transaction(data: bytes) -> object:
    """An image of a transaction, beside a staged segment that needs it."""
    staged = SegmentImage(SID + 1, SegmentStatus.LIVE, False, 0, 0, 1 << 20, STAGED, (), (), ())

    def make(script: Script) -> None:
        script.group(CheckpointBegin(1))
        script.group(CheckpointPart(1, (encode_image(staged),), (), (data,)))
        script.group(
            CheckpointEnd(1, 1, 1, CycleComplete(0, 0, 0, False)), tag=TAG_CHECKPOINT_END, truncate_before=1
        )

    return _segments_of(_recovered(make))


def _recover_image(data: bytes) -> object:
    def make(script: Script) -> None:
        script.group(CheckpointBegin(1))
        script.group(CheckpointPart(1, (data,), ((segment_key(SID), 1, _RECORD),)))
        script.group(
            CheckpointEnd(1, 1, 1, CycleComplete(0, 0, 0, False)), tag=TAG_CHECKPOINT_END, truncate_before=1
        )

    return _segments_of(_recovered(make))


def _recover_entry(data: bytes) -> object:
    """A metadata entry whose key and value are both arbitrary."""
    key, _, value = data.partition(b"=")
    writes = ((key.decode("latin-1"), value),)

    def make(script: Script) -> None:
        script.group(CreateSegment(SID, "a", 1 << 20), CommitMetadata(writes))

    return _segments_of(_recovered(make))


def _read_spilled(data: bytes) -> bytes:
    """Bytes that the cache has spilled, from a log whose only group is ``data``."""
    spilled = SAMPLES["append"]
    assert isinstance(spilled, Append)

    async def read() -> bytes:
        log = MemoryLogService().log("c")
        await log.open()
        cache = TailCache(0, log.window_of)
        cache.open_segment(SID, spilled.offset)
        cache.append(SID, spilled.offset, spilled.data, await log.append([data]))
        end = spilled.offset + len(spilled.data)
        return b"".join(await UnflushedBytes(cache, log).read_all(SID, spilled.offset, end))

    return _runner.run(read())


_RECORD = SegmentRecord(SID, 4106, 17, "a", "a", 0, 0, 1, True, 1).encode()
STAGED = "a#txn.job-7.p"
_OPEN = TransactionImage(SID, "a", "job-7", TransactionStatus.OPEN, ("query", 7), 3_600_000)
_LIFE: list[Operation] = [
    CreateSegment(SID, "a", 1 << 20),
    CreateSegment(SID + 1, "a#1", 1 << 20),
    Append(SID, 0, b"some bytes", b"", 0, 0),
    Append(SID + 1, 0, b"more", b"writer-1", 0, 2),
    SealSegment(SID + 1),
    MergeSegments(SID, 10, ((SID + 1, 4),), (("txn", 5),)),
    TruncateSegment(SID, 3),
    CommitMetadata(((segment_key(SID), SegmentRecord(SID, 10, 3, "c", "c", 0, 0, 1, False, 1).encode()),)),
]
_DEATH: list[Operation] = [
    CreateSegment(SID, "a", 1 << 20),
    Append(SID, 0, b"some bytes", b"writer-1", 0, 1),
    UpdateAttributes(SID, (("txn", 5),)),
    SpillWriters(SID, (b"writer-1",)),
    ExpireWriters(SID, (b"writer-1",)),
    RelogData(SID, 0, b"some bytes"),
    CommitMetadata(
        ((segment_key(SID), SegmentRecord(SID, 4, 0, "c", "c", 0, 0, 1, False, 1).encode()), ("c:c", b""))
    ),
    DeleteSegment(SID),
    CycleComplete(1, 1, 6, True),
    CommitMetadata(((segment_key(SID), None), ("c:c", None))),
    Barrier(),
]
_TRANSACTIONS: list[Operation] = [
    CreateSegment(SID, "a", 1 << 20),
    BeginTransaction(SID, "job-7", ("query", 7), 3_600_000),
    CreateSegment(SID + 1, STAGED, 1 << 20),
    CreateSegment(SID + 2, "a#txn.job-7.q", 1 << 20),
    Append(SID + 1, 0, b"some bytes", b"", 0, 0),
    CommitTransaction(SID, 0, "job-7", ((SID + 1, 10),), (SID + 2,), (("txn:query", 7),)),
    BeginTransaction(SID, "job-8", None, 3_600_000),
    CreateSegment(SID + 3, "a#txn.job-8.p", 1 << 20),
    AbortTransaction(SID, "job-8", "because", (SID + 3,)),
    ForgetTransactions((("a", "job-8"),)),
]
_FLUSHED = SegmentImage(SID, SegmentStatus.LIVE, True, 4106, 17, 1 << 20, "a", (("txn", 5),), (), (b"gone",))
_RECOVERY = [
    Target(
        "group in recovery",
        _recover_group,
        [_encode_group((1, _LIFE)), _encode_group((1, _DEATH)), _encode_group((1, _TRANSACTIONS))],
        errors=(DataCorruption, StoreMismatch),
        bytes_per_byte=4096,
    ),
    Target(
        "group of spilled bytes",
        _read_spilled,
        _GROUPS,
        errors=(DataCorruption,),
        bytes_per_byte=4096,
    ),
    Target(
        "image in recovery",
        _recover_image,
        [encode_image(_FLUSHED)],
        errors=(DataCorruption,),
        bytes_per_byte=4096,
    ),
    Target(
        "transaction in recovery",
        _recover_transaction,
        [encode_transaction(_OPEN)],
        errors=(DataCorruption,),
        bytes_per_byte=4096,
    ),
    Target(
        "metadata entry in recovery",
        _recover_entry,
        [segment_key(SID).encode() + b"=" + SegmentRecord(SID).encode(), b"c:x=y"],
        errors=(DataCorruption,),
        hostile=[b"s:=", b"s:zz=", b"s:0x00000000000001=", b"s:-000000000000001="],
        bytes_per_byte=4096,
    ),
]

LOG_TARGETS = [*_VOCABULARY, *_RECOVERY]

"""All operations: the one table of their types.

An operation is ``type u8, body length u32, body``; type numbers are permanent. Owns: the table, and one
operation's bytes. Does not own: groups of them (``journal/wal``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from ...storage_backends.base.codec import DecodeError
from . import (
    abort_transaction,
    append,
    barrier,
    begin_transaction,
    checkpoint,
    commit_metadata,
    commit_transaction,
    create_segment,
    cycle_complete,
    delete_segment,
    expire_writers,
    forget_segment,
    forget_transactions,
    import_segment,
    merge_segments,
    relog_data,
    seal_segment,
    truncate_segment,
    update_attributes,
)
from .abort_transaction import AbortTransaction
from .append import Append
from .barrier import Barrier
from .begin_transaction import BeginTransaction
from .checkpoint import CheckpointBegin, CheckpointEnd, CheckpointPart
from .commit_metadata import CommitMetadata
from .commit_transaction import CommitTransaction
from .create_segment import CreateSegment
from .cycle_complete import CycleComplete
from .delete_segment import DeleteSegment
from .expire_writers import ExpireWriters
from .forget_segment import ForgetSegment
from .forget_transactions import ForgetTransactions
from .import_segment import ImportSegment
from .merge_segments import MergeSegments
from .relog_data import RelogData
from .seal_segment import SealSegment
from .truncate_segment import TruncateSegment
from .update_attributes import UpdateAttributes

Operation: TypeAlias = (
    AbortTransaction
    | Append
    | Barrier
    | BeginTransaction
    | CheckpointBegin
    | CheckpointEnd
    | CheckpointPart
    | CommitMetadata
    | CommitTransaction
    | CreateSegment
    | CycleComplete
    | DeleteSegment
    | ExpireWriters
    | ForgetSegment
    | ForgetTransactions
    | ImportSegment
    | MergeSegments
    | RelogData
    | SealSegment
    | TruncateSegment
    | UpdateAttributes
)

_OP = struct.Struct(">BI")
_PLAIN_APPEND = struct.Struct(">BIQQB")
"""An operation's head and the whole head of an append without a writer."""
OP_HEAD_BYTES = _OP.size


def _encode_append(op: Append) -> bytes:
    return append.encode_head(op.sid, op.offset, op.writer, op.first_event, op.event_count) + bytes(op.data)


_ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    AbortTransaction: (abort_transaction.TYPE, abort_transaction.encode),
    Append: (append.TYPE, _encode_append),
    Barrier: (barrier.TYPE, barrier.encode),
    BeginTransaction: (begin_transaction.TYPE, begin_transaction.encode),
    CheckpointBegin: (checkpoint.TYPE_BEGIN, checkpoint.encode_begin),
    CheckpointPart: (checkpoint.TYPE_PART, checkpoint.encode_part),
    CheckpointEnd: (checkpoint.TYPE_END, checkpoint.encode_end),
    CommitMetadata: (commit_metadata.TYPE, commit_metadata.encode),
    CommitTransaction: (commit_transaction.TYPE, commit_transaction.encode),
    CreateSegment: (create_segment.TYPE, create_segment.encode),
    CycleComplete: (cycle_complete.TYPE, cycle_complete.encode),
    DeleteSegment: (delete_segment.TYPE, delete_segment.encode),
    ExpireWriters: (expire_writers.TYPE, expire_writers.encode),
    ForgetSegment: (forget_segment.TYPE, forget_segment.encode),
    ForgetTransactions: (forget_transactions.TYPE, forget_transactions.encode),
    ImportSegment: (import_segment.TYPE, import_segment.encode),
    MergeSegments: (merge_segments.TYPE, merge_segments.encode),
    RelogData: (relog_data.TYPE, relog_data.encode),
    SealSegment: (seal_segment.TYPE, seal_segment.encode),
    TruncateSegment: (truncate_segment.TYPE, truncate_segment.encode),
    UpdateAttributes: (update_attributes.TYPE, update_attributes.encode),
}

_DECODERS: dict[int, Callable[[memoryview, int, int], Operation]] = {
    abort_transaction.TYPE: abort_transaction.decode,
    append.TYPE: append.decode,
    barrier.TYPE: barrier.decode,
    begin_transaction.TYPE: begin_transaction.decode,
    checkpoint.TYPE_BEGIN: checkpoint.decode_begin,
    checkpoint.TYPE_PART: checkpoint.decode_part,
    checkpoint.TYPE_END: checkpoint.decode_end,
    commit_metadata.TYPE: commit_metadata.decode,
    commit_transaction.TYPE: commit_transaction.decode,
    create_segment.TYPE: create_segment.decode,
    cycle_complete.TYPE: cycle_complete.decode,
    delete_segment.TYPE: delete_segment.decode,
    expire_writers.TYPE: expire_writers.decode,
    forget_segment.TYPE: forget_segment.decode,
    forget_transactions.TYPE: forget_transactions.decode,
    import_segment.TYPE: import_segment.decode,
    merge_segments.TYPE: merge_segments.decode,
    relog_data.TYPE: relog_data.decode,
    seal_segment.TYPE: seal_segment.decode,
    truncate_segment.TYPE: truncate_segment.decode,
    update_attributes.TYPE: update_attributes.decode,
}


def encode_operation(op: Operation) -> bytes:
    """Type, length and body. Appends on the hot path use ``encode_append_head`` instead and leave their data
    where it is."""
    number, encode = _ENCODERS[type(op)]
    body = encode(op)
    return _OP.pack(number, len(body)) + body


def encode_append_head(op: Append, data_size: int) -> bytes:
    """What comes before an append's data in a group: the caller writes the data right behind it."""
    if not op.writer:
        # The hot path of the hot path: one pack instead of two and a join.
        return _PLAIN_APPEND.pack(append.TYPE, append.HEAD_BYTES + data_size, op.sid, op.offset, 0)

    head = append.encode_head(op.sid, op.offset, op.writer, op.first_event, op.event_count)
    return _OP.pack(append.TYPE, len(head) + data_size) + head


def decode_operations(payload: memoryview, position: int) -> list[Operation]:
    """The operations from ``position`` to the end; ``DecodeError`` for anything else. Append data are views
    into ``payload``."""
    operations: list[Operation] = []
    end = len(payload)
    add, unpack, decoders = operations.append, _OP.unpack_from, _DECODERS
    while position < end:
        if position + OP_HEAD_BYTES > end:
            raise DecodeError(f"operation head at {position} is cut short")

        number, size = unpack(payload, position)
        position += OP_HEAD_BYTES
        stop = position + size
        decode = decoders.get(number)
        if decode is None or stop > end:
            raise DecodeError(f"operation of type {number} and {size} bytes at {position} does not fit")

        add(decode(payload, position, stop))
        position = stop

    return operations

"""The deferred work record: what a metadata-only operation left to do, so that it costs the same however many
chunks a segment has (rule S11).

It is written in the commit of the operation and shrinks or goes in the commit of each step
(``operations/deferred_work.py``), so at every moment it has exactly what is left, to later owners too. A
segment has at most one of each kind. A field that its kind does not use is 0 or empty. What is left, by kind:

``delete`` (of ``segment``)
    ``chunks`` chunk records from ``chunk`` on; index records from ``index_offset`` to ``end``.
``truncate`` (of ``segment``)
    Leading chunks below the start; index records from ``index_offset`` to the first chunk; perhaps the
    relocation of the first chunk (rule S10).
``splice`` (``segment`` is the source, which is gone)
    Its index records from ``index_offset`` to ``end``; the index records of ``target`` from ``position`` on,
    in ``offset .. offset + end``.
``defrag`` (of ``segment``)
    Small chunks from ``position`` on may be joined once there are enough, ``chunks`` (rule S9).
``adopt`` (``segment`` does not exist yet)
    An unfinished import wrote ``chunks`` chunk records from ``chunk`` on and index records from
    ``index_offset`` to ``end``: they are deleted, their chunks stay. Empty after one that finished (rule
    S14).

Layout: u8 type 4, u8 version 1, u8 kind, u64 segment, u64 target, u64 offset, u64 end, u64 index_offset, u64
position, text chunk, u64 chunks, u64 owner_epoch; bytes behind are kept. A kind of a newer version is left
alone (``is_of_newer_kind``).
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from ...base.checksum import Buffer
from .header import DEFERRED_WORK_TYPE, Invariants, begin, broken, expect

DEFERRED_WORK_PREFIX = "d:"
_VERSION = 1


class DeferredWorkKind(IntEnum):
    """The numbers are persisted, hence permanent. Their order is the order in which work runs."""

    DELETE = 1
    TRUNCATE = 2
    SPLICE = 3
    DEFRAG = 4
    ADOPT = 5


_KIND_AT = 2


def is_of_newer_kind(data: Buffer) -> bool:
    """Whether this is work of a kind that only a newer version knows."""
    # Without decoding the rest, whose fields may have another meaning for that kind.
    head = bytes(data[: _KIND_AT + 1])
    return (
        head[:_KIND_AT] == bytes((DEFERRED_WORK_TYPE, _VERSION))
        and len(head) > _KIND_AT
        and head[_KIND_AT] > max(DeferredWorkKind)
    )


def deferred_work_key(segment: int, kind: DeferredWorkKind) -> str:
    return f"{DEFERRED_WORK_PREFIX}{segment:016x}:{kind.name.lower()}"


class DeferredWorkRecord(Struct, frozen=True):
    kind: DeferredWorkKind
    segment: int
    """The id (rule C2) of the segment whose operation left it; of a splice, of the source."""
    target: int = 0
    """Of a splice: the segment that now has the source's chunks."""
    offset: int = 0
    """Of a splice: the offset of the source's first byte in the target."""
    end: int = 0
    """Of a delete and a splice: the length of the deleted segment. Of an adopt: the end of what was
    written."""
    index_offset: int = 0
    """Index records of ``segment`` below this offset are deleted already."""
    position: int = 0
    """Of a splice and a defrag: the offset, in the target or the segment, up to which it is done."""
    chunk: str = ""
    """Of a delete and an adopt: the first chunk whose record is left, or empty. Of a splice: the chunk at
    ``position``, or empty."""
    chunks: int = 0
    """Of a delete and an adopt: the chunk records left. Of a defrag: the small chunks that the segment has
    gained."""
    owner_epoch: int = 0
    """The epoch of the owner that wrote it last."""
    extra: bytes = b""
    """Fields of a newer version, kept as they are."""

    @property
    def key(self) -> str:
        return deferred_work_key(self.segment, self.kind)

    def encode(self) -> bytes:
        encoder = (
            begin(DEFERRED_WORK_TYPE, _VERSION)
            .u8(self.kind)
            .u64(self.segment)
            .u64(self.target)
            .u64(self.offset)
            .u64(self.end)
        )
        encoder.u64(self.index_offset).u64(self.position).text(self.chunk).u64(self.chunks).u64(
            self.owner_epoch
        )
        return encoder.raw(self.extra).finish()

    @classmethod
    def decode(cls, data: Buffer) -> DeferredWorkRecord:
        fields = expect(data, DEFERRED_WORK_TYPE, _VERSION)
        kind = fields.member(DeferredWorkKind)
        head = fields.u64(), fields.u64(), fields.u64(), fields.u64(), fields.u64(), fields.u64()
        return cls(kind, *head, fields.text(), fields.u64(), fields.u64(), extra=fields.rest())

    def broken(self) -> list[str]:
        """The names of the invariants that this record breaks."""
        return broken(self, DEFERRED_WORK_INVARIANTS)


def _nothing_is_negative(r: DeferredWorkRecord) -> bool:
    return min(r.segment, r.target, r.offset, r.end, r.index_offset, r.position, r.chunks, r.owner_epoch) >= 0


def _what_goes_is_counted(r: DeferredWorkRecord) -> bool:
    return r.kind not in (DeferredWorkKind.DELETE, DeferredWorkKind.ADOPT) or bool(r.chunk) == (r.chunks > 0)


def _index_lies_inside(r: DeferredWorkRecord) -> bool:
    return r.index_offset <= r.end or r.kind not in (
        DeferredWorkKind.DELETE,
        DeferredWorkKind.SPLICE,
        DeferredWorkKind.ADOPT,
    )


def _position_lies_in_the_splice(r: DeferredWorkRecord) -> bool:
    return r.kind is not DeferredWorkKind.SPLICE or r.offset <= r.position <= r.offset + r.end


def _splice_joins_two(r: DeferredWorkRecord) -> bool:
    return r.kind is not DeferredWorkKind.SPLICE or r.target != r.segment


DEFERRED_WORK_INVARIANTS: Invariants[DeferredWorkRecord] = {
    "nothing is negative": _nothing_is_negative,
    "chunks that go are counted": _what_goes_is_counted,
    "index_offset <= end": _index_lies_inside,
    "the position lies in the spliced part": _position_lies_in_the_splice,
    "a splice joins two segments": _splice_joins_two,
}

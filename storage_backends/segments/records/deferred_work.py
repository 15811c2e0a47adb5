"""The deferred work record: what a metadata-only operation left to be done, so that it costs the same however many
chunks a segment has (rule S11).

Owns: its key, layout (format version 1) and invariants. Does not own: the steps that run it
(``operations/deferred_work.py``), nor when (the storage writer). It is written in the commit of the operation that
makes it, and shrinks or goes in the commit of each step: so it says at every moment exactly what is left, to
every later owner too.

============ =================
========================================================================================== kind
``segment``       what is left ============ =================
========================================================================================== delete       the
deleted one   ``chunks`` chunk records from ``chunk`` on; index records from ``index_offset`` to ``end``
truncate     the truncated one leading chunks below the start; index records from ``index_offset`` to the
first chunk;
                               perhaps the relocation of the first chunk (rule S10)
splice       the source        its index records from ``index_offset`` to ``end``; the index records of ``target`` for the
                               bytes from ``position`` on, in the part ``offset .. offset + end``
defrag       the segment       small chunks from ``position`` on may be joined (rule S9), once there are enough (``chunks``)
adopt        one to be         an import laid ``chunks`` chunk records from ``chunk`` on, and index records from ``index_offset`` to
                               ``end``, and did not finish: they go, their chunks stay. Nothing is left of one that did (rule S14)
============ =================
==========================================================================================

A segment has at most one deferred work of a kind. A field that its kind does not use is 0 or empty.

Layout: u8 type 4, u8 version 1, u8 kind, u64 segment, u64 target, u64 offset, u64 end, u64 index_offset, u64
position, text chunk, u64 chunks, u64 owner_epoch; bytes behind are kept. A kind of a newer version is left
alone: ``is_of_newer_kind`` tells it.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from ...base.checksum import Buffer
from ...base.codec import DecodeError
from .header import DEFERRED_WORK_TYPE, Invariants, begin, broken, expect

DEFERRED_WORK_PREFIX = "d:"
_VERSION = 1


class DeferredWorkKind(IntEnum):
    """Permanent numbers: they are persisted. The order is the order in which deferred work runs."""

    DELETE = 1
    TRUNCATE = 2
    SPLICE = 3
    DEFRAG = 4
    ADOPT = 5


_KIND_AT = 2


def is_of_newer_kind(data: Buffer) -> bool:
    """Whether this is deferred work of a kind that only newer code knows how to run."""
    head = bytes(data[: _KIND_AT + 1])
    return (
        head[:_KIND_AT] == bytes((DEFERRED_WORK_TYPE, _VERSION))
        and len(head) > _KIND_AT
        and head[_KIND_AT] > max(DeferredWorkKind)
    )


def deferred_work_key(segment: int, kind: DeferredWorkKind) -> str:
    return f"{DEFERRED_WORK_PREFIX}{segment:016x}:{kind.name.lower()}"


@attrs.frozen
class DeferredWorkRecord:
    kind: DeferredWorkKind
    segment: int
    """The segment id (rule C2) whose operation left it; of a splice the source's, which is gone."""
    target: int = 0
    """Of a splice: the segment that has the source's chunks now."""
    offset: int = 0
    """Of a splice: where the source's first byte lies in the target."""
    end: int = 0
    """Of a delete and a splice: the length of the segment that is gone. Of an adopt: what was laid ends
    here."""
    index_offset: int = 0
    """Index records of ``segment`` below this offset are gone already."""
    position: int = 0
    """Of a splice and a defrag: the offset, in the target or the segment, up to which it is done."""
    chunk: str = ""
    """Of a delete and an adopt: the first chunk whose record is left, empty if none is. Of a splice: that at
    ``position``, or empty."""
    chunks: int = 0
    """Of a delete and an adopt: how many chunk records are left. Of a defrag: how many small chunks the
    segment has gained."""
    owner_epoch: int = 0
    """The epoch of the owner that wrote it last."""
    extra: bytes = attrs.field(default=b"", kw_only=True)
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
        number = fields.u8()
        try:
            kind = DeferredWorkKind(number)
        except ValueError:
            raise DecodeError(f"unknown kind of deferred work {number}") from None

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

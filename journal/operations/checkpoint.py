"""A checkpoint: begin, parts, rows and pieces, end (rule C7).

``CheckpointBegin`` fixes the sequence whose state the checkpoint holds. ``CheckpointImages`` carries segment
images as they were at that sequence, with the sequence of each one's last change; parts carry transactions,
``CheckpointRows`` the rows of the system table that no run has and those that stay in memory (rule M8),
``CheckpointCounters`` what cannot be counted there. Parts of earlier versions have images, and all metadata
records as entries. An image too large for a part comes in consecutive pieces. ``CheckpointEnd`` makes the
checkpoint valid and names the group where replay starts. A checkpoint without its end is ignored.

Layouts: begin ``id u64``; part ``id u64, images u32 [blob], entries u32 [key text, version u64, value blob],
transactions u32 [blob]``; images ``id u64, count u32, count times (version u64, image blob)``; rows ``id u64,
count u32, count times (key blob, version u64, present u8, (value blob))``; counters ``id u64, segments u64``;
piece ``id u64, last u8, data blob``; end ``id u64, begin group u64, begin sequence u64, last cycle (epoch
u64, cycle u64, cut u64, full u8)``.
"""

from __future__ import annotations

from typing import NamedTuple

from ...storage_backends.base.codec import Decoder, Encoder
from ...storage_backends.sorted_runs.rows import Row
from .cycle_complete import CycleComplete
from .operation import operation


@operation(14)
class CheckpointBegin(NamedTuple):
    checkpoint: int

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointBegin:
        return CheckpointBegin(fields.u64())


@operation(15)
class CheckpointPart(NamedTuple):
    checkpoint: int
    images: tuple[bytes, ...]
    """Encoded ``SegmentImage`` records, in parts of earlier versions."""
    entries: tuple[tuple[str, int, bytes], ...]
    """(key, version, encoded record) of chunk metadata."""
    transactions: tuple[bytes, ...] = ()
    """Encoded ``TransactionImage`` records."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.checkpoint).u32(len(self.images))
        for image in self.images:
            out.blob(image)

        out.u32(len(self.entries))
        for key, version, value in self.entries:
            out.text(key).u64(version).blob(value)

        out.u32(len(self.transactions))
        for transaction in self.transactions:
            out.blob(transaction)

        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointPart:
        checkpoint = fields.u64()
        images = tuple(fields.blob() for _ in range(fields.u32()))
        entries = tuple((fields.text(), fields.u64(), fields.blob()) for _ in range(fields.u32()))
        return CheckpointPart(checkpoint, images, entries, tuple(fields.blob() for _ in range(fields.u32())))


@operation(28)
class CheckpointImages(NamedTuple):
    checkpoint: int
    images: tuple[tuple[int, bytes], ...]
    """(sequence of the last change, encoded ``SegmentImage``)."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.checkpoint).u32(len(self.images))
        for version, image in self.images:
            out.u64(version).blob(image)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointImages:
        checkpoint, count = fields.u64(), fields.u32()
        return CheckpointImages(checkpoint, tuple((fields.u64(), fields.blob()) for _ in range(count)))


@operation(31)
class CheckpointCounters(NamedTuple):
    checkpoint: int
    segments: int
    """Live segments, those that are not in memory too."""

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).u64(self.segments).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointCounters:
        return CheckpointCounters(fields.u64(), fields.u64())


@operation(26)
class CheckpointRows(NamedTuple):
    checkpoint: int
    rows: tuple[Row, ...]

    def encode(self) -> bytes:
        out = Encoder().u64(self.checkpoint).u32(len(self.rows))
        for key, version, value in self.rows:
            out.blob(key).u64(version).optional_blob(value)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointRows:
        checkpoint, count = fields.u64(), fields.u32()
        return CheckpointRows(
            checkpoint, tuple(Row(fields.blob(), fields.u64(), fields.optional_blob()) for _ in range(count))
        )


@operation(22)
class CheckpointPiece(NamedTuple):
    checkpoint: int
    is_last: bool
    """Whether the image is complete with this piece."""
    data: bytes
    """Consecutive bytes of an encoded ``SegmentImage``."""

    def encode(self) -> bytes:
        return Encoder().u64(self.checkpoint).u8(self.is_last).blob(self.data).finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointPiece:
        return CheckpointPiece(fields.u64(), fields.flag(), fields.blob())


@operation(16)
class CheckpointEnd(NamedTuple):
    checkpoint: int
    begin_group: int
    begin_sequence: int
    cycle: CycleComplete
    """The newest complete flush cycle at the begin; all zero if there was none."""

    def encode(self) -> bytes:
        out = Encoder().u64(self.checkpoint).u64(self.begin_group).u64(self.begin_sequence)
        out.u64(self.cycle.epoch).u64(self.cycle.cycle).u64(self.cycle.cut).u8(self.cycle.full)
        return out.finish()

    @staticmethod
    def decode(fields: Decoder) -> CheckpointEnd:
        checkpoint, group, sequence = fields.u64(), fields.u64(), fields.u64()
        cycle = CycleComplete(fields.u64(), fields.u64(), fields.u64(), fields.flag())
        return CheckpointEnd(checkpoint, group, sequence, cycle)

"""A container's segments in memory: ``SegmentState`` and the one table that maps names to ids.

Owns: the fields and the two maps (rule C2: only this table knows names). Does not own: when they change (``state.py`` applies operations)
nor what is allowed (``decisions.py``).

There is one state, the *speculative* one: it includes every operation that was given a sequence. ``durable_length`` alone lags behind and
is what readers see; it is -1 until the creation itself is durable. No rollback exists: if the log fails, the container stops and recovery builds the state again.
"""

from __future__ import annotations

from collections import deque

import anyio

from ...journal.operations.segment_image import MergedRange, SegmentImage, SegmentStatus, WriterState, encode_image


class SegmentState:
    """One segment. ``length >= durable_length >= flushed``; ``merges`` are in offset order, all above ``flushed``'s record."""

    __slots__ = (
        "attributes",
        "borders",
        "durable_length",
        "expired",
        "flushed",
        "flushed_sealed",
        "flushed_start",
        "has_record",
        "length",
        "marks",
        "merges",
        "name",
        "rolling_size",
        "sealed",
        "sid",
        "start_offset",
        "status",
        "waiter",
        "writers",
    )

    def __init__(self, sid: int, name: str, rolling_size: int) -> None:
        self.sid = sid
        self.name = name
        self.rolling_size = rolling_size
        self.status = SegmentStatus.LIVE
        self.length = 0
        self.durable_length = -1
        self.start_offset = 0
        self.sealed = False
        self.attributes: dict[str, int] = {}
        self.writers: dict[bytes, WriterState] = {}
        self.expired: dict[bytes, None] = {}
        self.merges: list[MergedRange] = []
        # What long-term storage's record says, as of the newest applied metadata commit.
        self.has_record = False
        self.flushed = 0
        self.flushed_start = 0
        self.flushed_sealed = False
        self.marks: deque[tuple[int, int]] = deque()
        """(end offset, log group) of durable unflushed bytes, oldest first: what truncation of the log must keep."""
        self.borders: deque[int] = deque()
        """Where appends begin, about one for each MiB that is not flushed yet (rule S5)."""
        self.waiter: anyio.Event | None = None
        """Set when the durable length, the seal flag or the life of the segment changes."""

    def __repr__(self) -> str:
        return f"<SegmentState {self.name!r} {self.sid:#x} {self.status.name} {self.start_offset}..{self.flushed}..{self.length}>"

    @property
    def is_flushed(self) -> bool:
        """Long-term storage's record says all that this state says."""
        return (
            self.has_record
            and self.flushed == self.length
            and self.flushed_start == self.start_offset
            and self.flushed_sealed == self.sealed
            and not self.merges
        )

    @property
    def needs_flush(self) -> bool:
        """A flush cycle has work here. A merged segment is its target's work."""
        return self.status is SegmentStatus.DELETED or (self.status is SegmentStatus.LIVE and not self.is_flushed)

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter.set()
            self.waiter = None

    def image(self) -> bytes:
        """What a checkpoint keeps."""
        return encode_image(
            SegmentImage(
                self.sid,
                self.status,
                self.sealed,
                self.length,
                self.start_offset,
                self.rolling_size,
                self.name,
                tuple(self.attributes.items()),
                tuple(self.writers.items()),
                tuple(self.expired),
                tuple(self.merges),
            )
        )

    @classmethod
    def from_image(cls, image: SegmentImage) -> SegmentState:
        segment = cls(image.sid, image.name, image.rolling_size)
        segment.status = image.status
        segment.sealed = image.sealed
        segment.length = segment.durable_length = image.length
        segment.start_offset = image.start_offset
        segment.attributes = dict(image.values)
        segment.writers = dict(image.writers)
        segment.expired = dict.fromkeys(image.expired)
        segment.merges = list(image.merges)
        return segment


class SegmentTable:
    """Every segment by id, and the live ones by name."""

    def __init__(self) -> None:
        self.by_id: dict[int, SegmentState] = {}
        self._by_name: dict[str, SegmentState] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> SegmentState | None:
        return self._by_name.get(name)

    def add(self, segment: SegmentState) -> None:
        if segment.sid in self.by_id or (segment.status is SegmentStatus.LIVE and segment.name in self._by_name):
            raise ValueError(f"{segment!r} is in the table already")

        self.by_id[segment.sid] = segment
        if segment.status is SegmentStatus.LIVE:
            self._by_name[segment.name] = segment

    def unname(self, segment: SegmentState, status: SegmentStatus) -> None:
        """The segment was merged away or deleted: its name is free, its id is still known."""
        if segment.status is SegmentStatus.LIVE:
            del self._by_name[segment.name]

        segment.status = status

    def remove(self, sid: int) -> SegmentState | None:
        return self.by_id.pop(sid, None)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._by_name if name.startswith(prefix))

"""A container's segments in memory: ``SegmentState`` and the one table that maps names to ids.

Owns: the fields, the maps (rule C2: only this table knows names), and the eviction of idle segments. Does not
own: when they change (``state.py`` applies operations) nor what is allowed (``decisions.py``).

There is one state, the *speculative* one: it includes every operation that was given a sequence.
``durable_length`` alone lags behind and is what readers see; it is -1 until the creation itself is durable.
No rollback exists: if the log fails, the container stops and recovery builds the state again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import anyio

from ...journal.operations.segment_image import (
    MergedRange,
    SegmentImage,
    SegmentStatus,
    WriterState,
    decode_image,
    encode_image,
)
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.base.transactions import is_staged


class SegmentState:
    """One segment. ``length >= durable_length >= flushed``; ``merges`` are in offset order, all above
    ``flushed``'s record."""

    __slots__ = (
        "append_boundaries",
        "attributes",
        "durable_length",
        "expired",
        "flushed",
        "flushed_sealed",
        "flushed_start",
        "has_record",
        "length",
        "log_references",
        "merges",
        "name",
        "rolling_size",
        "sealed",
        "sid",
        "start_offset",
        "status",
        "touched",
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
        self.touched = 0
        """The sequence of the last change, for eviction."""
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
        self.log_references: deque[tuple[int, int]] = deque()
        """(end offset, log group) of durable unflushed bytes, oldest first: what truncation of the log must
        keep."""
        self.append_boundaries: deque[int] = deque()
        """Where appends begin, about one for each MiB that is not flushed yet (rule S5)."""
        self.waiter: anyio.Event | None = None
        """Set when the durable length, the seal flag or the life of the segment changes."""

    def __repr__(self) -> str:
        return (
            f"<SegmentState {self.name!r} {self.sid:#x} {self.status.name} "
            f"{self.start_offset}..{self.flushed}..{self.length}>"
        )

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
    def is_gone(self) -> bool:
        """Deleted or merged away: its name leads elsewhere, and its bytes may vanish from long-term storage
        at any time."""
        return self.status is not SegmentStatus.LIVE

    @property
    def needs_flush(self) -> bool:
        """A flush cycle has work here. A merged segment is its target's work."""
        return self.status is SegmentStatus.DELETED or (
            self.status is SegmentStatus.LIVE and not self.is_flushed
        )

    @property
    def is_idle(self) -> bool:
        """Nothing but the fields of its image and of long-term storage's record is known of it."""
        return (
            self.status is SegmentStatus.LIVE
            and self.durable_length == self.length
            and self.waiter is None
            and self.is_flushed
        )

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter.set()
            self.waiter = None

    def info(self, container: int) -> SegmentInfo:
        """What users see of it."""
        return SegmentInfo(
            name=self.name,
            segment_id=self.sid,
            length=self.length,
            start_offset=self.start_offset,
            sealed=self.sealed,
            attributes=dict(self.attributes),
            flushed_length=self.flushed,
            container=container,
        )

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


class _ById(dict[int, SegmentState]):
    """The segments in memory; looking up an evicted one by ``[]`` brings it back."""

    __slots__ = ("thaw",)
    thaw: Callable[[int], SegmentState]

    def __missing__(self, sid: int) -> SegmentState:
        return self.thaw(sid)


class SegmentTable:
    """Every segment by id, and the live ones by name.

    Idle segments can be evicted: what is left of one is its image, the very bytes that a checkpoint keeps. It
    is thawed in the sync step that needs it, so nothing is ever parked and nothing can overtake (rule C4).
    """

    def __init__(self) -> None:
        self.by_id = _ById()
        self.by_id.thaw = self._thaw
        self.evicted: dict[int, bytes] = {}
        """Images of evicted segments."""
        self._by_name: dict[str, int] = {}
        self.on_thaw: Callable[[SegmentState], None] = lambda segment: None
        """Called with a segment that comes back, before anybody sees it."""

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, name: str) -> SegmentState | None:
        sid = self._by_name.get(name)
        return None if sid is None else self.by_id[sid]

    def sid_of(self, name: str) -> int | None:
        """The id of the live segment of that name, which may stay evicted."""
        return self._by_name.get(name)

    def get(self, sid: int) -> SegmentState | None:
        """The segment of that id, evicted or not; None if there is none."""
        segment = self.by_id.get(sid)
        return self._thaw(sid) if segment is None and sid in self.evicted else segment

    def add(self, segment: SegmentState) -> None:
        known = segment.sid in self.by_id or segment.sid in self.evicted
        if known or (segment.status is SegmentStatus.LIVE and segment.name in self._by_name):
            raise ValueError(f"{segment!r} is in the table already")

        self.by_id[segment.sid] = segment
        if segment.status is SegmentStatus.LIVE:
            self._by_name[segment.name] = segment.sid

    def unname(self, segment: SegmentState, status: SegmentStatus) -> None:
        """The segment was merged away or deleted: its name is free, its id is still known."""
        if segment.status is SegmentStatus.LIVE:
            del self._by_name[segment.name]

        segment.status = status

    def remove(self, sid: int) -> SegmentState | None:
        return self.by_id.pop(sid, None)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._by_name if name.startswith(prefix))

    def listed(self, prefix: str) -> list[str]:
        """The names that a listing shows: staged ones only if the prefix asks for them (rule T1)."""
        names = self.names(prefix)
        return names if is_staged(prefix) else [name for name in names if not is_staged(name)]

    def length_of(self, sid: int) -> int:
        """The durable length of a segment; an evicted one stays so."""
        image = self.evicted.get(sid)
        return self.by_id[sid].durable_length if image is None else decode_image(image).length

    def evict(self, count: int) -> list[int]:
        """Evict up to ``count`` idle segments, least recently changed first; returns their ids."""
        idle = heapq.nsmallest(
            count, (s for s in self.by_id.values() if s.is_idle), key=lambda segment: segment.touched
        )
        for segment in idle:
            self.evicted[segment.sid] = segment.image()
            del self.by_id[segment.sid]

        return [segment.sid for segment in idle]

    def _thaw(self, sid: int) -> SegmentState:
        segment = SegmentState.from_image(decode_image(self.evicted.pop(sid)))
        self.by_id[sid] = segment
        self.on_thaw(segment)
        return segment

"""A container's segments in memory: ``SegmentState``, and the one table that maps names to ids (rule C2).

The fields are speculative: they include every operation that was given a sequence. Only ``durable_length``
lags behind; readers see it, and it is -1 until the creation itself is durable. Nothing is ever rolled back:
if the log fails, the container stops and recovery builds the state again."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, takewhile
from weakref import WeakValueDictionary

import anyio

from ...journal.operations.append import Append
from ...journal.operations.segment_image import (
    NO_MERGES,
    MergedRange,
    MergedRanges,
    SegmentImage,
    SegmentStatus,
    WriterState,
    encode_flags,
    encode_image,
    encode_plain_image,
)
from ...storage_backends.base.errors import SegmentNotFound, WrongSegmentKind
from ...storage_backends.base.segments import SegmentInfo
from ...storage_backends.base.sharded_dict import ShardedDict
from ...storage_backends.base.sorted_dict import FrozenView, SortedKeys
from ...storage_backends.segments.records.segment import SegmentRecord

APPEND_BOUNDARY_BYTES = 1 << 20
"""The start of about one append per this many bytes is kept, so that readers can split a segment between
appends (rule S5)."""
_ROW_ENTRIES_MAX = 3 * 1024
"""Attributes, writers and expired writers of an image, as many as rule M19 and rule M20 leave there. They are
encoded in one step, and have less than the 1 MiB of a row's value."""
_GROUPS_PER_REFERENCE = 16
"""The log may keep this many groups more than a segment needs."""
# Of segments that got no bytes yet: an empty deque of its own takes 624 bytes.
_NO_REFERENCES: deque[tuple[int, int]] = deque(maxlen=0)
_NO_BOUNDARIES: deque[int] = deque(maxlen=0)


def _end_of(merge: MergedRange) -> int:
    return merge.offset + merge.length


class SegmentWaiter:
    """What waits for one segment to change: called once."""

    __slots__ = ("__weakref__", "_wakes")

    def __init__(self) -> None:
        self._wakes: dict[Callable[[], None], None] = {}

    def __bool__(self) -> bool:
        return bool(self._wakes)

    def add(self, wake: Callable[[], None]) -> None:
        self._wakes[wake] = None

    def discard(self, wake: Callable[[], None]) -> None:
        self._wakes.pop(wake, None)

    def set(self) -> None:
        wakes, self._wakes = self._wakes, {}
        for wake in wakes:
            wake()


class SegmentState:
    """One segment. ``length >= durable_length >= flushed``; ``merges`` are in offset order and not in
    long-term storage's record yet."""

    __slots__ = (
        "__weakref__",
        "append_boundaries",
        "attributes",
        "durable_length",
        "expired",
        "flushed",
        "flushed_sealed",
        "flushed_start",
        "has_ids",
        "has_record",
        "has_writer_rows",
        "histories",
        "is_listed",
        "is_table",
        "length",
        "log_references",
        "merges",
        "name",
        "recorded",
        "rolling_size",
        "sealed",
        "seen",
        "sid",
        "spilled",
        "start_offset",
        "status",
        "successor",
        "touched",
        "waiter",
        "writers",
    )

    def __init__(self, sid: int, name: str, rolling_size: int, *, is_table: bool = False) -> None:
        self.sid = sid
        self.name = name
        self.rolling_size = rolling_size
        self.is_table = is_table
        """Its length stays 0: its rows are in the system table (rule M14)."""
        self.status = SegmentStatus.LIVE
        self.length = 0
        self.durable_length = -1
        self.start_offset = 0
        self.touched = 0
        """The sequence of the last change of what the image has."""
        self.seen = 0
        """``touched`` when unloading last visited it."""
        self.is_listed = False
        """Whether it is among the dirty ones of its table."""
        self.sealed = False
        self.attributes: dict[str, int] = {}
        """Those of the image; the others are rows of the system table (rule M19)."""
        self.spilled = False
        """Whether names that are not in ``attributes`` are rows."""
        self.has_ids = False
        """Whether attributes with ids were set, which are rows."""
        self.writers: dict[bytes, WriterState] = {}
        """Those of the image; others may be rows of the system table (rule M20)."""
        self.has_writer_rows = False
        """Whether writers that are neither in ``writers`` nor in ``expired`` may be rows."""
        self.expired: dict[bytes, None] = {}
        self.histories: tuple[tuple[int, int], ...] = ()
        """As the image has them (rule R9)."""
        self.merges = NO_MERGES
        # The segment's record in long-term storage, as of the newest applied metadata commit.
        self.has_record = False
        self.recorded = 0
        """The version of the record, or of its removal."""
        self.flushed = 0
        self.flushed_start = 0
        self.flushed_sealed = False
        self.log_references: deque[tuple[int, int]] = _NO_REFERENCES
        """(end offset, log group) of durable unflushed bytes, oldest first. Truncation of the log keeps these
        groups."""
        self.append_boundaries: deque[int] = _NO_BOUNDARIES
        """Start offsets of appends, about one for each unflushed MiB (rule S5)."""
        self.waiter: SegmentWaiter | None = None
        """Set when the durable length, the seal flag or the life of the segment changes."""
        self.successor: SegmentState | None = None
        """Of one that was cold: the loaded one. Its readers keep it readable, should it go cold again."""

    def __repr__(self) -> str:
        return (
            f"<SegmentState {self.name!r} {self.sid:#x} {self.status.name} "
            f"{self.start_offset}..{self.flushed}..{self.length}>"
        )

    @property
    def is_flushed(self) -> bool:
        """Long-term storage's record is up to date. One that is empty and open needs none (rule M5)."""
        return (
            self.flushed == self.length
            and self.flushed_start == self.start_offset
            and self.flushed_sealed == self.sealed
            and not self.merges
        )

    @property
    def is_gone(self) -> bool:
        """Deleted or merged: its name is free, and its bytes may leave long-term storage at any time."""
        return self.status is not SegmentStatus.LIVE

    @property
    def needs_flush(self) -> bool:
        """A flush cycle has work to do here. Merged segments are flushed as part of their target."""
        return self.status is SegmentStatus.DELETED or (
            self.status is SegmentStatus.LIVE and not self.is_flushed
        )

    @property
    def is_clean(self) -> bool:
        """No flush, no checkpoint and no recovery need its bytes of the log."""
        return self.status is SegmentStatus.LIVE and self.is_flushed

    @property
    def is_idle(self) -> bool:
        """Everything about it is in its image and in its record in long-term storage."""
        return self.durable_length == self.length and self.waiter is None and self.is_clean

    @property
    def fits_row(self) -> bool:
        """Whether the image can be a row: not while an earlier version left too much in it, nor with many
        merges, which are soon flushed."""
        return self._entries + len(self.merges) <= _ROW_ENTRIES_MAX

    @property
    def fits_flushed_row(self) -> bool:
        """The same once its merges are flushed."""
        return self._entries <= _ROW_ENTRIES_MAX

    @property
    def _entries(self) -> int:
        return len(self.attributes) + len(self.writers) + len(self.expired)

    def of_kind(self, *, is_table: bool) -> SegmentState:
        """The segment, which the caller expects to be a table, or to have bytes (rule M14)."""
        if self.is_table != is_table:
            raise WrongSegmentKind.of(self.name, is_table=self.is_table)
        return self

    @property
    def has_attribute_rows(self) -> bool:
        return self.spilled or self.has_ids

    @property
    def has_spilled(self) -> bool:
        """Whether some of what was in its image, or could be, is rows of the system table."""
        return self.spilled or self.has_ids or self.has_writer_rows

    def wake(self) -> None:
        if self.waiter is not None:
            self.waiter.set()
            self.waiter = None

    def load_record(self, version: int, encoded: bytes) -> None:
        """Take over the segment's record in long-term storage."""
        record = SegmentRecord.decode(encoded)
        self.has_record = True
        self.recorded = version
        self.flushed = record.length
        self.flushed_start = record.start_offset
        self.flushed_sealed = record.sealed

    def add_log_reference(self, end: int, group: int) -> None:
        """Bytes up to ``end`` need ``group`` of the log. One reference covers several groups, which bounds
        their number (rule C9)."""
        references = self.log_references
        if references:
            covered, first = references[-1]
            if group - first < _GROUPS_PER_REFERENCE:
                # In recovery, re-logged bytes may end before others that were appended earlier.
                if end > covered:
                    references[-1] = (end, first)
                return

        if references is _NO_REFERENCES:
            references = self.log_references = deque()
        references.append((end, group))

    def add_append_boundaries(self, run: Sequence[Append], end: int) -> None:
        """Keep the start of the first append in each MiB. ``run`` are consecutive appends up to ``end``."""
        boundaries = self.append_boundaries
        if boundaries and (end - 1) // APPEND_BOUNDARY_BYTES <= boundaries[-1] // APPEND_BOUNDARY_BYTES:
            return  # no append of the run begins in a new MiB

        for op in run:
            if op.data and (
                not boundaries or op.offset // APPEND_BOUNDARY_BYTES > boundaries[-1] // APPEND_BOUNDARY_BYTES
            ):
                if boundaries is _NO_BOUNDARIES:
                    boundaries = self.append_boundaries = deque()
                boundaries.append(op.offset)

    def drop_flushed_references(self) -> None:
        """Drop the references and boundaries of bytes that are flushed now."""
        references, boundaries = self.log_references, self.append_boundaries
        # From the oldest: a reference covers several groups, and goes only when all of its bytes are flushed.
        while references and references[0][0] <= self.flushed:
            references.popleft()

        while len(boundaries) > 1 and boundaries[1] <= self.flushed:
            boundaries.popleft()

    def add_merge(self, merge: MergedRange) -> None:
        if not self.merges:
            self.merges = MergedRanges()  # not before: few segments have merges
        self.merges.append(merge)

    def drop_flushed_merges(self) -> None:
        if self.merges and (count := bisect_right(self.merges, self.flushed, key=_end_of)):
            self.merges.drop_first(count)

    def info(self, container: int, history: int = 0) -> SegmentInfo:
        """The public view of the segment. ``history``: the present one."""
        return SegmentInfo(
            name=self.name,
            segment_id=self.sid,
            length=self.length,
            start_offset=self.start_offset,
            sealed=self.sealed,
            # A copy: the answer is given in a later step, when the segment may have changed.
            attributes=dict(self.attributes),
            flushed_length=self.flushed,
            container=container,
            is_table=self.is_table,
            more_attributes=self.has_attribute_rows,
            history=history,
        )

    def image(self, *, is_flushed: bool = False) -> bytes:
        """The encoded ``SegmentImage``, which checkpoints keep. ``is_flushed``: without the merges that its
        record in long-term storage does not have yet."""
        merges = NO_MERGES if is_flushed else self.merges
        if not (
            self.attributes or self.writers or self.expired or merges or self.has_spilled or self.histories
        ):
            # A flush cycle encodes the images of all segments that changed, and most are like this.
            return encode_plain_image(
                self.sid,
                self.status,
                encode_flags(self.sealed, self.is_table),
                self.length,
                self.start_offset,
                self.rolling_size,
                self.name,
            )

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
                merges,
                self.is_table,
                self.spilled,
                self.has_ids,
                self.has_writer_rows,
                self.histories,
            )
        )

    @classmethod
    def from_image(cls, image: SegmentImage, version: int = 0) -> SegmentState:
        segment = cls(image.sid, image.name, image.rolling_size, is_table=image.is_table)
        segment.touched = version
        segment.status = image.status
        segment.sealed = image.sealed
        # A cold segment is wholly durable, and so is all that comes before a checkpoint in the log.
        segment.length = segment.durable_length = image.length
        segment.start_offset = image.start_offset
        segment.attributes = dict(image.values)
        segment.spilled, segment.has_ids = image.spilled, image.has_ids
        segment.has_writer_rows = image.has_writer_rows
        segment.writers = dict(image.writers)
        segment.expired = dict.fromkeys(image.expired)
        segment.histories = image.histories
        segment.merges = image.merges.copy() if image.merges else NO_MERGES
        return segment


class NotLoaded(Exception):
    """Whether there is such a segment, and what it is, must be looked up in the runs first (rule M4)."""

    def __init__(
        self, name: str = "", sid: int = 0, *, needs_image: bool = True, rows: Sequence[bytes] = ()
    ) -> None:
        """``needs_image``: if it exists, it must be in memory. ``rows``: it is, and these rows of it are
        needed, by their keys."""
        super().__init__(name or hex(sid))
        self.name = name
        self.sid = sid
        self.needs_image = needs_image
        self.rows = rows


class _ByName(ShardedDict[str, "SegmentState"]):
    """The live segments in memory."""

    __slots__ = ("_check_absent",)

    def __init__(self, check_absent: Callable[[str], None]) -> None:
        super().__init__()
        self._check_absent = check_absent

    def find(self, name: str) -> SegmentState | None:
        # Written out: it is called for each append.
        found = self._slots[self._mask and hash(name) & self._mask].get(name)
        if found is None:
            self._check_absent(name)
        return found


class SegmentTable:
    """The segments in memory: by id, and the live ones by name. The others are *cold*: idle ones, whose names
    and images are in the runs of the system table (rule M13)."""

    def __init__(self, check_absent: Callable[[str], None] = lambda name: None) -> None:
        """``check_absent(name)`` raises ``NotLoaded`` unless there is no segment of that name that is not in
        memory."""
        self.by_id: ShardedDict[int, SegmentState] = ShardedDict()
        self.count = 0
        """Of the segments in memory. Every append asks for it, and the length of a large table takes 1 us."""
        self.dirty: ShardedDict[int, None] = ShardedDict()
        """Every segment that is not clean, and some that changed and are."""
        self.unpublished: ShardedDict[int, None] = ShardedDict()
        """Every segment whose image may be newer than its row in the runs (rule M13)."""
        self._waiting: OrderedDict[anyio.Event, None] = OrderedDict()
        """Those who wait for a segment to leave memory, in the order of their calls."""
        self._visited = 0
        """The id that unloading visited last: it goes through them in order, over and over."""
        self._by_name = _ByName(check_absent)
        self.find = self._by_name.find
        """The live segment of a name; None if there is none. Raises ``NotLoaded``."""
        self._ids: SortedKeys[int] = SortedKeys()
        self._readers: WeakValueDictionary[int, SegmentState] = WeakValueDictionary()
        """Cold segments that somebody reads."""

    def __len__(self) -> int:
        """Of the live segments in memory."""
        return len(self._by_name)

    def __contains__(self, sid: object) -> bool:
        """Whether the segment is in memory."""
        return sid in self.by_id

    def require(self, name: str) -> SegmentState:
        """Raises ``NotLoaded``."""
        segment = self.find(name)
        if segment is None:
            raise SegmentNotFound(f"no segment {name!r}", segment=name)

        return segment

    def require_bytes(self, name: str) -> SegmentState:
        """A segment of bytes. Raises ``NotLoaded``."""
        return self.require(name).of_kind(is_table=False)

    def in_memory(self, name: str) -> SegmentState | None:
        """The segment of that name, if it is in memory."""
        return self._by_name.get(name)

    def sid_of(self, name: str) -> int | None:
        """The id of the live segment of that name, if it is in memory, as all are of which transactions are
        known."""
        found = self._by_name.get(name)
        return None if found is None else found.sid

    def get(self, sid: int) -> SegmentState | None:
        """The segment of that id, if it is in memory."""
        return self.by_id.get(sid)

    def readable(self, sid: int) -> SegmentState | None:
        """The segment of that id, if it is in memory, or cold and being read; None once it is removed."""
        segment = self.by_id.get(sid)
        return self._readers.get(sid) if segment is None else segment

    def note_reader(self, segment: SegmentState) -> SegmentState:
        """A cold segment is being read; returns the object of it that all readers share."""
        return self._readers.setdefault(segment.sid, segment)

    def add(self, segment: SegmentState) -> None:
        if segment.sid in self or (segment.status is SegmentStatus.LIVE and segment.name in self._by_name):
            raise ValueError(f"{segment!r} is in the table already")

        self.by_id[segment.sid] = segment
        self.count += 1
        self._ids.add(segment.sid)
        if not segment.is_clean:
            self.list_dirty(segment)
        if segment.status is SegmentStatus.LIVE:
            self._by_name[segment.name] = segment
        # Who waits at its tail while it is cold goes on to wait here.
        reader = self._readers.pop(segment.sid, None)
        if reader is not None:
            segment.waiter, reader.waiter = reader.waiter, None
            reader.successor = segment

    def unname(self, segment: SegmentState, status: SegmentStatus) -> None:
        """Free the name of a segment that is merged or deleted. Its id stays known."""
        if segment.status is SegmentStatus.LIVE:
            del self._by_name[segment.name]

        segment.status = status

    def remove(self, sid: int) -> None:
        segment = self.by_id.pop(sid, None)
        if segment is not None:
            self.count -= 1
            self._ids.remove(sid)
            self.unlist_dirty(segment)
            self.unpublished.pop(sid, None)
            if self._waiting:
                self._waiting.popitem(last=False)[0].set()

    async def wait_for_removal(self) -> None:
        """Return when a segment has left memory. Each lets one caller go on, the first one first."""
        left = anyio.Event()
        self._waiting[left] = None
        try:
            await left.wait()
        finally:
            self._waiting.pop(left, None)

    def unload(self, segment: SegmentState) -> None:
        """A live segment leaves memory. Its readers keep it."""
        self.remove(segment.sid)
        del self._by_name[segment.name]
        self._readers[segment.sid] = segment

    def list_dirty(self, segment: SegmentState) -> None:
        """Count the segment among those that are not clean, and those whose image changed."""
        self.dirty[segment.sid] = None
        self.unpublished[segment.sid] = None
        segment.is_listed = True

    def unlist_dirty(self, segment: SegmentState) -> None:
        """The segment is clean, or leaves the table."""
        self.dirty.pop(segment.sid, None)
        segment.is_listed = False

    def dirty_segments(self) -> Iterator[SegmentState]:
        """The segments that are not clean as of the call, if they still are not when they are reached, and
        some that changed since. Work through them in slices: the table may change meanwhile."""
        for sid in self.dirty:
            segment = self.by_id.get(sid)
            assert segment is not None, "only clean segments are unloaded"
            if segment.is_clean:
                self.unlist_dirty(segment)
            else:
                yield segment

    def names(self) -> list[str]:
        """Those of the live segments in memory, in order."""
        return sorted(self._by_name)

    def ids(self) -> Iterator[int]:
        """The ids of the segments in memory, as of now, in order."""
        return chain.from_iterable(self._ids.runs())

    def freeze(self) -> FrozenView[int, tuple[int, bytes]]:
        """The images of the segments in memory, as of now, with their versions."""
        # C7: nothing is encoded here. An image is made when a part takes it, or before the first change.
        return FrozenView(self._ids.runs(), self.versioned_image)

    def versioned_image(self, sid: int) -> tuple[int, bytes] | None:
        """The image of a segment in memory, and its version."""
        segment = self.by_id.get(sid)
        return None if segment is None else (segment.touched, segment.image())

    def find_idle(self, visits: int) -> list[int]:
        """Visit the next ``visits`` segments in turn, each once at most; returns the ids of those that are
        idle and did not change since the last visit."""
        found: list[int] = []
        last = self._visited
        after = chain.from_iterable(self._ids.runs_from(last))
        turns = chain((sid for sid in after if sid > last), takewhile(lambda sid: sid <= last, self.ids()))
        for sid in islice(turns, visits):
            self._visited = sid
            segment = self.by_id[sid]
            # Not at the first visit: a segment that is used now and then would be unloaded and loaded over
            # and over.
            if segment.is_idle and segment.touched == segment.seen:
                found.append(sid)
            segment.seen = segment.touched

        return found

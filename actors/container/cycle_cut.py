"""The cut of a flush cycle: what its run will say of each segment (rules F1 and F10). Sync.

The cut is one step: the table of the segments that are not published is taken, and the memtable frozen. From
then on a segment is saved before its first change. So flushes and the run see all segments as of the cut,
however long both take, and nothing is copied of segments that do not change meanwhile.

The end of the cycle is another step. It freezes the records of long-term storage, and fixes which segments
are held back: those whose flush did not reach the state at the cut, with all that are published together with
them (``closures.py``). So every image in the run agrees with its record."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from ...journal.manifest.element import CONSISTENT, HELD_MAX
from ...journal.operations.segment_image import SegmentStatus
from ...storage_backends.base.sharded_dict import ShardedDict
from ...storage_backends.sorted_runs.memtable import SLICE_KEYS
from ...storage_backends.sorted_runs.rows import Row
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.run_list import AscendingIds, RunList
from ..flush.aggregation import SegmentFlush, capture
from ..kernel.slices import in_slices
from .segment_rows import encode_image_row, image_key

if TYPE_CHECKING:
    from .segments import SegmentState
    from .state import ContainerState

_SORT_MAX = 2048
"""Ids that are sorted in one step."""


class _Saved(NamedTuple):
    """A segment as of the cut."""

    touched: int
    status: SegmentStatus
    fits_row: bool
    image: bytes
    flush: SegmentFlush


class CycleCut:
    def __init__(self, state: ContainerState) -> None:
        self._state = state
        self.cut = state.sequence
        """The sequence of the newest operation before it."""
        self.end = 0
        """The sequence at the end of the cycle; 0 before that."""
        self._held: Collection[int] | None = None
        self._published_held = AscendingIds()
        self._unreached: Iterable[int] = ()
        self._created: dict[int, None] = {}
        """Segments that were created after the cut."""
        self._outdated: dict[int, None] = {}
        """Published segments that changed after the cut before their record did: nothing has their image as
        of the cut but the runs."""
        self._saved: ShardedDict[int, _Saved] = ShardedDict()
        self._records: ShardedDict[int, tuple[int, bytes]] = ShardedDict()
        """Records as of the end of the cycle, of segments whose record changed since."""
        segments = state.segments
        self._changed, segments.unpublished = segments.unpublished, ShardedDict()
        """The segments that are not published."""
        state.table.freeze_rows(self.cut)
        state.cut = self

    @property
    def held(self) -> Collection[int]:
        """The ids of the segments that are held back, once ``hold_back`` has decided."""
        if self._held is None:
            raise RuntimeError("a cycle is published before its flushes have ended (rule F10)")
        return self._held

    # --- before changes, for the state -----------------------------------------------------------

    def before_change(self, segment: SegmentState) -> None:
        """What the image of the segment has is about to change."""
        sid = segment.sid
        if sid in self._changed and sid not in self._saved:
            self._saved[sid] = self._save(segment)

    def before_record_change(self, segment: SegmentState) -> None:
        """The record of the segment is about to change, or the segment to leave the table."""
        sid = segment.sid
        if sid in self._changed:
            if self.end and sid not in self._records:
                self.before_change(segment)
                self._records[sid] = self._state.find_segment_record(sid)
        # The row of the image has the record too (M13): it is published again with this one.
        elif not self.end and sid not in self._created:
            if segment.touched <= self.cut:
                self._changed[sid] = None
            else:
                self._outdated[sid] = None

    def note_created(self, sid: int) -> None:
        self._created[sid] = None

    def _save(self, segment: SegmentState) -> _Saved:
        is_live = segment.status is SegmentStatus.LIVE
        return _Saved(
            segment.touched,
            segment.status,
            segment.fits_flushed_row,
            segment.image(is_flushed=True) if is_live else b"",
            capture(segment, self.cut),
        )

    # --- the cycle -------------------------------------------------------------------------------

    def flush_of(self, segment: SegmentState) -> SegmentFlush | None:
        """What a flush up to the cut consists of; None if the segment was published then."""
        saved = self._saved.get(segment.sid)
        if saved is not None:
            return saved.flush
        return capture(segment, self.cut) if segment.sid in self._changed else None

    def finish(self, unreached: Iterable[int]) -> None:
        """The cycle ends. ``unreached``: the segments whose flush did not reach the cut."""
        self.end = self._state.sequence
        self._unreached = unreached
        self._state.table.freeze_records(self.end)

    def hold_back(self) -> Iterator[None]:
        """Decide which segments are held back, after ``finish`` and before anything is published. Some in
        each step."""
        closures = self._state.closures
        roots = [self._unreached, self._outdated]
        if self._created:
            # A segment whose records are committed and which has no image at the cut: an import.
            for part in in_slices(closures.changed(self.cut, self.end)):
                roots.append([sid for sid in part if sid in self._created])
                yield
        if any(roots):
            self._held = yield from closures.closure(chain.from_iterable(roots), self.end)
            if len(self._held) <= HELD_MAX:  # nothing is published of a cycle with more
                self._published_held = yield from _in_order(self._held)
        else:
            self._held = ()

    def close(self) -> None:
        """Nothing more is saved."""
        self._state.cut = None

    def give_back(self) -> Iterator[None]:
        """Nothing was published. Some segments in each step."""
        segments = self._state.segments
        for sids in in_slices(self._changed):
            segments.unpublished.update((sid, None) for sid in sids if sid in segments)
            yield

    # --- the run ---------------------------------------------------------------------------------

    def published(self, runs: Sequence[RunEntry], before: RunList) -> RunList:
        """The run list once the cycle is published with these ``runs``."""
        return before.published(runs, CONSISTENT, self.cut, self.end, self._published_held)

    def __contains__(self, sid: object) -> bool:
        """Whether the segment is to be published."""
        return sid in self._changed

    @property
    def changed(self) -> int:
        """How many segments are to be published."""
        return len(self._changed)

    def rows(self) -> Iterator[Row | None]:
        """The rows of the run, in the order of keys; None for one that it does not have, which is work
        too. Again after a failure."""
        closures, held = self._state.closures, self.held
        for row in _spliced(self._state.table.unpublished_rows(), self._image_rows()):
            is_left_out = row is not None and bool(held) and closures.is_held(held, row)
            yield None if is_left_out else row

    def _image_rows(self) -> Iterator[Row | None]:
        order: list[list[int]] = []
        for part in in_slices(self._changed, _SORT_MAX):
            order.append(sorted(part))
            if len(part) == _SORT_MAX:
                yield from repeat(None, SLICE_KEYS)
        for sid in order[0] if len(order) == 1 else merge(*order):
            yield self._image_row(sid)

    def _image_row(self, sid: int) -> Row | None:
        state = self._state
        segment = state.segments.get(sid)
        is_held = sid in self.held
        # Another cycle has to publish it again. What is flushed as of the cut, and did not change since, is
        # not listed as dirty: so its next change lists it here again.
        if segment is not None and (is_held or segment.touched > self.cut or segment.recorded > self.end):
            state.segments.unpublished[sid] = None
        else:
            state.segments.unpublished.pop(sid, None)  # listed for the record that this run has
        saved = self._saved.get(sid)
        if saved is None:
            if segment is None:
                return None  # unloaded: it was published
            saved = self._save(segment)
        if is_held or saved.status is not SegmentStatus.LIVE:
            return None
        if not saved.fits_row:
            if segment is not None:
                state.segments.unpublished[sid] = None
            return None

        version, record = self._records.get(sid) or state.find_segment_record(sid)
        runs = state.table.runs
        is_clean = saved.touched <= state.clean_images_to and version <= runs.records_to
        if is_clean and sid not in runs.held:
            return None
        return Row(
            image_key(sid), max(saved.touched, version), encode_image_row(saved.image, version, record)
        )


def _in_order(ids: Iterable[int]) -> Generator[None, None, AscendingIds]:
    """Some in each step."""
    parts: list[list[int]] = []
    for part in in_slices(ids, _SORT_MAX):
        parts.append(sorted(part))
        yield
    found: list[int] = []
    for part in in_slices(merge(*parts)):
        found += part
        yield
    return AscendingIds(found)


def _spliced(rows: Iterator[Row | None], images: Iterator[Row | None]) -> Iterator[Row | None]:
    """``rows`` and ``images`` in the order of keys."""
    image = next(images, _END)
    for row in rows:
        while row is not None and image is not _END and (image is None or image.key < row.key):
            yield image
            image = next(images, _END)
        yield row
    while image is not _END:
        yield image
        image = next(images, _END)


_END = Row(b"", 0, None)

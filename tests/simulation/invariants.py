"""What must hold in a living container at any moment: named predicates over its memory.

A predicate is a function of a container that yields a sentence for each breach. It is synchronous, so it sees
the state between two steps of the container's tasks, and it changes nothing, not even the order of an
eviction. Counters are compared with a fresh count. ``Watch`` remembers what may only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from support.live_segments import cold_images, live_ids
from support.table_rows import records_of
from tierlog.actors.container.container import Container
from tierlog.actors.container.segments import SegmentState
from tierlog.actors.kernel.mailbox import Mailbox, _LaneQueue
from tierlog.actors.read.tail_cache import BLOCK_OVERHEAD
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.contract import DurableDataLog
from tierlog.journal.log.local import LocalLog
from tierlog.journal.log.memory import MemoryLog
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.operations.segment_image import SegmentStatus
from tierlog.journal.operations.transaction_image import TransactionStatus
from tierlog.storage_backends.base.ids import epoch_of
from tierlog.storage_backends.base.transactions import is_staged, split_staged
from tierlog.storage_backends.segments.records import chunk_key
from tierlog.storage_backends.segments.records.imported import imported_key
from tierlog.storage_backends.sorted_runs.run_list import RunList

from .records import broken_publication, broken_records
from .services import ServiceLog

Predicate = Callable[[Container], Iterator[str]]


CHECKPOINT_GROUPS_MAX = 80
"""Of one checkpoint, with what it logs again and what is appended meanwhile."""


class Broken(AssertionError):
    """An invariant does not hold; the first line names it."""


# --- segments -----------------------------------------------------------------------------------


def _in_memory(container: Container) -> Iterator[SegmentState]:
    """The segments in memory. Evicted ones are left alone: a lookup would load it."""
    return iter(container.state.segments.by_id.values())


def lengths_are_ordered(container: Container) -> Iterator[str]:
    for s in _in_memory(container):
        # What is being imported has its bytes in long-term storage before it is durable that it is a segment.
        is_coming = s.durable_length < 0 and imported_key(s.name) in records_of(container)
        durable = s.flushed if is_coming else max(0, s.durable_length)
        if not 0 <= s.flushed_start <= s.flushed <= durable <= s.length:
            yield (
                f"{s!r}: flushed from {s.flushed_start} to {s.flushed}, durable to {s.durable_length}, "
                f"{s.length} long"
            )


def starts_lie_inside(container: Container) -> Iterator[str]:
    for s in _in_memory(container):
        if not s.flushed_start <= s.start_offset <= s.length:
            yield f"{s!r}: starts at {s.start_offset}, flushed start {s.flushed_start}, {s.length} long"


def seals_are_flushed_after_they_are_made(container: Container) -> Iterator[str]:
    for s in _in_memory(container):
        if s.flushed_sealed and (not s.sealed or s.flushed != s.length):
            yield (
                f"{s!r}: sealed in long-term storage at {s.flushed}, here it is {s.length} long and "
                f"{'' if s.sealed else 'not '}sealed"
            )


def names_lead_to_live_segments(container: Container) -> Iterator[str]:
    table = container.state.segments
    cold = cold_images(container)
    for name, sid in live_ids(container).items():
        segment = table.by_id.get(sid)
        if segment is None and (sid not in cold or cold[sid].name != name):
            yield f"{name!r} leads to {sid:#x}, which is unknown"
        if segment is not None and (segment.name != name or segment.status is not SegmentStatus.LIVE):
            yield f"{name!r} leads to {segment!r}"


def ids_are_of_owners_so_far(container: Container) -> Iterator[str]:
    state = container.state
    for sid in (*state.segments.by_id, *cold_images(container)):
        if epoch_of(sid) > state.epoch:
            yield f"segment {sid:#x} was made by a later owner than epoch {state.epoch}"


def merges_are_whole(container: Container) -> Iterator[str]:
    for s in _in_memory(container):
        position = s.flushed
        for merge in () if s.status is SegmentStatus.DELETED else s.merges:
            source = container.state.segments.by_id.get(merge.source)
            if merge.offset < position or merge.offset + merge.length > s.length:
                yield f"{s!r}: {merge} lies before {position} or past the end"
            if source is None or source.length != merge.length:
                yield f"{s!r}: the source of {merge} is {source!r}"
            position = merge.offset + merge.length


def staged_segments_are_of_open_transactions(container: Container) -> Iterator[str]:
    """Rules T1 and T9: what a transaction staged ends with it, and every one that is there belongs to an open
    one."""
    segments, table = container.state.segments, container.state.transactions
    named = {name: sid for name, sid in live_ids(container).items() if is_staged(name)}
    for name in named:
        target, transaction = split_staged(name)
        record = table.records.get((target, transaction))
        if record is None or record.sid != segments.sid_of(target):
            yield f"{name!r} is there, its transaction is {record}"
    opened = list(table.records.values())
    yield from (
        f"{record} is open, its target is gone"
        for record in opened
        if segments.sid_of(record.target) != record.sid
    )
    known = {name: sid for record in opened for name, sid in table.staged(record).items()}
    if known != named:
        yield f"transactions are open with {known}; there are {named}"
    if ended := [record for record in opened if record.status is not TransactionStatus.OPEN]:
        yield f"in memory are ended transactions: {ended}"


SEGMENTS: Mapping[str, Predicate] = {
    "flushed start <= flushed <= durable <= length": lengths_are_ordered,
    "a segment's start lies inside it": starts_lie_inside,
    "long-term storage seals only what is sealed": seals_are_flushed_after_they_are_made,
    "names lead to live segments": names_lead_to_live_segments,
    "ids are of owners so far": ids_are_of_owners_so_far,
    "merged ranges are in order and their sources whole": merges_are_whole,
    "staged segments are those of open transactions": staged_segments_are_of_open_transactions,
}


# --- memory -------------------------------------------------------------------------------------


def cache_is_counted_right(container: Container) -> Iterator[str]:
    cache = container.cache
    total = data = pinned = unflushed = 0
    for sid in cache._tails:
        tail = cache._find(sid)
        assert tail is not None
        unflushed += tail.extents.size
        for start, block in zip(tail.starts, tail.blocks, strict=True):
            data += len(block)
            total += len(block) + BLOCK_OVERHEAD
            pinned += max(0, start + len(block) - max(start, tail.flushed))
    counted = cache._total, cache._data, cache.pinned_bytes, cache.unflushed_bytes
    if (total, data, pinned, unflushed) != counted:
        yield (
            f"counted {counted} charged, data, pinned and unflushed bytes; there are "
            f"{(total, data, pinned, unflushed)}"
        )
    listed, tail = set(), cache._ring.newer
    while tail is not cache._ring:
        listed.add(tail)
        tail = tail.newer
    if wrong := [sid for sid, tail in cache._tails.items() if bool(tail.blocks) != (tail in listed)]:
        yield f"segments {wrong} have blocks and are not listed as such, or have none and are"


def cached_blocks_do_not_overlap(container: Container) -> Iterator[str]:
    for sid, tail in container.cache._tails.items():
        end = 0
        for start, block in zip(tail.starts, tail.blocks, strict=True):
            if start < end:
                yield f"segment {sid:#x}: a block begins at {start}, the one before ends at {end}"
            end = start + len(block)


def unflushed_bytes_are_in_the_log(container: Container) -> Iterator[str]:
    """Rules C1, C10: what is durable and not flushed can be read and flushed, so its place in the log is
    known, and truncation keeps that."""
    low = 0 if _is_fenced_in_memory(container.log) else _truncate_before(container.log)
    kept = container.log.window_of(low) if low else 0
    for s in _in_memory(container):
        if s.status is SegmentStatus.DELETED:
            continue

        position = s.flushed
        for begin, length in [*((m.offset, m.length) for m in s.merges), (s.durable_length, 0)]:
            gap = container.cache.first_missing(s.sid, position, begin) if position < begin else begin
            if gap < min(begin, s.durable_length):
                yield f"{s!r}: offset {gap} is neither flushed nor known to be in the log"
            position = max(position, begin + length)
        tail = container.cache._tails.get(s.sid)
        for extent in () if tail is None else tail.extents:
            if extent.window < kept:
                yield f"{s!r}: {extent} was truncated, up to group {low}"


def cache_is_bounded(container: Container) -> Iterator[str]:
    """Whatever is not flushed (rule C10)."""
    cache, limit = container.cache, container.options.cache_bytes
    if cache._total > limit:
        yield f"{cache._total} bytes are charged of {limit}"


def unflushed_bytes_are_bounded(container: Container) -> Iterator[str]:
    """Admission checks before an append is taken in, so what waits in the mailbox may come on top."""
    options = container.options
    limit = (
        options.admission.hard_bytes + options.mailbox.normal.size_bytes + 2 * options.pipeline.group_bytes
    )
    if container.cache.unflushed_bytes > limit:
        yield f"{container.cache.unflushed_bytes} bytes are not flushed, the bound is {limit}"


def mailbox_is_counted_right(container: Container) -> Iterator[str]:
    mailbox: Mailbox[object] = container.mailbox  # type: ignore[assignment]
    for name, lane in (("normal", mailbox._normal), ("internal", mailbox._internal)):
        yield from _lane_breaches(name, lane)


def _lane_breaches(name: str, lane: _LaneQueue[object]) -> Iterator[str]:
    held = len(lane.items) + len(lane.granted)
    charged = sum(lane.charges) + sum(putter.charge for putter in lane.granted)
    if (held, charged) != (lane.held, lane.charged) or len(lane.items) != len(lane.charges):
        yield (
            f"the {name} lane counts {lane.held} items and {lane.charged} bytes, there are {held} and "
            f"{charged}"
        )
    if held > lane.bounds.count or (held > 1 and charged > lane.bounds.size_bytes):
        yield f"the {name} lane holds {held} items and {charged} bytes, its bounds are {lane.bounds}"


MEMORY: Mapping[str, Predicate] = {
    "the cache counts what it holds": cache_is_counted_right,
    "cached blocks do not overlap": cached_blocks_do_not_overlap,
    "what is not flushed is in the log": unflushed_bytes_are_in_the_log,
    "the cache keeps to its limit": cache_is_bounded,
    "unflushed bytes are bounded": unflushed_bytes_are_bounded,
    "the mailbox counts what it holds": mailbox_is_counted_right,
}


# --- the log, long-term storage's records, the collector ----------------------------------------


def sequences_are_ordered(container: Container) -> Iterator[str]:
    state = container.state
    if not 0 <= state.client_sequence <= state.sequence or state.cycle.cut > state.sequence:
        yield (
            f"sequence {state.sequence}, caused {state.client_sequence}, the newest cycle's cut "
            f"{state.cycle.cut}"
        )


def the_log_keeps_what_is_not_flushed(container: Container) -> Iterator[str]:
    """Rule W5, from the other side: no group that holds the only copy of something is below the
    truncation address."""
    low = _truncate_before(container.log)
    for s in _in_memory(container):
        if s.status is SegmentStatus.DELETED or not s.log_references:
            continue

        group = min(group for _, group in s.log_references)
        if group < low:
            yield f"{s!r}: group {group} holds unflushed bytes, the log was truncated before {low}"


def _truncate_before(log: DurableDataLog) -> int:
    """The newest truncation address that is durable under this owner's epoch."""
    log = log._inner if isinstance(log, ServiceLog) else log
    assert isinstance(log, (LocalLog, MemoryLog, S3Log, BookKeeperLog))
    return log._truncate_before


def _is_fenced_in_memory(log: DurableDataLog) -> bool:
    """Whether a later owner may have truncated the groups, which owners share in memory."""
    log = log._inner if isinstance(log, ServiceLog) else log
    return isinstance(log, MemoryLog) and log._state.epoch != log._epoch


def unflushed_bytes_are_marked(container: Container) -> Iterator[str]:
    for s in _in_memory(container):
        own_end = s.durable_length
        for merge in reversed(s.merges):
            if merge.offset + merge.length == own_end:
                own_end = merge.offset
        if (
            s.status is not SegmentStatus.DELETED
            and own_end > s.flushed
            and max((end for end, _ in s.log_references), default=0) < own_end
        ):
            yield (
                f"{s!r}: bytes up to {own_end} are not flushed, its log references are "
                f"{list(s.log_references)}"
            )


def garbage_is_not_referenced(container: Container) -> Iterator[str]:
    collector = container._components.collector
    records = records_of(container)
    runs = {run.name for run in container.state.table.runs}
    for name in collector._queue:
        if chunk_key(name) in records:
            yield f"chunk {name} waits for its deletion, though metadata refers to it"
        if name in runs:
            yield f"run {name} waits for its deletion, though the newest element names it"


def dirty_segments_are_to_be_published(container: Container) -> Iterator[str]:
    """Rule M13: the next change of one that is listed as dirty lists it nowhere else."""
    segments, cut = container.state.segments, container.state.cut
    for s in _in_memory(container):
        is_known = s.sid in segments.unpublished or (cut is not None and s.sid in cut)
        if s.is_listed and s.status is SegmentStatus.LIVE and not is_known:
            yield f"{s!r} is dirty, and no cycle is to publish it"


def small_groups_are_few(container: Container) -> Iterator[str]:
    """What an opening in a bucket fetches (C7): besides the groups of checkpoints and of what is logged
    again, those after the last checkpoint, and those that it had to leave."""
    if not isinstance(container.log, S3Log):
        return

    options, log = container.options.checkpoint, container.log.statistics()
    large = max(log.retained_bytes, 4 * container.state.checkpoint_bytes) // options.small_file_bytes
    left = max(options.files_max, options.costly_files_max)
    limit = options.files_max + left + 2 * (CHECKPOINT_GROUPS_MAX + large)
    if log.files > limit:
        yield f"the log has {log.files} groups of {log.retained_bytes} bytes, the bound is {limit}"


LOGGED: Mapping[str, Predicate] = {
    "sequences are ordered": sequences_are_ordered,
    "the log keeps what is not flushed": the_log_keeps_what_is_not_flushed,
    "unflushed bytes are marked with their groups": unflushed_bytes_are_marked,
    "garbage is not referenced": garbage_is_not_referenced,
    "dirty segments are to be published": dirty_segments_are_to_be_published,
    "a log in a bucket has few small groups": small_groups_are_few,
}

ALL: Mapping[str, Predicate] = {**SEGMENTS, **MEMORY, **LOGGED}


# --- what may only grow -------------------------------------------------------------------------


class Watch:
    """All predicates, and the memory of those that compare two moments."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], _Moment] = {}
        """What was seen, by container and epoch."""
        self._names: dict[tuple[int, int], str] = {}
        """Names by container and segment id: an id means one segment forever."""
        self._records: dict[tuple[int, int], int] = {}
        self._runs: dict[int, RunList] = {}
        self.checks = 0

    def check(self, container: Container) -> None:
        """Check a container that has recovered; ``Broken`` names the first predicate that does not hold."""
        self.checks += 1
        for name, predicate in ALL.items():
            for breach in predicate(container):
                raise _broken(container, name, breach)

        self._check_growth(container)
        self._check_records(container)

    def _check_growth(self, container: Container) -> None:
        now = _Moment(container)
        key = (container.index, container.state.epoch)
        before = self._seen.get(key)
        if before is not None and before.container is container:
            for breach in now.breaches(before):
                raise _broken(container, "sequences, cuts, offsets and groups only grow", breach)

        elif before is not None:
            raise _broken(
                container,
                "an epoch has one owner",
                f"epoch {container.state.epoch} was seen in another ownership",
            )

        self._seen[key] = now
        for sid, segment in container.state.segments.by_id.items():
            known = self._names.setdefault((container.index, sid), segment.name)
            if known != segment.name:
                raise _broken(
                    container,
                    "an id means one segment",
                    f"{sid:#x} was {known!r}, now it is {segment.name!r}",
                )

    def _check_records(self, container: Container) -> None:
        """Walking all chains costs more than everything else, so only when metadata was committed since."""
        metadata = records_of(container)
        newest = container.state.table.version + len(metadata)
        key = (container.index, container.state.epoch)
        if self._records.get(key) == newest:
            return

        self._records[key] = newest
        for breach in broken_records(container):
            raise _broken(container, "the records of long-term storage describe whole segments", breach)
        runs = container.state.table.runs
        if self._runs.get(container.index) != runs:
            self._runs[container.index] = runs
            for breach in broken_publication(container):
                raise _broken(container, "long-term storage alone has one state of each segment", breach)


class _Moment:
    """What may only grow in one ownership."""

    def __init__(self, container: Container) -> None:
        state = container.state
        self.container = container
        self.counters = (state.sequence, state.client_sequence, state.cycle.cut, container.log.next_group)
        self.offsets = {
            sid: (s.length, s.durable_length, s.start_offset, s.sealed, s.flushed, s.flushed_start)
            for sid, s in state.segments.by_id.items()
            if s.status is SegmentStatus.LIVE
        }

    def breaches(self, before: _Moment) -> Iterator[str]:
        if any(now < then for now, then in zip(self.counters, before.counters, strict=True)):
            yield (
                f"sequence, caused sequence, cut and group were {before.counters}, now they are "
                f"{self.counters}"
            )
        for sid, now in self.offsets.items():
            then = before.offsets.get(sid, now)
            if any(a < b for a, b in zip(now, then, strict=True)):
                yield (
                    f"segment {sid:#x}: length, durable length, start, seal, flushed and flushed start "
                    f"were {then}, now they are {now}"
                )


def _broken(container: Container, name: str, breach: str) -> Broken:
    return Broken(
        f"container {container.index}, epoch {container.state.epoch}: it does not hold that {name}\n{breach}"
    )

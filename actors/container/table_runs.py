"""The runs of a container's system table: published with each full cycle, merged when they are many, complete
on the local disk (rules M6, M7, M10 to M12).

Owns: what a run holds and when it counts. Does not own: the table (``state.py``), the elements that name runs
(``ownership.py``), the deletion of runs that nothing names (the collector).

Order of a publication, of what a cycle has frozen (``cycle_cut.py``): track the run's name; write the local
copy, then the object; record and create the element. The log has the rows before the record of the element,
which is durable before the element exists (rule J3): no element names rows that the log can lose. The rows
are released when the element counts, by the same function as in replay. Without room for a run, on a disk or
in the element, the cycle completes without one: its rows are in the log and in memory, and a later cycle
publishes them.

Cancellation and crash: an element that was recorded names its runs, whoever creates it. All other runs are
garbage that the next opening finds; their rows stay dirty."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from msgspec import Struct

from ...journal.manifest.chain import runs_prefix
from ...journal.manifest.element import RUN_LIST_BYTES_MAX
from ...storage_backends.base.codec import DecodeError, hex_number
from ...storage_backends.base.errors import (
    CLAIM_REFUSED,
    ChunkNotFound,
    DataCorruption,
    OutcomeUnknown,
    StorageFull,
    TierlogError,
    Unavailable,
)
from ...storage_backends.segments.garbage_sink import GarbageSink
from ...storage_backends.sorted_runs.compaction_policy import Merge, next_merge
from ...storage_backends.sorted_runs.put import encode_run, put_run
from ...storage_backends.sorted_runs.run_entry import RunEntry
from ...storage_backends.sorted_runs.run_list import RunList
from ..telemetry.logging import get_logger
from .cycle_cut import CycleCut

if TYPE_CHECKING:
    from .container import Container
    from .statistics import TableStatistics

_log = get_logger("container")
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 30.0, 300.0
"""The pause after a merge or a fetch failed; it doubles with each further failure."""
_IDLE_RETRY_SECONDS_MAX = 3600.0
"""The longest pause where room is lacking or an object is damaged: attempts that transfer many bytes hardly
ever succeed then."""
_GENERATIONS_IN_LIST = 8
"""The room for a run list is divided among this many generations; a merge takes the share of one."""


class _WrittenMerge(Struct, eq=False):
    """A merge whose runs lie on the local disk."""

    merge: Merge
    runs: list[RunEntry]
    put: int = 0
    """How many of them are in long-term storage."""


class _Pause(Struct, eq=False):
    """When to try again what failed."""

    seconds: float = 0.0
    """How long the pause is; 0 if the newest attempt succeeded."""
    until: float = -math.inf

    def lengthen(self, longest: float) -> None:
        self.seconds = min(max(2 * self.seconds, _RETRY_SECONDS), longest)
        self.until = anyio.current_time() + self.seconds

    @property
    def deadline(self) -> float:
        return self.until if self.seconds else math.inf


class TableRuns:
    def __init__(self, container: Container, garbage: GarbageSink) -> None:
        self._container = container
        self._state = container.state
        self._copies = container.copies
        self._chunks = container.chunks
        self._ownership = container.ownership
        self._garbage = garbage
        self._written: _WrittenMerge | None = None
        """The merge whose runs no element names yet; None once one counts, or the merge was given up."""
        self._merged: dict[RunEntry, None] = {}
        """Runs that were merged and that the newest element still names."""
        self._replaced: list[str] = []
        """Merged runs that no element names any more; kept until an element with a later cycle counts (rule
        M11)."""
        self._wake = anyio.Event()
        self._published_runs = self._published_bytes = self._merges = self._merged_bytes = 0
        self._unpublished = 0
        self.lacks_room = False
        """Whether the newest cycle completed without its run."""
        self._fetch_pause, self._put_pause, self._merge_pause = _Pause(), _Pause(), _Pause()
        self._unfetched: set[str] = set()
        """Names of the runs that the newest attempt could not fetch: merges leave them out."""
        self._lacking: list[RunEntry] | None = None
        """Runs that long-term storage lacks; None until it was listed."""
        self._putting = anyio.Lock()

    async def open(self) -> None:
        """Find the local copies of the runs that elements name. Call it after recovery."""
        manifest = self._state.manifest
        await self._copies.open({*manifest.runs, *manifest.intended_runs}, self._is_of_no_later_owner)
        if manifest.intent is not None:  # of a merge, perhaps: its inputs are needed until it counts
            needed = {run.name for run in manifest.intended_runs}
            self._merged.update(dict.fromkeys(run for run in manifest.runs if run.name not in needed))

    def _is_of_no_later_owner(self, file: str) -> bool:
        """An owner that was overtaken during its opening leaves its successor's copies."""
        epoch = epoch_of_copy(file)
        return epoch is None or epoch <= self._state.epoch

    def begin_cycle(self) -> CycleCut:
        """A full flush cycle begins, whose outcome is published. One at a time: ``complete_cycle`` or
        ``abandon_cycle`` ends it."""
        if self._state.cut is not None:
            raise RuntimeError("another flush cycle is being published")

        return CycleCut(self._state)

    async def abandon_cycle(self, cut: CycleCut) -> None:
        """The cycle is not published: the next one publishes its rows."""
        cut.close()
        await _in_turns(cut.give_back())
        await _in_turns(self._state.table.merge_frozen())

    async def complete_cycle(self, cut: CycleCut) -> None:
        """Return once an element counts with this cycle, and with all rows that it has frozen unless there is
        no room for them (J5, M10, M12). If an element that was recorded earlier serves instead, the runs of
        this call are garbage. After an error call it again."""
        await self._ownership.keep_proven()
        await self.sort_out()  # of an element that the owner before recorded, perhaps
        if self._is_recorded(cut):  # by an earlier attempt, maybe without runs
            if self._state.manifest.intent is not None:
                await self._ownership.complete_cycle(cut.cut)
            await self.abandon_cycle(cut)
            await self.sort_out()
            return

        runs: list[RunEntry] = []
        replaced = len(self._replaced)
        failure: TierlogError | None = None
        has_room = False
        try:
            has_room = await self._write_rows(cut, runs)
            publish = partial(cut.published, runs) if has_room else None
            await self._ownership.complete_cycle(cut.cut, publish)
        except TierlogError as error:
            failure = error
        finally:
            unnamed = self._release_unnamed(runs)
        await self._copies.remove(unnamed)
        if failure is not None:
            raise failure

        if unnamed or not has_room:
            await self.abandon_cycle(cut)
        cut.close()
        await self.sort_out()
        named = [run for run in runs if run not in unnamed]
        self._published_runs += len(named)
        self._published_bytes += sum(run.length for run in named)
        self._garbage.release(self._replaced[:replaced])
        del self._replaced[:replaced]
        self._wake.set()

    def _is_recorded(self, cut: CycleCut) -> bool:
        """Whether an element of this owner records the cycle."""
        manifest = self._state.manifest
        elements = (op.element for op in (manifest.head, manifest.intent) if op is not None)
        return any(each.epoch == self._state.epoch and each.progress.cut >= cut.cut for each in elements)

    async def sort_out(self) -> None:
        """Keep what the runs that count hold back in memory, and forget what they have."""
        await _in_turns(self._state.hold_back())

    async def _write_rows(self, cut: CycleCut, runs: list[RunEntry]) -> bool:
        """Write the rows as runs whose entries are added to ``runs``; False if there is no room for all of
        them."""
        cycle = self._state.manifest.highest_cycle + 1
        listed, rows = self._state.table.runs, cut.rows()
        try:
            while (encoded := await encode_run(partial(self._new_name, cycle), rows)) is not None:
                run = RunEntry.of(encoded.run, cycle, cycle)
                _check_size(cut.published([*runs, run], listed))
                await self._garbage.track([run.name])
                runs.append(run)
                # G6: the deletions that make room need the object only. The copy is fetched later.
                with suppress(StorageFull):
                    await self._copies.add(run, encoded.pieces)
                await self._ownership.keep_proven()
                await put_run(self._chunks, run, encoded.pieces)
        except StorageFull as error:
            self._unpublished += 1
            if not self.lacks_room:  # once until there is room (rule S7)
                _log.warning("rows_not_published", container=self._container.index, error=str(error))
            self.lacks_room = True
            self._merge_pause.until = min(self._merge_pause.until, anyio.current_time() + _RETRY_SECONDS_MAX)
            return False

        if self.lacks_room:  # a merge may have room again as well
            self._merge_pause.until = -math.inf
        self.lacks_room = False
        return True

    def _new_name(self, cycle: int) -> str:
        """A name that is never used twice (rule S2)."""
        prefix, epoch = runs_prefix(self._container.index), self._state.epoch
        return f"{prefix}{epoch:016x}-{cycle:016x}-{self._container.world.new_id()}"

    def _release_unnamed(self, runs: Sequence[RunEntry]) -> list[RunEntry]:
        """Keep the runs that an element names; the others, which are returned, are garbage."""
        named = {*self._state.manifest.runs, *self._state.manifest.intended_runs}
        unnamed = [run for run in runs if run not in named]
        self._garbage.keep([run.name for run in runs if run in named])
        self._garbage.release([run.name for run in unnamed])
        return unnamed

    # --- in the background -----------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch missing local copies, put missing runs again, and merge runs, whenever it is necessary."""
        while True:
            self._wake = anyio.Event()
            while self._state.table.free():
                await anyio.lowlevel.checkpoint()
            await self._attempt(self._fetch_missing, self._fetch_pause)
            await self.put_missing()
            await self._attempt(self._merge_all, self._merge_pause)
            await self._drop_merged()
            pauses = self._fetch_pause, self._put_pause, self._merge_pause
            deadline = min(pause.deadline for pause in pauses)
            if (written := self._written) is not None:
                if not await self._copies.has_spare():  # the log needs the room more (rule W6)
                    await self._end_merge(written)
                deadline = min(deadline, anyio.current_time() + _RETRY_SECONDS)
            with anyio.CancelScope(deadline=deadline):
                await self._wake.wait()

    async def _attempt(self, work: Callable[[], Awaitable[None]], pause: _Pause) -> None:
        """What fails is tried again after a pause, however many cycles complete meanwhile."""
        if anyio.current_time() < pause.until:
            return

        try:
            await work()
        except CLAIM_REFUSED:
            raise
        except TierlogError as error:
            if not pause.seconds:  # once until it succeeds (rule S7)
                _log.warning("merge_or_fetch_failed", container=self._container.index, error=str(error))
            # While cycles complete without their runs, a merge may make room for them.
            is_urgent = self.lacks_room or isinstance(error, Unavailable)
            pause.lengthen(_RETRY_SECONDS_MAX if is_urgent else _IDLE_RETRY_SECONDS_MAX)
        else:
            pause.seconds, pause.until = 0.0, -math.inf

    async def _fetch_missing(self) -> None:
        """One run that is damaged keeps no other one from being fetched."""
        failure: TierlogError | None = None
        unfetched: set[str] = set()
        for run in self._state.table.runs:
            if run in self._state.table.runs.runs:  # else it was merged meanwhile
                try:
                    await self._copies.fetch(run)
                except (StorageFull, DataCorruption) as error:
                    failure = error
                    unfetched.add(run.name)
        self._unfetched = unfetched
        if failure is not None:
            raise failure

    async def put_missing(self) -> None:
        """Put the runs that long-term storage lacks, unless this owner did or failed a short time ago (rule
        M6). What fails is tried again in the background."""
        await self._attempt(self._put_missing, self._put_pause)

    async def _put_missing(self) -> None:
        """Another history of this folder may have deleted runs, and long-term storage may have been put back
        (rule J6): the local copies are all that there is. One that is damaged keeps no other run from being
        put."""
        failure: TierlogError | None = None
        async with self._putting:  # the background, and an operator who confirms the container
            if self._lacking is None:
                self._lacking = await self._find_lacking()
            for run in tuple(self._lacking):
                # Without a local copy it is lost; the fetch has failed and said so.
                if run in self._state.table.runs.runs and run.name not in self._unfetched:
                    await self._ownership.keep_proven()
                    try:
                        await put_run(self._chunks, run, await self._copies.read_pieces(run))
                    except (DataCorruption, ChunkNotFound, OutcomeUnknown) as error:
                        failure = error
                        continue
                self._lacking.remove(run)
        if failure is not None:
            raise failure

    async def _find_lacking(self) -> list[RunEntry]:
        """List long-term storage once for each ownership that begins with runs: it puts later ones itself."""
        await self._ownership.ensure()  # an element that the owner before recorded counts now
        lacking = await self._unstored(self._state.table.runs.runs)
        if lacking:
            # It may have been the empty folder of a missing mount.
            await self._ownership.prove()
            lacking = await self._unstored(lacking)
        return lacking

    async def _unstored(self, runs: Sequence[RunEntry]) -> list[RunEntry]:
        """Which of ``runs`` long-term storage lacks."""
        if not runs:
            return []

        async with aclosing(self._chunks.list(runs_prefix(self._container.index))) as infos:
            stored = {info.name async for info in infos}
        return [run for run in runs if run.name not in stored]

    async def _merge_all(self) -> None:
        """One run that is damaged keeps no other ones from being merged."""
        failure: DataCorruption | None = None
        left_out = set(self._unfetched)
        while True:
            try:
                if not await self._merge(left_out):
                    break
            except DataCorruption as error:
                if error.file in left_out or all(error.file != run.name for run in self._state.table.runs):
                    raise
                failure = error
                left_out.add(error.file)
        if failure is not None:
            raise failure

    def _next_merge(self, left_out: Collection[str]) -> Merge | None:
        return next_merge(
            self._state.table.runs,
            self._container.options.merge_fan_out,
            list_bytes=RUN_LIST_BYTES_MAX // 2,
            left_out=left_out,
        )

    async def _merge(self, left_out: Collection[str]) -> bool:
        """Make the merge that is due, or put and name what an earlier attempt has written; False if none is
        due. Without long-term storage, or room there, the merged runs stay on the local disk, and the next
        attempt goes on with them under the same names (rule M2)."""
        if self._written is None:
            if (merge := self._next_merge(left_out)) is None:
                return False
            self._written = _WrittenMerge(merge, await self._write_merged(merge))

        written = self._written
        try:
            await self._publish(written)
        except TierlogError as error:
            if not isinstance(error, (StorageFull, Unavailable)):  # else its runs wait
                await self._end_merge(written)
            raise
        await self._end_merge(written)
        self._merges += 1
        self._merged_bytes += sum(run.length for run in written.runs)
        return True

    async def _write_merged(self, merge: Merge) -> list[RunEntry]:
        from ...storage_backends.sorted_runs.compaction import compact  # no opening waits for it

        await self._ownership.keep_proven()
        for run in merge.runs:
            await self._copies.fetch(run)
        await self._copies.check_room(sum(run.length for run in merge.runs))
        cycle = merge.generations[0][0].last_cycle
        runs = await compact(
            merge,
            self._new_name(cycle),
            self._copies,
            self._container.disk.runs.merge,
            merge.run_bytes(RUN_LIST_BYTES_MAX // _GENERATIONS_IN_LIST),
        )
        self._merged.update(dict.fromkeys(merge.runs))
        return runs

    async def _publish(self, written: _WrittenMerge) -> None:
        """Return once an element counts that names the merged runs, or those of another attempt at the
        merge."""
        before = self._state.table.runs
        after = written.merge.applied_to(before, written.runs)
        if after is before:
            return

        _check_size(after)
        await self._garbage.track([run.name for run in written.runs])
        for run in written.runs[written.put :]:
            await self._ownership.keep_proven()  # a merge may have taken long (rule J7)
            await put_run(self._chunks, run, await self._copies.read_pieces(run))
            written.put += 1
        await self._ownership.replace_runs(written.merge, written.runs)

    async def _end_merge(self, written: _WrittenMerge) -> None:
        self._written = None
        await self._copies.remove(self._release_unnamed(written.runs))
        await self._drop_merged()

    async def _drop_merged(self) -> None:
        """Remove the local copies of runs that were merged, also by an earlier attempt. Not before an element
        without them counts: until then they make up the table."""
        gone = [run for run in self._merged if run not in self._state.table.runs.runs]
        for run in gone:
            del self._merged[run]
        self._replaced += [run.name for run in gone]
        await self._copies.remove(gone)

    def statistics(self) -> TableStatistics:
        from .statistics import TableStatistics

        table = self._state.table
        due = self._next_merge(self._unfetched)
        return TableStatistics(
            rows=table.rows,
            row_bytes=table.memory,
            resident_records=len(self._state.resident),
            runs=len(table.runs),
            run_rows=sum(run.summary.rows for run in table.runs),
            run_bytes=sum(run.length for run in table.runs),
            list_bytes=table.runs.size,
            published=self._published_runs,
            published_bytes=self._published_bytes,
            unpublished=self._unpublished,
            merges=self._merges,
            merged_bytes=self._merged_bytes,
            due_runs=0 if due is None else len(due.runs),
            due_bytes=0 if due is None else sum(run.length for run in due.runs),
            held_segments=len(table.runs.held),
            cache=self._container.runs.statistics(),
            copies=self._copies.statistics(),
        )


def epoch_of_copy(file: str) -> int | None:
    """The epoch of the owner that gave a local copy its name; None for other names."""
    try:
        return hex_number(file.rpartition("+")[2].partition("-")[0])
    except DecodeError:
        return None


def _check_size(runs: RunList) -> None:
    """Raises ``StorageFull`` if the list does not fit into an element."""
    if (size := runs.size) > RUN_LIST_BYTES_MAX:
        raise StorageFull(
            f"the run list of an element has at most {RUN_LIST_BYTES_MAX} bytes, this one would have {size}: "
            f"there is room once runs are merged"
        )


async def _in_turns(steps: Iterable[None]) -> None:
    for _ in steps:
        await anyio.lowlevel.checkpoint()

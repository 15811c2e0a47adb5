"""The planted bugs of the system table: what is in memory, what runs hold, and which runs are needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from tierlog.actors.container import lost_histories
from tierlog.actors.container.closures import ClosureLog
from tierlog.actors.container.cycle_cut import CycleCut
from tierlog.actors.container.ended_rows import TRANSACTION_PREFIX, ended_key, transaction_of_row
from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.container.lts_boot import LtsBoot
from tierlog.actors.container.manifest_state import ManifestState
from tierlog.actors.container.operations import append
from tierlog.actors.container.parked import ParkedRequests
from tierlog.actors.container.row_removal import RowRemoval
from tierlog.actors.container.segments import NotLoaded, SegmentState
from tierlog.actors.container.state import ContainerState
from tierlog.actors.container.table_runs import TableRuns
from tierlog.journal.operations.transaction_image import TransactionStatus
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import Unavailable
from tierlog.storage_backends.base.transactions import is_staged
from tierlog.storage_backends.sorted_runs import compaction_policy, lookup, put, run_files
from tierlog.storage_backends.sorted_runs.compaction_policy import Merge
from tierlog.storage_backends.sorted_runs.reader import RunReader
from tierlog.storage_backends.sorted_runs.rows import VERSION_MAX
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.scan import Page
from tierlog.storage_backends.sorted_runs.table import TableView

from ..recovered import FIRST_RECOVERED
from .planting import Planter, mutant


@mutant("M3")
def row_that_cannot_be_read_is_absent(plant: Planter) -> None:
    """While runs cannot be read, chunks are deleted that segments are made of."""

    async def find(original: Any, view: TableView, reader: RunReader, keys: Iterable[bytes]) -> Any:
        try:
            return await original(view, reader, keys)
        except Unavailable:
            return {}

    plant(lookup.find_rows, find)


@mutant("M6")
def failed_run_leaves_its_file(plant: Planter) -> None:
    """A full disk stays full."""

    def remove(original: Any, path: str) -> Any:
        if run_files.TEMPORARY not in path:
            yield from original(path)

    plant(run_files.remove_file, remove)


@mutant("M7")
def tombstones_go_while_older_runs_have_the_row(plant: Planter) -> None:
    """Records of deleted segments come back after a merge."""

    def find(original: Callable[..., Merge | None], *arguments: Any) -> Merge | None:
        merge = original(*arguments)
        return merge and replace(merge, drop_tombstones_to=VERSION_MAX)

    plant(compaction_policy._find, find)


@mutant("M8")
def rows_are_clean_before_their_element_counts(plant: Planter) -> None:
    """After a crash, or a failed flush, records are lost that only a run without an element has."""

    async def write(original: Any, self: TableRuns, cut: CycleCut, runs: list[RunEntry]) -> bool:
        has_room: bool = await original(self, cut, runs)
        self._state.table.use(cut.published(runs, self._state.table.runs))
        return has_room

    plant(TableRuns._write_rows, write)


@mutant("M10")
def element_names_a_run_that_was_not_put(plant: Planter) -> None:
    """The records are on the local disk only: whoever loses that loses the segments."""

    async def put_nothing(original: Any, chunks: ChunkStorage, run: RunEntry, pieces: Sequence[Any]) -> None:
        pass

    plant(put.put_run, put_nothing)


@mutant("M11")
def runs_in_use_are_collected(plant: Planter) -> None:
    """The next owner deletes the runs of its predecessor, which make up the table."""

    def among(original: Any, self: ManifestState, names: Collection[str]) -> Collection[str]:
        return ()

    plant(ManifestState.runs_among, among)


@mutant("M13")
def image_that_changed_meanwhile_is_clean(plant: Planter) -> None:
    """A segment that was appended to while its run was written keeps an old image in the runs."""

    def row(original: Any, self: CycleCut, sid: int) -> Any:
        found = original(self, sid)
        self._state.segments.unpublished.pop(sid, None)
        return found

    plant(CycleCut._image_row, row)


@mutant("F1")
def image_is_of_the_moment_of_its_encoding(plant: Planter) -> None:
    """Long-term storage alone has segments that are longer than their bytes, and writers ahead of them."""
    plant(CycleCut.before_change, lambda original, self, segment: None)


@mutant("F10")
def what_is_not_flushed_to_the_cut_is_published(plant: Planter) -> None:
    """A segment that failed has an image that its record does not agree with."""

    def finish(original: Any, self: CycleCut, unreached: Any) -> None:
        original(self, ())

    plant(CycleCut.finish, finish)


@mutant("F10")
def sources_are_published_without_their_target(plant: Planter) -> None:
    """Long-term storage alone has merged bytes twice, or not at all."""

    def closure(
        original: Any, self: ClosureLog, segments: Iterable[int], to: int
    ) -> Generator[None, None, set[int]]:
        yield from ()
        return set(segments)

    plant(ClosureLog.closure, closure)


@mutant("F10")
def rows_above_the_cut_are_published(plant: Planter) -> None:
    """Long-term storage alone has attributes, rows and writers that are ahead of their segments' bytes."""

    def finish(original: Any, self: CycleCut, unreached: Any) -> None:
        self._state.table.freeze_rows(self._state.sequence)
        original(self, unreached)

    plant(CycleCut.finish, finish)


@mutant("F10")
def open_transactions_are_not_published(plant: Planter) -> None:
    """Long-term storage alone has staged segments, and not the transaction that could commit them."""

    def rows(original: Any, self: CycleCut) -> Any:
        for row in original(self):
            is_transaction = row is not None and row.key.startswith(TRANSACTION_PREFIX)
            record = transaction_of_row(row) if is_transaction else None
            is_open = record is not None and record.status is TransactionStatus.OPEN
            yield None if is_open else row

    plant(CycleCut.rows, rows)


@mutant("R4", worlds_from=FIRST_RECOVERED)
def recovery_takes_numbers_that_were_used(plant: Planter) -> None:
    """An owner of the lost logs, which opened them during an outage, has the recovered owner's epoch."""
    plant(vars(LtsBoot)["epoch"].fget, lambda original, self: self.newest.element.epoch)


@mutant("R8", worlds_from=FIRST_RECOVERED)
def recovered_length_is_not_kept(plant: Planter) -> None:
    """Once others have appended, a reader goes on in the middle of what they wrote."""
    plant(lost_histories.note_change, lambda original, epochs, segment: None)


@mutant("R9", worlds_from=FIRST_RECOVERED)
def events_behind_lost_ones_wait_for_them(plant: Planter) -> None:
    """A writer that goes on after a recovery tries again without end."""
    plant(append._may_follow_lost, lambda original, state, segment, request, known=None: False)


@mutant("R10", worlds_from=FIRST_RECOVERED)
def offsets_of_earlier_histories_count(plant: Planter) -> None:
    """An append at an offset of the lost history joins what others have appended since."""

    def common(original: Any, epochs: Any, segment: Any, given: int) -> int | None:
        return None

    plant(lost_histories.common_length, common)


@mutant("C4")
def request_behind_a_parked_one_overtakes_it(plant: Planter) -> None:
    """An append is applied before the merge that was sent first."""
    plant(ParkedRequests.is_blocked, lambda original, self, request: False)


@mutant("M4")
def what_must_be_looked_up_is_absent(plant: Planter) -> None:
    """Cold segments are not found, and others get their names, unless the cache has their rows."""

    def has_cold(original: Any, self: ContainerState, *arguments: Any, **options: Any) -> bool:
        try:
            found: bool = original(self, *arguments, **options)
        except NotLoaded:
            return False
        return found

    plant(ContainerState._has_cold, has_cold)


@mutant("M5")
def segment_is_unloaded_before_its_run_counts(plant: Planter) -> None:
    """What changed since the newest run is forgotten."""

    def can_unload(original: Any, self: ContainerState, segment: SegmentState) -> bool:
        return segment.is_idle and segment.touched > 0 and not is_staged(segment.name)

    plant(ContainerState.can_unload, can_unload)


@mutant("M19")
def attribute_that_must_be_looked_up_is_not_set(plant: Planter) -> None:
    """Conditions are compared with nothing, and counters begin at zero again, once runs have the rows."""

    def find(original: Any, self: ContainerState, name: str, keys: Any) -> Any:
        try:
            return original(self, name, keys)
        except NotLoaded:
            return {key: self.table.find_in_memory(key) for key in keys}

    plant(ContainerState._find_rows, find)


@mutant("M20")
def writer_that_left_memory_is_unknown(plant: Planter) -> None:
    """A repeat of its latest append is applied again."""

    def find(original: Any, self: ContainerState, segment: SegmentState, writers: Any) -> Any:
        return original(self, segment, [each for each in writers if each in segment.writers])

    plant(ContainerState.find_writers, find)


@mutant("M20")
def expired_writer_begins_anew_from_its_row(plant: Planter) -> None:
    """Once its expiry has left memory, what it sends is applied, whatever it was."""

    def find(original: Any, self: ContainerState, segment: SegmentState, writers: Any) -> Any:
        found = original(self, segment, writers)
        return {each: known for each, known in found.items() if known or each in segment.expired}

    plant(ContainerState.find_writers, find)


@mutant("M19")
def attributes_of_a_removed_segment_stay(plant: Planter) -> None:
    """Their rows fill the runs for good."""

    async def page(original: Any, self: RowRemoval, prefix: bytes, start: bytes) -> Page:
        found: Page = await original(self, prefix, start)
        return found if prefix == MARK_PREFIX else Page([], None)

    plant(RowRemoval._page, page)


@mutant("M21")
def ended_transaction_is_forgotten_once_it_leaves_memory(plant: Planter) -> None:
    """A zombie's begin after the commit opens it again, as soon as a flush cycle has published its end."""

    def find(original: Any, self: ContainerState, target: str, transaction: str, sid: int | None) -> Any:
        row = self.table.find_in_memory(ended_key(target, transaction))
        is_in_memory = row is not None or (target, transaction) in self.transactions.records
        return original(self, target, transaction, sid) if is_in_memory else None

    plant(ContainerState.find_transaction, find)

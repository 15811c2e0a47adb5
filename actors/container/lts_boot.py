"""The boot of a container from long-term storage alone: its first log, when the one before is lost (rules
R1 to R8).

Owns: what of an element a log must have, the numbers that the log goes on with, and the claim of the chain.
Does not own: which element is chosen, and where the log is.

Order: ``read_boot`` reads and checks everything; ``write`` logs the state with the claim in it; ``claim``
creates that element. Until then nothing has changed in long-term storage. Cancellation and crash: at most the
element is left, above which the next boot goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

import attrs

from ...journal.log.contract import DurableDataLog
from ...journal.manifest.chain import StoredElement, element_name, list_elements
from ...journal.manifest.element import NOTHING, Element, Kind, Owner, Pin, Progress
from ...journal.operations.cycle_complete import CycleComplete
from ...journal.operations.load_segment import LoadSegment
from ...journal.operations.log_element import LogElement
from ...journal.operations.transaction_image import TransactionImage, TransactionStatus
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    ChunkExists,
    ChunkNotFound,
    DataCorruption,
    StoreMismatch,
    TooLarge,
    Unavailable,
)
from ...storage_backends.base.transactions import is_staged, staged_prefix
from ...storage_backends.segments.records.claim import CLAIM_PREFIX
from ...storage_backends.segments.records.unconfirmed import UNCONFIRMED_KEY, Reason, UnconfirmedRecord
from ...storage_backends.sorted_runs.lookup import find_row, find_rows
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded
from ...storage_backends.sorted_runs.run_list import RunList
from ...storage_backends.sorted_runs.table import Table, TableView
from .checkpoint import log_checkpoint, whole_checkpoint
from .confirmation import JUMP
from .ended_rows import INDEX_PREFIX, TRANSACTION_PREFIX, transaction_of_row
from .lost_histories import EndedLog, Histories, decode_histories
from .manifest_state import ManifestState
from .published_check import Published, check_published, pages_of_rows
from .segment_rows import image_key, load_of_row, loaded, name_key, sid_of_row
from .state import HISTORY_KEY, ContainerState

_RESIDENT = (CLAIM_PREFIX, UNCONFIRMED_KEY, HISTORY_KEY)
"""The prefixes of records that a log has besides those of its segments."""
_CHECKPOINT_BYTES = 32 << 20
"""A group of the log has at most 64 MiB."""


@attrs.frozen(eq=False)
class LtsBoot:
    """What a container begins with."""

    container: int
    newest: StoredElement
    """The head of the chain, above which the container goes on."""
    chosen: Element
    """Whose tables the container has from then on: the newest element, or an earlier one that a pin keeps."""
    published: Published
    """What ``chosen`` publishes. With an inconsistency there is no boot (rule R3)."""
    ends: int
    """How many ended transactions are known."""
    open: Sequence[TransactionImage]
    loads: Sequence[LoadSegment]
    """The targets of open transactions, and what is staged for them: these are always in memory."""
    records: Sequence[Row]
    pin: Pin | None = None
    """The pin that keeps ``chosen``, if it is an earlier one; ``newest`` lists it (rule P6)."""
    ended_logs: tuple[EndedLog, ...] = ()
    """Those that earlier recoveries took the place of."""

    @property
    def epoch(self) -> int:
        """No epoch up to this one may be used again (rule R4)."""
        return self.newest.element.epoch + JUMP

    async def write(self, log: DurableDataLog, owner: Owner, epoch: int, now_ms: int) -> LogElement:
        """Log the container as of the element, as the first group of its ``log``, which ``owner`` opened with
        ``epoch``. Returns the element to create before anybody opens the log again (rule R5)."""
        newest, chosen = self.newest.element, self.chosen
        history = newest.progress.highest_version + JUMP
        claim = LogElement.of(
            Element(
                n=newest.n + 1,
                kind=Kind.OPEN,
                epoch=epoch,
                owner=owner,
                predecessor=self.newest.position,
                time_ms=now_ms,
                progress=attrs.evolve(
                    newest.progress,
                    cycle=chosen.progress.cycle,
                    cut=chosen.progress.cut,
                    highest_version=history,
                ),
                runs=chosen.runs,
                pins=newest.pins,  # P5
            )
        )
        state = self._state(claim, epoch)
        ended = self.ended_logs
        if self.newest.n:
            ended += (EndedLog(newest.owner.log, self.newest.n, epoch),)
        state.begin_history(history, epoch, ended)
        state.write_records(((UNCONFIRMED_KEY, UnconfirmedRecord(Reason.RESTORED).encode()),))
        await self._log_state(state, log)
        return claim

    async def go_on(self, log: DurableDataLog, claim: LogElement, epoch: int) -> None:
        """Log the container as of the element, as the next group of its ``log`` at another place, which was
        opened with ``epoch``. Nothing of it is lost, so it begins no history (rule E5). ``claim`` is the
        first element there."""
        state = self._state(claim, epoch)
        state.sequence = self.newest.element.progress.highest_version
        await self._log_state(state, log)

    def _state(self, claim: LogElement, epoch: int) -> ContainerState:
        """As of ``chosen``, with ``claim`` as the head of the chain."""
        newest, chosen = self.newest.element, self.chosen
        state = ContainerState(self.container, epoch)
        state.know_elements(ManifestState(claim))
        for row in self.records:
            decoded(state.restore_row, row, row.key)
        for record in self.open:
            state.transactions.restore(record)
        for load in self.loads:
            segment = loaded(load)
            state.load_segment(segment, load.record_version, load.record)
            if is_staged(segment.name):
                state.transactions.stage(segment.name, segment.sid)
        state.live_segments, state.transactions.ends = self.published.segments, self.ends
        # There may be rows of attributes and of writers: code that does not know them must refuse the log.
        state.has_spilled = True
        state.note_newest_segment(newest.progress.newest_segment)
        state.cycle = CycleComplete(chosen.epoch, chosen.progress.cycle, chosen.progress.cut, True)
        return state

    async def _log_state(self, state: ContainerState, log: DurableDataLog) -> None:
        made = whole_checkpoint(state, 1, log.next_group, size_max=_CHECKPOINT_BYTES)
        if made is None:
            raise TooLarge(
                f"the open transactions of container {self.container} and their {len(self.loads)} segments "
                f"take more than {_CHECKPOINT_BYTES >> 20} MiB"
            )
        await log_checkpoint(state, log, made[0])


def without_elements(store: bytes) -> StoredElement:
    """What a container begins with that has no element: the head of an empty chain."""
    nobody = Owner(store, bytes(16), bytes(16))
    return StoredElement(
        NOTHING,
        Element(
            n=0,
            kind=Kind.OPEN,
            epoch=0,
            owner=nobody,
            predecessor=NOTHING,
            time_ms=0,
            progress=Progress(),
        ),
    )


async def read_boot(
    container: int,
    newest: StoredElement,
    chosen: Element,
    runs: RunReader,
    pin: Pin | None = None,
    ended_logs: tuple[EndedLog, ...] = (),
) -> LtsBoot:
    """Read and check the tables of ``chosen``. Raises ``Unavailable``, ``DataCorruption``."""
    table = Table()
    table.use(chosen.runs)
    with table.view() as view:
        published = await check_published(view, runs, container)
        ends, records, transactions = 0, list[Row](), list[TransactionImage]()
        async with aclosing(pages_of_rows(view, runs, INDEX_PREFIX)) as pages:
            async for rows in pages:
                ends += len(rows)
        for prefix in _RESIDENT:
            async with aclosing(pages_of_rows(view, runs, prefix.encode())) as pages:
                async for rows in pages:
                    records += rows
        async with aclosing(pages_of_rows(view, runs, TRANSACTION_PREFIX)) as pages:
            async for rows in pages:
                known = (decoded(transaction_of_row, row, row.key) for row in rows)
                transactions += (each for each in known if each and each.status is TransactionStatus.OPEN)
        loads = await _loads_of(view, runs, transactions)
    return LtsBoot(container, newest, chosen, published, ends, transactions, loads, records, pin, ended_logs)


async def read_logs(elements: Sequence[StoredElement], runs: RunReader) -> tuple[EndedLog, ...]:
    """The logs of a chain that recoveries took the place of, from old to new. ``elements`` are those that are
    left of it, newest first. Raises ``Unavailable``, ``DataCorruption``."""
    ended = dict[tuple[bytes, int], int]()
    read = set[bytes]()
    later: Element | None = None
    for each in elements:
        element = each.element
        log = element.owner.log
        # The runs of the newest element know all, but not before the first flush of a new log.
        if log not in read:
            read.add(log)
            try:
                known = (await read_histories(element.runs, runs)).ended
            except (DataCorruption, Unavailable) as error:
                is_gone = isinstance(error, DataCorruption) or isinstance(error.__cause__, ChunkNotFound)
                if each is elements[0] or not is_gone:
                    raise
                known = ()  # the newer ones do not need its runs, so they may be deleted
            for last in known:
                ended[last.log, last.until] = max(last.n, ended.get((last.log, last.until), 0))
        if later is not None and later.owner.log != log:
            is_known = any(other == log and until > element.epoch for other, until in ended)
            if not is_known:
                ended[log, later.epoch] = each.n
        later = element
    return tuple(sorted((EndedLog(log, n, until) for (log, until), n in ended.items()), key=_until))


def _until(ended: EndedLog) -> int:
    return ended.until


async def read_histories(listed: RunList, runs: RunReader) -> Histories:
    """The histories that these runs know. Raises ``Unavailable``, ``DataCorruption``."""
    with Table(listed).view() as view:
        row = await find_row(view, runs, HISTORY_KEY.encode())
    if row is None or row.value is None:
        return Histories()
    return decoded(decode_histories, row.value, row.key)


async def _loads_of(
    view: TableView, runs: RunReader, transactions: Sequence[TransactionImage]
) -> list[LoadSegment]:
    """The segments of open transactions."""
    sids = {record.sid for record in transactions}
    for record in transactions:
        prefix = name_key(staged_prefix(record.target, record.id))
        async with aclosing(pages_of_rows(view, runs, prefix)) as pages:
            async for rows in pages:
                sids.update(sid for row in rows if (sid := decoded(sid_of_row, row, row.key)) is not None)
    found = await find_rows(view, runs, [image_key(sid) for sid in sorted(sids)])
    loads = (decoded(load_of_row, row, key) for key, row in found.items())
    return [load for load in loads if load is not None]


async def claim_chain(chunks: ChunkStorage, container: int, op: LogElement) -> None:
    """Create the element that the new log begins with. Raises ``StoreMismatch`` if an owner has gone on since
    the chain was read: nothing of its log is lost (rule R5)."""
    n = op.position.n
    name = element_name(container, n)
    try:
        await chunks.create_with_content(name, [op.content])
        # One of this number may have been created and deleted, with newer ones above it (rule J4).
        is_newest = not [other for other in await list_elements(chunks, container, n) if other > n]
    except ChunkExists:
        is_newest = False
    if not is_newest:
        raise StoreMismatch(
            f"somebody created {name} meanwhile: an owner of the store is alive, or another recovery is "
            f"under way. Stop it, or use what it made; then nothing is lost"
        )

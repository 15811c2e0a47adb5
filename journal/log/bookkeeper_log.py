"""``BookKeeperLog``: a ``DurableDataLog`` whose groups are entries of ledgers, for owners on any machine. Its
rules, B1 to B10, are in ``docs/protocols/bookkeeper-log.md``; what it has in common with other logs is in
``remote_log``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise

import anyio
import anyio.lowlevel
import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    TierlogError,
    Unavailable,
)
from ...storage_backends.base.ledger_service import (
    AppendLost,
    Ledger,
    LedgerService,
    NoSuchEntry,
    NoSuchLedger,
)
from ...storage_backends.base.world import World
from ..registers.local import NOBODY
from .bookkeeper_calls import CallCounts, HeldRecord, LogContext
from .bookkeeper_entry import EntryHeader, encode_entries
from .bookkeeper_layout import BookKeeperLogOptions, position
from .bookkeeper_open import OpenedBookKeeperLog, corruption, inspect_bookkeeper_log, open_bookkeeper_log
from .bookkeeper_reader import GroupReader
from .bookkeeper_record import LEDGERS_MAX, ListedLedger, LogRecord
from .bookkeeper_sweep import KnownLedgers, OrphanSweep
from .contract import GroupInfo, GroupPayload, LogStatistics
from .flights import Flight
from .lifecycle import LogState
from .remote_log import FoundLog, RemoteLog

_CHECKS_MAX = 5
_VERDICT_SECONDS = 5.0
"""For which a failed append asks whether another owner is the reason."""


class BookKeeperLog(RemoteLog):
    """``path`` is that of the log's record. ``service`` stays open when the log is closed. Logs of one
    process share ``known``: then each ledger of another log is looked at once, and not by each of them."""

    def __init__(
        self,
        service: LedgerService,
        path: str,
        log_id: bytes,
        world: World,
        options: BookKeeperLogOptions | None = None,
        owner: bytes = NOBODY,
        known: KnownLedgers | None = None,
    ) -> None:
        options = options or BookKeeperLogOptions()
        self._ctx = LogContext(service, path, log_id, owner, world, options)
        # Parts are joined, so half of what may be kept is read ahead.
        ahead = options.kept_bytes // 2
        super().__init__(self._ctx.place, options.appends_max, ahead, options.parallel)
        self._held: HeldRecord | None = None
        self._reader = GroupReader(self._ctx, self._index)
        self._writer: Ledger | None = None
        self._entries = 0
        """In the own ledger."""
        self._ledger_bytes = 0
        self._next: Ledger | None = None
        """Made, and not listed yet."""
        self._is_next_slow = False
        """Whether making one took too long once: truncations make it from then on."""
        self._when_lost: Callable[[], None] = _nobody
        self._sweep = OrphanSweep(self._ctx, known or KnownLedgers())
        self._recording = anyio.Lock()

    # --- opening and reading ---------------------------------------------------------------------

    async def _open(self, above: int, after: Collection[int] | None) -> FoundLog:
        return self._found(await open_bookkeeper_log(self._ctx, above, after, self._own_epochs))

    async def _inspect(self) -> FoundLog:
        self._reader.is_beside_owner = True
        return self._found(await inspect_bookkeeper_log(self._ctx))

    def _found(self, opened: OpenedBookKeeperLog) -> FoundLog:
        found, history = opened.found, opened.found.history
        self._held, self._writer = opened.held, opened.writer
        self._stale = list(opened.emptied)
        for ledger in found.ledgers.values():
            self._reader.add(ledger)
        if opened.writer is not None:
            self._reader.add(opened.writer)
        epoch = opened.held.record.epoch
        return FoundLog(epoch, opened.before, history.groups, history.next_group, found.kept)

    async def _fetch(self, numbers: Sequence[int], kept: Mapping[int, memoryview]) -> list[GroupPayload]:
        try:
            return await self._reader.read(numbers, kept)
        except (NoSuchLedger, NoSuchEntry) as error:
            raise corruption(self._ctx, error) from error

    # --- appending -------------------------------------------------------------------------------

    async def _send(self, flight: Flight, group: GroupInfo, buffers: Sequence[Buffer]) -> int:
        header = EntryHeader(group.epoch, group.number, group.tag, group.truncate_before, group.size)
        try:
            await self._flights.wait_to_start(flight)
            if self._is_full and not (self._is_next_slow and self._next is None):
                await self._roll(flight, header)
            assert self._writer is not None
            writer, entry = self._writer, self._entries
            entries = encode_entries(self._ctx.log_id, header, buffers)
            self._entries += len(entries)
            self._ledger_bytes += header.size
            self._ctx.counts.entries += len(entries)
            # The ledger takes them in the order of the calls: nothing is awaited before this one.
            adding = writer.append(entries)
        finally:
            flight.set_started()
        try:
            with self._ctx.health.watched():
                first = await adding
        except NotOwner:
            raise
        except TierlogError as error:
            # Another owner may have closed or deleted the ledger. B11: not if its sidecar has ended, without
            # which the next opening need not wait.
            if not isinstance(error, AppendLost):
                with anyio.move_on_after(_VERDICT_SECONDS), suppress(Unavailable):
                    await self._confirmation.join()
            raise OutcomeUnknown(f"group {header.number} may be in {self._name} or not: {error}") from error
        if first != entry:
            # B3: or else a later read would take another entry for this one.
            what = f"group {header.number} became entry {first}, not {entry}"
            raise DataCorruption(what, file=self._ctx.entry_place(writer.id, entry))
        return position(writer.id, entry)

    @property
    def _is_full(self) -> bool:
        """Whether another ledger follows the one that is there."""
        assert self._held is not None
        is_long = self._ledger_bytes >= self._ctx.options.ledger_bytes
        return is_long and len(self._held.record.ledgers) < LEDGERS_MAX

    async def _roll(self, flight: Flight, header: EntryHeader) -> None:
        """B4: begin another ledger, with this group."""
        await self._flights.wait_for_turn(flight)
        made, self._next = self._next, None
        if made is None:
            made = await self._ctx.create_ledger_once(header.epoch, self._ctx.options.roll_seconds)
        if made is None:
            # Whatever it takes to make one, the ledger that is there may do without.
            self._is_next_slow = True
            return
        listed = ListedLedger(made.id, header.number)
        try:
            await self._change_record(lambda record: attrs.evolve(record, ledgers=(*record.ledgers, listed)))
        except NotOwner:
            await self._ctx.discard(made)
            raise
        except BaseException:
            made.drop()
            raise
        before = self._writer
        self._writer = made
        self._watch(made)
        self._reader.add(made)
        self._entries = self._ledger_bytes = 0
        if before is not None:
            # So that the next opener need not recover it; it can, if this fails.
            with suppress(TierlogError):
                await before.close()

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self, *, closing: bool = False) -> None:
        await super().truncate(closing=closing)
        if closing:
            return

        # B4: last, because it may take long. Appends go on meanwhile.
        async with self._truncating:
            if self._is_next_slow and self._is_full and self._next is None:
                patience = self._ctx.options.patience
                self._next = await self._ctx.create_ledger_once(self._epoch, patience)

    async def _trim(self, address: int) -> None:
        assert self._held is not None
        removed = _below(self._held.record, address)
        if removed:
            gone = {ledger.id for ledger in removed}
            await self._change_record(lambda record: _without(record, gone))
            self._index.forget_below(self._held.record.ledgers[0].first)
            self._stale += gone
        self._stale += await self._sweep.find(self._held.record)

    async def _delete(self, stale: int) -> None:
        await self._ctx.delete_ledger(stale)
        self._reader.drop([stale])

    async def _change_record(self, change: Callable[[LogRecord], LogRecord]) -> None:
        async with self._recording:
            assert self._held is not None
            with self._ending_if_lost():
                self._held = await self._ctx.change(self._held, change)

    # --- ownership and the rest ------------------------------------------------------------------

    def when_lost(self, act: Callable[[], None]) -> None:
        self._when_lost = act
        if self._writer is not None:
            self._watch(self._writer)

    def _watch(self, writer: Ledger) -> None:
        writer.when_lost(partial(self._lose, writer))

    def _lose(self, writer: Ledger) -> None:
        """B11: an idle owner ends with the sidecar too. Appends under way see its end themselves."""
        if writer is self._writer and self._life.state is LogState.OPEN:
            self._life.failed(Unavailable("the sidecar for BookKeeper has ended"))
            self._when_lost()

    async def _confirm(self) -> None:
        """B10: whoever opens the log changes the record's version."""
        for _ in range(_CHECKS_MAX):
            assert self._held is not None
            held = self._held
            if await self._ctx.check(held.version):
                return
            now = await self._ctx.require_own(held.record.opening, held.record.epoch)
            # A change of this owner's own.
            if self._held.version < now.version:
                self._held = now
        raise Unavailable(f"the record of log {self._name} changes too often to be confirmed: try again")

    async def _has_changed(self) -> bool:
        return await self._ctx.load() != self._held

    async def close(self, *, clean: bool = True) -> None:
        is_sound = self._life.state is LogState.OPEN
        try:
            await super().close()
            if clean and is_sound and self._writer is not None:
                # Only for the next opener's sake, which recovers the ledger else.
                with suppress(TierlogError):
                    await self._writer.close()
        finally:
            self._reader.drop()
            if self._next is not None:
                self._next.drop()  # B8: an orphan.

    def outage(self) -> str:
        return self._ctx.health.outage()

    def statistics(self) -> LogStatistics:
        counts = self._ctx.counts
        ledgers = len(self._held.record.ledgers) if self._held else 0
        return self._statistics(ledgers, entries=counts.entries, ledger_calls=counts.reads + counts.others)

    @property
    def requests(self) -> CallCounts:
        """The calls so far."""
        return self._ctx.counts


def _below(record: LogRecord, address: int) -> Sequence[ListedLedger]:
    """The ledgers that have only groups below ``address``."""
    below: list[ListedLedger] = []
    for ledger, after in pairwise(record.ledgers):
        if after.first > address:
            break
        below.append(ledger)
    return below


def _without(record: LogRecord, gone: Collection[int]) -> LogRecord:
    return attrs.evolve(record, ledgers=tuple(each for each in record.ledgers if each.id not in gone))


def _nobody() -> None:
    """Nobody waits for the end."""

"""``BookKeeperLog``: a ``DurableDataLog`` whose groups are entries of ledgers, for owners on any machine. Its
rules, B1 to B10, are in ``docs/protocols/bookkeeper-log.md``.

Crash: whatever is under way is decided by the next opener. Cancellation of an append breaks the log (W6); of
a truncation, it leaves ledgers for the next owner. State in memory changes in one step after the last await.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
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
    StoreMismatch,
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
from .bookkeeper_entry import ENTRY_HEADER_BYTES, EntryHeader, encode_entries
from .bookkeeper_history import FoundGroup
from .bookkeeper_layout import BookKeeperLogOptions, position
from .bookkeeper_open import (
    OpenedBookKeeperLog,
    ReadLedgers,
    corruption,
    inspect_bookkeeper_log,
    open_bookkeeper_log,
)
from .bookkeeper_reader import GroupReader
from .bookkeeper_record import LEDGERS_MAX, ListedLedger, LogRecord
from .bookkeeper_sweep import OrphanSweep
from .contract import (
    DurableDataLog,
    GroupInfo,
    GroupPayload,
    LogStatistics,
    OpenedLog,
    check_group,
)
from .flights import Flight, Flights
from .group_index import GroupIndex, readable
from .lifecycle import LogEvent, LogLifecycle, LogState
from .shared_call import SharedCall

_ENDED = (NotOwner, DataCorruption, StoreMismatch)
"""What the record may show that ends this owner."""
_CHECKS_MAX = 5
_VERDICT_SECONDS = 5.0
"""For which a failed append asks whether another owner is the reason."""


class BookKeeperLog(DurableDataLog):
    """``path`` is that of the log's record. ``service`` stays open when the log is closed."""

    def __init__(
        self,
        service: LedgerService,
        path: str,
        log_id: bytes,
        world: World,
        options: BookKeeperLogOptions | None = None,
        owner: bytes = NOBODY,
    ) -> None:
        options = options or BookKeeperLogOptions()
        self._ctx = LogContext(service, path, log_id, owner, world, options)
        self._name = self._ctx.place
        self._life = LogLifecycle(self._name)
        self._own_epochs: list[int] = []
        self._held: HeldRecord | None = None
        self._found: ReadLedgers | None = None
        """Until the first append."""
        self._readable: Sequence[FoundGroup] = ()
        self._index = GroupIndex()
        self._reader = GroupReader(self._ctx, self._index)
        self._writer: Ledger | None = None
        self._entries = 0
        """In the own ledger."""
        self._ledger_bytes = 0
        self._stale: list[int] = []
        """Ledgers that nobody needs."""
        self._sweep = OrphanSweep(self._ctx)
        self._next_group = 0
        self._truncate_before = 0
        self._flights = Flights(self._life, options.appends_max)
        self._confirmation = SharedCall(self._confirm)
        self._recording = anyio.Lock()
        self._truncating = anyio.Lock()
        self._appended_groups = 0
        self._appended_bytes = 0

    # --- opening ---------------------------------------------------------------------------------

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        return await self._begin(
            LogEvent.OPENED, partial(open_bookkeeper_log, self._ctx, above, after, self._own_epochs)
        )

    async def inspect(self) -> OpenedLog:
        return await self._begin(LogEvent.INSPECTED, partial(inspect_bookkeeper_log, self._ctx))

    async def _begin(self, event: LogEvent, read: Callable[[], Awaitable[OpenedBookKeeperLog]]) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            opened = await read()
        except BaseException as error:
            self._life.failed(error)
            raise
        self._life.step(event)
        found, history = opened.found, opened.found.history
        self._held, self._found, self._writer = opened.held, found, opened.writer
        self._stale = list(opened.emptied)
        self._reader.is_beside_owner = event is LogEvent.INSPECTED
        for ledger in found.ledgers.values():
            self._reader.add(ledger)
        if opened.writer is not None:
            self._reader.add(opened.writer)
        for group in history.groups:
            self._index.add(group.number, position(group.ledger, group.entry), group.size)
        self._next_group = history.next_group
        self._readable = readable(history.groups)
        groups = [GroupInfo(g.number, g.epoch, g.tag, g.size, g.truncate_before) for g in self._readable]
        tags = {group.number: group.tag for group in groups if group.tag}
        return OpenedLog(opened.held.record.epoch, opened.before, groups, tags, self._next_group)

    @property
    def own_epochs(self) -> Collection[int]:
        return tuple(self._own_epochs)

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        self._life.require("read", LogState.OPEN, LogState.INSPECTED)
        found = self._found
        if found is None:
            raise RuntimeError("read is possible before the first append only")
        batch: list[int] = []
        size = 0
        for group in self._readable:
            if group.number < first:
                continue
            if batch and size + group.size > self._ctx.options.kept_bytes // 2:
                for payload in await self._payloads(batch, found.kept):
                    yield payload
                batch, size = [], 0
            batch.append(group.number)
            size += group.size + ENTRY_HEADER_BYTES
        for payload in await self._payloads(batch, found.kept):
            yield payload

    async def _payloads(
        self, numbers: Sequence[int], kept: Mapping[int, memoryview] | None = None
    ) -> list[GroupPayload]:
        try:
            return await self._reader.read(numbers, kept)
        except (DataCorruption, NoSuchLedger, NoSuchEntry) as error:
            # A later owner may have truncated it.
            await self._check_unchanged()
            if isinstance(error, DataCorruption):
                raise
            raise corruption(self._ctx, error) from error

    def window_of(self, number: int) -> int:
        # W10: a window is one group.
        return number

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        self._life.require("read_window", LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)
        if self._index.position_of(number) is None:
            raise DataCorruption(f"group {number} is not in the log", file=f"{self._name} group {number}")
        return await self._payloads([number])

    async def _check_unchanged(self) -> None:
        """Raises if another owner may have changed what this one read."""
        if self._life.state is not LogState.INSPECTED:
            await self.confirm_owner()
            return
        if await self._ctx.load() != self._held:
            raise Unavailable(f"log {self._name} has changed since it was inspected: open it again")

    # --- appending -------------------------------------------------------------------------------

    @property
    def appends_max(self) -> int:
        return self._ctx.options.appends_max

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        check_group(size, tag, truncate_before, self._next_group)
        self._flights.require_room()
        assert self._held is not None
        self._found = None
        header = EntryHeader(self._held.record.epoch, self._next_group, tag, truncate_before, size)
        self._next_group += 1
        flight = self._flights.take()
        try:
            place = await self._add(flight, header, buffers)
            # B3: after the ones before it.
            await self._flights.wait_for_turn(flight)
        except BaseException as error:
            self._flights.end(flight, error)
            raise
        self._settle(header, place)
        self._flights.end(flight)
        return header.number

    async def _add(self, flight: Flight, header: EntryHeader, buffers: Sequence[Buffer]) -> int:
        """Returns the group's position."""
        try:
            await self._flights.wait_to_start(flight)
            if self._ledger_bytes >= self._ctx.options.ledger_bytes:
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
            what = f"group {header.number} became entry {first}, not {entry}"
            raise DataCorruption(what, file=self._ctx.entry_place(writer.id, entry))
        return position(writer.id, entry)

    async def _roll(self, flight: Flight, header: EntryHeader) -> None:
        """B4: begin another ledger, with this group."""
        await self._flights.wait_for_turn(flight)
        assert self._held is not None
        if len(self._held.record.ledgers) >= LEDGERS_MAX:
            return
        made = await self._ctx.create_ledger(header.epoch)
        listed = ListedLedger(made.id, header.number)
        try:
            await self._change_record(lambda record: attrs.evolve(record, ledgers=(*record.ledgers, listed)))
        except NotOwner:
            await self._ctx.discard(made)
            raise
        before = self._writer
        self._writer = made
        self._reader.add(made)
        self._entries = self._ledger_bytes = 0
        if before is not None:
            # So that the next opener need not recover it; it can, if this fails.
            with suppress(TierlogError):
                await before.close()

    def _settle(self, header: EntryHeader, place: int) -> None:
        self._index.add(header.number, place, header.size)
        self._truncate_before = max(self._truncate_before, header.truncate_before)
        self._appended_groups += 1
        self._appended_bytes += header.size

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self) -> None:
        self._life.require("truncate", LogState.OPEN, LogState.APPENDING)
        async with self._truncating:
            await self._confirmation.join()
            assert self._held is not None
            address = self._truncate_before
            removed = _below(self._held.record, address)
            if removed:
                # B7: nothing is deleted before no reader will look for it.
                gone = {ledger.id for ledger in removed}
                await self._change_record(lambda record: _without(record, gone))
                self._index.forget_below(self._held.record.ledgers[0].first)
                self._stale += gone
            self._stale += await self._sweep.find(self._held.record)
            await self._delete_stale()

    async def _delete_stale(self) -> None:
        while self._stale:
            ledger = self._stale[0]
            await self._ctx.delete_ledger(ledger)
            self._stale.remove(ledger)
            self._reader.drop([ledger])

    async def _change_record(self, change: Callable[[LogRecord], LogRecord]) -> None:
        async with self._recording:
            assert self._held is not None
            try:
                self._held = await self._ctx.change(self._held, change)
            except _ENDED as error:
                self._life.failed(error)
                raise

    # --- ownership and the rest ------------------------------------------------------------------

    def check_owner(self) -> None:
        self._life.require("check_owner", LogState.OPEN, LogState.APPENDING)

    async def confirm_owner(self) -> None:
        self.check_owner()
        await self._confirmation.join()

    async def _confirm(self) -> None:
        """B10: whoever opens the log changes the record's version."""
        for _ in range(_CHECKS_MAX):
            assert self._held is not None
            held = self._held
            if await self._ctx.check(held.version):
                return
            try:
                now = await self._ctx.require_own(held.record.opening, held.record.epoch)
            except _ENDED as error:
                self._life.failed(error)
                raise
            # A change of this owner's own.
            if self._held.version < now.version:
                self._held = now
        raise Unavailable(f"the record of log {self._name} changes too often to be confirmed: try again")

    def has_room(self, size: int) -> bool:
        return True

    def has_reserve(self, size: int) -> bool:
        return True

    async def check_space(self) -> bool:
        await anyio.lowlevel.checkpoint()
        return True

    @property
    def next_group(self) -> int:
        return self._next_group

    async def close(self, *, clean: bool = True) -> None:
        is_sound = self._life.state is LogState.OPEN
        self._life.step(LogEvent.CLOSE)
        try:
            if clean and is_sound and self._writer is not None:
                # Only for the next opener's sake, which recovers the ledger else.
                with suppress(TierlogError):
                    await self._writer.close()
            else:
                await anyio.lowlevel.checkpoint()
        finally:
            self._reader.drop()

    def outage(self) -> str:
        return self._ctx.health.outage()

    def statistics(self) -> LogStatistics:
        epoch = self._held.record.epoch if self._held else 0
        retained = self._index.retained_bytes
        counts = self._ctx.counts
        return LogStatistics(
            epoch,
            self._next_group,
            self._appended_groups,
            self._appended_bytes,
            retained,
            retained,
            len(self._held.record.ledgers) if self._held else 0,
            0,
            entries=counts.entries,
            ledger_calls=counts.reads + counts.others,
        )

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

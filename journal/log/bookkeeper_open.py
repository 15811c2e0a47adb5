"""How a log in ledgers is opened and inspected (rules B1, B2 and B5).

``open_bookkeeper_log`` takes the record, recovers every ledger that it lists, creates a ledger of its own,
and lists it; only then may it be written to. Crash or cancellation at any point leaves at most a raised
epoch, recovered ledgers, which the next opener reads as they are, and an orphan, which a later owner deletes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress
from functools import partial

import attrs

from ...storage_backends.base.errors import DataCorruption, NotOwner
from ...storage_backends.base.ids import EPOCH_MAX
from ...storage_backends.base.ledger_service import READ_ENTRIES_MAX, Ledger, NoSuchEntry, NoSuchLedger
from ...storage_backends.base.parallel import in_parallel
from ..registers.local import NOBODY, fenced
from .bookkeeper_calls import HeldRecord, LogContext
from .bookkeeper_entry import EntryHeader, decode_entry
from .bookkeeper_history import Contradiction, LedgerHistory
from .bookkeeper_layout import position
from .bookkeeper_record import ListedLedger, LogRecord

_READINGS_MAX = 5


@attrs.define(eq=False, repr=False)
class ReadLedgers:
    """What an opening read."""

    history: LedgerHistory = attrs.field(factory=LedgerHistory)
    ledgers: dict[int, Ledger] = attrs.field(factory=dict)
    """By id, open for reading."""
    kept: dict[int, memoryview] = attrs.field(factory=dict)
    """Payloads of entries by position, as many as may be kept."""
    kept_bytes: int = 0

    def drop(self) -> None:
        for ledger in self.ledgers.values():
            ledger.drop()
        self.ledgers.clear()


@attrs.frozen(eq=False, repr=False)
class OpenedBookKeeperLog:
    held: HeldRecord
    before: int
    """The epoch before; 0 in a new log."""
    found: ReadLedgers
    writer: Ledger | None = None
    """Of an opening: its own ledger."""
    emptied: Sequence[int] = ()
    """Ledgers without a group, which are not listed any more."""


# --- opening --------------------------------------------------------------------------------------


async def open_bookkeeper_log(
    ctx: LogContext, above: int, after: Collection[int] | None, tried: list[int]
) -> OpenedBookKeeperLog:
    before, held = await _take_record(ctx, above, after, tried)
    found = ReadLedgers()
    try:
        await _recover_all(ctx, held.record, found)
        return await _list_own(ctx, held, before, found)
    except BaseException:
        found.drop()
        raise


async def _take_record(
    ctx: LogContext, above: int, after: Collection[int] | None, tried: list[int]
) -> tuple[int, HeldRecord]:
    """B1. Returns the epoch before as well. Epochs are added to ``tried`` before they are put."""
    while True:
        held = await ctx.load()
        if held is None:
            if after is not None:
                raise DataCorruption("the record is gone, although this owner has had it", file=ctx.place)
            await ctx.put(LogRecord(0, ctx.owner, NOBODY, ()), None)
            continue

        before = held.record.epoch
        if after is not None and (before not in after or held.record.owner != ctx.owner):
            raise fenced(ctx.place, max(after, default=0), before)

        epoch = 1 + max(before, above)
        if epoch > EPOCH_MAX:
            raise DataCorruption(f"the epoch {epoch - 1} has no successor", file=ctx.place)
        record = attrs.evolve(held.record, epoch=epoch, owner=ctx.owner, opening=ctx.world.id_bytes())
        tried.append(epoch)
        taken = await ctx.put(record, held.version)
        if taken is not None:
            return before, taken
        # Another opener was first, or the owner, which rolled or truncated.


async def _recover_all(ctx: LogContext, record: LogRecord, found: ReadLedgers) -> None:
    """B2: from here on no earlier owner adds anything to a ledger that is listed."""
    ids = [ledger.id for ledger in record.ledgers]

    async def recover(ledger: int) -> None:
        found.ledgers[ledger] = await ctx.open_ledger(ledger, recover=True)

    try:
        await in_parallel(ctx.options.parallel, [partial(recover, ledger) for ledger in ids])
        for listed in record.ledgers:
            await _read_ledger(ctx, listed, found)
    except (NoSuchLedger, NoSuchEntry, Contradiction) as error:
        # A later owner may have truncated what this one reads.
        await ctx.require_own(record.opening, record.epoch)
        raise corruption(ctx, error) from error


async def _list_own(
    ctx: LogContext, held: HeldRecord, before: int, found: ReadLedgers
) -> OpenedBookKeeperLog:
    """B2: the own ledger counts, and is written to, once it is listed. Ledgers without a group are left out
    of the list, which would grow by one with each opening else."""
    record, history = held.record, found.history
    filled = {group.ledger for group in history.groups}
    writer = await ctx.create_ledger(record.epoch)
    kept = tuple(ledger for ledger in record.ledgers if ledger.id in filled)
    ledgers = (*kept, ListedLedger(writer.id, history.next_group))
    try:
        own = await ctx.change(held, lambda present: attrs.evolve(present, ledgers=ledgers))
    except NotOwner:
        await ctx.discard(writer)
        raise
    except BaseException:
        writer.drop()
        raise
    emptied = [ledger.id for ledger in record.ledgers if ledger.id not in filled]
    return OpenedBookKeeperLog(own, before, found, writer, emptied)


def corruption(ctx: LogContext, error: NoSuchLedger | NoSuchEntry | Contradiction) -> DataCorruption:
    if isinstance(error, Contradiction):
        place = ctx.entry_place(error.ledger, error.entry)
        return DataCorruption(f"the entry does not belong here: {error}", file=place)
    return DataCorruption(f"a ledger or an entry that the log has is gone: {error}", file=ctx.place)


# --- reading --------------------------------------------------------------------------------------


async def _read_ledger(ctx: LogContext, listed: ListedLedger, found: ReadLedgers) -> None:
    found.history.begin_ledger(listed)
    ledger = found.ledgers[listed.id]
    entry = 0
    async with aclosing(entries_of(ctx, ledger, 0, ledger.description.last)) as entries:
        async for data in entries:
            _take_entry(ctx, found, listed.id, entry, data)
            entry += 1


def _take_entry(ctx: LogContext, found: ReadLedgers, ledger: int, entry: int, data: bytes) -> EntryHeader:
    header, payload = decode_entry(data, ctx.log_id, ctx.entry_place(ledger, entry))
    found.history.add(entry, header)
    if found.kept_bytes + len(data) <= ctx.options.kept_bytes:
        found.kept[position(ledger, entry)] = payload
        found.kept_bytes += len(data)
    return header


async def entries_of(ctx: LogContext, ledger: Ledger, first: int, last: int) -> AsyncGenerator[bytes, None]:
    """The entries from ``first`` to ``last``, a few reads at a time."""
    step = READ_ENTRIES_MAX * ctx.options.reads
    for start in range(first, last + 1, step):
        reads = [
            partial(ctx.read, ledger, at, min(at + READ_ENTRIES_MAX - 1, last))
            for at in range(start, min(start + step, last + 1), READ_ENTRIES_MAX)
        ]
        for part in await in_parallel(ctx.options.reads, reads):
            for data in part:
                yield data


# --- inspection -----------------------------------------------------------------------------------


async def inspect_bookkeeper_log(ctx: LogContext) -> OpenedBookKeeperLog:
    """Reads beside a living owner, so only what two readings find is reported as corruption."""
    problem: DataCorruption | None = None
    for _ in range(_READINGS_MAX):
        held = await ctx.load()
        if held is None:
            return OpenedBookKeeperLog(HeldRecord(LogRecord(0, ctx.owner, NOBODY, ()), -1), 0, ReadLedgers())
        found = ReadLedgers()
        try:
            for listed in held.record.ledgers:
                found.ledgers[listed.id] = await ctx.open_ledger(listed.id, recover=False)
                await _read_ledger(ctx, listed, found)
                await _read_unconfirmed(ctx, listed, found)
        except (NoSuchLedger, NoSuchEntry, Contradiction) as error:
            found.drop()
            problem = corruption(ctx, error)
            continue
        except BaseException:
            found.drop()
            raise
        return OpenedBookKeeperLog(held, held.record.epoch, found)
    assert problem is not None
    raise problem


async def _read_unconfirmed(ctx: LogContext, listed: ListedLedger, found: ReadLedgers) -> None:
    """What a living writer has acked since: a ledger learns what was acked only with the entry behind it."""
    ledger = found.ledgers[listed.id]
    if ledger.description.is_closed:
        return
    entry = ledger.description.last + 1
    with suppress(NoSuchEntry):
        while True:
            (data,) = await ctx.read(ledger, entry, entry, unconfirmed=True)
            _take_entry(ctx, found, listed.id, entry, data)
            entry += 1

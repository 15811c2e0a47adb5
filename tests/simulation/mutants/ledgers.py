"""Planted bugs of the log in ledgers (docs/protocols/bookkeeper-log.md)."""

from __future__ import annotations

from functools import partial
from typing import Any

from tierlog.journal.log import bookkeeper_log
from tierlog.journal.log.bookkeeper_calls import HeldRecord, LogContext
from tierlog.journal.log.bookkeeper_entry import EntryHeader
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.bookkeeper_record import LogRecord, encode_record
from tierlog.journal.log.bookkeeper_sweep import OrphanSweep
from tierlog.journal.log.flights import Flight
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.base.ledger_service import Ledger

from ..special_seeds import FIRST_ON_LEDGERS
from .planting import Planter, mutant

_planted = partial(mutant, worlds_from=FIRST_ON_LEDGERS)


@_planted("B2")
def ledgers_are_opened_without_recovery(plant: Planter) -> None:
    """The owner before adds to its ledger, and acks, after its successor has read it."""

    async def open_ledger(original: Any, self: LogContext, ledger: int, *, recover: bool) -> Ledger:
        return await original(self, ledger, recover=False)  # type: ignore[no-any-return]

    plant(LogContext.open_ledger, open_ledger)


@_planted("B4")
def next_ledger_is_not_listed(plant: Planter) -> None:
    """What an owner acks in its second ledger is found by nobody."""

    async def roll(original: Any, self: BookKeeperLog, flight: Flight, header: EntryHeader) -> None:
        await self._flights.wait_for_turn(flight)
        made = await self._ctx.create_ledger(header.epoch)
        self._writer = made
        self._reader.add(made)
        self._entries = self._ledger_bytes = 0

    plant(BookKeeperLog._roll, roll)


@_planted("B6")
def record_without_a_verdict_counts_as_put(plant: Planter) -> None:
    """An owner writes to a ledger that no record lists, and acks."""

    async def put(
        original: Any, self: LogContext, record: LogRecord, version: int | None
    ) -> HeldRecord | None:
        if version is not None:
            try:
                made = await self.service.replace(self.path, encode_record(self.log_id, record), version)
            except OutcomeUnknown:
                made = version + 1
            if made is not None:
                return HeldRecord(record, made)
        return await original(self, record, version)  # type: ignore[no-any-return]

    plant(LogContext.put, put)


@_planted("B7")
def ledgers_are_deleted_before_the_record_is_put(plant: Planter) -> None:
    """After a crash in between the next opener finds a log without its begin."""

    async def trim(original: Any, self: BookKeeperLog, address: int) -> None:
        assert self._held is not None
        for ledger in bookkeeper_log._below(self._held.record, address):
            await self._ctx.delete_ledger(ledger.id)
        await original(self, address)

    plant(BookKeeperLog._trim, trim)


@_planted("B8")
def orphans_are_not_looked_for(plant: Planter) -> None:
    """The ledgers of openings that were killed stay forever."""

    async def find(original: Any, self: OrphanSweep, record: LogRecord) -> list[int]:
        return []

    plant(OrphanSweep.find, find)


@_planted("B10")
def confirmation_asks_nobody(plant: Planter) -> None:
    """An owner that was succeeded answers reads."""

    async def confirm(original: Any, self: BookKeeperLog) -> None:
        pass

    plant(BookKeeperLog._confirm, confirm)

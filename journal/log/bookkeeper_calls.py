"""The calls that a log in ledgers makes of its service, repeated until they have a verdict (rule B6), and
counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import anyio
import attrs

from ...storage_backends.base.errors import DataCorruption, OutcomeUnknown, TierlogError, Unavailable
from ...storage_backends.base.ledger_service import (
    Ledger,
    LedgerDescription,
    LedgerLost,
    LedgerService,
    NoSuchLedger,
    SidecarNotStarted,
    StoredRecord,
)
from ...storage_backends.base.world import World
from ..registers.local import fenced
from .bookkeeper_layout import BookKeeperLogOptions
from .bookkeeper_quorum import choose_quorum
from .bookkeeper_record import LogRecord, decode_record, encode_record
from .call_health import CallHealth
from .repetition import Repetition


@attrs.define(eq=False, repr=False)
class CallCounts:
    entries: int = 0
    reads: int = 0
    """Each of up to 16 entries."""
    others: int = 0


@attrs.frozen
class HeldRecord:
    """The log's record, and its version."""

    record: LogRecord
    version: int


@attrs.frozen(eq=False, repr=False)
class LogContext:
    service: LedgerService
    path: str
    """Of the log's record."""
    log_id: bytes
    owner: bytes
    world: World
    options: BookKeeperLogOptions
    counts: CallCounts = attrs.field(factory=CallCounts)
    health: CallHealth = attrs.field(factory=CallHealth)

    @property
    def place(self) -> str:
        return self.service.place(self.path)

    def entry_place(self, ledger: int, entry: int) -> str:
        return f"{self.place} ledger {ledger} entry {entry}"

    @property
    def repeat(self) -> Repetition:
        options = self.options
        delays = (options.first_delay, options.longest_delay)
        return Repetition(self.world, options.patience, delays, self.health)

    def metadata(self, epoch: int) -> Mapping[str, bytes]:
        """What says whose a ledger is (rule B8)."""
        return {**self.mark, _EPOCH: str(epoch).encode()}

    @property
    def mark(self) -> Mapping[str, bytes]:
        return {"application": b"tierlog", "record": self.path.encode(), "log": self.log_id.hex().encode()}

    # --- records ---------------------------------------------------------------------------------

    async def load(self) -> HeldRecord | None:
        async def load() -> StoredRecord | None:
            self.counts.others += 1
            return await self.service.load(self.path)

        found = await self.repeat(load)
        if found is None:
            return None
        return HeldRecord(decode_record(found.data, self.log_id, self.place), found.version)

    async def put(self, record: LogRecord, version: int | None) -> HeldRecord | None:
        """Create it, or replace the one of this version. None if the condition did not hold.

        No two of an opening's records have the same bytes, so if an earlier attempt was carried out, the
        record shows it (rule B6)."""
        data = encode_record(self.log_id, record)

        async def put() -> int | None:
            self.counts.others += 1
            if version is None:
                made = await self.service.create(self.path, data)
                return made.version if made else None
            return await self.service.replace(self.path, data, version)

        made = await self.repeat(put)
        if made is not None:
            return HeldRecord(record, made)
        found = await self.load()
        return found if found is not None and found.record == record else None

    async def change(self, held: HeldRecord, change: Callable[[LogRecord], LogRecord]) -> HeldRecord:
        """Replace the own record by what ``change`` makes of it. Raises ``NotOwner`` if another opening has
        it."""
        while True:
            made = await self.put(change(held.record), held.version)
            if made is not None:
                return made
            # Another opening has it, or a change of this one that was cancelled took effect late.
            held = await self.require_own(held.record.opening, held.record.epoch)

    async def check(self, version: int) -> bool:
        async def check() -> bool:
            self.counts.others += 1
            return await self.service.check(self.path, version)

        return await self.repeat(check)

    async def require_own(self, opening: bytes, epoch: int) -> HeldRecord:
        """The record as it is now. Raises ``NotOwner`` if another opening has it."""
        held = await self.load()
        if held is None:
            raise DataCorruption("the log's record is gone", file=self.place)
        if held.record.opening != opening:
            raise fenced(self.place, epoch, held.record.epoch)
        return held

    # --- ledgers ---------------------------------------------------------------------------------

    async def create_ledger(self, epoch: int) -> Ledger:
        """B6: one whose creation has no verdict is an orphan, and another one is made."""
        return await self.repeat(partial(self._create_ledger, epoch))

    async def create_ledger_once(self, epoch: int, seconds: float) -> Ledger | None:
        """B4: None if none can be made now, or in this time."""
        with anyio.move_on_after(seconds):
            try:
                with self.health.watched():
                    return await self._create_ledger(epoch)
            except (SidecarNotStarted, LedgerLost):
                raise
            except (Unavailable, OutcomeUnknown):
                return None
        return None

    async def _create_ledger(self, epoch: int) -> Ledger:
        self.counts.others += 2
        quorum = choose_quorum(await self.service.count_bookies(), self.options.quorum)
        return await self.service.create_ledger(quorum, self.metadata(epoch))

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        async def open_() -> Ledger:
            self.counts.others += 1
            return await self.service.open_ledger(ledger, recover=recover)

        return await self.repeat(open_)

    async def describe(self, ledger: int) -> LedgerDescription | None:
        """None if it is gone."""

        async def describe() -> LedgerDescription | None:
            self.counts.others += 1
            with suppress(NoSuchLedger):
                return await self.service.describe_ledger(ledger)
            return None

        return await self.repeat(describe)

    async def list_ledgers(self, after: int, count: int) -> list[int]:
        async def list_() -> list[int]:
            self.counts.others += 1
            return await self.service.list_ledgers(after, count)

        return await self.repeat(list_)

    async def delete_ledger(self, ledger: int) -> None:
        async def delete() -> None:
            self.counts.others += 1
            await self.service.delete_ledger(ledger)

        await self.repeat(delete)

    async def read(self, ledger: Ledger, first: int, last: int, *, unconfirmed: bool = False) -> list[bytes]:
        async def read() -> list[bytes]:
            self.counts.reads += 1
            return await ledger.read(first, last, unconfirmed=unconfirmed)

        return await self.repeat(read)

    async def discard(self, ledger: Ledger) -> None:
        """B2: delete a ledger of this opening, whose record another one has, unless that one has listed it:
        an attempt to list it may have been carried out before. The sweep finds it if this fails."""
        ledger.drop()
        with suppress(TierlogError):
            held = await self.load()
            if held is None or ledger.id not in {each.id for each in held.record.ledgers}:
                await self.delete_ledger(ledger.id)


_EPOCH = "epoch"
_DIGITS_MAX = 10
"""Of the largest epoch."""


def epoch_of(description: LedgerDescription) -> int:
    """Of the opening that made the ledger; 0 if its metadata says none."""
    text = description.metadata.get(_EPOCH, b"")
    return int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0

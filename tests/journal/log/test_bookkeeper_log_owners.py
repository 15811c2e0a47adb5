"""Owners of one log in ledgers, killed and stopped at any moment, with calls that arrive late, twice or
never: every acked append is read by every later owner, and no other history ever was (rules B1 to B8 and
B10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from support.log_worlds import BookKeeperLogWorld
from tierlog.journal.log import bookkeeper_entry, bookkeeper_open
from tierlog.journal.log.bookkeeper_calls import LogContext
from tierlog.journal.log.bookkeeper_history import LedgerHistory
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.bookkeeper_sweep import OrphanSweep
from tierlog.journal.log.flights import Flights
from tierlog.journal.log.shared_call import SharedCall

Planter = Callable[[Any, str, Any], None]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most groups of the worlds have several."""
    monkeypatch.setattr(bookkeeper_entry, "PART_BYTES", 1)


def first_problem(seeds: int) -> str | None:
    for seed in range(seeds):
        problems = BookKeeperLogWorld(seed).run()
        if problems:
            return f"seed {seed}: {problems}"
    return None


def test_every_acked_group_is_read_by_every_later_owner() -> None:
    assert first_problem(40) is None


@pytest.mark.extended
def test_every_acked_group_is_read_by_every_later_owner_in_many_worlds() -> None:
    assert first_problem(400) is None


# --- the worlds find bugs -------------------------------------------------------------------------


def b1_a_change_of_the_record_has_no_condition(plant: Planter) -> None:
    put = LogContext.put

    async def at_any_version(self: Any, record: Any, version: int | None) -> Any:
        found = await self.load()
        return await put(self, record, found.version if found and version is not None else version)

    plant(LogContext, "put", at_any_version)


def b2_a_ledger_is_opened_without_recovery(plant: Planter) -> None:
    opening = LogContext.open_ledger

    async def beside(self: Any, ledger: int, *, recover: bool) -> Any:
        return await opening(self, ledger, recover=False)

    plant(LogContext, "open_ledger", beside)


def b2_the_ledgers_of_before_the_epoch_are_recovered(plant: Planter) -> None:
    taking = bookkeeper_open._take_record

    async def early(ctx: Any, *args: Any) -> Any:
        first = await ctx.load()
        before, held = await taking(ctx, *args)
        ledgers = first.record.ledgers if first else held.record.ledgers
        return before, attrs.evolve(held, record=attrs.evolve(held.record, ledgers=ledgers))

    plant(bookkeeper_open, "_take_record", early)


def b2_a_fenced_opening_deletes_its_ledger_although_it_was_listed(plant: Planter) -> None:
    async def deleting(self: Any, ledger: Any) -> None:
        await self.delete_ledger(ledger.id)

    plant(LogContext, "discard", deleting)


def b3_a_group_counts_without_its_last_part(plant: Planter) -> None:
    begin = LedgerHistory.begin_ledger

    def begin_ledger(self: Any, ledger: Any) -> None:
        if self._started is not None:
            self.next_group += 1
        begin(self, ledger)

    plant(LedgerHistory, "begin_ledger", begin_ledger)


def b4_another_ledger_begins_at_once(plant: Planter) -> None:
    async def at_once(self: Any, flight: Any) -> None:
        await _nothing()

    plant(Flights, "wait_for_turn", at_once)


def b7_ledgers_are_deleted_before_the_list_is_shorter(plant: Planter) -> None:
    change = BookKeeperLog._change_record

    async def deleting(self: Any, changing: Any) -> None:
        before, after = self._held.record, changing(self._held.record)
        gone = {each.id for each in before.ledgers} - {each.id for each in after.ledgers}
        for each in gone:
            await self._ctx.delete_ledger(each)
        await change(self, changing)

    plant(BookKeeperLog, "_change_record", deleting)


def b8_any_ledger_that_is_not_listed_is_an_orphan(plant: Planter) -> None:
    is_orphan = OrphanSweep._is_orphan

    async def always(self: Any, ledger: int, epoch: int) -> bool:
        return await is_orphan(self, ledger, 1 << 40)

    plant(OrphanSweep, "_is_orphan", always)


def b10_nobody_asks_the_quorum(plant: Planter) -> None:
    plant(SharedCall, "join", lambda _: _nothing())


async def _nothing() -> None:
    return None


BUGS = [value for name, value in list(globals().items()) if name.startswith("b") and name[1].isdigit()]


@pytest.mark.extended
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_worlds_find_a_planted_bug(
    bug: Callable[[Planter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch.setattr)

    assert first_problem(1_000) is not None

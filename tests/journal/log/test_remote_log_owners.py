"""Owners of one log in a service, killed and stopped at any moment, with calls that arrive late, twice or
never: every acked append is read by every later owner, and no other history ever was (rules L1 to L7, L10,
B1 to B8, B10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from support.log_worlds import BookKeeperLogWorld, LogWorld, PutBackS3LogWorld, S3LogWorld
from tierlog.journal.log import bookkeeper_entry, bookkeeper_open, s3_log, s3_open
from tierlog.journal.log.bookkeeper_calls import LogContext
from tierlog.journal.log.bookkeeper_history import LedgerHistory
from tierlog.journal.log.bookkeeper_log import BookKeeperLog
from tierlog.journal.log.bookkeeper_sweep import OrphanSweep
from tierlog.journal.log.flights import Flights
from tierlog.journal.log.s3_calls import Put, RepeatedCalls
from tierlog.journal.log.s3_history import S3History, read_history
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_slot import SlotHeader, SlotKind
from tierlog.journal.log.shared_call import SharedCall

Planter = Callable[[Any, str, Any], None]
World = Callable[[int], LogWorld]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most groups of the worlds have several parts in ledgers."""
    monkeypatch.setattr(bookkeeper_entry, "PART_BYTES", 1)


def first_problem(world: World, seeds: int) -> str | None:
    for seed in range(seeds):
        problems = world(seed).run()
        if problems:
            return f"seed {seed}: {problems}"
    return None


@pytest.mark.parametrize(
    ("world", "seeds"),
    [
        (S3LogWorld, 40),
        (PutBackS3LogWorld, 40),
        (BookKeeperLogWorld, 40),
        pytest.param(S3LogWorld, 2_000, marks=pytest.mark.extended),
        pytest.param(PutBackS3LogWorld, 500, marks=pytest.mark.extended),
        pytest.param(BookKeeperLogWorld, 2_000, marks=pytest.mark.extended),
    ],
)
def test_every_acked_group_is_read_by_every_later_owner(world: World, seeds: int) -> None:
    assert first_problem(world, seeds) is None


# --- the worlds find bugs -------------------------------------------------------------------------


def put_back_l1_an_epoch_may_be_taken_again(plant: Planter) -> None:
    def one_less(low: int, slots: Any) -> Any:
        history = read_history(low, slots)
        return attrs.evolve(history, epoch=history.epoch - 1) if isinstance(history, S3History) else history

    plant(s3_open, "read_history", one_less)


def l2_b3_acks_come_in_any_order(plant: Planter) -> None:
    wait_for_turn = Flights.wait_for_turn

    async def at_once(self: Any, flight: Any) -> None:
        flight.before = None
        await wait_for_turn(self, flight)

    plant(Flights, "wait_for_turn", at_once)


def l2_a_refused_put_counts_as_ones_own(plant: Planter) -> None:
    put = RepeatedCalls.put

    async def own(self: Any, key: str, data: Any, *, version: str = "") -> Put:
        made = await put(self, key, data, version=version)
        return Put(made.found.version) if made.found else made

    plant(RepeatedCalls, "put", own)


def l3_no_fence_is_put(plant: Planter) -> None:
    async def skip(ctx: Any, register: Any, found: Any) -> Any:
        history = await s3_open._find_history(ctx, register, found)
        behind, number = history.end, history.next_group
        return history, SlotHeader(
            SlotKind.FENCE, behind - 1, register.epoch, b"", behind - 1, behind, number
        )

    plant(s3_open, "_put_fence", skip)


def l3_a_fence_leaves_no_slots_out(plant: Planter) -> None:
    plant(s3_open, "SLOTS_AHEAD", 1)


def l4_the_register_is_not_read_after_the_fence(plant: Planter) -> None:
    async def trusting(ctx: Any, above: int, after: Any, tried: list[int]) -> Any:
        before, held = await s3_open._raise_register(ctx, above, after, tried)
        found = await s3_open._read_slots(ctx, held.register.low)
        history, fence = await s3_open._put_fence(ctx, held.register, found)
        assert fence is not None  # no register is put back
        return s3_open.OpenedS3Log(held, before, history, found, fence.next)

    plant(s3_log, "open_s3_log", trusting)


def l5_everything_before_counts_as_settled(plant: Planter) -> None:
    take = S3Log._take

    def ahead(self: Any, group: Any) -> Any:
        header = take(self, group)
        return attrs.evolve(header, settled=header.slot)

    plant(S3Log, "_take", ahead)


def l6_a_refused_put_is_not_read_back(plant: Planter) -> None:
    async def trusting(self: Any, key: str, data: Any, *, version: str = "") -> Put:
        return Put(await self._repeat(lambda: self._objects.put(key, data, version=version)) or "")

    plant(RepeatedCalls, "put", trusting)


def l7_groups_are_deleted_before_the_low_is_raised(plant: Planter) -> None:
    async def keep(self: Any, slot: int) -> None:
        await _nothing()

    plant(S3Log, "_raise_low", keep)


def l7_fences_are_deleted(plant: Planter) -> None:
    raise_low = S3Log._raise_low

    async def sweep_all(self: Any, slot: int) -> None:
        low = self._held.register.low
        await raise_low(self, slot)
        self._stale.extend(range(max(1, low - 40), slot))

    plant(S3Log, "_raise_low", sweep_all)


def l7_the_low_was_read_before_the_raise(plant: Planter) -> None:
    raising = s3_open._raise_register

    async def early(ctx: Any, *args: Any) -> Any:
        first = await s3_open.load_register(ctx)
        before, held = await raising(ctx, *args)
        low = first.register.low if first else held.register.low
        return before, attrs.evolve(held, register=attrs.evolve(held.register, low=low))

    plant(s3_open, "_raise_register", early)


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


def l10_b10_nobody_is_asked(plant: Planter) -> None:
    plant(SharedCall, "join", lambda _: _nothing())


def l10_b10_a_call_that_began_before_serves(plant: Planter) -> None:
    async def join(self: Any) -> None:
        needed = max(self._begun, 1)
        async with self._turn:
            if self._ended < needed:
                self._begun = number = self._begun + 1
                self._error = await self._outcome()
                self._ended = number
            if self._error is not None:
                raise self._error

    plant(SharedCall, "join", join)


async def _nothing() -> None:
    return None


BUGS = [
    pytest.param(world, value, id=f"{name}-{world.__name__}")
    for name, value in list(globals().items())
    for letter, world in (("l", S3LogWorld), ("b", BookKeeperLogWorld))
    if any(part[0] == letter and part[1:].isdigit() for part in name.split("_")[:2] if part)
]
BUGS.append(pytest.param(PutBackS3LogWorld, put_back_l1_an_epoch_may_be_taken_again, id="l1-PutBackWorld"))


@pytest.mark.extended
@pytest.mark.parametrize(("world", "bug"), BUGS)
def test_the_worlds_find_a_planted_bug(
    world: World, bug: Callable[[Planter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch.setattr)

    assert first_problem(world, 3_000) is not None

"""Owners of one log in a bucket, killed and stopped at any moment, with requests that arrive late, twice or
never: every acked append is read by every later owner, and no other history ever was (rules L1 to L7,
L10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from support.log_worlds import S3LogWorld
from tierlog.journal.log import s3_log, s3_open
from tierlog.journal.log.flights import Flights
from tierlog.journal.log.s3_calls import Put, RepeatedCalls
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_slot import SlotHeader, SlotKind
from tierlog.journal.log.shared_call import SharedCall

Planter = Callable[[Any, str, Any], None]


def first_problem(seeds: int) -> str | None:
    for seed in range(seeds):
        problems = S3LogWorld(seed).run()
        if problems:
            return f"seed {seed}: {problems}"
    return None


def test_every_acked_group_is_read_by_every_later_owner() -> None:
    assert first_problem(40) is None


@pytest.mark.extended
def test_every_acked_group_is_read_by_every_later_owner_in_many_worlds() -> None:
    assert first_problem(2_000) is None


# --- the worlds find bugs -------------------------------------------------------------------------


def l2_acks_come_in_any_order(plant: Planter) -> None:
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
        return s3_open.OpenedS3Log(held, before, history, found, fence.next)

    plant(s3_log, "open_s3_log", trusting)


def l5_everything_before_counts_as_settled(plant: Planter) -> None:
    take = S3Log._take

    def ahead(self: Any, *args: int) -> Any:
        header = take(self, *args)
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


def l10_nobody_asks_the_register(plant: Planter) -> None:
    plant(SharedCall, "join", lambda _: _nothing())


def l10_a_read_that_began_before_serves(plant: Planter) -> None:
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


BUGS = [value for name, value in list(globals().items()) if name.startswith("l") and name[1].isdigit()]


@pytest.mark.extended
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_the_worlds_find_a_planted_bug(
    bug: Callable[[Planter], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch.setattr)

    assert first_problem(3_000) is not None

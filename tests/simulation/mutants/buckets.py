"""Planted bugs of the log in a bucket and its register (docs/protocols/s3-log.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import anyio.lowlevel
import attrs

from tierlog.actors.container.checkpoint import Checkpointer
from tierlog.actors.container.pending_group import Group
from tierlog.actors.container.pipeline import Pipeline
from tierlog.journal.log import s3_history, s3_open
from tierlog.journal.log.contract import SLOTS_AHEAD
from tierlog.journal.log.flights import Flight, Flights
from tierlog.journal.log.group_index import GroupIndex
from tierlog.journal.log.s3_calls import Put, RepeatedCalls
from tierlog.journal.log.s3_history import S3History
from tierlog.journal.log.s3_log import S3Log
from tierlog.journal.log.s3_open import FoundSlots, HeldRegister, OpenedS3Log, S3Context
from tierlog.journal.log.s3_register import S3Register
from tierlog.journal.log.s3_slot import SlotHeader, SlotKind, encode_slot
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import OutcomeUnknown

from ..bucket import SLOT
from ..special_seeds import FIRST_IN_BUCKET
from .planting import Planter, mutant

_planted = partial(mutant, worlds_from=FIRST_IN_BUCKET)


@_planted("L1")
def register_is_raised_behind_the_fence(plant: Planter) -> None:
    """An opener reads the slots and puts its fence before it raises the register, so that an owner before is
    confirmed after its successor has read everything."""

    async def open_log(
        original: Any, ctx: S3Context, above: int, after: Collection[int] | None, tried: list[int]
    ) -> OpenedS3Log:
        held = await s3_open.load_register(ctx)
        if held is None or after is not None:
            return await original(ctx, above, after, tried)  # type: ignore[no-any-return]

        found = await s3_open._read_slots(ctx, held.register.low)
        register = attrs.evolve(held.register, epoch=1 + max(held.register.epoch, above))
        history, fence = await s3_open._put_fence(ctx, register, found)
        if fence is None:
            return await original(ctx, above, after, tried)  # type: ignore[no-any-return]
        before, raised = await s3_open._raise_register(ctx, above, after, tried)
        return OpenedS3Log(raised, before, history, found, fence.next)

    plant(s3_open.open_s3_log, open_log)


@_planted("L2")
def put_replaces_what_is_there(plant: Planter) -> None:
    """A put has no condition: an owner that wakes up writes over the fence of its successor, and acks."""

    async def put(
        original: Callable[..., Awaitable[Put]],
        self: RepeatedCalls,
        key: str,
        data: Sequence[Buffer],
        *,
        version: str = "",
        proof: int = 256,
    ) -> Put:
        made = await original(self, key, data, version=version, proof=proof)
        if made.version or made.found is None or SLOT not in key:
            return made
        return await original(self, key, data, version=made.found.version, proof=proof)

    plant(RepeatedCalls.put, put)


@_planted("L2")
def group_is_acked_before_those_below(plant: Planter) -> None:
    """An append is acked while the group below it is on its way: if that never arrives, the next fence
    makes both void."""

    async def wait(original: Any, self: Flights, flight: Flight) -> None:
        flight.before = None
        await original(self, flight)

    plant(Flights.wait_for_turn, wait)


@_planted("C1")
def answer_overtakes_the_groups_below(plant: Planter) -> None:
    """A read that found what is in a group under way is answered first, and the group never becomes
    durable."""

    async def commit(original: Any, self: Pipeline, group: Group) -> None:
        if group.operations:
            return await original(self, group)  # type: ignore[no-any-return]
        await self._log.confirm_owner()
        self._in_flight.remove(group)
        self._in_flight.appendleft(group)
        finishing = self._finish(group, self._last_number)
        while self._advance(finishing):
            await anyio.lowlevel.checkpoint()
        return None

    plant(Pipeline._commit_one, commit)


@_planted("C7")
def small_groups_make_no_checkpoint_due(plant: Planter) -> None:
    """The next opening fetches thousands of groups, one by one."""
    plant(Checkpointer._has_many_files, lambda original, self, *, costly=False: False)


@_planted("L3")
def fence_leaves_the_next_slot_free(plant: Planter) -> None:
    """A fence is one slot too far, where readers look for it too: the next put of the owner before succeeds,
    and is acked."""

    async def put_fence(
        original: Any, ctx: S3Context, register: S3Register, found: FoundSlots
    ) -> tuple[S3History, SlotHeader]:
        while True:
            history = await s3_open._find_history(ctx, register, found)
            if history.epoch > register.epoch:
                await s3_open.confirm_opening(ctx, register)
            slot = history.end + 1
            fence = SlotHeader(
                SlotKind.FENCE,
                slot,
                register.epoch,
                ctx.new_id(),
                settled=history.end,
                next=slot + SLOTS_AHEAD,
                number=history.next_group,
            )
            put = await ctx.calls.put(ctx.layout.slot(slot), encode_slot(ctx.log_id, fence))
            if put.version:
                return history, fence
            await s3_open._fetch(ctx, found, slot)
            await s3_open._fetch(ctx, found, history.end)

    def read(original: Any, low: int, slots: Mapping[int, SlotHeader]) -> Any:
        fences = {slot - 1: each for slot, each in slots.items() if each.kind is SlotKind.FENCE}
        history = original(low, {**fences, **slots})
        if isinstance(history, S3History):
            void = [slot for slot in history.void if slot not in fences and slot - 1 not in fences]
            return attrs.evolve(history, void=void)
        return history

    plant(s3_open._put_fence, put_fence)
    plant(s3_history.read_history, read)


@_planted("L4")
def register_is_not_read_after_the_fence(plant: Planter) -> None:
    """An opener that stood still takes a slot that a later owner has truncated for the end of the log, and
    acks."""

    async def open_log(
        original: Any, ctx: S3Context, above: int, after: Collection[int] | None, tried: list[int]
    ) -> OpenedS3Log:
        before, held = await s3_open._raise_register(ctx, above, after, tried)
        found = await s3_open._read_slots(ctx, held.register.low)
        history, fence = await s3_open._put_fence(ctx, held.register, found)
        assert fence is not None  # no register is put back
        return OpenedS3Log(held, before, history, found, fence.next)

    plant(s3_open.open_s3_log, open_log)


@_planted("L5")
def lost_slot_is_the_end(plant: Planter) -> None:
    """A group that was removed by hand looks like the end of the log, and the acked ones behind it are
    void."""

    def read(original: Any, low: int, slots: Mapping[int, SlotHeader]) -> Any:
        return original(low, {slot: attrs.evolve(each, settled=0) for slot, each in slots.items()})

    plant(s3_history.read_history, read)


@_planted("L6")
def unknown_outcome_counts_as_success(plant: Planter) -> None:
    """A put without an answer is acked, and never arrived."""

    async def put(
        original: Callable[..., Awaitable[Put]],
        self: RepeatedCalls,
        key: str,
        data: Sequence[Buffer],
        *,
        version: str = "",
        proof: int = 256,
    ) -> Put:
        try:
            self.counts.puts += 1
            made = await self._objects.put(key, data, version=version)
        except OutcomeUnknown:
            return Put("unknown")
        return Put(made) if made else await original(self, key, data, version=version, proof=proof)

    plant(RepeatedCalls.put, put)


@_planted("L7")
def sweep_deletes_a_live_slot(plant: Planter) -> None:
    """A truncation deletes the group at which readers begin, too."""

    def forget(original: Any, self: GroupIndex, number: int) -> list[int]:
        first = self.position_of(number)
        assert first is not None
        return [*original(self, number), first]

    plant(GroupIndex.forget_below, forget)


@_planted("L7")
def fences_are_swept(plant: Planter) -> None:
    """An owner that stood still for long puts a group where its successor's fence was, and acks."""

    async def raise_low(original: Any, self: S3Log, slot: int) -> None:
        assert self._held is not None
        low = self._held.register.low
        await original(self, slot)
        self._stale.extend(range(max(1, low - SLOTS_AHEAD), slot))

    plant(S3Log._raise_low, raise_low)


@_planted("L7")
def objects_are_deleted_before_the_low_is_raised(plant: Planter) -> None:
    """A truncation deletes first: after a crash the next opener finds a log without its begin."""

    async def raise_low(original: Any, self: S3Log, slot: int) -> None:
        for run in self._index._runs:
            for each in range(run.position, min(run.position + run.count, slot)):
                await self._ctx.calls.delete(self._ctx.layout.slot(each))
        await original(self, slot)

    plant(S3Log._raise_low, raise_low)


@_planted("L7")
def reader_begins_below_the_low(plant: Planter) -> None:
    """A reader begins at the first slot that is there, and finds groups that a truncation has not deleted
    yet."""

    async def raise_register(original: Any, *arguments: Any) -> tuple[int, HeldRegister]:
        before, held = await original(*arguments)
        return before, attrs.evolve(held, register=attrs.evolve(held.register, low=1))

    plant(s3_open._raise_register, raise_register)


@_planted("L7")
def what_others_left_is_not_swept(plant: Planter) -> None:
    """Objects that a killed owner had not deleted yet, and what fenced owners put late, stay forever."""

    def found(original: Any, self: S3Log, opened: OpenedS3Log) -> Any:
        result = original(self, opened)
        self._stale = []
        return result

    plant(S3Log._found, found)

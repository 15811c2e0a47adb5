"""How a log in a bucket is opened and inspected (rules L1, L3 to L5, L8).

``open_s3_log`` raises the register, reads the slots, and puts its fence behind the last one that counts; then
it reads the register again. Crash or cancellation at any point leaves at most a raised register and a
fence, behind which the next opener goes on.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import attrs

from ...storage_backends.base.errors import DataCorruption, NotOwner, Unsupported
from ...storage_backends.base.ids import EPOCH_MAX
from ...storage_backends.base.parallel import in_parallel
from ...storage_backends.base.world import World
from ..registers.local import NOBODY, fenced
from .contract import SLOTS_AHEAD
from .s3_calls import RepeatedCalls
from .s3_history import Contradiction, Missing, S3History, read_history
from .s3_layout import S3LogLayout, S3LogOptions
from .s3_register import REGISTER_BYTES_MAX, S3Register, decode_s3_register, encode_s3_register
from .s3_slot import FENCE_BYTES, SlotHeader, SlotKind, decode_slot, encode_slot

_STEP = 256
"""Objects that are asked for in one step."""
_READINGS_MAX = 5


@attrs.frozen(eq=False, repr=False)
class S3Context:
    calls: RepeatedCalls
    layout: S3LogLayout
    log_id: bytes
    owner: bytes
    world: World
    options: S3LogOptions

    def new_id(self) -> bytes:
        return self.world.id_bytes()


@attrs.frozen
class HeldRegister:
    """The register, and the version of the object."""

    register: S3Register
    version: str


@attrs.define(eq=False, repr=False)
class FoundSlots:
    """What was read of a log's objects."""

    headers: dict[int, SlotHeader] = attrs.field(factory=dict)
    """From the low slot on."""
    kept: dict[int, memoryview] = attrs.field(factory=dict)
    """Whole objects by slot, as many as may be kept."""
    kept_bytes: int = 0
    below: list[int] = attrs.field(factory=list)
    """Slots below the low one with objects that nobody needs."""


@attrs.frozen(eq=False, repr=False)
class OpenedS3Log:
    held: HeldRegister
    before: int
    """The epoch before; 0 in a new log."""
    history: S3History
    found: FoundSlots
    next_slot: int


# --- the register ---------------------------------------------------------------------------------


async def load_register(ctx: S3Context) -> HeldRegister | None:
    key = ctx.layout.register
    found = await ctx.calls.get(key, REGISTER_BYTES_MAX)
    if found is None:
        return None
    return HeldRegister(decode_s3_register(found.data, ctx.log_id, ctx.calls.place(key)), found.version)


async def confirm_opening(ctx: S3Context, register: S3Register) -> HeldRegister:
    """The register as it is now. Raises ``NotOwner`` if another opening than that of ``register`` has it."""
    held = await load_register(ctx)
    place = ctx.calls.place(ctx.layout.register)
    if held is None:
        raise DataCorruption("the register is gone", file=place)
    if held.register.opening != register.opening:
        raise fenced(place, register.epoch, held.register.epoch)
    return held


async def _load_or_none(ctx: S3Context) -> HeldRegister | None:
    """The register, or None in a new log. Raises ``DataCorruption`` if there are slots but no register."""
    held = await load_register(ctx)
    if held is None and await ctx.calls.list(ctx.layout.slots):
        # Another opener may have created both since.
        held = await load_register(ctx)
        if held is None:
            raise DataCorruption(
                "the log has groups but no register: put it back, or restore the store from a backup",
                file=ctx.calls.place(ctx.layout.register),
            )
    return held


async def _raise_register(
    ctx: S3Context, above: int, after: Collection[int] | None, tried: list[int]
) -> tuple[int, HeldRegister]:
    """L1. Returns the epoch before as well. Epochs are added to ``tried`` before they are put."""
    place = ctx.calls.place(ctx.layout.register)
    while True:
        held = await _load_or_none(ctx)
        if held is None:
            if after is not None:
                raise DataCorruption("the register is gone, although this owner has had it", file=place)
            await _create_register(ctx)
            continue

        before = held.register.epoch
        if after is not None and (before not in after or held.register.owner != ctx.owner):
            raise fenced(place, max(after, default=0), before)

        epoch = 1 + max(before, above)
        if epoch > EPOCH_MAX:
            raise DataCorruption(f"the epoch {epoch - 1} has no successor", file=place)
        register = attrs.evolve(held.register, epoch=epoch, owner=ctx.owner, opening=ctx.new_id())
        tried.append(epoch)
        raised = await put_register(ctx, register, held.version)
        if raised is not None:
            return before, raised
        # Another opener was first, or the owner's truncation was.


async def put_register(ctx: S3Context, register: S3Register, version: str) -> HeldRegister | None:
    """Put it with an id of its own. None if the register has no longer this version."""
    register = attrs.evolve(register, put_id=ctx.new_id())
    data = encode_s3_register(ctx.log_id, register)
    put = await ctx.calls.put(ctx.layout.register, [data], version=version)
    return HeldRegister(register, put.version) if put.version else None


async def _create_register(ctx: S3Context) -> None:
    """With epoch 0. L8: raises ``Unsupported`` if the store ignores the conditions of puts."""
    register = S3Register(0, ctx.owner, NOBODY, NOBODY, 1)
    made = await put_register(ctx, register, "")
    if made is not None and (
        await put_register(ctx, register, "")
        or (
            await put_register(ctx, register, made.version)
            and await put_register(ctx, register, made.version)
        )
    ):
        raise Unsupported(
            f"{ctx.calls.place(ctx.layout.register)} was overwritten although the request had a condition: "
            f"the service has no conditional puts, and a log needs them"
        )


# --- slots ----------------------------------------------------------------------------------------


async def _fetch(ctx: S3Context, found: FoundSlots, slot: int) -> None:
    key = ctx.layout.slot(slot)
    start = await ctx.calls.get(key, ctx.options.start_bytes)
    if start is None:
        return
    found.headers[slot] = decode_slot(start.data, ctx.log_id, slot, start.length, ctx.calls.place(key))
    if start.length == len(start.data) <= ctx.options.kept_bytes - found.kept_bytes:
        found.kept[slot] = memoryview(start.data)
        found.kept_bytes += start.length


async def _read_slots(ctx: S3Context, low: int) -> FoundSlots:
    found = FoundSlots()
    slots: list[int] = []
    for key, length in await ctx.calls.list(ctx.layout.slots):
        slot = ctx.layout.slot_in(key)
        if slot is None:
            continue
        if slot >= low:
            slots.append(slot)
        elif length != FENCE_BYTES:
            # L7: fences stay.
            found.below.append(slot)
    slots.sort()
    for first in range(0, len(slots), _STEP):
        await in_parallel(
            ctx.options.parallel, [partial(_fetch, ctx, found, slot) for slot in slots[first : first + _STEP]]
        )
    return found


def _corruption(ctx: S3Context, problem: Missing | Contradiction) -> DataCorruption:
    place = ctx.calls.place(ctx.layout.slot(problem.slot))
    if isinstance(problem, Missing):
        register = ctx.calls.place(ctx.layout.register)
        return DataCorruption(
            f"a group that was acked is gone; if it was truncated, {register} is an older one: put its "
            f"newest version back",
            file=place,
        )
    return DataCorruption(f"the object does not belong here: {problem.why}", file=place)


async def _find_history(ctx: S3Context, register: S3Register, found: FoundSlots) -> S3History:
    while True:
        history = read_history(register.low, found.headers)
        if isinstance(history, S3History):
            return history
        # L4: a later owner may have truncated what this one reads.
        await confirm_opening(ctx, register)
        if isinstance(history, Contradiction):
            raise _corruption(ctx, history)
        # A listing of several pages may lack what was put while it was made.
        await _fetch(ctx, found, history.slot)
        if history.slot not in found.headers:
            raise _corruption(ctx, history)


# --- opening --------------------------------------------------------------------------------------


async def open_s3_log(
    ctx: S3Context, above: int, after: Collection[int] | None, tried: list[int]
) -> OpenedS3Log:
    while True:
        before, held = await _raise_register(ctx, above, after, tried)
        found = await _read_slots(ctx, held.register.low)
        history, fence = await _put_fence(ctx, held.register, found)
        if fence is not None:
            # L4: what was read is complete only if no later owner had opened the log, and truncated it.
            await confirm_opening(ctx, held.register)
            return OpenedS3Log(held, max(before, history.epoch), history, found, fence.next)
        # L1: what was raised was an older register, put back.
        above = max(above, history.epoch)
        after = None if after is None else [*after, *tried]


async def _put_fence(
    ctx: S3Context, register: S3Register, found: FoundSlots
) -> tuple[S3History, SlotHeader | None]:
    """L3: take the slot behind the last one that counts. No fence is put if the register is this opening's,
    and the log has its epoch already, or a higher one."""
    while True:
        history = await _find_history(ctx, register, found)
        if history.epoch >= register.epoch:
            await confirm_opening(ctx, register)
            return history, None
        fence = SlotHeader(
            SlotKind.FENCE,
            history.end,
            register.epoch,
            ctx.new_id(),
            settled=history.end,
            next=history.end + SLOTS_AHEAD,
            number=history.next_group,
        )
        put = await ctx.calls.put(ctx.layout.slot(history.end), encode_slot(ctx.log_id, fence))
        if put.version:
            return history, fence
        # The owner before, or another opener, was first.
        await _fetch(ctx, found, history.end)
        if history.end not in found.headers:
            await confirm_opening(ctx, register)


async def inspect_s3_log(ctx: S3Context) -> OpenedS3Log:
    """Reads beside a living owner, so only what two readings find is reported as corruption."""
    problem: NotOwner | DataCorruption | None = None
    for _ in range(_READINGS_MAX):
        held = await _load_or_none(ctx)
        if held is None:
            nobody = HeldRegister(S3Register(0, ctx.owner, NOBODY, NOBODY, 1), "")
            return OpenedS3Log(nobody, 0, S3History([], 1, 1, 0, []), FoundSlots(), 1)
        found = await _read_slots(ctx, held.register.low)
        try:
            history = await _find_history(ctx, held.register, found)
        except (NotOwner, DataCorruption) as error:
            problem = error
            continue
        return OpenedS3Log(held, max(held.register.epoch, history.epoch), history, found, history.end)
    assert problem is not None
    raise problem

"""``S3Log``: a ``DurableDataLog`` whose groups are objects in a bucket, for owners on any machine. Its rules,
L1 to L10, are in ``docs/protocols/s3-log.md``; what it has in common with other logs is in ``remote_log``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import anyio
import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import DataCorruption, NotOwner, Unavailable
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.parallel import in_parallel
from ...storage_backends.base.world import World
from ..registers.local import NOBODY
from .contract import GROUP_BYTES_MAX, GroupInfo, GroupPayload, LogStatistics
from .flights import Flight
from .remote_log import FoundLog, RemoteLog
from .s3_calls import RepeatedCalls, RequestCounts
from .s3_layout import S3LogLayout, S3LogOptions
from .s3_open import (
    HeldRegister,
    OpenedS3Log,
    S3Context,
    confirm_opening,
    inspect_s3_log,
    load_register,
    open_s3_log,
    put_register,
)
from .s3_slot import SLOT_HEADER_BYTES, SlotHeader, SlotKind, decode_slot, encode_slot, payload_of

_CHECK_SECONDS = 2.0
"""The longest that an append waits for the register."""


class S3Log(RemoteLog):
    """``prefix`` ends with a slash. ``objects`` is open, and stays open when the log is closed."""

    def __init__(
        self,
        objects: ObjectStore,
        prefix: str,
        log_id: bytes,
        world: World,
        options: S3LogOptions | None = None,
        owner: bytes = NOBODY,
    ) -> None:
        options = options or S3LogOptions()
        delays = (options.first_delay, options.longest_delay)
        calls = RepeatedCalls(objects, world, options.patience, delays)
        super().__init__(calls.place(prefix), options.appends_max, options.kept_bytes, options.parallel)
        self._ctx = S3Context(calls, S3LogLayout(prefix), log_id, owner, world, options)
        self._held: HeldRegister | None = None
        self._next_slot = 0
        self._settled = 0
        """The slot below which everything is settled."""
        self._last_put = float("-inf")
        self._last_check = 0.0

    # --- opening and reading ---------------------------------------------------------------------

    async def _open(self, above: int, after: Collection[int] | None) -> FoundLog:
        return self._found(await open_s3_log(self._ctx, above, after, self._own_epochs))

    async def _inspect(self) -> FoundLog:
        return self._found(await inspect_s3_log(self._ctx))

    def _found(self, opened: OpenedS3Log) -> FoundLog:
        history = opened.history
        self._held = opened.held
        self._last_check = anyio.current_time()
        self._next_slot = self._settled = opened.next_slot
        self._stale = opened.found.below + history.void
        epoch = opened.held.register.epoch
        return FoundLog(epoch, opened.before, history.groups, history.next_group, opened.found.kept)

    async def _fetch(self, numbers: Sequence[int], kept: Mapping[int, memoryview]) -> list[GroupPayload]:
        calls = [partial(self._fetch_one, number, kept) for number in numbers]
        return await in_parallel(self._parallel, calls)

    async def _fetch_one(self, number: int, kept: Mapping[int, memoryview]) -> GroupPayload:
        slot = self._index.position_of(number)
        assert slot is not None
        place = self._place(slot)
        if (data := kept.get(slot)) is not None:
            return number, payload_of(data, place)
        found = await self._ctx.calls.get(self._ctx.layout.slot(slot), SLOT_HEADER_BYTES + GROUP_BYTES_MAX)
        if found is None:
            raise DataCorruption(f"group {number} is gone", file=place)
        header = decode_slot(found.data, self._ctx.log_id, slot, found.length, place)
        if header.number != number:
            raise DataCorruption(f"the object has group {header.number}, not {number}", file=place)
        return number, payload_of(found.data, place)

    def _place(self, slot: int) -> str:
        return self._ctx.calls.place(self._ctx.layout.slot(slot))

    # --- appending -------------------------------------------------------------------------------

    def append_delay(self, size: int) -> float:
        options = self._ctx.options
        if size >= options.pace_bytes:
            return 0.0
        return max(0.0, self._last_put + options.pace - anyio.current_time())

    async def _send(self, flight: Flight, group: GroupInfo, buffers: Sequence[Buffer]) -> int:
        header = self._take(group)
        self._last_put = anyio.current_time()
        data = encode_slot(self._ctx.log_id, header, buffers)
        put = await self._ctx.calls.put(self._ctx.layout.slot(header.slot), data)
        if not put.version:
            raise NotOwner(f"epoch {header.epoch} was fenced: {self._place(header.slot)} is another owner's")
        now = anyio.current_time()
        if now >= self._last_check + self._ctx.options.check_after:
            # L9: for its successor's sake. That the register cannot be read now is no reason to stop, nor to
            # keep what is durable waiting, nor what comes after it.
            self._last_check = now
            with anyio.move_on_after(_CHECK_SECONDS), suppress(Unavailable):
                await self._confirmation.join()
        return header.slot

    def _take(self, group: GroupInfo) -> SlotHeader:
        """The next slot (L2)."""
        slot = self._next_slot
        self._next_slot += 1
        return SlotHeader(
            SlotKind.GROUP,
            slot,
            group.epoch,
            self._ctx.new_id(),
            self._settled,
            self._next_slot,
            group.number,
            group.tag,
            group.truncate_before,
            group.size,
        )

    def _on_durable(self, position: int) -> None:
        self._settled = position + 1

    # --- truncation ------------------------------------------------------------------------------

    async def _trim(self, address: int) -> None:
        slot = self._index.position_of(address)
        if slot is not None:
            await self._raise_low(slot)
            self._stale += self._index.forget_below(address)

    async def _raise_low(self, slot: int) -> None:
        """L7: nothing is removed before nobody will begin below it."""
        while (held := self._held) is not None and held.register.low < slot:
            raised = await put_register(self._ctx, attrs.evolve(held.register, low=slot), held.version)
            if raised is None:
                # A later owner has it, or a truncation of this one that was cancelled came late.
                await self._confirmation.join()
            else:
                self._held = raised

    async def _delete(self, stale: int) -> None:
        await self._ctx.calls.delete(self._ctx.layout.slot(stale))

    # --- ownership and the rest ------------------------------------------------------------------

    async def _confirm(self) -> None:
        assert self._held is not None
        begun = anyio.current_time()
        self._held = await confirm_opening(self._ctx, self._held.register)
        self._last_check = begun

    async def _has_changed(self) -> bool:
        return await load_register(self._ctx) != self._held

    def outage(self) -> str:
        return self._ctx.calls.health.outage()

    def statistics(self) -> LogStatistics:
        return self._statistics(self._index.count, **attrs.asdict(self.requests))

    @property
    def requests(self) -> RequestCounts:
        """The requests so far, which are what the log costs."""
        return self._ctx.calls.counts

"""``S3Log``: a ``DurableDataLog`` whose groups are objects in a bucket, for owners on any machine. Its rules,
L1 to L10, are in ``docs/protocols/s3-log.md``.

Crash: whatever is under way is decided by the next opener. Cancellation of an append breaks the log (W6); of
a truncation, it leaves objects for the next one. State in memory changes in one step after the last await.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import suppress
from functools import partial

import anyio
import anyio.lowlevel
import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.object_store import ObjectStore
from ...storage_backends.base.parallel import in_parallel
from ...storage_backends.base.world import World
from ..registers.local import NOBODY
from .contract import (
    GROUP_BYTES_MAX,
    DurableDataLog,
    GroupInfo,
    GroupPayload,
    LogStatistics,
    OpenedLog,
    check_group,
)
from .flights import Flights
from .group_index import GroupIndex, readable
from .lifecycle import LogEvent, LogLifecycle, LogState
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
from .shared_call import SharedCall

_DELETED_STEP = 256
_CHECK_SECONDS = 2.0
"""The longest that an append waits for the register."""
_ENDED = (NotOwner, DataCorruption, StoreMismatch)
"""What the register may show that ends this owner."""


class S3Log(DurableDataLog):
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
        self._ctx = S3Context(calls, S3LogLayout(prefix), log_id, owner, world, options)
        self._name = calls.place(prefix)
        self._life = LogLifecycle(self._name)
        self._own_epochs: list[int] = []
        self._held: HeldRegister | None = None
        self._opened: OpenedS3Log | None = None
        """Until the first append."""
        self._index = GroupIndex()
        self._stale: list[int] = []
        """Slots of objects that nobody needs."""
        self._next_group = 0
        self._next_slot = 0
        self._settled = 0
        """The slot below which everything is settled."""
        self._truncate_before = 0
        self._flights = Flights(self._life, options.appends_max)
        self._last_put = float("-inf")
        self._last_check = 0.0
        self._confirmation = SharedCall(self._confirm)
        self._truncating = anyio.Lock()
        self._appended_groups = 0
        self._appended_bytes = 0

    # --- opening ---------------------------------------------------------------------------------

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            opened = await open_s3_log(self._ctx, above, after, self._own_epochs)
        except BaseException as error:
            self._life.failed(error)
            raise
        self._last_check = anyio.current_time()
        self._next_slot = self._settled = opened.next_slot
        self._stale = opened.found.below + opened.history.void
        self._life.step(LogEvent.OPENED)
        return self._begin(opened)

    async def inspect(self) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            opened = await inspect_s3_log(self._ctx)
        except BaseException as error:
            self._life.failed(error)
            raise
        self._life.step(LogEvent.INSPECTED)
        return self._begin(opened)

    def _begin(self, opened: OpenedS3Log) -> OpenedLog:
        self._held, self._opened = opened.held, opened
        history = opened.history
        for header in history.groups:
            self._index.add(header.number, header.slot, header.size)
        self._next_group = history.next_group
        groups = [
            GroupInfo(each.number, each.epoch, each.tag, each.size, each.truncate_before)
            for each in readable(history.groups)
        ]
        tags = {group.number: group.tag for group in groups if group.tag}
        return OpenedLog(opened.held.register.epoch, opened.before, groups, tags, history.next_group)

    @property
    def own_epochs(self) -> Collection[int]:
        return tuple(self._own_epochs)

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        self._life.require("read", LogState.OPEN, LogState.INSPECTED)
        opened = self._opened
        if opened is None:
            raise RuntimeError("read is possible before the first append only")
        batch: list[SlotHeader] = []
        size = 0
        for header in readable(opened.history.groups):
            if header.number < first:
                continue
            if len(batch) == self._ctx.options.parallel or size + header.size > self._ctx.options.kept_bytes:
                for payload in await self._payloads(batch, opened):
                    yield payload
                batch, size = [], 0
            batch.append(header)
            size += header.size
        for payload in await self._payloads(batch, opened):
            yield payload

    async def _payloads(self, headers: Sequence[SlotHeader], opened: OpenedS3Log) -> list[GroupPayload]:
        return await in_parallel(
            self._ctx.options.parallel,
            [partial(self._payload, each, opened.found.kept.get(each.slot)) for each in headers],
        )

    async def _payload(self, header: SlotHeader, kept: bytes | None) -> GroupPayload:
        if kept is None:
            return await self._fetch(header.number, header.slot)
        return header.number, payload_of(kept, self._place(header.slot))

    def window_of(self, number: int) -> int:
        # W10: a window is one object, which holds one group.
        return number

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        self._life.require("read_window", LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)
        slot = self._index.position_of(number)
        if slot is None:
            raise DataCorruption(f"group {number} is not in the log", file=f"{self._name} group {number}")
        return [await self._fetch(number, slot)]

    async def _fetch(self, number: int, slot: int) -> GroupPayload:
        place = self._place(slot)
        found = await self._ctx.calls.get(self._ctx.layout.slot(slot), SLOT_HEADER_BYTES + GROUP_BYTES_MAX)
        try:
            if found is None:
                raise DataCorruption(f"group {number} is gone", file=place)
            header = decode_slot(found.data, self._ctx.log_id, slot, found.length, place)
            if header.number != number:
                raise DataCorruption(f"the object has group {header.number}, not {number}", file=place)
            return number, payload_of(found.data, place)
        except DataCorruption:
            # A later owner may have truncated it.
            await self._check_unchanged()
            raise

    async def _check_unchanged(self) -> None:
        """Raises if another owner may have changed what this one read."""
        if self._life.state is not LogState.INSPECTED:
            await self.confirm_owner()
            return
        now = await load_register(self._ctx)
        if now != self._held:
            raise Unavailable(f"log {self._name} has changed since it was inspected: open it again")

    def _place(self, slot: int) -> str:
        return self._ctx.calls.place(self._ctx.layout.slot(slot))

    # --- appending -------------------------------------------------------------------------------

    @property
    def appends_max(self) -> int:
        return self._ctx.options.appends_max

    def append_delay(self, size: int) -> float:
        options = self._ctx.options
        if size >= options.pace_bytes:
            return 0.0
        return max(0.0, self._last_put + options.pace - anyio.current_time())

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        check_group(size, tag, truncate_before, self._next_group)
        self._flights.require_room()
        header = self._take(size, tag, truncate_before)
        flight = self._flights.take()
        try:
            await self._put(header, buffers)
            # L2: after the ones before it.
            await self._flights.wait_for_turn(flight)
        except BaseException as error:
            self._flights.end(flight, error)
            raise
        self._settle(header)
        self._flights.end(flight)
        return header.number

    def _take(self, size: int, tag: int, truncate_before: int) -> SlotHeader:
        """The next number and slot (L2)."""
        assert self._held is not None
        self._opened = None
        header = SlotHeader(
            SlotKind.GROUP,
            self._next_slot,
            self._held.register.epoch,
            self._ctx.new_id(),
            self._settled,
            self._next_slot + 1,
            self._next_group,
            tag,
            truncate_before,
            size,
        )
        self._next_slot += 1
        self._next_group += 1
        return header

    async def _put(self, header: SlotHeader, buffers: Sequence[Buffer]) -> None:
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

    def _settle(self, header: SlotHeader) -> None:
        self._index.add(header.number, header.slot, header.size)
        self._settled = header.slot + 1
        self._truncate_before = max(self._truncate_before, header.truncate_before)
        self._appended_groups += 1
        self._appended_bytes += header.size

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self) -> None:
        self._life.require("truncate", LogState.OPEN, LogState.APPENDING)
        async with self._truncating:
            address = self._truncate_before
            slot = self._index.position_of(address)
            await self._confirmation.join()
            if slot is not None:
                await self._raise_low(slot)
                self._stale += self._index.forget_below(address)
            while self._stale:
                part = self._stale[:_DELETED_STEP]
                keys = map(self._ctx.layout.slot, part)
                await in_parallel(
                    self._ctx.options.parallel, [partial(self._ctx.calls.delete, key) for key in keys]
                )
                del self._stale[: len(part)]

    async def _raise_low(self, slot: int) -> None:
        """L7: nothing is removed before nobody will begin below it."""
        while (held := self._held) is not None and held.register.low < slot:
            raised = await put_register(self._ctx, attrs.evolve(held.register, low=slot), held.version)
            if raised is None:
                # A later owner has it, or a truncation of this one that was cancelled came late.
                await self._confirmation.join()
            else:
                self._held = raised

    # --- ownership and the rest ------------------------------------------------------------------

    def check_owner(self) -> None:
        self._life.require("check_owner", LogState.OPEN, LogState.APPENDING)

    async def confirm_owner(self) -> None:
        self.check_owner()
        await self._confirmation.join()

    async def _confirm(self) -> None:
        assert self._held is not None
        begun = anyio.current_time()
        try:
            self._held = await confirm_opening(self._ctx, self._held.register)
        except _ENDED as error:
            self._life.failed(error)
            raise
        self._last_check = begun

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
        self._life.step(LogEvent.CLOSE)
        await anyio.lowlevel.checkpoint()

    def outage(self) -> str:
        return self._ctx.calls.health.outage()

    def statistics(self) -> LogStatistics:
        epoch = self._held.register.epoch if self._held else 0
        retained = self._index.retained_bytes
        return LogStatistics(
            epoch,
            self._next_group,
            self._appended_groups,
            self._appended_bytes,
            retained,
            retained,
            self._index.count,
            0,
            *attrs.astuple(self._ctx.calls.counts),
        )

    @property
    def requests(self) -> RequestCounts:
        """The requests so far, which are what the log costs."""
        return self._ctx.calls.counts

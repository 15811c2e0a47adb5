"""``RemoteLog``: what the logs in a service have in common, whichever service that is: how they are opened,
read and confirmed, in which order appends are acked, and what a truncation deletes. Where groups are, and
what fences an owner, is in ``S3Log`` and ``BookKeeperLog``.

Crash: whatever is under way is decided by the next opener. Cancellation of an append breaks the log (W6); of
a truncation, it leaves things for the next owner. State in memory changes in one step after the last await.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import anyio
import anyio.lowlevel
import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import (
    DataCorruption,
    NotOwner,
    OutcomeUnknown,
    StoreMismatch,
    Unavailable,
)
from ...storage_backends.base.ledger_service import SidecarNotStarted
from ...storage_backends.base.parallel import in_parallel
from .contract import DurableDataLog, GroupInfo, GroupPayload, LogStatistics, OpenedLog, check_group
from .flights import Flight, Flights
from .group_index import Group, GroupIndex, readable
from .lifecycle import LogEvent, LogLifecycle, LogState
from .shared_call import SharedCall

_STEP = 256
"""Groups that are read, and things that are deleted, in one step."""


@attrs.frozen(eq=False, repr=False)
class FoundLog:
    """What an opening or an inspection found."""

    epoch: int
    before: int
    """The epoch before; 0 in a new log."""
    groups: Sequence[Group]
    """All that count, in order."""
    next_group: int
    kept: Mapping[int, memoryview]
    """What was read of them by position, as much as may be kept."""


class RemoteLog(DurableDataLog):
    """``read_ahead``: bytes of groups that ``read`` fetches at once. ``parallel``: calls that a truncation
    has under way."""

    def __init__(self, name: str, appends_max: int, read_ahead: int, parallel: int) -> None:
        self._name = name
        self._life = LogLifecycle(name)
        self._own_epochs: list[int] = []
        self._epoch = 0
        self._index = GroupIndex()
        self._readable: Sequence[Group] | None = None
        """Until the first append, as ``_kept``."""
        self._kept: Mapping[int, memoryview] = {}
        self._stale: list[int] = []
        """What nobody needs, and a truncation deletes."""
        self._next_group = 0
        self._truncate_before = 0
        self._appends_max = appends_max
        self._flights = Flights(self._life, appends_max)
        self._confirmation = SharedCall(self._confirm_or_end)
        self._truncating = anyio.Lock()
        self._read_ahead = read_ahead
        self._parallel = parallel
        self._appended_groups = 0
        self._appended_bytes = 0

    # --- what a service decides ------------------------------------------------------------------

    @abstractmethod
    async def _open(self, above: int, after: Collection[int] | None) -> FoundLog:
        """``open``. Adds epochs to ``_own_epochs`` before it tries to take them."""

    @abstractmethod
    async def _inspect(self) -> FoundLog: ...

    @abstractmethod
    async def _fetch(self, numbers: Sequence[int], kept: Mapping[int, memoryview]) -> list[GroupPayload]:
        """These groups, which the index knows, checked; without a request those that are ``kept``."""

    @abstractmethod
    async def _send(self, flight: Flight, group: GroupInfo, buffers: Sequence[Buffer]) -> int:
        """Makes the group durable, and returns its position. It takes its place before it waits for
        anything."""

    @abstractmethod
    async def _trim(self, address: int) -> None:
        """No reader begins below ``address`` any more. Adds to ``_stale`` what is there."""

    @abstractmethod
    async def _delete(self, stale: int) -> None: ...

    @abstractmethod
    async def _confirm(self) -> None:
        """Asks whether another opening has the log, and raises ``NotOwner`` if so."""

    @abstractmethod
    async def _has_changed(self) -> bool:
        """Since the inspection."""

    # --- opening ---------------------------------------------------------------------------------

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        return await self._begin(LogEvent.OPENED, partial(self._open, above, after))

    async def inspect(self) -> OpenedLog:
        return await self._begin(LogEvent.INSPECTED, self._inspect)

    async def _begin(self, event: LogEvent, find: Callable[[], Awaitable[FoundLog]]) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        try:
            found = await find()
        except BaseException as error:
            self._life.failed(error)
            raise
        self._life.step(event)
        self._epoch, self._next_group, self._kept = found.epoch, found.next_group, found.kept
        for each in found.groups:
            self._index.add(each.number, each.position, each.size)
        self._readable = readable(found.groups)
        groups = [GroupInfo(g.number, g.epoch, g.tag, g.size, g.truncate_before) for g in self._readable]
        tags = {group.number: group.tag for group in groups if group.tag}
        return OpenedLog(found.epoch, found.before, groups, tags, found.next_group)

    @property
    def own_epochs(self) -> Collection[int]:
        return tuple(self._own_epochs)

    # --- reading ---------------------------------------------------------------------------------

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        self._life.require("read", LogState.OPEN, LogState.INSPECTED)
        groups, kept = self._readable, self._kept
        if groups is None:
            raise RuntimeError("read is possible before the first append only")
        batch: list[int] = []
        size = 0
        for group in groups:
            if group.number < first:
                continue
            if batch and (size + group.size > self._read_ahead or len(batch) == _STEP):
                for payload in await self._payloads(batch, kept):
                    yield payload
                batch, size = [], 0
            batch.append(group.number)
            size += group.size
        for payload in await self._payloads(batch, kept):
            yield payload

    def window_of(self, number: int) -> int:
        # W10: a window is one group.
        return number

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        self._life.require("read_window", LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)
        if self._index.position_of(number) is None:
            raise DataCorruption(f"group {number} is not in the log", file=f"{self._name} group {number}")
        return await self._payloads([number], {})

    async def _payloads(self, numbers: Sequence[int], kept: Mapping[int, memoryview]) -> list[GroupPayload]:
        try:
            return await self._fetch(numbers, kept)
        except DataCorruption:
            # A later owner may have truncated it.
            if self._life.state is not LogState.INSPECTED:
                await self.confirm_owner()
            elif await self._has_changed():
                message = f"log {self._name} has changed since it was inspected: open it again"
                raise Unavailable(message) from None
            raise

    # --- appending -------------------------------------------------------------------------------

    @property
    def appends_max(self) -> int:
        return self._appends_max

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        check_group(size, tag, truncate_before, self._next_group)
        self._flights.require_room()
        self._readable, self._kept = None, {}
        group = GroupInfo(self._next_group, self._epoch, tag, size, truncate_before)
        self._next_group += 1
        flight = self._flights.take()
        try:
            position = await self._send(flight, group, buffers)
            # L2, B3: after the ones before it.
            await self._flights.wait_for_turn(flight)
        except BaseException as error:
            self._flights.end(flight, error)
            raise
        self._index.add(group.number, position, group.size)
        self._truncate_before = max(self._truncate_before, group.truncate_before)
        self._appended_groups += 1
        self._appended_bytes += group.size
        self._on_durable(position)
        self._flights.end(flight)
        return group.number

    def _on_durable(self, position: int) -> None:
        """The group there is durable, and all before it."""
        return

    # --- truncation ------------------------------------------------------------------------------

    async def truncate(self, *, closing: bool = False) -> None:
        self._life.require("truncate", LogState.OPEN, LogState.APPENDING)
        try:
            async with self._truncating:
                await self._confirmation.join()
                # L7, B7: nothing is deleted before no reader will look for it.
                await self._trim(self._truncate_before)
                while self._stale:
                    step = self._stale[:_STEP]
                    await in_parallel(self._parallel, [partial(self._delete, each) for each in step])
                    del self._stale[: len(step)]
        except (Unavailable, OutcomeUnknown):
            self.check_owner()  # Appends go on, unless this showed that they cannot.

    # --- ownership and the rest ------------------------------------------------------------------

    def check_owner(self) -> None:
        self._life.require("check_owner", LogState.OPEN, LogState.APPENDING)

    async def confirm_owner(self) -> None:
        self.check_owner()
        await self._confirmation.join()

    async def _confirm_or_end(self) -> None:
        with self._ending_if_lost():
            await self._confirm()

    @contextmanager
    def _ending_if_lost(self) -> Iterator[None]:
        """What the service shows ends this owner, except that it does not answer. So does the end of the way
        to it, by which the owner appends (B11)."""
        try:
            yield
        except (NotOwner, DataCorruption, StoreMismatch, SidecarNotStarted) as error:
            self._life.failed(error)
            raise

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

    def _statistics(self, places: int, **calls: int) -> LogStatistics:
        retained = self._index.retained_bytes
        appended = (self._appended_groups, self._appended_bytes)
        return LogStatistics(self._epoch, self._next_group, *appended, retained, retained, places, 0, **calls)

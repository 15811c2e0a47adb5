"""A ``DurableDataLog`` in memory, with real fencing: for tests, and for stores that may lose everything when
the process ends.

Every change is one synchronous step after the last await: a cancelled append either happened or did not, and
the log is broken either way (W6).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import NamedTuple

import anyio.lowlevel
import attrs
from msgspec.structs import replace

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.errors import DataCorruption, NotOwner
from .contract import (
    DurableDataLog,
    GroupInfo,
    GroupPayload,
    LogStatistics,
    OpenedLog,
    check_group,
)
from .lifecycle import LogEvent, LogLifecycle, LogState

_WINDOW_BYTES = 1 << 20
_SLICE = 1024
"""Groups that one step removes."""


class _Stored(NamedTuple):
    info: GroupInfo
    payload: bytes
    window: int
    """The first group of its window."""
    window_size: int
    """Bytes of the window up to this group."""
    end: int
    """Bytes of all groups up to this one, truncated ones too."""


@attrs.define
class _LogState:
    """One log's state."""

    epoch: int = 0
    next_group: int = 1
    groups: list[_Stored] = attrs.field(factory=list)

    @property
    def truncate_before(self) -> int:
        return max((stored.info.truncate_before for stored in self.groups), default=0)

    def readable(self) -> list[_Stored]:
        low = self.truncate_before
        return [stored for stored in self.groups if stored.info.number >= low]

    def add(self, info: GroupInfo, payload: bytes) -> int:
        """Returns the first group of its window."""
        window, size = info.number, info.size
        end = info.size + (self.groups[-1].end if self.groups else 0)
        if self.groups and self.groups[-1].window_size + size <= _WINDOW_BYTES:
            window, size = self.groups[-1].window, self.groups[-1].window_size + size
        self.groups.append(_Stored(info, payload, window, size, end))
        self.next_group = info.number + 1
        return window


class MemoryLogService:
    """Logs by name. Owners of the same log share one service."""

    def __init__(self) -> None:
        self._states: dict[str, _LogState] = {}

    def log(self, name: str) -> MemoryLog:
        """A log object for ``name``; open it to become the owner."""
        return MemoryLog(name, self._states.setdefault(name, _LogState()))


class MemoryLog(DurableDataLog):
    """Made by ``MemoryLogService.log``."""

    def __init__(self, name: str, state: _LogState) -> None:
        self._name = name
        self._state = state
        self._life = LogLifecycle(name)
        self._recovered: list[_Stored] | None = None
        self._epoch = 0
        self._own_epochs: list[int] = []
        self._windows: list[int] = []
        """The first groups of this owner's windows: a later owner may truncate the groups themselves."""
        self._next_group = 0
        self._truncate_before = 0
        self._appended_groups = 0
        self._appended_bytes = 0

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        await self._checkpoint()
        before = self._state.epoch
        if after is not None and before not in after:
            error = NotOwner(f"another owner took epoch {before} of log {self._name}")
            self._life.failed(error)
            raise error

        self._take_epoch(1 + max(before, above))
        self._next_group = self._state.next_group
        self._truncate_before = self._state.truncate_before
        self._life.step(LogEvent.OPENED)
        return self._opened(before)

    def _opened(self, history_epoch: int) -> OpenedLog:
        self._recovered = self._state.readable()
        self._windows = sorted({stored.window for stored in self._recovered})
        groups = [stored.info for stored in self._recovered]
        tags = {group.number: group.tag for group in groups if group.tag}
        return OpenedLog(self._epoch, history_epoch, groups, tags, self._next_group)

    def _take_epoch(self, epoch: int) -> None:
        """Fence earlier owners and re-log the last group under the new epoch (W4)."""
        state = self._state
        self._epoch = state.epoch = epoch
        self._own_epochs.append(self._epoch)
        if state.groups:
            last = state.groups[-1]
            state.groups[-1] = last._replace(info=replace(last.info, epoch=self._epoch))

    @property
    def own_epochs(self) -> Collection[int]:
        return tuple(self._own_epochs)

    async def inspect(self) -> OpenedLog:
        self._life.step(LogEvent.BEGIN_OPEN)
        await self._checkpoint()
        self._epoch, self._next_group = self._state.epoch, self._state.next_group
        self._life.step(LogEvent.INSPECTED)
        return self._opened(self._epoch)

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        self._life.require("read", LogState.OPEN, LogState.INSPECTED)
        if self._recovered is None:
            raise RuntimeError("read is possible before the first append only")
        for stored in self._recovered:
            if stored.info.number >= first:
                await anyio.lowlevel.checkpoint()
                yield stored.info.number, memoryview(stored.payload)

    def window_of(self, number: int) -> int:
        return self._windows[bisect_right(self._windows, number) - 1]

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        self._life.require("read_window", LogState.OPEN, LogState.APPENDING, LogState.INSPECTED)
        await anyio.lowlevel.checkpoint()
        groups = self._state.groups
        end = bisect_right(groups, number, key=lambda stored: stored.window)
        if not end or number >= self._state.next_group:
            raise DataCorruption(f"group {number} is not in the log", file=f"group {number}")

        first = bisect_left(groups, groups[end - 1].window, key=lambda stored: stored.window)
        return [(stored.info.number, memoryview(stored.payload)) for stored in groups[first:end]]

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        check_group(size, tag, truncate_before, self._next_group)
        self._life.step(LogEvent.BEGIN_APPEND)
        await self._checkpoint()
        # After the await, during which another owner may have opened the log. Nothing is awaited from here
        # on.
        self.check_owner()
        info = GroupInfo(self._next_group, self._epoch, tag, size, truncate_before)
        self._apply(info, b"".join(buffers))
        return info.number

    def _apply(self, info: GroupInfo, payload: bytes) -> None:
        window = self._state.add(info, payload)
        if not self._windows or self._windows[-1] != window:
            self._windows.append(window)
        self._recovered = None
        self._next_group = self._state.next_group
        self._truncate_before = max(self._truncate_before, info.truncate_before)
        self._appended_groups += 1
        self._appended_bytes += info.size
        if self._life.state is LogState.APPENDING:
            self._life.step(LogEvent.APPENDED)

    async def truncate(self, *, closing: bool = False) -> None:
        self._life.require("truncate", LogState.OPEN, LogState.APPENDING)
        truncated = self._truncate_before
        while True:
            # In slices: to free 200,000 groups takes 13 ms.
            await anyio.lowlevel.checkpoint()
            # W5: no await between the check and the removal.
            self.check_owner()
            groups = self._state.groups
            stale = bisect_left(groups, truncated, key=lambda stored: stored.info.number)
            if not stale:
                break
            del groups[: min(stale, _SLICE)]
        # The window of the address stays: the groups that are kept begin inside it.
        del self._windows[: max(0, bisect_right(self._windows, self._truncate_before) - 1)]

    def check_owner(self) -> None:
        self._life.require("check_owner", LogState.OPEN, LogState.APPENDING)
        if self._state.epoch != self._epoch:
            error = NotOwner(
                f"epoch {self._epoch} of log {self._name} was fenced by epoch {self._state.epoch}"
            )
            self._life.failed(error)
            raise error

    def has_room(self, size: int) -> bool:
        return True

    def has_reserve(self, size: int) -> bool:
        return True

    async def check_space(self) -> bool:
        await anyio.lowlevel.checkpoint()
        return self.has_room(0)

    @property
    def next_group(self) -> int:
        return self._next_group

    async def close(self, *, clean: bool = True) -> None:
        self._life.step(LogEvent.CLOSE)
        await anyio.lowlevel.checkpoint()

    def statistics(self) -> LogStatistics:
        groups = self._state.groups
        retained = groups[-1].end - groups[0].end + groups[0].info.size if groups else 0
        return LogStatistics(
            self._epoch, self._next_group, self._appended_groups, self._appended_bytes, retained, 0, 0, 0
        )

    async def _checkpoint(self) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        except BaseException as error:
            self._life.failed(error)
            raise

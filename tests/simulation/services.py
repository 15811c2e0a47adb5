"""The log service and the chunk services as a simulated process sees them: behind its gate, with faults.

The services live elsewhere: they outlive every process, and a power loss of the host does not touch them. A
call takes part of its time on the way there and the rest on the way back; a process can be frozen, cancelled
or killed on either. A log call that fails, for whatever reason, breaks the log for its owner (rule W6).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import trio

from tierlog.journal.log.contract import DurableDataLog, GroupPayload, LogStatistics, OpenedLog
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.chunk_storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
)
from tierlog.storage_backends.base.errors import NotOwner, StorageFull, Unavailable
from tierlog.storage_backends.base.storage_statistics import ChunkStorageStatistics

from .gates import Gate

T = TypeVar("T")


class LogFaults(Protocol):
    """Called before each call of the log service."""

    async def before(self, verb: str, name: str) -> None:
        """May wait, or raise: nothing has happened then."""

    def after(self, verb: str, name: str) -> None:
        """May raise: it has happened, and the answer is lost."""


class ServiceLog(DurableDataLog):
    """``inner`` as one owner's log in the service; ``name`` is for the trace."""

    def __init__(self, inner: DurableDataLog, name: str, gate: Gate, faults: LogFaults) -> None:
        self._inner = inner
        self._name = name
        self._gate = gate
        self._faults = faults
        self._broken = ""
        self._next_group = 0

    async def open(self, *, above: int = 0, after: Collection[int] | None = None) -> OpenedLog:
        return await self._call("open", 0, lambda: self._inner.open(above=above, after=after))

    @property
    def own_epochs(self) -> Collection[int]:
        return self._inner.own_epochs

    async def inspect(self) -> OpenedLog:
        return await self._call("inspect", 0, self._inner.inspect)

    async def read(self, first: int = 0) -> AsyncGenerator[GroupPayload, None]:
        await self._call("read", 0, trio.lowlevel.checkpoint)
        # A generator that is left to the garbage collector ends at a moment that no seed decides.
        async with aclosing(self._inner.read(first)) as groups:
            async for number, payload in groups:
                await self._gate.stay()
                yield number, payload

    def window_of(self, number: int) -> int:
        return self._inner.window_of(number)

    async def read_window(self, number: int) -> Sequence[GroupPayload]:
        return await self._call("read_window", 0, lambda: self._inner.read_window(number))

    async def append(self, buffers: Sequence[Buffer], *, tag: int = 0, truncate_before: int = 0) -> int:
        size = sum(map(len, buffers))
        return await self._call(
            "append", size, lambda: self._inner.append(buffers, tag=tag, truncate_before=truncate_before)
        )

    async def truncate(self, *, closing: bool = False) -> None:
        await self._call("truncate", 0, lambda: self._inner.truncate(closing=closing))

    def check_owner(self) -> None:
        self._check("check_owner")
        self._inner.check_owner()

    def has_room(self, size: int) -> bool:
        return self._inner.has_room(size)

    def room_error(self) -> StorageFull:
        return self._inner.room_error()

    def has_reserve(self, size: int) -> bool:
        return self._inner.has_reserve(size)

    def can_shrink(self) -> bool:
        return self._inner.can_shrink()

    async def check_space(self) -> bool:
        return await self._call("check_space", 0, self._inner.check_space)

    @property
    def next_group(self) -> int:
        return self._inner.next_group

    async def close(self, *, clean: bool = True) -> None:
        await self._gate.enter(0.0)
        await self._inner.close(clean=clean and not self._broken)

    def statistics(self) -> LogStatistics:
        return self._inner.statistics()

    def _check(self, verb: str) -> None:
        if self._broken or not self._gate.alive:
            raise Unavailable(
                f"log {self._name}: {verb} is not possible after a failure ({self._broken}); open it again "
                f"to recover"
            )

    async def _call(self, verb: str, size: int, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check(verb)
        try:
            left = await self._gate.enter(self._gate.latency.log, give_way=False)
            await self._faults.before(verb, self._name)
            await self._gate.stay()
            self._gate.trace.note(self._gate.name, f"log {verb} {self._name} {size}")
            answer = await self._gate.guard(act())
            self._faults.after(verb, self._name)
            await self._gate.answer(left)
        except NotOwner:
            raise  # The inner log remembers it.
        except BaseException as error:
            self._broken = self._broken or str(error) or type(error).__name__
            raise
        return answer


class ServiceChunks(ChunkStorage):
    """``inner`` behind the gate."""

    def __init__(self, inner: ChunkStorage, gate: Gate) -> None:
        self._inner = inner
        self._gate = gate

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def open(self) -> None:
        await self._call("open", "", 0, self._inner.open)

    async def close(self) -> None:
        await self._call("close", "", 0, self._inner.close)

    async def exists(self, name: str) -> bool:
        return await self._call("exists", name, 0, lambda: self._inner.exists(name))

    async def info(self, name: str) -> ChunkInfo:
        return await self._call("info", name, 0, lambda: self._inner.info(name))

    async def create(self, name: str) -> None:
        await self._call("create", name, 0, lambda: self._inner.create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await self._call(
            "create_with_content", name, _size(data), lambda: self._inner.create_with_content(name, data)
        )

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        return await self._call("write", name, _size(data), lambda: self._inner.write(name, offset, data))

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await self._call("read", name, size, lambda: self._inner.read(name, offset, size))

    async def delete(self, name: str) -> None:
        await self._call("delete", name, 0, lambda: self._inner.delete(name))

    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        return await self._call("delete_many", names[0], len(names), lambda: self._inner.delete_many(names))

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call("concat", name, len(ranges), lambda: self._inner.concat(name, ranges))

    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call("replace", name, len(ranges), lambda: self._inner.replace(name, ranges))

    async def set_read_only(self, name: str, read_only: bool) -> None:
        await self._call("set_read_only", name, 0, lambda: self._inner.set_read_only(name, read_only))

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        async def gather() -> list[ChunkInfo]:
            async with aclosing(self._inner.list(prefix, after)) as infos:
                return [info async for info in infos]

        for info in await self._call("list", prefix, 0, gather):
            yield info

    async def used_space(self) -> int:
        return await self._call("used_space", "", 0, self._inner.used_space)

    def statistics(self) -> ChunkStorageStatistics:
        return self._inner.statistics()

    async def _call(self, verb: str, name: str, size: int, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        left = await self._gate.enter(self._gate.latency.chunks, give_way=False)
        self._gate.trace.note(self._gate.name, f"chunk {verb} {name} {size}")
        answer = await self._gate.guard(act())
        await self._gate.answer(left)
        return answer


def _size(data: Sequence[Buffer]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in data)

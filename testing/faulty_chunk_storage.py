"""``FaultyChunkStorage``: wraps a chunk storage and makes its calls fail according to a script.

A script is a function from a call (its verb, chunk and number) to a ``Fault`` or None; ``nth`` and ``every``
make simple ones::

    storage = FaultyChunkStorage(inner, nth(3, Fault(FaultKind.AFTER), "create_with_content"))

The faults respect the contract: ``Unavailable`` and ``StorageFull`` come before any effect, and whatever may
have had an effect raises ``OutcomeUnknown``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import Enum
from functools import partial
from typing import TypeVar, cast

import anyio
import attrs

from ..storage_backends.base.checksum import Buffer
from ..storage_backends.base.chunk_storage import (
    Capabilities,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
)
from ..storage_backends.base.errors import OutcomeUnknown, StorageFull, Unavailable
from ..storage_backends.base.storage_statistics import ChunkStorageStatistics

T = TypeVar("T")


class FaultKind(Enum):
    BEFORE = "before"
    """Raise ``Unavailable`` without calling."""
    AFTER = "after"
    """Call, then raise ``OutcomeUnknown``: the answer is lost."""
    LOST = "lost"
    """Raise ``OutcomeUnknown`` without calling: the request is lost."""
    PARTIAL = "partial"
    """Write the first ``keep`` bytes of a ``write``, then raise ``OutcomeUnknown``. Other verbs: as LOST."""
    FULL = "full"
    """Raise ``StorageFull`` without calling."""
    HANG = "hang"
    """Await the storage's ``hang``, by default forever, then raise ``OutcomeUnknown`` without calling."""
    DELAY = "delay"
    """Wait ``seconds``, then call."""
    FLIP = "flip"
    """Flip bit ``bit`` of the bytes of a ``read``."""
    STALE_LIST = "stale-list"
    """Return the result of the previous ``list`` with that prefix, or nothing."""


@attrs.frozen
class Fault:
    kind: FaultKind
    keep: int = 0
    seconds: float = 0
    bit: int = 0


@attrs.frozen
class Call:
    number: int
    """Numbers all calls of the storage, from 1."""
    verb: str
    name: str


Script = Callable[[Call], Fault | None]


def nth(number: int, fault: Fault, *verbs: str) -> Script:
    """``fault`` at the ``number``-th call (from 1) of one of ``verbs``, or of any verb."""
    seen = 0

    def script(call: Call) -> Fault | None:
        nonlocal seen
        seen += not verbs or call.verb in verbs
        return fault if seen == number and (not verbs or call.verb in verbs) else None

    return script


def every(fault: Fault, *verbs: str) -> Script:
    """``fault`` at every call of ``verbs``, or of any verb."""
    return lambda call: fault if not verbs or call.verb in verbs else None


class FaultyChunkStorage(ChunkStorage):
    """``inner`` with faults. Set ``script`` at any time; with None all calls succeed. ``calls`` lists all
    calls so far."""

    def __init__(
        self,
        inner: ChunkStorage,
        script: Script | None = None,
        *,
        hang: Callable[[], Awaitable[object]] = anyio.sleep_forever,
    ) -> None:
        self.inner = inner
        self.script = script
        self.calls: list[Call] = []
        self._hang = hang
        self._listed: dict[tuple[str, str], list[ChunkInfo]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def exists(self, name: str) -> bool:
        return await self._call("exists", name, lambda: self.inner.exists(name))

    async def info(self, name: str) -> ChunkInfo:
        return await self._call("info", name, lambda: self.inner.info(name))

    async def create(self, name: str) -> None:
        await self._call("create", name, lambda: self.inner.create(name))

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        return await self._call(
            "create_with_content", name, lambda: self.inner.create_with_content(name, data)
        )

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        async def prefix(keep: int) -> None:
            await self.inner.write(name, offset, [b"".join(data)[:keep]])

        return await self._call("write", name, lambda: self.inner.write(name, offset, data), prefix)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        return await self._call("read", name, lambda: self.inner.read(name, offset, size))

    async def drop_copy(self, name: str) -> bool:
        return await self.inner.drop_copy(name)

    async def delete(self, name: str) -> None:
        await self._call("delete", name, lambda: self.inner.delete(name))

    async def delete_many(self, names: Sequence[str]) -> Sequence[str]:
        """Has the faults of the deletions that it consists of, each a call of ``delete``."""
        missing, together = list[str](), list[str]()
        for name in names:
            together.append(name)
            if fault := self._next("delete", name):
                if together[:-1]:
                    missing += await self.inner.delete_many(together[:-1])
                missing += await self._apply(fault, name, partial(self.inner.delete_many, [name]), None)
                together.clear()
        return missing + list(await self.inner.delete_many(together) if together else ())

    async def concat(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call("concat", name, lambda: self.inner.concat(name, ranges))

    async def replace(self, name: str, ranges: Sequence[ChunkRange]) -> int:
        return await self._call("replace", name, lambda: self.inner.replace(name, ranges))

    async def set_read_only(self, name: str, read_only: bool) -> None:
        await self._call("set_read_only", name, lambda: self.inner.set_read_only(name, read_only))

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ChunkInfo, None]:
        fault = self._next("list", prefix)
        stale = self._listed.get((prefix, after), [])
        found = await self._apply(fault, prefix, lambda: _gather(self.inner.list(prefix, after)), None)
        self._listed[prefix, after] = found
        for info in stale if fault is not None and fault.kind is FaultKind.STALE_LIST else found:
            yield info

    async def sweep(self) -> None:
        await self._call("sweep", "", self.inner.sweep)

    async def used_space(self) -> int:
        return await self._call("used_space", "", self.inner.used_space)

    def statistics(self) -> ChunkStorageStatistics:
        return self.inner.statistics()

    # --- inside ----------------------------------------------------------------------------------

    def _next(self, verb: str, name: str) -> Fault | None:
        call = Call(len(self.calls) + 1, verb, name)
        self.calls.append(call)
        return self.script(call) if self.script else None

    async def _call(
        self,
        verb: str,
        name: str,
        act: Callable[[], Awaitable[T]],
        prefix: Callable[[int], Awaitable[None]] | None = None,
    ) -> T:
        return await self._apply(self._next(verb, name), name, act, prefix)

    async def _apply(
        self,
        fault: Fault | None,
        name: str,
        act: Callable[[], Awaitable[T]],
        prefix: Callable[[int], Awaitable[None]] | None,
    ) -> T:
        kind = fault.kind if fault else None
        if kind is FaultKind.BEFORE:
            raise Unavailable(f"scripted: {name} cannot be reached")

        if kind is FaultKind.FULL:
            raise StorageFull(f"scripted: no room for {name}")

        if kind is FaultKind.HANG:
            await self._hang()
        if fault and kind is FaultKind.DELAY:
            await anyio.sleep(fault.seconds)
        if fault and kind is FaultKind.PARTIAL and prefix:
            await prefix(fault.keep)
        if kind in (FaultKind.HANG, FaultKind.PARTIAL, FaultKind.LOST):
            raise OutcomeUnknown(f"scripted: no answer for {name}")

        result = await act()
        if fault and kind is FaultKind.FLIP and isinstance(result, bytes):
            return cast(T, _flipped(result, fault.bit))

        if kind is FaultKind.AFTER:
            raise OutcomeUnknown(f"scripted: the answer for {name} is lost")

        return result


def _flipped(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    if flipped:
        flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
    return bytes(flipped)


async def _gather(listing: AsyncGenerator[ChunkInfo, None]) -> list[ChunkInfo]:
    # A cancelled call must not leave a suspended generator to the garbage collector.
    async with aclosing(listing) as infos:
        return [info async for info in infos]

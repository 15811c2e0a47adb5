"""An object store with one fault: at its n-th request, of a kind."""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

import anyio.lowlevel
import attrs

from support.memory_objects import Bucket, MemoryObjects
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.object_store import ListedKey, StoredObject

T = TypeVar("T")


class FaultKind(enum.Enum):
    REFUSED = "refused"
    """For now, as with 409 and 503."""
    LOST = "lost"
    """No verdict and no effect."""
    UNANSWERED = "unanswered"
    """No verdict, although it took effect."""
    LATE = "late"
    """No verdict, and it takes effect after ``delay`` more requests."""
    REPEATED = "repeated"
    """It takes effect, and again; the second answer arrives."""


KINDS_AND_DELAYS = [
    *((kind, 0) for kind in FaultKind if kind is not FaultKind.LATE),
    *((FaultKind.LATE, delay) for delay in (1, 2, 4, 8, 20, 1_000)),
]
"""Each kind of fault, and late ones of several delays."""


@attrs.frozen
class ObjectFault:
    at: int
    kind: FaultKind
    delay: int = 0


class FaultyObjects(MemoryObjects):
    """Counts its requests in ``asked``, by name."""

    def __init__(self, bucket: Bucket, fault: ObjectFault | None = None) -> None:
        super().__init__(bucket)
        self.asked: list[str] = []
        self._fault = fault
        self._late: list[tuple[int, Callable[[], object]]] = []

    def settle(self) -> None:
        """What is late takes effect now."""
        for _, effect in self._late:
            effect()
        self._late.clear()

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        body = b"".join(data)
        return await self._ask("put", lambda: self.bucket.put(key, body, version))

    async def get(self, key: str, size: int) -> StoredObject | None:
        return await self._ask("get", lambda: self.bucket.get(key, size))

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        for each in await self._ask("list", lambda: self.bucket.list(prefix)):
            yield each

    async def delete(self, key: str) -> None:
        await self._ask("delete", lambda: self.bucket.delete(key))

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        await anyio.lowlevel.checkpoint()
        self.asked.append(name)
        number = len(self.asked)
        for due, late in [each for each in self._late if each[0] <= number]:
            self._late.remove((due, late))
            late()
        if self._fault is None or self._fault.at != number:
            return effect()
        return self._fail(name, effect, self._fault)

    def _fail(self, name: str, effect: Callable[[], T], fault: ObjectFault) -> T:
        if fault.kind is FaultKind.REFUSED or name in {"get", "list"}:
            raise Unavailable("refused for now")
        if fault.kind is FaultKind.LATE:
            self._late.append((fault.at + fault.delay, effect))
        elif fault.kind is not FaultKind.LOST:
            effect()
        if fault.kind is FaultKind.REPEATED:
            return effect()
        raise OutcomeUnknown("no verdict")

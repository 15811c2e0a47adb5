"""The object store of a simulation, as a store in a bucket uses it: its log, register and identity behind the
contract ``ObjectStore``, and its chunks, in the same listing.

A request takes time on its way, takes effect in one step when it arrives, and its answer takes time too. What
is on its way arrives although its sender is frozen, has given up, or is dead. A request can be refused, lost,
late, or carried out twice; its answer can be lost; and lists come in pages, each a request.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any

import attrs
import trio

from support.memory_objects import Bucket
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.errors import OutcomeUnknown, TierlogError, Unavailable
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject
from tierlog.storage_backends.chunks.memory import MemoryChunkState

from .faults import STRIKES, Fault, Faults, Kind, Target
from .gates import Gate

LOGS, CHUNKS = "wal/", "lts/"
"""Below them are the logs and the chunks."""
SLOT, REGISTER = "/g/", "/register"
"""Parts of the keys of each slot and register."""
_PAGE = 5


@attrs.define(eq=False)
class _Request:
    effect: Callable[[], Any]
    arrived: bool = False
    answer: Any = None

    def arrive(self) -> None:
        self.answer, self.arrived = self.effect(), True


class SharedBucket:
    """What all processes see, and the requests that are on their way."""

    def __init__(self, chunks: MemoryChunkState) -> None:
        self._bucket = Bucket()
        self._chunks = chunks
        self._coming: list[tuple[float, int, _Request]] = []
        self._sent = 0
        self.put, self.get, self.delete = self._bucket.put, self._bucket.get, self._bucket.delete

    def send(self, seconds: float, effect: Callable[[], Any]) -> _Request:
        """A request that arrives so many seconds later."""
        self._sent += 1
        request = _Request(effect)
        heappush(self._coming, (trio.current_time() + seconds, self._sent, request))
        return request

    def settle(self) -> None:
        """What has arrived by now has its effect, in the order of arrival: nobody could look earlier."""
        while self._coming and self._coming[0][0] <= trio.current_time():
            heappop(self._coming)[2].arrive()

    def page(self, prefix: str, after: str) -> list[ListedKey]:
        found = self._bucket.list(prefix)
        if prefix.startswith(CHUNKS):
            chunks = (ListedKey(CHUNKS + name, chunk.length) for name, chunk in self._chunks.chunks.items())
            found += [each for each in chunks if each.key.startswith(prefix)]
        return sorted(each for each in found if each.key > after)[:_PAGE]

    @property
    def objects(self) -> dict[str, bytes]:
        """All but chunks, by key."""
        self.settle()
        return {key: data for key, (data, _) in sorted(self._bucket.objects.items())}

    def exchange(self, key: str, data: bytes | None) -> Callable[[], None]:
        """Change the object, or remove it, behind everybody's back. Returns what puts it back, unless
        somebody has put or removed it meanwhile."""
        objects = self._bucket.objects
        before = objects.pop(key)
        if data is not None:
            objects[key] = (data, f"{before[1]}, changed")
        changed = objects.get(key)

        def undo() -> None:
            if objects.get(key) is changed:
                objects[key] = before

        return undo


class SimulatedObjects(ObjectStore):
    """The bucket as one process sees it, behind its gate, with faults."""

    def __init__(self, bucket: SharedBucket, process: int, gate: Gate, faults: Faults) -> None:
        self._bucket = bucket
        self._process = process
        self._gate = gate
        self._faults = faults

    async def open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()

    def place(self, key: str) -> str:
        return f"s3://bucket/store/{key}"

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        body = b"".join(data)
        effect = partial(self._bucket.put, key, body, version)
        made: str | None = await self._ask("put", key, f"{len(body)} if {version or 'none'}", effect)
        return made

    async def get(self, key: str, size: int) -> StoredObject | None:
        effect = partial(self._bucket.get, key, size)
        found: StoredObject | None = await self._ask("get", key, f"{size}", effect)
        return found

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        after = ""
        while True:
            page: list[ListedKey] = await self._ask(
                "list", prefix, f"after {after or 'none'}", partial(self._bucket.page, prefix, after)
            )
            for each in page:
                yield each
            if len(page) < _PAGE:
                return
            after = page[-1].key

    async def delete(self, key: str) -> None:
        await self._ask("delete", key, "", partial(self._bucket.delete, key))

    async def _ask(self, verb: str, key: str, what: str, effect: Callable[[], Any]) -> Any:
        gate = self._gate
        left = await gate.enter(gate.latency.log)
        fault = self._faults.next(Target.OBJECTS, self._process, verb, key)
        await gate.stay()
        gate.trace.note(gate.name, f"object {verb} {key} {what}".rstrip())
        answer = await self._suffer(fault, verb, key, left / 2, effect)
        await gate.answer(left / 2)
        return answer

    async def _suffer(
        self, fault: Fault | None, verb: str, key: str, seconds: float, effect: Callable[[], Any]
    ) -> Any:
        """The request's effect and answer, with the fault."""
        if fault is None or fault.kind in STRIKES:
            return await self._sent(seconds, effect)
        what = f"simulated: {verb} {key}"
        lost = _lost(verb, f"{what} has no answer")
        match fault.kind:
            case Kind.BEFORE:
                raise Unavailable(f"{what} is refused for now")
            case Kind.LOST:
                raise lost
            case Kind.AFTER:
                await self._sent(seconds, effect)
                raise lost
            case Kind.LATE:
                self._bucket.send(fault.seconds, effect)
                raise lost
            case Kind.REPEATED:
                await self._sent(seconds, effect)
                return await self._sent(0.0, effect)
            case Kind.AGAIN:
                self._bucket.send(seconds + fault.seconds, effect)
                return await self._sent(seconds, effect)
            case _:
                return await self._stall(fault, lost, effect)

    async def _stall(self, fault: Fault, lost: TierlogError, effect: Callable[[], Any]) -> Any:
        """It is slow on its way, or does not arrive."""
        if fault.seconds < math.inf:
            return await self._sent(fault.seconds, effect)

        await self._faults.stall(self._gate).wait()
        await self._gate.stay()
        raise lost

    async def _sent(self, seconds: float, effect: Callable[[], Any]) -> Any:
        request = self._bucket.send(seconds, effect)
        if seconds:
            await trio.sleep(seconds)
        self._bucket.settle()
        assert request.arrived
        return request.answer


def _lost(verb: str, why: str) -> TierlogError:
    """The error of a request without an answer."""
    return OutcomeUnknown(why) if verb in ("put", "delete") else Unavailable(why)

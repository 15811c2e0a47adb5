"""The calls that a log in a bucket, and its records, make of an object store, repeated until they have a
verdict (rule L6). They are counted, because they are what such a store costs.

Only the caller can repeat a put whose outcome is unknown: the bytes name the put. Cancellation leaves the
outcome of the call unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

import attrs

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject
from ...storage_backends.base.statistics import counter
from ...storage_backends.base.values import Value
from ...storage_backends.base.world import World
from .call_health import CallHealth
from .repetition import Repetition

_PROOF_BYTES = 256
"""The start of an object, in which its put id is."""


@attrs.define(eq=False, repr=False)
class RequestCounts(Value):
    puts: int = attrs.field(default=0, metadata=counter("Conditional puts, repeated ones too."))
    gets: int = attrs.field(default=0, metadata=counter("Gets."))
    lists: int = attrs.field(default=0, metadata=counter("Listings, each of one page or more."))
    deletes: int = attrs.field(default=0, metadata=counter("Deletions."))


class Put(NamedTuple):
    """A put's verdict."""

    version: str
    """The version of the object that it made; empty if another one is there, or none."""
    found: StoredObject | None = None
    """What is there instead: its start."""


class RepeatedCalls:
    """``patience``: seconds for which one call is repeated; ``delay``: seconds before it is repeated first,
    and the longest ones."""

    def __init__(
        self, objects: ObjectStore, world: World, patience: float, delay: tuple[float, float]
    ) -> None:
        self._objects = objects
        self.health = CallHealth()
        self._repeat = Repetition(world, patience, delay, self.health)
        self.counts = RequestCounts()

    def place(self, key: str) -> str:
        return self._objects.place(key)

    async def put(
        self, key: str, data: Sequence[Buffer], *, version: str = "", proof: int = _PROOF_BYTES
    ) -> Put:
        """``ObjectStore.put`` of an object whose first ``proof`` bytes no other put has."""

        async def put() -> str | None:
            self.counts.puts += 1
            return await self._objects.put(key, data, version=version)

        made = await self._repeat(put)
        if made is not None:
            return Put(made)

        # L6: an earlier attempt may have made it, or the same one, sent twice on its way.
        start = b"".join(bytes(memoryview(buffer)[:proof]) for buffer in data)[:proof]
        found = await self.get(key, proof)
        if found is not None and found.data == start and found.length == sum(map(len, data)):
            return Put(found.version)
        return Put("", found)

    async def get(self, key: str, size: int) -> StoredObject | None:
        async def get() -> StoredObject | None:
            self.counts.gets += 1
            return await self._objects.get(key, size)

        return await self._repeat(get)

    async def list(self, prefix: str) -> list[ListedKey]:
        async def list_all() -> list[ListedKey]:
            self.counts.lists += 1
            async with aclosing(self._objects.list(prefix)) as listed:
                return [each async for each in listed]

        return await self._repeat(list_all)

    async def delete(self, key: str) -> None:
        async def delete() -> None:
            self.counts.deletes += 1
            await self._objects.delete(key)

        await self._repeat(delete)

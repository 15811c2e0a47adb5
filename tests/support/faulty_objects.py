"""An object store with one fault: at its n-th request, of a kind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from support.call_faults import CallFault, CallFaults
from support.memory_objects import Bucket, MemoryObjects
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.object_store import ListedKey, StoredObject


class FaultyObjects(MemoryObjects):
    def __init__(self, bucket: Bucket, fault: CallFault | None = None) -> None:
        super().__init__(bucket)
        self.faults = CallFaults(fault, {"get", "list"})
        self.asked = self.faults.asked
        self.settle = self.faults.settle
        self._ask = self.faults.ask

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

"""An object store in memory, shared by all that are made of one ``Bucket``. Its versions are numbers, so no
two objects ever have the same."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Sequence

import anyio.lowlevel

from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject


class Bucket:
    """What the store has. Each method is one step that takes effect as a whole."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self._versions = itertools.count(1)

    def put(self, key: str, data: bytes, version: str) -> str | None:
        before = self.objects.get(key)
        if (before[1] if before else "") != version:
            return None
        made = f"v{next(self._versions)}"
        self.objects[key] = (data, made)
        return made

    def get(self, key: str, size: int) -> StoredObject | None:
        found = self.objects.get(key)
        return StoredObject(found[0][:size], len(found[0]), found[1]) if found else None

    def list(self, prefix: str) -> list[ListedKey]:
        return [ListedKey(k, len(data)) for k, (data, _) in self.objects.items() if k.startswith(prefix)]

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class MemoryObjects(ObjectStore):
    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    async def open(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()

    def place(self, key: str) -> str:
        return f"memory:{key}"

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        await anyio.lowlevel.checkpoint()
        return self.bucket.put(key, b"".join(data), version)

    async def get(self, key: str, size: int) -> StoredObject | None:
        await anyio.lowlevel.checkpoint()
        return self.bucket.get(key, size)

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        await anyio.lowlevel.checkpoint()
        for each in self.bucket.list(prefix):
            yield each

    async def delete(self, key: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.bucket.delete(key)

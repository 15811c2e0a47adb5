"""The object store of a simulation, as a store in a bucket uses it: its log, register and identity behind the
contract ``ObjectStore``, and its chunks, in the same listing. Lists come in pages, each a request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any

import trio

from support.memory_objects import Bucket
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject
from tierlog.storage_backends.chunks.memory import MemoryChunkState

from .faults import Faults, Target
from .gates import Gate
from .transit import RemoteCalls, Transit

LOGS, CHUNKS = "wal/", "lts/"
"""Below them are the logs and the chunks."""
SLOT, REGISTER = "/g/", "/register"
"""Parts of the keys of each slot and register."""
_PAGE = 5


class SharedBucket(Transit):
    """What all processes see."""

    def __init__(self, chunks: MemoryChunkState) -> None:
        super().__init__()
        self._bucket = Bucket()
        self._chunks = chunks
        self.put, self.get, self.delete = self._bucket.put, self._bucket.get, self._bucket.delete

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
        self._calls = RemoteCalls(bucket, process, gate, faults, Target.OBJECTS, ("put", "delete"))

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
        return await self._calls.ask(verb, key, f"object {verb} {key} {what}".rstrip(), effect)

"""``ZooKeeperCoordination``: records and leases as records of ZooKeeper, for processes on any machine (rules
D1 to D7).

A lease is a record, as in a bucket, and no ephemeral one: the session that would end such a record is that of
the sidecar, which lives on while its process is stopped, and ends while its process goes on (rule D7). Crash:
as ``ObjectCoordination``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import anyio
import anyio.lowlevel

from ...storage_backends.base.checksum import Buffer
from ...storage_backends.base.ledger_service import LedgerService
from ...storage_backends.base.object_store import ListedKey, ObjectStore, StoredObject
from ...storage_backends.base.world import World
from .objects import ObjectCoordination, ObjectCoordinationOptions


class ZooKeeperCoordination(ObjectCoordination):
    """Below ``path``, which does not end with a slash. ``ledgers`` stays open."""

    def __init__(
        self,
        ledgers: LedgerService,
        path: str,
        world: World,
        options: ObjectCoordinationOptions | None = None,
    ) -> None:
        super().__init__(RecordObjects(ledgers, path), "", world, options)

    async def try_conditions(self) -> None:
        await anyio.lowlevel.checkpoint()  # D2: what ZooKeeper promises needs no trial.


class RecordObjects(ObjectStore):
    """Records below ``path`` as objects. An answer may be older than a change of another process, but not
    than what this one has seen (rule D7)."""

    def __init__(self, ledgers: LedgerService, path: str) -> None:
        self._ledgers = ledgers
        self._path = path

    async def open(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def close(self) -> None:
        await anyio.lowlevel.checkpoint()

    def place(self, key: str) -> str:
        return self._ledgers.place(f"{self._path}/{key}")

    async def put(self, key: str, data: Sequence[Buffer], *, version: str = "") -> str | None:
        path, joined = f"{self._path}/{key}", b"".join(data)
        if version:
            # No other text was ever a version.
            replaced = await self._ledgers.replace(path, joined, int(version)) if version.isdigit() else None
            return None if replaced is None else str(replaced)
        made = await self._ledgers.create(path, joined)
        return None if made is None else str(made.version)

    async def get(self, key: str, size: int) -> StoredObject | None:
        found = await self._ledgers.load(f"{self._path}/{key}")
        return found and StoredObject(found.data[:size], len(found.data), str(found.version))

    async def list(self, prefix: str) -> AsyncGenerator[ListedKey, None]:
        """``prefix`` ends with a slash: those directly below it."""
        for name in await self._ledgers.children(f"{self._path}/{prefix}".rstrip("/")):
            found = await self.get(f"{prefix}{name}", 1)
            if found is not None:
                yield ListedKey(f"{prefix}{name}", found.length)

    async def delete(self, key: str) -> None:
        found = await self._ledgers.load(f"{self._path}/{key}")
        while found is not None and not await self._ledgers.remove(f"{self._path}/{key}", found.version):
            found = await self._ledgers.load(f"{self._path}/{key}")

"""Machines that open one store in a service: in a bucket of a server, or on a BookKeeper in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from support.ledger_stores import LedgerSite
from support.s3_server import BUCKET, S3Server
from support.stores import config
from tierlog import SegmentStore, StoreConfig, open_store
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig

NAME = "app/events"
PLACE = f"s3://{BUCKET}/stores/first"
PIECES = [bytes([number]) * 10_000 for number in range(20)]


class Machine(ABC):
    """It has nothing of its own but a local disk."""

    place: str

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    @abstractmethod
    def settings(self, **more: Any) -> StoreConfig: ...

    @abstractmethod
    def lose_identity(self) -> str:
        """The store's identity is gone. Returns its place."""

    def open(
        self, place: str = "", *, settings: dict[str, Any] | None = None, **arguments: Any
    ) -> AbstractAsyncContextManager[SegmentStore]:
        defaults: dict[str, Any] = {"config": self.settings(**settings or {}), "containers": 1}
        return open_store(place or self.place, **defaults | arguments)


class BucketMachine(Machine):
    place = PLACE

    def __init__(self, disk: Path, server: S3Server) -> None:
        super().__init__(disk)
        self.server = server

    def settings(self, **more: Any) -> StoreConfig:
        defaults = {
            "s3": S3Config(endpoint=self.server.url),
            "chunk_cache": ChunkCacheConfig(path=str(self.disk)),
            "s3_log": S3LogConfig(pace=0.0),
        }
        return config(**defaults | more)

    def lose_identity(self) -> str:
        self.server.remove("stores/first/store")
        return f"{PLACE}/store"


class LedgerMachine(Machine):
    def __init__(self, disk: Path, site: LedgerSite) -> None:
        super().__init__(disk)
        self.site = site
        self.place = site.place

    def settings(self, **more: Any) -> StoreConfig:
        return self.site.settings(self.disk, **more)

    def lose_identity(self) -> str:
        del self.site.cluster.records["/stores/first/store"]
        return "memory:/stores/first/store"


async def fill(store: SegmentStore) -> None:
    await store.create_segment(NAME)
    for piece in PIECES:
        await store.append(NAME, piece)


async def read_all(store: Any) -> bytes:
    data = bytearray()
    while block := await store.read(NAME, len(data), 1 << 20):
        data += block
    return bytes(data)


async def refused(opening: AbstractAsyncContextManager[SegmentStore]) -> None:
    async with opening:
        raise AssertionError("it was opened")

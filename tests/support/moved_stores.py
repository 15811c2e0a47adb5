"""Stores that are moved, and places in folders, in a bucket and on BookKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from support.s3_server import BUCKET, S3Server
from support.stores import config
from support.stores_of_all_kinds import contents
from tierlog import (
    AttributeUpdate,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    TransactionState,
    Unavailable,
    open_store,
)
from tierlog.actors.container.container import Container
from tierlog.actors.container.lts_boot import claim_chain
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.maintenance import migration
from tierlog.actors.maintenance.migration import Migration, migrate, undo
from tierlog.actors.maintenance.migration_places import MigrationPlace, make_place
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.journal.coordination.contract import Coordination
from tierlog.journal.operations.log_element import LogElement
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.files.local import LocalFiles


@asynccontextmanager
async def nobody_serves(coordination: Coordination, identity: StoreIdentity) -> AsyncIterator[None]:
    yield


@attrs.frozen
class Site:
    """Folders, and the bucket that they share, if there is one."""

    path: Path
    server: S3Server | None = None

    @property
    def settings(self) -> StoreConfig:
        if self.server is None:
            return config(chunk_cache=ChunkCacheConfig(path=str(self.path / "cache")))
        return config(
            s3=S3Config(endpoint=self.server.url),
            chunk_cache=ChunkCacheConfig(path=str(self.path / "cache")),
            s3_log=S3LogConfig(pace=0.0),
        )

    def where(self, name: str) -> str:
        """A place: in the bucket or on BookKeeper if the name says so."""
        if name.startswith("ledgers"):
            return f"bookkeeper://zk1:2181/stores/{name}"
        return f"s3://{BUCKET}/{name}" if name.startswith("bucket") else str(self.path / name)

    def with_chunks(self, name: str) -> StoreConfig:
        return attrs.evolve(self.settings, chunks=self.where(name))

    def remove(self, prefix: str) -> None:
        assert self.server is not None
        for key in [key for key in self.server.objects() if key.startswith(prefix)]:
            self.server.remove(key)

    def copy(self, source: str, target: str) -> None:
        assert self.server is not None
        for key, data in self.server.objects().items():
            if key.startswith(source):
                self.server.put(target + key.removeprefix(source), data)

    def put(self, key: str) -> None:
        assert self.server is not None
        self.server.put(key, b"x")

    def place(self, name: str) -> MigrationPlace:
        return make_place(self.where(name), self.settings, LocalFiles(), system_world(), nobody_serves)

    @asynccontextmanager
    async def opened(self, name: str, **arguments: Any) -> AsyncIterator[SegmentStore]:
        arguments = {"config": self.settings, "containers": 2, **arguments}
        async with open_store(self.where(name), **arguments) as store:
            yield store

    async def move(self, source: str, target: str, *, confirms: bool = True, **more: Any) -> Migration:
        world = system_world()
        return await migrate(self.place(source), self.place(target), world, confirms=confirms, **more)

    async def undo(self, source: str) -> bool:
        return await undo(self.place(source))

    async def is_refused(self, name: str, message: str = "was moved to", **arguments: Any) -> None:
        with pytest.raises(StoreMismatch, match=message):
            async with self.opened(name, **arguments):
                pass


async def filled(store: SegmentStore) -> dict[str, Any]:
    """A small store with something of everything; part of it is not flushed."""
    await store.create_segment("s#0")
    await store.append("s#0", bytes(range(256)), writer_id="w", event_number=0)
    await store.create_segment("a#1")
    await store.create_segment("s#1")
    await store.append("s#1", b"merged")
    await store.seal_segment("s#1")
    await store.merge_segments("s#0", ["s#1"])
    await store.create_table("table")
    await store.table("table").put(b"key", b"value")
    await store.begin_transaction("s#0", "open")
    await store.append(await store.stage_segment("s#0", "open", "0"), b"staged")
    await store.flush()
    await store.append("s#0", b"not flushed")
    await store.update_attributes("a#1", [AttributeUpdate("app/x", 7)])
    await store.table("table").put(b"key", b"other")
    return await seen(store)


async def seen(store: SegmentStore) -> dict[str, Any]:
    """But for what is flushed, because a move flushes everything."""
    found = await contents(store)
    for name in found["names"]:
        found[name] = replace(found[name], flushed_length=0)
    return found


async def list_unconfirmed(store: SegmentStore) -> list[object]:
    async def find(container: Container) -> object:
        return container.confirmation.unconfirmed

    return [await store.on_container(index, find) for index in range(store.containers)]


async def end_in_old_place(
    site: Site, target: str = "new", after: int = 0, source: str = "old", **more: Any
) -> None:
    """A move that is cut off before it is decided, or ``after`` so many containers."""

    async def cut_off(chunks: ChunkStorage, container: int, op: LogElement) -> None:
        if container == after:
            raise Unavailable("the network is gone")
        await claim_chain(chunks, container, op)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migration, "claim_chain", cut_off)
        with pytest.raises(Unavailable, match="the network is gone"):
            await site.move(source, target, **more)


async def check_moved(store: SegmentStore, before: dict[str, Any]) -> None:
    """All is there, and who goes on does not notice the move."""
    assert await seen(store) == before
    assert (await store.segment_info("s#0")).history == 0
    length = (await store.segment_info("s#0")).length
    await store.append("s#0", bytes(range(256)), writer_id="w", event_number=0)  # a duplicate
    assert await store.append("s#0", b"more", writer_id="w", event_number=1) == length
    info = await store.transaction_info("s#0", "open")
    assert info.state is TransactionState.OPEN
    row = await store.table("table").get(b"key")
    assert row is not None
    await store.table("table").put(b"key", b"newer", expected_version=row.version)
    await store.flush()

"""Moving a store: what it has afterwards, which of the two places can be opened, and what is refused (rules E1
to E7)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from support.s3_server import BUCKET, S3Server
from support.stores import config
from support.stores_of_all_kinds import contents, fill
from tierlog import (
    AttributeUpdate,
    InvalidArgument,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    TransactionState,
    open_store,
)
from tierlog.actors.maintenance.migration import Migration, migrate, undo
from tierlog.actors.maintenance.migration_places import MigrationPlace, make_place
from tierlog.actors.settings.configuration import ChunkCacheConfig, S3Config, S3LogConfig
from tierlog.actors.store.opening import system_world
from tierlog.journal.coordination.contract import Coordination
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio


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
            return config()
        return config(
            s3=S3Config(endpoint=self.server.url),
            chunk_cache=ChunkCacheConfig(path=str(self.path / "cache")),
            s3_log=S3LogConfig(pace=0.0),
        )

    def where(self, name: str) -> str:
        """A place: in the bucket if the name says so."""
        return f"s3://{BUCKET}/{name}" if name.startswith("bucket") else str(self.path / name)

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

    async def undo(self, source: str) -> None:
        await undo(self.place(source))

    async def is_refused(self, name: str, message: str = "was moved to", **arguments: Any) -> None:
        with pytest.raises(StoreMismatch, match=message):
            async with self.opened(name, **arguments):
                pass


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def filled(store: SegmentStore) -> dict[str, Any]:
    """A store with everything; part of it is not flushed."""
    await fill(store)
    await store.begin_transaction("s#5", "open")
    await store.append(await store.stage_segment("s#5", "open", "0"), b"staged")
    await store.flush()
    await store.append("s#2", b"not flushed")
    await store.update_attributes("s#4", [AttributeUpdate("app/x", 7)])
    await store.table("table").put(b"key", b"other")
    return await contents(store)


async def check_moved(store: SegmentStore, before: dict[str, Any]) -> None:
    """All is there, and who goes on does not notice the move."""
    assert await contents(store) == before
    length = (await store.segment_info("s#2")).length
    await store.append("s#2", bytes(100), writer_id="w", event_number=0)  # a duplicate
    assert await store.append("s#2", b"more", writer_id="w", event_number=1) == length
    info = await store.transaction_info("s#5", "open")
    assert info.state is TransactionState.OPEN
    await store.table("table").put(b"key", b"newer", expected_version=(await store.table("table").get(b"key")).version)
    await store.flush()


async def test_e5_a_moved_store_is_the_same_store(site: Site) -> None:
    async with site.opened("old") as store:
        before = await filled(store)
        await store.backup("monday")
    done = await site.move("old", "new")
    assert done.is_complete
    await site.is_refused("old")
    shutil.rmtree(site.path / "old")
    async with site.opened("new") as store:
        await check_moved(store, before)
        assert [each.name for each in await store.backups()] == ["monday"]
        assert not any(each.problem for each in await store.backups())
        after = await contents(store)
    async with site.opened("new") as store:
        assert await contents(store) == after

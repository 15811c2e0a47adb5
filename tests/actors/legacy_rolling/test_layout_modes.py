"""The four ways to meet a long-term storage in the legacy layout, as a configured store does it (rule
S18)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.legacy_layout import write_legacy
from support.virtual import virtual_world
from tierlog import (
    ConfigError,
    DataCorruption,
    SegmentNotFound,
    SegmentStore,
    StoreConfig,
    StoreMismatch,
    open_store,
)
from tierlog.actors.folder.layout_version import apply_layout_mode, is_upgraded
from tierlog.actors.folder.paths import check_path
from tierlog.actors.legacy_rolling.find import find
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.transfer import import_segment
from tierlog.actors.settings.configuration_file import parse_config, render_config
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.files import IoCall, Rename
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

OLD, NEW = "app/old", "app/new"


def config(mode: str) -> StoreConfig:
    return StoreConfig(containers=1, layout=mode)


@pytest.fixture
async def legacy_chunks(tmp_path: Path) -> FileSystemChunkStorage:
    """Long-term storage with a segment in the legacy layout."""
    chunks = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), system_world())
    await chunks.open()
    await write_legacy(chunks, OLD, b"0123", b"45", max_size=1 << 20)
    return chunks


async def use(store: SegmentStore) -> None:
    await store.create_segment(NEW)
    await store.append(NEW, b"new")
    await store.flush()


async def headers(chunks: FileSystemChunkStorage) -> list[str]:
    return [info.name async for info in chunks.list("app/") if info.name.endswith("$header")]


async def test_install_new_is_the_default_and_looks_for_nothing(
    tmp_path: Path, legacy_chunks: FileSystemChunkStorage
) -> None:
    async with open_store(tmp_path, config=StoreConfig(containers=1)) as store:
        await use(store)
        with pytest.raises(SegmentNotFound):
            await store.read(OLD, 0, 9)
        await store.create_segment(OLD)
        assert (await store.segment_info(OLD)).length == 0
    assert await headers(legacy_chunks) == [f"{OLD}$header"]


async def test_no_upgrade_imports_on_demand_and_leaves_the_legacy_layout_alone(
    tmp_path: Path, legacy_chunks: FileSystemChunkStorage
) -> None:
    async with open_store(tmp_path, config=config("no-upgrade")) as store:
        await use(store)
        with pytest.raises(SegmentNotFound):
            await store.read(OLD, 0, 9)
        await import_segment(store, OLD, no_progress)
        assert await store.read(OLD, 0, 4) == b"0123"
        await store.append(OLD, b"more")
        await store.flush()

    found = await find(legacy_chunks, OLD)
    assert found is not None
    assert found.length == 6
    assert await headers(legacy_chunks) == [f"{OLD}$header"]


async def test_code_only_upgrade_reads_and_writes_both_layouts(
    tmp_path: Path, legacy_chunks: FileSystemChunkStorage
) -> None:
    async with open_store(tmp_path, config=config("code-only-upgrade")) as store:
        await use(store)
        assert await store.append(OLD, b"more") == 6
        await store.flush()

    for name, length in ((OLD, 10), (NEW, 3)):
        found = await find(legacy_chunks, name)
        assert found is not None
        assert found.length == length


async def test_layout_upgrade_reads_both_layouts_and_writes_the_new_one(
    tmp_path: Path, legacy_chunks: FileSystemChunkStorage
) -> None:
    async with open_store(tmp_path, config=config("layout-upgrade")) as store:
        await use(store)
        assert await store.append(OLD, b"more") == 6
        await store.flush()
        assert await store.read(OLD, 0, 4) == b"0123"

    found = await find(legacy_chunks, OLD)
    assert found is not None
    assert found.length == 6
    assert await headers(legacy_chunks) == [f"{OLD}$header"]


@pytest.mark.parametrize("mode", ["no-upgrade", "code-only-upgrade"])
async def test_there_is_no_way_back_from_a_layout_upgrade(tmp_path: Path, mode: str) -> None:
    async with open_store(tmp_path, config=config(mode)) as store:
        await use(store)
    assert not await is_upgraded(LocalFiles(), check_path(tmp_path))
    async with open_store(tmp_path, config=config("layout-upgrade")):
        pass

    with pytest.raises(StoreMismatch, match=f"cannot be undone; layout = '{mode}'"):
        async with open_store(tmp_path, config=config(mode)):
            pass
    for onward in ("install-new", "layout-upgrade"):
        async with open_store(tmp_path, config=config(onward)) as store:
            assert await store.read(NEW, 0, 9) == b"new"


async def test_a_damaged_file_is_not_a_missing_one(tmp_path: Path) -> None:
    async with open_store(tmp_path, config=config("layout-upgrade")):
        pass
    (tmp_path / "wal" / "layout").write_bytes(b"")

    with pytest.raises(DataCorruption, match="layout version is damaged"):
        async with open_store(tmp_path, config=config("no-upgrade")):
            pass


async def test_an_opening_removes_half_made_leftovers_of_others(tmp_path: Path) -> None:
    async with open_store(tmp_path, config=config("install-new")):
        pass
    for name in (".store-dead", ".layout-dead", ".kept"):
        (tmp_path / "wal" / name).write_bytes(b"half")

    async with open_store(tmp_path, config=config("install-new")):
        pass
    assert [path.name for path in (tmp_path / "wal").glob(".*")] == [".kept"]


async def test_an_opening_whose_half_made_file_was_swept_writes_it_again() -> None:
    folder, disk, swept = check_path("/data"), SimulatedDisk(Random(0)), list[str]()
    disk.make_folder(folder.wal)

    def sweep_once(index: int, call: IoCall) -> None:
        if isinstance(call, Rename) and not swept:
            disk.unlink(call.source)
            swept.append(call.target)

    files = SimulatedFiles(disk, sweep_once)
    await files.run(apply_layout_mode(folder, LayoutMode.LAYOUT_UPGRADE, virtual_world(1)))
    assert swept == ["/data/wal/layout"]
    assert await is_upgraded(files, folder)
    assert set(disk.folder(folder.wal).names) == {"layout"}


def test_the_mode_is_one_of_four_words() -> None:
    assert parse_config({"layout": "layout-upgrade"}).layout == "layout-upgrade"
    assert 'layout = "install-new"' in render_config(StoreConfig())
    for wrong in ("upgrade", 3, None):
        with pytest.raises(ConfigError, match=r"layout: .* is not allowed; write one of .*code-only-upgrade"):
            parse_config({"layout": wrong})
    assert attrs.evolve(StoreConfig(), layout="no-upgrade").layout == "no-upgrade"

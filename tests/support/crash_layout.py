"""What the crash scenarios of a layout upgrade are made of (rule S18): who opens the folder in which mode,
and what must then be true.

The layout version is looked for on the disk that each owner finds, before that owner can make it anew. The
check opens copies of the disk in two more modes: the default one, which is always allowed, and one that
promises something to legacy software, which never is again.
"""

from __future__ import annotations

from random import Random

import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.crash_tier2 import (
    LEGACY_A,
    LEGACY_B,
    FirstAccess,
    Tier2Limits,
    check_legacy_reader,
    disk_of,
    work_done,
)
from support.crash_world import CONFIG, FOLDER, after, opened
from support.legacy_layout import write_legacy
from support.oracle import Oracle, observe
from support.virtual import virtual_world
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.settings.layout_mode import LayoutMode
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.local_layout import log_folder, parse_wal_names
from tierlog.storage_backends.base.errors import StoreMismatch
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.filesystem_programs import IDENTIFICATION

WAL, CHUNKS = f"{FOLDER}/wal", f"{FOLDER}/lts"
BEFORE_UPGRADE = 30
"""Bytes of ``a/s`` that an owner has flushed, with its header, before the upgrade."""
IN_DEFAULT_MODE, WAY_BACK = 103, 104
"""The processes of the check that open a copy of the disk."""
OTHER_MODES = {IN_DEFAULT_MODE: LayoutMode.INSTALL_NEW, WAY_BACK: LayoutMode.CODE_ONLY_UPGRADE}


@attrs.frozen(kw_only=True)
class Upgrade(Tier2Limits):
    """Legacy software leaves its segments; from process ``first`` on the folder is opened with a layout
    upgrade."""

    first: int

    def config(self, process: int) -> StoreConfig:
        usual = LayoutMode.LAYOUT_UPGRADE if process >= self.first else LayoutMode.CODE_ONLY_UPGRADE
        return attrs.evolve(CONFIG, layout=OTHER_MODES.get(process, usual).value)

    async def prepare(self, files: SimulatedFiles, process: int) -> None:
        if process == 1:
            await leave_legacy_segments(files.disk)
        names = files.disk._folders[log].names if (log := log_folder(WAL, 0)) in files.disk._folders else ()
        if any(file.epoch >= self.first for file in parse_wal_names(names)):
            assert files.disk.exists(f"{WAL}/layout"), (
                "an owner relied on the upgrade before its layout version was durable"
            )


async def leave_legacy_segments(disk: SimulatedDisk) -> None:
    """The files of the legacy software, durable, and nothing of this store's."""
    chunks = FileSystemChunkStorage(SimulatedFiles(disk, interleave=False), CHUNKS, virtual_world(0))
    await chunks.open()
    for legacy in (LEGACY_A, LEGACY_B):
        await write_legacy(
            chunks, legacy.name, *legacy.parts, max_size=100, start=legacy.start, sealed=legacy.sealed
        )
    await chunks.close()
    disk.unlink(f"{CHUNKS}/{IDENTIFICATION}")
    disk.folder(CHUNKS).sync()


async def upgraded(store: SegmentStore, oracle: Oracle) -> None:
    """As ``work_done``, once all legacy segments were accessed. Their files are unchanged, and no temporary
    file is left beside the logs."""
    disk = disk_of(store)
    left = [name for name in disk.folder(WAL).names if name.startswith(".")]
    assert not left, f"an opening left {left}"
    await _check_other_modes(disk, oracle)
    for prefix, legacy in (("a/", LEGACY_A), ("b/", LEGACY_B)):
        await oracle.call(store, prefix, FirstAccess(legacy.name, legacy))
    await work_done(store, oracle)
    await _check_legacy_files(disk)


async def upgraded_from_headers(store: SegmentStore, oracle: Oracle) -> None:
    """As ``upgraded``; and legacy software reads of ``a/s`` what was flushed before the upgrade, and no
    more."""
    await upgraded(store, oracle)
    assert await check_legacy_reader(store, oracle, "a/s") == BEFORE_UPGRADE


async def _check_other_modes(disk: SimulatedDisk, oracle: Oracle) -> None:
    """An upgraded store was opened just now: after a power loss too there is no way back, and all that
    was imported is there."""
    limits = Upgrade(first=1)
    with pytest.raises(StoreMismatch, match="was upgraded"):
        async with opened(
            SimulatedFiles(after(disk, "none", disk.random), interleave=False), WAY_BACK, limits
        ):
            pass
    async with opened(
        SimulatedFiles(after(disk, "none", disk.random), interleave=False), IN_DEFAULT_MODE, limits
    ) as store:
        oracle.after_crash().check(await observe(store, oracle.writers))


async def _check_legacy_files(disk: SimulatedDisk) -> None:
    expected = SimulatedDisk(Random(0))
    await leave_legacy_segments(expected)
    for folder in (f"{CHUNKS}/a", f"{CHUNKS}/b"):
        for name, inode in expected.folder(folder).names.items():
            path = f"{folder}/{name}"
            assert inode is not None
            assert disk.exists(path), f"{path} of the legacy layout is gone"
            assert (disk.content(path), disk.find(path).read_only) == (bytes(inode.cache), inode.read_only), (
                f"{path} was changed"
            )

"""Two restores of one backup into two folders with the same long-term storage (rule S17)."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from support.folders import chunk_files
from support.old_backups import BackupOptions, back_up_store
from tierlog import StoreConfig, StoreMismatch, open_store
from tierlog.actors.folder.paths import check_path, existing_identity
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.restore import RestoreOptions, restore
from tierlog.actors.settings.configuration import GcConfig
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.files import Program, T
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

EAGER = StoreConfig(gc=GcConfig(delay=0.0))
NAMES = ("app/a", "app/b", "app/c")
"""Names of segments in both containers."""


class PausingFiles(LocalFiles):
    """Waits before its program number ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self.programs = 0
        self.reached, self.go_on = anyio.Event(), anyio.Event()

    async def run(self, program: Program[T]) -> T:
        self.programs += 1
        if self.programs == self._number:
            self.reached.set()
            await self.go_on.wait()
        return await super().run(program)


async def make_store(folder: Path) -> None:
    async with open_store(folder, containers=2, config=EAGER) as store:
        for name in NAMES:
            await store.create_segment(name)
            await store.append(name, name.encode())
        await store.flush()
        identity = await existing_identity(LocalFiles(), check_path(folder))
        options = BackupOptions("b", identity.store_id, 0, upgraded=False)
        await back_up_store(store, None, options, no_progress)
        await store.append(NAMES[0], b"newer")
        await store.flush()
    shutil.rmtree(folder / "wal")


async def restore_into(folder: Path, files: LocalFiles) -> None:
    await restore(check_path(folder), None, RestoreOptions("b"), EAGER, files, system_world())


async def check(folder: Path, *, adopt: bool) -> None:
    async with open_store(folder, config=EAGER, adopt=adopt) as store:
        for name in NAMES:
            assert await store.read(name, 0, 100) == name.encode()


async def is_refused(folder: Path) -> bool:
    try:
        await check(folder, adopt=False)
    except StoreMismatch:
        return True
    return False


async def check_two_folders(tmp_path: Path, numbers: Iterable[int]) -> None:
    await make_store(tmp_path / "template")
    for number in numbers:
        first, second = tmp_path / f"{number}" / "first", tmp_path / f"{number}" / "second"
        shutil.copytree(tmp_path / "template", first)
        second.mkdir()
        (second / "lts").symlink_to(first / "lts")
        before = set(chunk_files(first))
        files = PausingFiles(number)

        async def restore_first(files: PausingFiles = files, first: Path = first) -> None:
            await restore_into(first, files)
            files.reached.set()  # it has fewer programs

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(restore_first)
            await files.reached.wait()
            await restore_into(second, LocalFiles())
            files.go_on.set()

        refused = [await is_refused(folder) for folder in (first, second)]
        assert any(refused), number
        for folder in (first, second):
            await check(folder, adopt=True)
        assert set(chunk_files(first)) >= before, number


async def test_s17_two_restores_into_two_folders_at_once_delete_nothing_and_one_at_most_is_the_store(
    tmp_path: Path,
) -> None:
    await check_two_folders(tmp_path, (5, 12, 17, 21))


@pytest.mark.extended
async def test_s17_wherever_the_first_restore_is_when_the_second_is_done(tmp_path: Path) -> None:
    await check_two_folders(tmp_path, range(1, 25))

"""Long-term storage in files is put back to an earlier copy, with its backups and without its reserve, and
then forward (rules J4, J7, P2, S22). Worlds of this kind, without a reserve, are in
``simulation/reopened.py``."""

from __future__ import annotations

from random import Random

import pytest
from simulation.disk import BLOCK, SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.crash_scripts import create
from support.crash_world import FOLDER, container, eventually, opened
from support.virtual import run_virtual
from tierlog.storage_backends.base.errors import StoreMismatch
from tierlog.storage_backends.chunks.filesystem_programs import RESERVE

ROOT = f"{FOLDER}/lts/"


def objects(disk: SimulatedDisk) -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.files_below(ROOT) if not path.endswith(RESERVE)}


def put_back(disk: SimulatedDisk, contents: dict[str, bytes]) -> None:
    """The copy has no reserve: its blocks were never written."""
    for path in disk.files_below(ROOT):
        disk.unlink(path)
    for path, content in contents.items():
        disk.put(path, content)


@pytest.mark.parametrize("is_removed", [False, True], ids=["a backup is newer", "a backup was removed"])
def test_an_earlier_copy_is_refused_and_left_alone_and_the_newest_has_its_backups(is_removed: bool) -> None:
    disk = SimulatedDisk(Random(0))

    async def body() -> None:
        async with opened(SimulatedFiles(disk), 1) as store:
            await create("a/s").send(store)
            await store.append("a/s", b"x" * 500)
            await store.backup("first")
            earlier = objects(disk)
            await store.truncate_segment("a/s", 500)
            await store.append("a/s", b"y" * 300)
            await (store.remove_backup("first") if is_removed else store.backup("second"))
            await store.flush()
            collector = container(store)._components.collector
            await eventually(lambda: not collector.statistics().queued, lambda: "garbage is queued")
        newest = objects(disk)
        assert earlier.keys() - newest.keys()

        put_back(disk, earlier)
        with pytest.raises(StoreMismatch, match="put back to an earlier state"):
            async with opened(SimulatedFiles(disk), 2):
                pass
        assert objects(disk) == earlier

        put_back(disk, newest)
        async with opened(SimulatedFiles(disk), 3) as store:
            found = {backup.name: backup.problem for backup in await store.backups()}
            assert found == ({} if is_removed else {"first": "", "second": ""})
            assert await store.read("a/s", 500, 1000) == b"y" * 300
            assert disk.find(f"{ROOT}{RESERVE}").blocks * BLOCK == 2 * BLOCK

    run_virtual(body, 0)

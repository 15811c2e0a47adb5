"""A container whose versions another history may have used too: it uses none of them again (rule J6)."""

from __future__ import annotations

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import ELSEWHERE, OPTIONS, ContainerWorld, cloned, reason_of, virtual_time
from tierlog import ChangesIncomplete, Table, TableConflict
from tierlog.storage_backends.segments.records.unconfirmed import Reason

pytestmark = [pytest.mark.anyio, virtual_time]

NAME = "app/users"
ADOPTING = replace(OPTIONS, adopt=True)


async def parted(world: ContainerWorld) -> int:
    """The log is put back to before the newest updates; returns the version that they reached."""
    async with world.owner() as owner:
        await owner.store.create_table(NAME)
        await owner.store.table(NAME).put(b"k", b"0")
        await owner.store.flush()
    logs = cloned(world.logs)
    async with world.owner() as owner:
        table = owner.store.table(NAME)
        await table.put_many({bytes((number,)): b"lost" for number in range(20)})
        version = await table.put(b"k", b"lost")
        await owner.store.flush()
    world.logs = logs
    assert version is not None
    return version


async def assert_parted(table: Table, version: int | None) -> None:
    """What a client of the lost history knows is of no use to it, and does no harm."""
    assert version is not None
    with pytest.raises(ChangesIncomplete) as caught:
        await table.changes(version)
    assert caught.value.complete_since > version
    with pytest.raises(TableConflict):
        await table.put(b"k", b"stale", expected_version=version)


async def test_j6_an_adopted_log_uses_no_version_of_the_lost_history_again() -> None:
    world = ContainerWorld()
    lost = await parted(world)
    async with world.owner(ADOPTING) as owner:
        table = owner.store.table(NAME)
        await assert_parted(table, lost)
        assert (await table.put(b"other", b"new") or 0) > lost
        for number in range(30):
            await table.put(b"k", b"new %d" % number)
        await assert_parted(table, lost)
        page = await table.changes(0)
        assert (await table.changes(page.version)).rows == []
        await owner.crash()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        await assert_parted(table, lost)
        await owner.checkpoint()
        await owner.store.flush()
        assert (await table.changes(page.version)).rows == []
        await table.put(b"k", b"newer")
        await owner.stop()

    async with world.owner() as owner:
        table = owner.store.table(NAME)
        await assert_parted(table, lost)
        assert [row.value for row in (await table.changes(page.version)).rows] == [b"newer"]


async def test_j6_a_moved_folder_may_be_an_old_copy() -> None:
    world = ContainerWorld()
    async with world.owner() as owner:
        await owner.store.create_table(NAME)
        await owner.store.table(NAME).put(b"k", b"0")
        await owner.store.flush()
        logs = cloned(world.logs)
        lost = await owner.store.table(NAME).put(b"k", b"lost")

    world.folder, world.logs = ELSEWHERE, logs
    async with world.owner() as owner:
        assert reason_of(owner) is Reason.MOVED
        await assert_parted(owner.store.table(NAME), lost)


async def test_a_checkpoint_begins_in_the_group_of_a_new_history() -> None:
    """Operations up to its begin are skipped by their sequences, which are not dense there."""
    world = ContainerWorld()
    async with world.owner() as owner:
        await owner.store.create_table(NAME)
        table = owner.store.table(NAME)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(table.put, b"k", b"1")
            tasks.start_soon(owner.container.confirmation.begin_history)
            tasks.start_soon(owner.checkpoint)
            tasks.start_soon(table.put, b"k", b"2")
        row = await table.get(b"k")
        await owner.crash()

    async with world.owner() as owner:
        assert await owner.store.table(NAME).get(b"k") == row

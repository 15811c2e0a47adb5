"""A move that is cut off at any I/O call, by the end of its process or by a power loss (rules E1 to E6): one
of the two places has the store, with everything, and the same command completes the move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import attrs
import pytest
from msgspec.structs import replace
from simulation.disk import SimulatedDisk
from simulation.file_layer import SimulatedFiles

from support.crash_world import CONFIG, Limits, Mode, after, changes_disk, describe, image_at, small_limits
from support.stores_of_all_kinds import contents
from support.virtual import run_virtual, virtual_world
from tierlog import AttributeUpdate, SegmentStore, StoreMismatch, open_store
from tierlog.actors.container.container import Container
from tierlog.actors.folder.identity import read_identity
from tierlog.actors.folder.paths import check_path
from tierlog.actors.maintenance import migration_places
from tierlog.actors.maintenance.migration import Migration, migrate, undo
from tierlog.actors.maintenance.migration_places import FolderPlace
from tierlog.storage_backends.base.files import IoCall

LIMITS = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)
OLD, NEW = "/data", "/new"
CALLS = 560
"""The calls of the move that change what a crash may leave, about."""
MODES: tuple[Mode, ...] = ("none", "kill", "random", "all")
numbers = iter(range(100, 1 << 30))
"""Numbers of processes: no two of a test share one."""


@contextmanager
def limits() -> Iterator[None]:
    with small_limits(LIMITS), mock.patch.object(migration_places, "log_options", LIMITS.log):
        yield


@asynccontextmanager
async def opened(disk: SimulatedDisk, path: str) -> AsyncIterator[SegmentStore]:
    world, files = virtual_world(next(numbers)), SimulatedFiles(disk)
    async with open_store(path, containers=2, config=CONFIG, files=files, world=world) as store:
        yield store


def place(files: SimulatedFiles, path: str) -> FolderPlace:
    return FolderPlace(check_path(path), CONFIG, files, virtual_world(next(numbers)))


async def move(files: SimulatedFiles, *, confirms: bool = True) -> Migration:
    world = virtual_world(next(numbers))
    return await migrate(place(files, OLD), place(files, NEW), world, confirms=confirms)


async def make() -> tuple[SimulatedDisk, dict[str, Any]]:
    """A store with something in each container and each kind of row, partly not flushed; prepared before
    it changed."""
    disk = SimulatedDisk(Random(0))
    async with opened(disk, OLD) as store:
        for name in ("a/s", "b/s", "c/s"):
            await store.create_segment(name)
            await store.append(name, b"flushed", writer_id="w", event_number=0)
        await store.create_table("table")
        await store.table("table").put(b"key", b"value")
        await store.flush()
        await store.backup("monday")
    await move(SimulatedFiles(disk), confirms=False)
    async with opened(disk, OLD) as store:
        await store.append("a/s", b"not flushed", writer_id="w", event_number=1)
        await store.update_attributes("b/s", [AttributeUpdate("app/x", 7)])
        await store.begin_transaction("b/s", "t")
        await store.append(await store.stage_segment("b/s", "t", "0"), b"staged")
        await store.table("table").put(b"key", b"other")
        before = await seen(store)
    return disk, before


async def seen(store: SegmentStore) -> dict[str, Any]:
    found = await contents(store)
    for name in found["names"]:
        found[name] = replace(found[name], flushed_length=0)
    return found


@attrs.frozen
class Instant:
    call: str
    disk: SimulatedDisk


async def instants(numbers: range) -> tuple[list[Instant], dict[str, Any]]:
    """The disk before those of the calls of a move that change what a crash may leave."""
    disk, before = await make()
    found: list[Instant] = []
    count, random = 0, Random(1)

    def watch(index: int, call: IoCall) -> None:
        nonlocal count
        if changes_disk(disk, call):
            if count in numbers:
                found.append(Instant(f"{count}: {describe(call)}", image_at(disk, call, random)))
            count += 1

    done = await move(SimulatedFiles(disk, watch))
    assert done.is_complete
    assert CALLS - 100 < count <= CALLS, "choose other calls"
    return found, before


async def is_ended(disk: SimulatedDisk, before: dict[str, Any]) -> bool:
    """Whether the store cannot be opened in the old place. If it can, it has everything."""
    with suppress(StoreMismatch):
        async with opened(disk, OLD) as store:
            assert await seen(store) == before
            return False
    return True


async def find_unconfirmed(owner: Container) -> object:
    return owner.confirmation.unconfirmed


async def check_new(disk: SimulatedDisk, before: dict[str, Any]) -> None:
    async with opened(disk, NEW) as store:
        assert await seen(store) == before
        assert (await store.segment_info("a/s")).history == 0
        assert [await store.on_container(index, find_unconfirmed) for index in range(2)] == [None, None]
        # A duplicate, and the next one.
        assert await store.append("a/s", b"not flushed", writer_id="w", event_number=1) == 7
        assert await store.append("a/s", b"!", writer_id="w", event_number=2) == 18
        await store.flush()
        assert [(each.name, each.problem) for each in await store.backups()] == [("monday", "")]


async def has_new(disk: SimulatedDisk) -> bool:
    return await SimulatedFiles(disk).run(read_identity(f"{NEW}/wal")) is not None


async def check(instant: Instant, mode: Mode, before: dict[str, Any]) -> None:
    found = after(instant.disk, mode, Random(2))
    disk = found.copy()
    if await has_new(disk):
        assert await is_ended(disk, before), "both places can be opened"
        await check_new(disk, before)
    # However it was cut off, the same command completes it.
    disk = found.copy()
    assert (await move(SimulatedFiles(disk))).is_complete
    assert await is_ended(disk, before)
    await check_new(disk, before)
    # Or it is given up, if it is not decided, and may begin again later.
    disk = found.copy()
    try:
        await undo(place(SimulatedFiles(disk), OLD))
    except StoreMismatch:
        assert await is_ended(disk, before)
    else:
        assert not await has_new(disk)
        assert not await is_ended(disk, before)
    assert (await move(SimulatedFiles(disk))).is_complete
    assert await is_ended(disk, before)
    await check_new(disk, before)


async def check_calls(calls: range, modes: tuple[Mode, ...]) -> None:
    with limits():
        found, before = await instants(calls)
        for number, instant in enumerate(found):
            mode = modes[number % len(modes)]
            try:
                await check(instant, mode, before)
            except BaseException as error:
                error.add_note(f"{instant.call}, {mode}")
                raise


def test_e_a_move_that_is_cut_off_is_completed_or_given_up() -> None:
    run_virtual(partial(check_calls, range(200, CALLS, 280), ("none", "kill")), 0)


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("part", range(2))
def test_e_a_move_that_is_cut_off_anywhere_is_completed_or_given_up(backend: str, part: int) -> None:
    calls = range(part * CALLS // 2, (part + 1) * CALLS // 2, 29)
    run_virtual(partial(check_calls, calls, MODES), part, backend)


@pytest.mark.long
@pytest.mark.parametrize("part", range(CALLS // 20))
def test_e_a_move_that_is_cut_off_at_each_call_is_completed_or_given_up(part: int) -> None:
    modes = MODES[part % 4 :] + MODES[: part % 4]
    run_virtual(partial(check_calls, range(part * 20, part * 20 + 20), modes), part)

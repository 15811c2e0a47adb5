"""Copying a backup while storage fails: what is verified, copied again, and left alone (rule P7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.stores import make
from tierlog.actors.gc.collector import CollectorOptions
from tierlog.actors.maintenance.backup_copy import copy_backup, copy_for_restore
from tierlog.journal.manifest.chain import list_elements
from tierlog.journal.manifest.store_record import STORE_RECORD
from tierlog.storage_backends.base.errors import DataCorruption, StorageFull, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage, nth

pytestmark = [pytest.mark.anyio, virtual_time]

QUICK = replace(OPTIONS, collector=CollectorOptions(delay=1))
grows = pytest.mark.parametrize("grows", [True, False], ids=["chunks grow there", "chunks cannot grow there"])


def is_chunk(call: Call) -> bool:
    return call.name.startswith("containers/")


async def place_of_copies(*, grows: bool = True) -> FaultyChunkStorage:
    place = MemoryChunkStorage(MemoryChunkState(), append=grows)
    await place.open()
    return FaultyChunkStorage(place)


def contents(storage: FaultyChunkStorage) -> dict[str, bytes]:
    return {name: bytes(chunk.data) for name, chunk in state_of(storage).chunks.items()}


def state_of(storage: FaultyChunkStorage) -> MemoryChunkState:
    assert isinstance(storage.inner, MemoryChunkStorage)
    return storage.inner.state


def flip(storage: FaultyChunkStorage, name: str, offset: int) -> None:
    state_of(storage).chunks[name].data[offset] ^= 1


@asynccontextmanager
async def backed_up() -> AsyncIterator[tuple[ContainerWorld, Owner, str]]:
    """A store with a backup ``one`` of a segment in one chunk, which has this name."""
    world = ContainerWorld(QUICK)
    async with world.owner() as owner:
        await make(owner.store, "a", b"a" * 1000, flushed=True)
        await owner.store.backup("one")
        [name] = world.chunk_names
        yield world, owner, name


@grows
async def test_p7_what_a_call_that_was_killed_has_copied_is_verified(grows: bool) -> None:
    place = await place_of_copies(grows=grows)
    async with backed_up() as (world, _, name):
        world.chunks.script = lambda call: (
            Fault(FaultKind.FLIP, bit=5) if call.verb == "read" and is_chunk(call) else None
        )
        place.script = lambda call: Fault(FaultKind.HANG) if call.verb == "read" and is_chunk(call) else None
        with anyio.move_on_after(10) as killed:
            await copy_backup(world.chunks, "one", place)
        assert killed.cancelled_caught
        right = contents(world.chunks)[name]
        assert contents(place)[name] != right

        world.chunks.script = place.script = None
        await copy_backup(world.chunks, "one", place)
        assert contents(place)[name] == right


async def test_p7_what_a_complete_copy_has_is_not_read_again() -> None:
    place = await place_of_copies()
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        await make(owner.store, "b", b"b" * 1000, flushed=True)
        await owner.store.backup("two")
        for backup, new in (("one", 0), ("two", 1)):
            world.chunks.calls.clear()
            place.calls.clear()
            done = await copy_backup(world.chunks, backup, place)
            assert done.copied_objects >= new
            calls = [call.name for call in (*world.chunks.calls, *place.calls) if call.verb == "read"]
            assert len({each for each in calls if each.startswith("containers/")}) == new
            assert name not in calls


@grows
async def test_p7_a_damaged_source_does_not_harm_what_earlier_backups_have(grows: bool) -> None:
    place = await place_of_copies(grows=grows)
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        before = contents(place)[name]
        await owner.store.append("a", b"more")
        await owner.store.backup("two")
        assert len(contents(world.chunks)[name]) > len(before)
        flip(world.chunks, name, 1001)
        for _ in range(2):
            with pytest.raises(DataCorruption, match="checksum"):
                await copy_backup(world.chunks, "two", place)
            assert contents(place)[name] == before
        flip(world.chunks, name, 1001)
        done = await copy_backup(world.chunks, "two", place)
        assert contents(place)[name] == contents(world.chunks)[name]
        assert done.copied_bytes < done.bytes


@grows
@pytest.mark.parametrize("is_damaged", [False, True], ids=["grown", "grown and damaged in the copy"])
async def test_p7_at_no_moment_does_a_copy_lack_a_chunk_that_earlier_backups_need(
    grows: bool, is_damaged: bool
) -> None:
    place = await place_of_copies(grows=grows)
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        before = contents(place)[name]
        await owner.store.append("a", b"more")
        await owner.store.backup("two")
        if is_damaged:
            flip(place, name, 5)
        there: list[bytes] = []
        place.script = lambda call: there.append(contents(place).get(name, b"missing"))
        await copy_backup(world.chunks, "two", place)
        place.script = None
        assert min(map(len, there)) == len(before)
        assert contents(place)[name] == contents(world.chunks)[name]
        assert not [each for each in contents(place) if each.startswith("_system/copying/")]


@grows
async def test_p7_a_chunk_that_was_damaged_in_the_place_is_found_when_all_is_verified(grows: bool) -> None:
    """Otherwise it is said that it was not read."""
    place = await place_of_copies(grows=grows)
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        right = contents(place)[name]
        flip(place, name, 7)
        for backup in ("one", "two"):
            if backup == "two":
                await owner.store.backup("two")
            done = await copy_backup(world.chunks, backup, place)
            assert (done.copied_bytes < len(right), done.unread_objects) == (True, 1)
        done = await copy_backup(world.chunks, "two", place, verify=True)
        assert (done.copied_bytes, done.unread_objects) == (len(right), 0)
        assert contents(place)[name] == right


async def test_p7_a_chunk_that_lost_its_end_in_the_place_is_always_found() -> None:
    place = await place_of_copies()
    async with backed_up() as (world, _, name):
        await copy_backup(world.chunks, "one", place)
        right = contents(place)[name]
        del state_of(place).chunks[name].data[-1:]
        done = await copy_backup(world.chunks, "one", place)
        assert (done.copied_bytes, done.unread_objects) == (1, 0)
        assert contents(place)[name] == right


@grows
@pytest.mark.parametrize("kind", ["_system/pins/", "_system/containers/0000/journal/"])
async def test_p7_a_damaged_record_or_element_of_the_backup_is_copied_again_when_all_is_verified(
    kind: str, grows: bool
) -> None:
    place = await place_of_copies(grows=grows)
    async with backed_up() as (world, _, _):
        await copy_backup(world.chunks, "one", place)
        right = contents(place)
        name = max(each for each in right if each.startswith(kind))
        flip(place, name, len(right[name]) // 2)
        with pytest.raises(DataCorruption) as refused:
            await copy_backup(world.chunks, "one", place)
        assert refused.value.file == name
        await copy_backup(world.chunks, "one", place, verify=True)
        assert contents(place) == right


async def test_p7_pieces_that_a_killed_call_left_are_removed_by_the_next_one() -> None:
    place = await place_of_copies(grows=False)
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        await owner.store.append("a", b"more")
        await owner.store.backup("two")
        place.script = lambda call: Fault(FaultKind.BEFORE) if call.verb == "replace" else None
        with pytest.raises(Unavailable):
            await copy_backup(world.chunks, "two", place)
        place.script = None
        assert [each for each in contents(place) if each.startswith("_system/copying/two/")]
        # Of a backup that is not copied again.
        await owner.store.remove_backup("two")
        await copy_backup(world.chunks, "one", place)
        assert not [each for each in contents(place) if each.startswith("_system/copying/")]
        assert len(contents(place)[name]) == 1000


async def test_a_full_disk_is_that_of_the_copy() -> None:
    place = await place_of_copies()
    async with backed_up() as (world, _, _):
        place.script = lambda call: Fault(FaultKind.FULL) if call.verb == "write" else None
        with pytest.raises(StorageFull, match="where the backup is copied to"):
            await copy_backup(world.chunks, "one", place)


async def test_a_copy_that_another_one_gets_in_the_way_of_says_so() -> None:
    place = await place_of_copies(grows=False)

    def other_copy(call: Call) -> None:
        if call.verb == "create_with_content" and is_chunk(call):
            state_of(place).chunks[call.name] = MemoryChunk(bytearray(b"a"))

    async with backed_up() as (world, _, _):
        place.script = other_copy
        with pytest.raises(Unavailable, match="another process is copying into that place"):
            await copy_backup(world.chunks, "one", place)


async def test_p6_a_restore_replaces_what_is_damaged_and_refuses_with_a_damaged_copy() -> None:
    place = await place_of_copies()
    async with backed_up() as (world, _, name):
        await copy_backup(world.chunks, "one", place)
        right = contents(place)[name]
        damaged = bytes([right[0] ^ 1]) + right[1:]
        flip(world.chunks, name, 0)
        flip(place, name, 0)
        with pytest.raises(DataCorruption, match="checksum"):
            await copy_for_restore(place, "one", world.chunks)
        assert contents(world.chunks)[name] == damaged
        flip(place, name, 0)
        done = await copy_for_restore(place, "one", world.chunks)
        assert (done.copied_objects, done.copied_bytes) == (1, len(right))
        assert contents(world.chunks)[name] == right


async def test_p6_a_restore_replaces_no_damaged_chunk_that_is_longer_than_its_copy() -> None:
    """Another backup may need the rest."""
    place = await place_of_copies()
    async with backed_up() as (world, owner, name):
        await copy_backup(world.chunks, "one", place)
        await owner.store.append("a", b"more")
        await owner.store.backup("two")
        flip(world.chunks, name, 0)
        before = contents(world.chunks)[name]
        with pytest.raises(DataCorruption, match="checksum"):
            await copy_for_restore(place, "one", world.chunks)
        assert contents(world.chunks)[name] == before


async def test_p6_a_restore_that_was_killed_at_any_of_its_calls_can_be_repeated() -> None:
    """The store's record comes last: with it and without elements, long-term storage has lost its journal."""
    place, killed_at, is_killed = await place_of_copies(), 0, True
    async with backed_up() as (world, _, _):
        await copy_backup(world.chunks, "one", place)
    right = contents(place)
    while is_killed:
        killed_at += 1
        target = await place_of_copies()
        target.script = nth(killed_at, Fault(FaultKind.HANG), "create", "create_with_content", "write")
        with anyio.move_on_after(10) as killed:
            await copy_for_restore(place, "one", target)
        is_killed = killed.cancelled_caught
        assert (STORE_RECORD in contents(target)) <= bool(await list_elements(target, 0))
        target.script = None
        await copy_for_restore(place, "one", target)
        assert contents(target) == right
    assert killed_at > 5

"""Power loss at every I/O call of the filesystem chunk storage: what was answered is there, whole objects are
whole or absent."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import pytest
from simulation.disk import Keep, SimulatedDisk
from simulation.file_layer import Fail, FailAfter, Pause, SimulatedFiles

from support.chunked import world_of
from support.power_loss import ends_before_power_loss
from tierlog.storage_backends.base.chunk_storage import ChunkRange
from tierlog.storage_backends.base.errors import ChunkExists, ChunkNotFound, OutcomeUnknown, Unavailable
from tierlog.storage_backends.base.files import IoCall, Link, SyncFolder, Unlink
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.testing.chunk_conformance import ChunkStorageConformance

ROOT = "/data/lts"
FIRST, SECOND, MORE = b"1" * 1500, b"2" * 700, b"3" * 900


@pytest.mark.one_loop
class TestOnASimulatedDisk(ChunkStorageConformance):
    large = 6 << 20

    @pytest.fixture(autouse=True)
    def disk(self) -> Iterator[None]:
        self._disk = SimulatedDisk(Random(1))
        yield
        # pytest keeps the instance to the end of the run.
        del self._disk

    def make(self, folder: Path) -> FileSystemChunkStorage:
        return FileSystemChunkStorage(SimulatedFiles(self._disk), ROOT, world_of(Random().getrandbits(64)))


class Workload:
    """What was begun and what was answered, by chunk."""

    def __init__(self) -> None:
        self.answered: dict[str, bytes | None] = {}
        self.begun: dict[str, bytes | None] = {}

    async def run(self, storage: FileSystemChunkStorage) -> None:
        await storage.open()
        await self.step("a/b/1", FIRST, storage.create_with_content("a/b/1", [FIRST]))
        await self.step("a/2", SECOND, storage.create_with_content("a/2", [SECOND]))
        await self.step("a/b/1", FIRST + MORE, storage.write("a/b/1", len(FIRST), [MORE]))
        joined = storage.concat("c", [ChunkRange("a/b/1", 0, len(FIRST)), ChunkRange("a/2", 0, len(SECOND))])
        await self.step("c", FIRST + SECOND, joined)
        replaced = storage.replace("c", [ChunkRange("a/2", 0, len(SECOND)), ChunkRange("a/b/1", 0, 1)])
        await self.step("c", SECOND + FIRST[:1], replaced)
        await self.step("a/2", None, storage.delete("a/2"))
        self.begun = {"a/b/1": None, "c": None}
        await storage.delete_many(list(self.begun))
        self.answered |= self.begun
        self.begun = {}

    async def step(self, name: str, content: bytes | None, call: object) -> None:
        self.begun[name] = content
        await call  # type: ignore[misc]
        self.answered[name] = self.begun.pop(name)


async def crash_at(call: int, keep: Keep, seed: int) -> bool:
    """Lose power at the ``call``-th I/O; returns whether the workload had ended before."""
    disk = SimulatedDisk(Random(seed))
    workload = Workload()

    async def work(files: SimulatedFiles) -> None:
        await workload.run(FileSystemChunkStorage(files, ROOT, world_of(seed)))

    ended = await ends_before_power_loss(disk, call, work)
    after = FileSystemChunkStorage(SimulatedFiles(disk.crash(keep)), ROOT, world_of(seed + 1))
    await after.open()
    found = {info.name: await after.read(info.name, 0, info.length) async for info in after.list("")}
    check(workload, found)
    await after.create_with_content("a/b/new", [FIRST])
    return ended


def check(workload: Workload, found: dict[str, bytes]) -> None:
    for name, content in workload.answered.items():
        if name not in workload.begun:
            assert found.get(name) == content
    for name, content in workload.begun.items():
        before = workload.answered.get(name)
        if before is None:
            assert found.get(name) in (None, content)
        elif content is None:
            assert found.get(name) in (None, before)
        elif not content.startswith(before):
            assert found[name] in (before, content)  # replaced in one step
        else:
            # An append without an answer: the committed length is safe, what lies behind it is anything.
            assert found[name][: len(before)] == before
            assert len(found[name]) <= len(content)
    assert set(found) <= {*workload.answered, *workload.begun}


@pytest.mark.anyio
@pytest.mark.parametrize("keep", ["none", "all", "random"])
async def test_power_loss_at_every_call(keep: Keep) -> None:
    call, ended = 0, False
    while not ended:
        ended = await crash_at(call, keep, seed=call)
        call += 1

    assert call > 40


@pytest.mark.anyio
async def test_a_chunk_reported_missing_after_a_lost_delete_reply_does_not_come_back() -> None:
    """After a delete of files of the legacy layout their names are dropped, and no listing looks for them."""
    disk = SimulatedDisk(Random(1))

    def lose_the_answer(index: int, call: IoCall) -> FailAfter | None:
        return (
            FailAfter(OSError(errno.EIO, "the answer was lost"))
            if isinstance(call, Unlink) and call.path == f"{ROOT}/a/1"
            else None
        )

    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(1))
    await storage.open()
    await storage.create_with_content("a/1", [FIRST])
    await storage.create_with_content("a/2", [SECOND])
    failing = FileSystemChunkStorage(SimulatedFiles(disk, lose_the_answer), ROOT, world_of(2))
    await failing.open()
    with pytest.raises(OutcomeUnknown):
        await failing.delete("a/1")
    with pytest.raises(ChunkNotFound):
        await storage.delete("a/1")

    after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(3))
    await after.open()
    assert [info.name async for info in after.list("")] == ["a/2"]


@pytest.mark.anyio
async def test_a_chunk_reported_as_existing_after_its_creator_died_does_not_vanish() -> None:
    """J5: an owner counts on the element that the one before had created."""
    disk = SimulatedDisk(Random(1))

    def die_unsynced(index: int, call: IoCall) -> FailAfter | None:
        return FailAfter(OSError(errno.EIO, "killed")) if isinstance(call, Link) else None

    killed = FileSystemChunkStorage(SimulatedFiles(disk, die_unsynced), ROOT, world_of(1))
    await killed.open()
    with pytest.raises(OutcomeUnknown):
        await killed.create_with_content("a/1", [FIRST])
    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(2))
    await storage.open()
    with pytest.raises(ChunkExists):
        await storage.create_with_content("a/1", [SECOND])

    after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(3))
    await after.open()
    assert await after.read("a/1", 0, 2000) == FIRST


class _LosesEverything(Random):
    """Nothing that a failed sync should have saved arrives."""

    def random(self) -> float:
        return 1.0


def lost_sync_of(folder: str) -> Callable[[int, IoCall], Fail | None]:
    """Syncs of ``folder`` fail, and its names are in the page cache only."""

    def fail(index: int, call: IoCall) -> Fail | None:
        if isinstance(call, SyncFolder) and call.path == folder:
            return Fail(OSError(errno.EIO, "the sync failed"))

        return None

    return fail


@pytest.mark.anyio
async def test_a_chunk_that_is_created_again_after_a_failed_sync_of_its_folder_does_not_vanish() -> None:
    """J5: the owner before created the element, and the folder's sync failed."""
    disk = SimulatedDisk(_LosesEverything(1))
    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(1))
    await storage.open()
    await storage.create_with_content("a/0", [SECOND])
    failing = FileSystemChunkStorage(SimulatedFiles(disk, lost_sync_of(f"{ROOT}/a")), ROOT, world_of(2))
    await failing.open()
    with pytest.raises(OutcomeUnknown):
        await failing.create_with_content("a/1", [FIRST])
    with pytest.raises(ChunkExists):
        await storage.create_with_content("a/1", [FIRST])

    after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(3))
    await after.open()
    assert await after.read("a/1", 0, 2000) == FIRST
    assert [info.name async for info in after.list("")] == ["a/0", "a/1"]


@pytest.mark.anyio
async def test_a_chunk_in_a_folder_whose_name_a_failed_sync_lost_does_not_vanish() -> None:
    disk = SimulatedDisk(_LosesEverything(1))
    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(1))
    await storage.open()
    files = SimulatedFiles(disk)
    failing = FileSystemChunkStorage(files, ROOT, world_of(2))
    await failing.open()
    files.on_call = lost_sync_of(ROOT)
    with pytest.raises(Unavailable):
        await failing.create_with_content("a/1", [FIRST])
    await storage.create_with_content("a/2", [SECOND])

    after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(3))
    await after.open()
    assert await after.read("a/2", 0, 2000) == SECOND


@pytest.mark.anyio
async def test_w11_chunks_that_are_created_beside_a_failed_sync_of_their_folders_do_not_vanish() -> None:
    """In each world another sync fails, while four chunks are created in new folders."""
    survived = 0
    for failing in range(16):
        disk = SimulatedDisk(_LosesEverything(1))
        files = SimulatedFiles(disk)
        storage = FileSystemChunkStorage(files, ROOT, world_of(1))
        await storage.open()
        files.on_call = FailingSync(failing)
        created = await create_at_once(storage, ["a/b/1", "a/b/2", "a/c/3", "d/4"])

        survived += len(created)
        after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(2))
        await after.open()
        for name in created:
            assert await after.read(name, 0, 2000) == FIRST
    assert survived >= 16, "a fault fails only those that it concerns"


@pytest.mark.anyio
async def test_w11_a_chunk_survives_if_another_process_makes_its_empty_folder_again() -> None:
    """Before the chunk is linked, the other one finds the folder empty, removes it and makes a new one, which
    is not synced yet when the chunk is acked and power is lost."""
    disk = SimulatedDisk(_LosesEverything(1))
    storages, files = [], []
    for seed in (1, 2):
        files.append(SimulatedFiles(disk))
        storages.append(FileSystemChunkStorage(files[-1], ROOT, world_of(seed)))
        await storages[-1].open()
    linking, remade, over = anyio.Event(), anyio.Event(), anyio.Event()

    def link_after_the_other_process(index: int, call: IoCall) -> Pause | None:
        if not isinstance(call, Link) or linking.is_set():
            return None
        linking.set()
        return Pause(remade)

    def sync_late(index: int, call: IoCall) -> Pause | None:
        if not isinstance(call, SyncFolder) or call.path != ROOT:
            return None
        remade.set()
        return Pause(over)

    files[0].on_call, files[1].on_call = link_after_the_other_process, sync_late
    async with anyio.create_task_group() as group:

        async def create_beside() -> None:
            await linking.wait()
            await storages[1].create_with_content("a/2", [SECOND])

        group.start_soon(create_beside)
        await storages[0].create_with_content("a/1", [FIRST])
        after = disk.crash("none")
        files[1].kill()
        over.set()
        group.cancel_scope.cancel()

    recovered = FileSystemChunkStorage(SimulatedFiles(after), ROOT, world_of(3))
    await recovered.open()
    assert await recovered.read("a/1", 0, 2000) == FIRST


@pytest.mark.anyio
async def test_w11_a_chunk_survives_if_another_process_removed_a_folder_that_is_known() -> None:
    """The folder of the second chunk is made with its parent, which was durable before it was removed."""
    disk = SimulatedDisk(_LosesEverything(1))
    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(1))
    await storage.open()
    await storage.create_with_content("a/b/1", [FIRST])
    other = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(2))
    await other.open()
    await other.delete("a/b/1")
    await storage.create_with_content("a/c/2", [SECOND])

    after = FileSystemChunkStorage(SimulatedFiles(disk.crash("none")), ROOT, world_of(3))
    await after.open()
    assert await after.read("a/c/2", 0, 2000) == SECOND


class FailingSync:
    """The sync number ``failing`` of a folder fails."""

    def __init__(self, failing: int) -> None:
        self._left = failing

    def __call__(self, index: int, call: IoCall) -> Fail | None:
        self._left -= isinstance(call, SyncFolder)
        is_hit = isinstance(call, SyncFolder) and self._left == -1
        return Fail(OSError(errno.EIO, "the sync failed")) if is_hit else None


async def create_at_once(storage: FileSystemChunkStorage, names: list[str]) -> list[str]:
    """The names of the chunks whose creation succeeded."""
    created = []

    async def create(name: str) -> None:
        with suppress(Unavailable, OutcomeUnknown):
            await storage.create_with_content(name, [FIRST])
            created.append(name)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(create, name)
    return created


class PausedSync:
    """The first sync of the root waits for ``resume``."""

    def __init__(self) -> None:
        self.reached, self.resume = anyio.Event(), anyio.Event()

    def __call__(self, index: int, call: IoCall) -> Pause | None:
        if self.reached.is_set() or call != SyncFolder(ROOT):
            return None
        self.reached.set()
        return Pause(self.resume)


@pytest.mark.anyio
async def test_w11_a_folder_that_is_not_durable_yet_delays_only_the_chunks_below_it() -> None:
    disk = SimulatedDisk(Random(1))
    files = SimulatedFiles(disk)
    storage = FileSystemChunkStorage(files, ROOT, world_of(1))
    await storage.open()
    sync, created = PausedSync(), []
    files.on_call = sync

    async def create(name: str) -> None:
        await storage.create_with_content(name, [FIRST])
        created.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(create, "a/b/1")
        await sync.reached.wait()
        group.start_soon(create, "a/c/2")
        await create("d/e/3")
        assert created == ["d/e/3"]
        sync.resume.set()

    assert sorted(created) == ["a/b/1", "a/c/2", "d/e/3"]


@pytest.mark.anyio
async def test_a_chunk_that_exists_with_other_bytes_is_not_replaced() -> None:
    disk = SimulatedDisk(Random(1))
    storage = FileSystemChunkStorage(SimulatedFiles(disk), ROOT, world_of(1))
    await storage.open()
    await storage.create_with_content("a/1", [FIRST])
    for other in (SECOND, FIRST[:-1] + b"?", FIRST + b"!", b""):
        with pytest.raises(ChunkExists):
            await storage.create_with_content("a/1", [other])

    assert await storage.read("a/1", 0, 2000) == FIRST

"""One restore at a time: beside other restores and openings, and after restores that were killed, on a
simulated disk (rules S17, W11)."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from unittest import mock

import anyio
import attrs
import pytest
from simulation.disk import SimulatedDisk
from simulation.file_layer import Fail, Fault, Pause, SimulatedFiles

from support.crash_world import CONFIG, FOLDER, Limits, opened, small_limits
from support.old_backups import BackupOptions, back_up_store
from support.virtual import virtual_world
from tierlog import InvalidArgument, StoreMismatch, Unavailable
from tierlog.actors.folder.identity import read_identity
from tierlog.actors.folder.paths import check_path
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance import restore as restore_module
from tierlog.actors.maintenance.restore import RestoreOptions, restore
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.files import Close, IoCall, Rename, SyncFolder, Unlock

pytestmark = [pytest.mark.anyio, pytest.mark.one_loop]

LIMITS = Limits(wal_file=1 << 20, flush=1 << 20, checkpoint=1 << 20)
NAME, DATA = "a/s", b"in the backup"
WAL = f"{FOLDER}/wal"
numbers = iter(range(100, 1 << 30))
"""Numbers of processes: no two of a test share one."""


async def _make() -> SimulatedDisk:
    """A store with a backup, whose logs are lost."""
    disk = SimulatedDisk(Random(0))
    files = SimulatedFiles(disk)
    async with opened(files, 1, LIMITS) as store:
        await store.create_segment(NAME)
        await store.append(NAME, DATA)
        await store.flush()
        identity = await files.run(read_identity(WAL))
        assert identity is not None
        await back_up_store(
            store, None, BackupOptions("b", identity.store_id, 0, upgraded=False), no_progress
        )
    disk.rename(WAL, "/lost")
    for folder in (FOLDER, "/"):
        disk.folder(folder).sync()
    return disk


@pytest.fixture(scope="module")
def template() -> SimulatedDisk:
    return anyio.run(_make)


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_limits(LIMITS), mock.patch.object(restore_module, "log_options", LIMITS.log):
        yield


async def restore_by(files: SimulatedFiles) -> None:
    world = virtual_world(next(numbers))
    await restore(check_path(FOLDER), None, RestoreOptions("b"), CONFIG, files, world)


async def append_by(files: SimulatedFiles) -> None:
    async with opened(files, next(numbers), LIMITS) as store:
        await store.append(NAME, b".")


async def check(disk: SimulatedDisk, appended: int = 0) -> None:
    """The store is the restored one, with what was appended since, also after a power loss."""
    assert sorted(disk.folder(FOLDER).names) == ["lts", "wal"]
    async with opened(SimulatedFiles(disk.crash("none")), next(numbers), LIMITS) as store:
        length = (await store.segment_info(NAME)).length
        assert length == len(DATA) + appended
        assert await store.read(NAME, 0, len(DATA)) == DATA


# --- at the same time -------------------------------------------------------------------------------


@attrs.define
class PauseAt:
    """A process waits once, before its call number ``number``, or its first one after one that ``follows``
    accepts; after that its first sync of the data folder fails, if ``fails``."""

    number: int = -1
    follows: Callable[[IoCall], bool] = lambda call: False
    fails: bool = False
    reached: anyio.Event = attrs.field(factory=anyio.Event)
    go_on: anyio.Event = attrs.field(factory=anyio.Event)
    _is_next: bool = False

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if not self.reached.is_set() and (self._is_next or index == self.number):
            self.reached.set()
            return Pause(self.go_on)
        if self.reached.is_set() and self.fails and call == SyncFolder(FOLDER):
            self.fails = False
            return Fail(OSError(errno.EIO, "no"))
        self._is_next = self.follows(call)
        return None


def is_published(call: IoCall) -> bool:
    return isinstance(call, Rename) and call.target == WAL


@attrs.define
class Running:
    """A process that does ``act``, with a pause."""

    act: Callable[[SimulatedFiles], Awaitable[None]]
    disk: SimulatedDisk
    pause: PauseAt
    error: Exception | None = None
    ended: anyio.Event = attrs.field(factory=anyio.Event)

    async def __call__(self) -> None:
        try:
            await self.act(SimulatedFiles(self.disk, self.pause))
        except (TierlogError, OSError) as error:
            self.error = error
        self.pause.reached.set()  # it may end before
        self.ended.set()

    async def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Returns once it waits."""
        tasks.start_soon(self)
        await self.pause.reached.wait()

    async def finish(self) -> Exception | None:
        self.pause.go_on.set()
        await self.ended.wait()
        return self.error


async def calls_of(act: Callable[[SimulatedFiles], Awaitable[None]], disk: SimulatedDisk) -> int:
    files = SimulatedFiles(disk)
    await act(files)
    return files.calls


async def check_two_restores(template: SimulatedDisk, step: int) -> None:
    refusals: Counter[str] = Counter()
    for number in range(0, await calls_of(restore_by, template.copy()), step):
        disk = template.copy()
        first = Running(restore_by, disk, PauseAt(number))
        async with anyio.create_task_group() as tasks:
            await first.start(tasks)
            second = Running(restore_by, disk, PauseAt())
            await second.start(tasks)
            errors = [error for error in (await second.finish(), await first.finish()) if error]
        assert len(errors) == 1, (number, errors)
        assert isinstance(errors[0], Unavailable | InvalidArgument)
        refusals[str(errors[0]).partition(":")[0]] += 1
        await check(disk)
    messages = (
        f"is restoring or recovering the store in {FOLDER}",
        f"{FOLDER} already has the logs of a store",
    )
    assert {next(end for end in messages if each.endswith(end)) for each in refusals} == set(messages)


async def test_s17_of_two_restores_into_a_folder_one_is_refused_and_harms_nothing(
    template: SimulatedDisk,
) -> None:
    await check_two_restores(template, 7)


@pytest.mark.extended
async def test_s17_wherever_the_first_is_when_the_second_begins(template: SimulatedDisk) -> None:
    await check_two_restores(template, 1)


async def check_openings_beside_a_restore(template: SimulatedDisk, step: int, *, fails: bool) -> None:
    """``fails``: the restore's last sync does, so that it takes its logs away again."""
    for number in range(0, await calls_of(restore_by, template.copy()), step):
        disk = template.copy()
        restoring = Running(restore_by, disk, PauseAt(number, fails=fails))
        opening = Running(append_by, disk, PauseAt())
        async with anyio.create_task_group() as tasks:
            await restoring.start(tasks)
            await opening.start(tasks)
            refusal, error = await opening.finish(), await restoring.finish()
        assert refusal is None or isinstance(refusal, StoreMismatch | Unavailable)
        if error is not None:
            assert (fails, refusal is not None) == (True, True), (number, error)
            await restore_by(SimulatedFiles(disk))
        await check(disk, int(refusal is None))


async def test_s17_a_store_is_not_opened_until_its_restore_has_ended(template: SimulatedDisk) -> None:
    for fails in (False, True):
        await check_openings_beside_a_restore(template, 11, fails=fails)


@pytest.mark.extended
@pytest.mark.parametrize("fails", [False, True])
async def test_s17_wherever_the_restore_is_when_the_opening_begins(
    template: SimulatedDisk, fails: bool
) -> None:
    await check_openings_beside_a_restore(template, 1, fails=fails)


@pytest.mark.parametrize("fails", [False, True])
async def test_s17_an_opening_that_began_before_the_restore_is_refused_or_has_its_store(
    template: SimulatedDisk, fails: bool
) -> None:
    """It goes on when the logs have just been published; ``fails``: they are taken away again."""
    for number in range(0, 40, 4):
        disk = template.copy()
        opening = Running(append_by, disk, PauseAt(number))
        restoring = Running(restore_by, disk, PauseAt(follows=is_published, fails=fails))
        async with anyio.create_task_group() as tasks:
            await opening.start(tasks)
            await restoring.start(tasks)
            refusal, error = await opening.finish(), await restoring.finish()
        assert (error is not None) == fails, (number, error)
        if error is not None:
            assert refusal is not None, number
            await restore_by(SimulatedFiles(disk))
        await check(disk, int(refusal is None))


# --- killed -----------------------------------------------------------------------------------------


@attrs.define
class FailedSyncAndEnd:
    """The sync number ``failing`` of a folder fails, of which nothing is kept, and the process ends after
    ``more`` calls."""

    failing: int
    more: int
    syncs: int = 0
    left: int | None = None

    def __call__(self, index: int, call: IoCall) -> Fault | None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0 and not isinstance(call, Close | Unlock):
                raise OSError(errno.EIO, "ended")
        elif isinstance(call, SyncFolder):
            self.syncs += 1
            if self.syncs == self.failing:
                self.left = self.more
                return Fail(OSError(errno.EIO, "no"))
        return None


async def check_killed(template: SimulatedDisk, failing: int, more: int) -> None:
    """What the next opening finds, which appends, or the next restore and an opening after it."""
    for restores in (False, True):
        disk, appended = template.copy(), 0
        disk.random = LosesEverything(failing)
        with suppress(TierlogError, OSError):
            await restore_by(SimulatedFiles(disk, FailedSyncAndEnd(failing, more)))
        try:
            await (restore_by if restores else append_by)(SimulatedFiles(disk))
        except InvalidArgument:  # the first one got to its end
            assert restores, (failing, more)
        except StoreMismatch:  # there is no store yet
            assert not restores, (failing, more)
            await restore_by(SimulatedFiles(disk))
        else:
            appended += not restores
        await append_by(SimulatedFiles(disk))
        await check(disk, appended + 1)


class LosesEverything(Random):
    def random(self) -> float:
        return 0.9


async def test_w11_a_restore_that_is_killed_at_or_after_a_failed_sync_leaves_what_can_be_relied_on(
    template: SimulatedDisk,
) -> None:
    counting = FailedSyncAndEnd(0, 0)
    await restore_by(SimulatedFiles(template.copy(), counting))
    for failing in range(1, counting.syncs + 1):
        for more in (0, 1):
            await check_killed(template, failing, more)


async def test_w11_what_settles_it_may_be_killed_too(template: SimulatedDisk) -> None:
    """An opening or a restore that finds what a killed restore left, at any of its syncs of the folder."""
    for settling in (append_by, restore_by):
        for more in range(4):
            disk = template.copy()
            disk.random = LosesEverything(more)
            with pytest.raises(Unavailable):
                await restore_by(SimulatedFiles(disk, FailedSyncAndEnd(await _last_sync(template), 0)))
            assert WAL in disk._folders
            with pytest.raises((TierlogError, OSError)):
                await settling(SimulatedFiles(disk, FailedSyncAndEnd(1, more)))
            await append_by(SimulatedFiles(disk))
            await check(disk, 1)


async def _last_sync(template: SimulatedDisk) -> int:
    """The number of the sync of the data folder that makes the name of the logs durable."""
    number, syncs = 0, 0

    def count(index: int, call: IoCall) -> None:
        nonlocal number, syncs
        if isinstance(call, SyncFolder):
            syncs += 1
            if call.path == FOLDER:
                number = syncs

    await restore_by(SimulatedFiles(template.copy(), count))
    return number

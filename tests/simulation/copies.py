"""Worlds in which folders share long-term storage that must not: a live copy, a lost log, an old copy of a
folder; a store that is restored from a backup; and a dead owner whose put arrives late (rules W8, G1, G4, G5,
S17). From ``FIRST_LATER`` on: a machine that runs twice, a folder that is adopted while its owner runs, and
merges of merges (rule F3).

Seeds from ``FIRST`` on are such worlds. Each has one story with two histories, and either may go on: the
folder that is opened last, adopted if need be, must have every byte that its own owners acked, before it is
confirmed and after that. Then nothing is left over. While there is no room for elements neither deletes, and
both must have every byte.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from random import Random

import anyio
import trio

from support.old_backups import BackupOptions, back_up_store
from tierlog.actors.folder.identity import read_identity
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.restore import RestoreOptions, restore_backup
from tierlog.actors.settings.configuration import StoreConfig
from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.element import Element
from tierlog.journal.manifest.pin_record import OLD_BACKUPS
from tierlog.storage_backends.base.errors import StoreMismatch, TierlogError
from tierlog.storage_backends.base.world import World

from .copied_folder import HERE, THERE, Folder
from .faults import KINDS, Fault, Kind, Nth, Target, Window
from .file_layer import SimulatedFiles
from .invariants import Broken
from .process import ProcessDied
from .published import names_kept_by
from .settings import ChunksKind, Latency, Limits, SiteKind, WalKind
from .storage_invariants import left_over
from .trace import Trace
from .world import FOLDER, Site

FIRST = 1 << 44
FIRST_LATER = FIRST + (1 << 32)
NAMES = ("s", "s#a", "t")
DELAY = 5.0
"""Of deletions: longer than an opening takes, so that a copy claims before its original deletes what only the
copy still refers to."""
PATIENCE = 30.0
"""Seconds that a call may take."""
COLLECT_SECONDS = 120.0
_BACKUP = "backup"
ELEMENTS = "/journal/"
"""A part of the name of each element."""


class Story(StrEnum):
    COPY = "a copy of a live folder"
    FULL_COPY = "a copy of a live folder, on full storage"
    LOST_LOG = "a lost log"
    OLD_BACKUP = "an old backup"
    IN_PLACE = "a log put back in place: same epoch, same fingerprint"
    RESTORE = "a store restored from a backup"
    ZOMBIE = "a late put of a dead owner"
    TWIN = "a machine that runs twice: same epoch, same fingerprint"
    ADOPTED = "a folder that is adopted while its owner runs"
    NESTED = "merges of merges"


_DISTURBED = ("create", "create_with_content", "write", "concat", "read", "list")
_DISTURBANCES = (Kind.BEFORE, Kind.AFTER, Kind.LOST, Kind.PARTIAL, Kind.FULL, Kind.STALL)
"""No stale lists: of claims, lists are taken as they are (rule W8)."""


_LATER = (Story.TWIN, Story.ADOPTED, Story.NESTED)


def choose_story(random: Random, seed: int) -> Story:
    """A seventh of the seeds are ``FULL_COPY``; the others are what they were before it was added."""
    story = random.choice([story for story in Story if story not in (Story.FULL_COPY, *_LATER)])
    if seed >= FIRST_LATER:
        return random.choice(_LATER)
    return Story.FULL_COPY if Random(f"full {seed}").randrange(7) == 0 else story


def site_kind(random: Random, story: Story) -> SiteKind:
    limits = Limits(
        flush_bytes=random.choice((100, 1500)),
        flush_age=random.choice((0.2, 2.0)),
        collect_after=DELAY,
        loose_chunks=0,
        relocate_above=1 << 30,
        rolling_size=random.choice((300, 4096)),
        checkpoint_bytes=random.choice((1000, 20_000)),
    )
    latency = Latency(log=0.001, chunks=0.002)
    if story is Story.RESTORE:  # which works on files
        return SiteKind(limits=limits, latency=latency)

    return SiteKind(
        wal=WalKind.SERVICE,
        chunks=random.choice((ChunksKind.APPEND, ChunksKind.OBJECTS)),
        limits=limits,
        latency=latency,
    )


class CopiesRun:
    """One seed's run; ``body`` raises what it finds."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self._random = Random(f"copies {seed}")
        self._trace = trace
        self.story = choose_story(self._random, seed)
        self._copies_runs = Random(f"runs {seed}").random() < 0.5
        """Whether a copy of a live folder has its local runs."""
        self._second_restore = Random(f"restores {seed}").randrange(300)
        """The step of a restore at which another one begins."""
        self._is_pinned = Random(f"pins {seed}").random() < 0.6
        """Whether the backup that is restored is one of this version."""
        self.site = Site(site_kind(self._random, self.story), Random(f"site {seed}"), trace)
        self.operations = 0
        self._tasks: anyio.abc.TaskGroup

    @property
    def title(self) -> str:
        return self.story

    async def body(self) -> None:
        stories: Mapping[Story, Callable[[Folder], Awaitable[list[Folder]]]] = {
            Story.COPY: self._copy,
            Story.FULL_COPY: self._copy_on_full_storage,
            Story.LOST_LOG: self._lose_the_log,
            Story.OLD_BACKUP: self._restore_an_old_backup,
            Story.IN_PLACE: self._put_the_log_back,
            Story.RESTORE: self._restore_a_backup,
            Story.ZOMBIE: self._let_a_zombie_put_late,
            Story.TWIN: self._run_twice,
            Story.ADOPTED: self._adopt_while_its_owner_runs,
            Story.NESTED: self._nest_merges,
        }
        self._trace.note("story", self.story)
        async with anyio.create_task_group() as self._tasks:
            original = Folder("A", MemoryLogService(), HERE)
            await self._open(original)
            await self._create(original)
            await self._work(original, self._random.randint(5, 25))
            folders = await stories[self.story](original)
            await self._let_one_go_on(folders)
            self.site.kill_all()
            self._tasks.cancel_scope.cancel()

    # --- stories ----------------------------------------------------------------------------------

    async def _copy(self, original: Folder) -> list[Folder]:
        copy, elements = self._copy_of(original), self._elements()
        try:
            await self._open(copy)
        except Broken as broken:
            if not isinstance(broken.__cause__, StoreMismatch) or self._elements() == elements:
                raise
            return [original, copy]  # the original created the next element first (rule J6)
        await self._check(copy)
        for _ in range(self._random.randint(3, 12)):
            folder = self._random.choice((original, copy))
            match self._random.choice(("work", "work", "work", "again")):
                case "again" if folder is copy:
                    await self._end(copy)
                    await self._open(copy)
                case _:
                    await self._work(folder, self._random.randint(1, 6), disturbed=False)
                    await self._call(folder, lambda store: store.flush())
            await trio.sleep(self._random.choice((0.0, 1.0, 10.0)))
        folder = self._random.choice((original, copy))
        for name in NAMES:
            await self._truncate(folder, name, len(folder.acked[name]))
        await self._call(folder, lambda store: store.flush())
        await trio.sleep(3 * DELAY)  # it would collect what only the other one needs
        await self._end(original)
        await self._expect_refusals(original)
        return [original, copy]

    def _copy_of(self, original: Folder) -> Folder:
        """A copy of a live folder. Long-term storage has all runs that it names, because nobody deletes
        now."""
        return original.copied("B", THERE, self.site.disk, with_runs=self._copies_runs)

    async def _copy_on_full_storage(self, original: Folder) -> list[Folder]:
        """While neither can create an element, neither may delete what the other one needs (rule J9)."""
        await self._flush(original)
        copy, moment = self._copy_of(original), self._random.randrange(3)
        if moment:
            await self._leave_an_intent(original)
            copy = self._copy_of(original)
        if moment > 1:  # the copy has the intent, and not what follows
            await self._work_without_room(original)
        self._fill_storage()
        await self._open(copy)
        for _ in range(self._random.randint(2, 6)):
            folder = self._random.choice((original, copy))
            if self._random.random() < 0.2:
                await self._end(folder)
                await self._open(folder)
            await self._work_without_room(folder)
            self._fill_storage()
            await trio.sleep(self._random.choice((0.0, 1.0, 3 * DELAY)))
        await trio.sleep(3 * DELAY)
        for folder in (original, copy):
            await self._check(folder)
        self.site.faults.clear()
        for folder in self._random.sample((original, copy), 2):
            await self._call(folder, lambda store: store.flush())
        await trio.sleep(3 * DELAY)
        await self._end(original)
        await self._end(copy)
        newest = Element.decode(self.site.chunk_contents()[max(self._elements())])
        # The original is confirmed: once it has created the next element, it deletes.
        return [original, copy] if newest.owner.folder == THERE.digest else [original]

    async def _leave_an_intent(self, folder: Folder) -> None:
        """A recorded element without an outcome; it may exist. From now on there is no room for elements."""
        kind = self._random.choice((Kind.AFTER, Kind.LOST, Kind.FULL))
        self.site.faults.add(Fault(Target.CHUNKS, kind, Nth(), ("create_with_content",), part=ELEMENTS))
        self._fill_storage(ELEMENTS)
        await self._append(folder, self._random.choice(NAMES))
        await self._call(folder, lambda store: store.flush())

    async def _work_without_room(self, folder: Folder) -> None:
        for _ in range(self._random.randint(1, 3)):
            name = self._random.choice(NAMES)
            match self._random.choice(("append", "append", "truncate")):
                case "append":
                    await self._append(folder, name)
                case _:
                    await self._truncate(folder, name, len(folder.acked[name]))
        await self._call(folder, lambda store: store.flush())

    def _fill_storage(self, part: str | None = None) -> None:
        """There is no room for objects with ``part`` in their name; by default for elements, or for any."""
        if part is None:
            self.site.faults.clear()
            part = self._random.choice((ELEMENTS, ""))
        self.site.faults.add(Fault(Target.CHUNKS, Kind.FULL, Window(10_000.0, 1.0), part=part))

    async def _lose_the_log(self, original: Folder) -> list[Folder]:
        await self._flush(original)
        await self._end(original)
        empty, elements = Folder("B", MemoryLogService(), HERE), self._elements()
        for adopt in (False, True, False):
            await self._expect_refusals(empty, adopt=adopt)
        if self._elements() != elements:
            raise Broken("it does not hold that a refusal changes nothing")
        return [original]

    async def _restore_an_old_backup(self, original: Folder) -> list[Folder]:
        await self._flush(original)
        await trio.sleep(4 * DELAY)  # what was truncated is collected, and the backup refers to none of it
        backup = original.copied("B", HERE, self.site.disk)
        await self._end(original)
        await self._open(original)
        await self._work(original, self._random.randint(1, 12), truncates=False)
        await self._flush(original)
        await self._end(original)
        await self._expect_refusals(backup)
        await self._open(backup, adopt=True)
        backup.check_versions(original)
        await self._work(backup, self._random.randint(1, 12))
        return [original, backup]

    async def _put_the_log_back(self, original: Folder) -> list[Folder]:
        """Its owner went on after the backup, and crashed before another one opened the folder: after a whole
        flush, or before the end of one, of which only its chunks tell."""
        await self._flush(original)
        await trio.sleep(4 * DELAY)  # as above
        backup = original.copied("B", HERE, self.site.disk)
        elements = self._elements()
        if self._random.random() < 0.3:
            await self._work(original, self._random.randint(1, 12), truncates=False, disturbed=False)
        else:
            down, verbs = Window(1000.0, 1.0), ("create_with_content",)
            self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, down, verbs, part=ELEMENTS))
            for _ in range(self._random.randint(1, 6)):
                await self._append(original, self._random.choice(NAMES))
        await self._call(original, lambda store: store.flush())
        process, original.process = original.process, None
        assert process is not None
        process.kill()
        self.site.faults.clear()
        await trio.sleep(1.0)  # a call of the dead process may still take effect
        is_whole = self._elements() != elements
        if is_whole:
            await self._expect_refusals(backup)
        elif self._random.random() < 0.5:  # the listing that shows the newer chunks is late
            down = Window(1000.0, 1.0)
            self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, down, ("list",), part="containers/0000/"))
        await self._open(backup, adopt=is_whole)
        await self._work(backup, self._random.randint(0, 6), disturbed=False)
        self.site.faults.clear()
        await self._check(backup)
        await self._append(backup, NAMES[0])  # so that it claims, if it could not at its opening
        await self._flush(backup)
        await trio.sleep(3 * DELAY)  # it would collect what only the newer log knows
        await self._end(backup)
        await self._expect_refusals(original)
        return [original, backup]

    def _elements(self) -> set[str]:
        return {name for name in self.site.chunk_contents() if ELEMENTS in name}

    async def _restore_a_backup(self, original: Folder) -> list[Folder]:
        """Newer data was flushed after the backup. The restored store keeps it until it is confirmed. A
        backup of this version keeps what it needs, whatever is deleted before it is restored."""
        await self._flush(original)
        options = BackupOptions(_BACKUP, await self._store_id(), 0, upgraded=False)

        async def back_up(store: SegmentStore) -> None:
            if self._is_pinned:
                await store.backup(_BACKUP)
            else:
                await back_up_store(store, None, options, no_progress)

        if not await self._call(original, back_up):
            raise Broken("it does not hold that a store can be backed up")
        restored = original.copied("B", HERE, self.site.disk)
        await self._work(original, self._random.randint(1, 12), truncates=self._is_pinned)
        await self._flush(original)
        if self._is_pinned:
            await trio.sleep(4 * DELAY)  # what was truncated would be collected
        await self._end(original)
        newer = self._chunks()
        self.site.disk.rename(FOLDER.wal, "/lost-wal")
        await self._restore_twice()
        await self._open(restored)
        await self._check(restored)
        for _ in range(self._random.randint(1, 3)):
            await self._work(restored, self._random.randint(1, 12))
            await self._flush(restored)
            await trio.sleep(4 * DELAY)  # it would collect what only the lost log knew
            await self._end(restored)
            await self._open(restored)
        await self._check(restored)
        if gone := newer - self._chunks():
            raise Broken(f"it does not hold that newer data is kept\ngone: {', '.join(sorted(gone))}")

        return [restored]

    async def _restore_twice(self) -> None:
        """By two processes, of which the second begins at any step of the first one: one restores the store,
        and the other is refused (rule S17)."""
        refusals: list[TierlogError] = []

        async def attempt(steps: int) -> None:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            config, world = StoreConfig(containers=1), World(trio.current_time, Random(0), self._new_id)
            try:
                files = SimulatedFiles(self.site.disk)
                await restore_backup(FOLDER, RestoreOptions(_BACKUP), config, files, world, no_progress, None)
            except TierlogError as error:
                refusals.append(error)
                self._trace.note("restore", repr(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempt, 0)
            nursery.start_soon(attempt, self._second_restore)
        if len(refusals) != 1:
            raise Broken(f"it does not hold that one of two restores is refused\n{refusals}")

    async def _store_id(self) -> bytes:
        identity = await SimulatedFiles(self.site.disk).run(read_identity(FOLDER.wal))
        assert identity is not None
        return identity.store_id

    def _new_id(self) -> str:
        """For the process that restores."""
        self.operations += 1
        return f"{1 << 63:016x}{self.operations:016x}"

    def _chunks(self) -> set[str]:
        return {name for name in self.site.chunk_contents() if name.startswith("containers/")}

    async def _let_a_zombie_put_late(self, original: Folder) -> list[Folder]:
        """It is frozen in a put, and goes on once its successor has listed what it found."""
        zombie = original.process
        assert zombie is not None
        for name in NAMES:
            await self._append(original, name)
        verbs = ("create", "create_with_content")
        self.site.faults.add(Fault(Target.CHUNKS, Kind.FREEZE, Nth(), verbs, zombie.number))
        self._tasks.start_soon(self._call, original, lambda store: store.flush())
        await trio.sleep(1.0)
        original.process = None
        await self._open(original)
        await trio.sleep(self._random.choice((1.0, 12.0)))
        zombie.resume()
        # One ownership must find it: another one would list from the start.
        await self._work(original, self._random.randint(1, 12), disturbed=False)
        await self._wait_for_the_collector(original)
        return [original]

    async def _run_twice(self, original: Folder) -> list[Folder]:
        """A snapshot of the machine is resumed beside it. Exactly one of the two goes on, and has everything
        that it acked; what the other one has not flushed stays in its log."""
        if self._random.random() < 0.5:
            await self._leave_an_intent(original)
        twin, elements = original.copied("B", HERE, self.site.disk), self._elements()
        self.site.faults.clear()
        try:
            await self._open(twin)
        except Broken as broken:
            if not isinstance(broken.__cause__, StoreMismatch) or self._elements() == elements:
                raise
        else:
            await self._check(twin)
        for _ in range(self._random.randint(3, 12)):
            folder = self._random.choice((original, twin))
            if folder.process is not None:
                await self._work(folder, self._random.randint(1, 6), disturbed=False)
                await self._call(folder, lambda store: store.flush())
            await trio.sleep(self._random.choice((0.0, 1.0, 3 * DELAY)))
        for folder in (original, twin):
            await self._end(folder)
        await trio.sleep(1.0)  # a call of a killed process may still take effect
        going_on = [
            folder for folder in self._random.sample((original, twin), 2) if await self._goes_on(folder)
        ]
        if len(going_on) != 1:
            raise Broken(f"it does not hold that one of two twins goes on\n{len(going_on)} do")
        return going_on

    async def _goes_on(self, folder: Folder) -> bool:
        """Whether the folder is opened as it is."""
        try:
            await self._open(folder)
        except Broken as broken:
            if isinstance(broken.__cause__, StoreMismatch):
                return False
            raise
        await self._check(folder)
        await self._end(folder)
        return True

    async def _adopt_while_its_owner_runs(self, original: Folder) -> list[Folder]:
        """An operator goes on with an old copy, and has not stopped what is newer."""
        await self._flush(original)
        await trio.sleep(4 * DELAY)  # what was truncated is collected, and the copy refers to none of it
        copy = original.copied("B", self._random.choice((HERE, THERE)), self.site.disk)
        await self._work(original, self._random.randint(1, 12), truncates=False, disturbed=False)
        await self._append(original, NAMES[0])
        await self._flush(original)
        await self._open(copy, adopt=True)
        for _ in range(self._random.randint(2, 8)):
            folder = self._random.choice((original, copy))
            await self._work(folder, self._random.randint(1, 4), disturbed=False)
            await self._call(folder, lambda store: store.flush())
            await trio.sleep(self._random.choice((0.0, 1.0, 3 * DELAY)))
        await self._check(copy)
        await self._end(original)
        await self._expect_refusals(original)
        return [original, copy]

    async def _nest_merges(self, original: Folder) -> list[Folder]:
        """Each segment is merged into the next one, which is merged in turn."""
        depth = self._random.choice((10, 100, 1000))
        if self._random.random() < 0.5:  # all of them are flushed in one cycle
            down, verbs = Window(1e6, 1.0), ("create", "create_with_content", "write", "concat")
            self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, down, verbs))
        inner = ""
        for number in range(depth):
            outer = f"n{number}"
            await self._must(original, lambda store, name=outer: store.create_segment(name))  # type: ignore[misc]
            original.acked[outer], original.starts[outer] = b"", 0
            await self._append(original, outer)
            if inner:
                await self._merge(original, outer, inner)
            inner = outer
            if self._random.randrange(depth) < 3:
                if self._random.random() < 0.5:
                    self.site.lose_power(self._random.choice(("none", "random")))
                    original.process = None
                else:
                    await self._end(original)
                await self._open(original)
                await self._check(original)
        self.site.faults.clear()
        return [original]

    async def _merge(self, folder: Folder, target: str, source: str) -> None:
        await self._must(folder, lambda store: store.seal_segment(source))
        await self._must(folder, lambda store: store.merge_segments(target, [source]))
        folder.acked[target] += folder.acked.pop(source)
        del folder.starts[source]

    async def _must(self, folder: Folder, verb: Callable[[SegmentStore], Awaitable[object]]) -> None:
        if not await self._call(folder, verb):
            raise Broken(f"it does not hold that folder {folder.name} takes operations")

    # --- the end ----------------------------------------------------------------------------------

    async def _let_one_go_on(self, folders: list[Folder]) -> None:
        survivor = self._random.choice(folders)
        for folder in folders:
            await self._end(folder)
        await self._open(survivor, adopt=True)
        await self._check(survivor)
        for other in folders:
            if other is not survivor:
                await self._expect_refusals(other)
        await self._flush(survivor)
        await trio.sleep(10 * DELAY)
        await self._check(survivor)

        process = survivor.process
        assert process is not None
        for container in process.containers():
            await container.confirmation.confirm()
        await self._flush(survivor)
        if self.story is Story.RESTORE and self._is_pinned:
            await trio.sleep(10 * DELAY)
            await self._remove_the_backup(survivor)
        await self._wait_for_the_collector(survivor)
        await self._check(survivor)
        await self._end(survivor)
        await self._open(survivor)
        await self._check(survivor)

    async def _remove_the_backup(self, survivor: Folder) -> None:
        """What the backup needs was kept by a confirmed store, which deleted the rest. Once the backup is
        removed, nothing of it is left over."""
        process = survivor.process
        assert process is not None
        for container in process.containers():
            for pin in container.pins.known:
                if missing := await names_kept_by(container, pin) - self.site.chunk_contents().keys():
                    raise Broken(f"it does not hold that a backup keeps what it needs\n{sorted(missing)}")
        await self._must(survivor, lambda store: store.remove_backup(_BACKUP))
        await self._flush(survivor)

    async def _wait_for_the_collector(self, folder: Folder) -> None:
        process, end = folder.process, trio.current_time() + COLLECT_SECONDS
        assert process is not None
        while left := left_over(process.containers(), self._collectable()):
            if trio.current_time() > end:
                raise Broken(f"it does not hold that nothing is left over\n{', '.join(left)}")

            await self._flush(folder)
            await trio.sleep(1.0)

    def _collectable(self) -> dict[str, bytes]:
        """What long-term storage has, without backups."""
        contents = self.site.chunk_contents()
        return {name: data for name, data in contents.items() if not name.startswith(OLD_BACKUPS)}

    # --- processes --------------------------------------------------------------------------------

    async def _open(self, folder: Folder, *, adopt: bool = False) -> None:
        assert folder.process is None
        try:
            with trio.fail_after(PATIENCE):
                folder.process = await self.site.start(self._tasks, folder.served(adopt=adopt))
        except (TierlogError, ProcessDied) as error:
            raise Broken(f"it does not hold that folder {folder.name} can be opened\n{error!r}") from error

    async def _expect_refusals(self, folder: Folder, *, adopt: bool = False) -> None:
        """Each attempt raises the log's epoch, and is refused all the same."""
        for _ in range(self._random.randint(1, 3)):
            try:
                await self.site.start(self._tasks, folder.served(adopt=adopt))
            except StoreMismatch:
                continue
            raise Broken(f"it does not hold that folder {folder.name}, which is not the newest, is refused")

    async def _end(self, folder: Folder) -> None:
        process, folder.process = folder.process, None
        for container in process.containers() if process is not None else ():
            folder.versions[container.index] = container.state.sequence
        if process is not None and self._random.random() < 0.5:
            await process.stop()
        elif process is not None:
            process.kill()

    # --- clients ----------------------------------------------------------------------------------

    async def _call(self, folder: Folder, verb: Callable[[SegmentStore], Awaitable[object]]) -> bool:
        """Whether it was answered; otherwise it may have happened or not."""
        self.operations += 1
        process = folder.process
        assert process is not None
        with trio.move_on_after(PATIENCE):
            try:
                await process.call(verb)
            except (TierlogError, ProcessDied) as error:
                self._trace.note(folder.name, repr(error))
            else:
                return True
        return False

    async def _create(self, folder: Folder) -> None:
        for name in NAMES:
            if not await self._call(folder, lambda store, name=name: store.create_segment(name)):  # type: ignore[misc]
                raise Broken(f"it does not hold that folder {folder.name} takes new segments")

            folder.acked[name], folder.starts[name] = b"", 0

    async def _work(
        self, folder: Folder, steps: int, *, truncates: bool = True, disturbed: bool = True
    ) -> None:
        """``disturbed``: calls of long-term storage may fail, and power may be lost once, after which the
        folder is opened again; no other folder may be open then."""
        power = self._random.randrange(2 * steps + 1) if disturbed else steps
        for step in range(steps):
            if disturbed and self._random.random() < 0.1:
                self._disturb()
            if step == power:
                self.site.faults.clear()
                self.site.lose_power(self._random.choice(("none", "random")))
                folder.process = None
                await self._open(folder)
                await self._check(folder)
            match self._random.choice(("append", "append", "append", "flush", "truncate", "wait")):
                case "append":
                    await self._append(folder, self._random.choice(NAMES))
                case "flush":
                    await self._call(folder, lambda store: store.flush())
                case "truncate" if truncates:
                    name = self._random.choice(NAMES)
                    start = self._random.randint(folder.starts[name], len(folder.acked[name]))
                    await self._truncate(folder, name, start)
                case _:
                    await trio.sleep(self._random.choice((0.1, 1.0, 2 * DELAY)))
        self.site.faults.clear()

    def _disturb(self) -> None:
        kind = self._random.choice(_DISTURBANCES)
        verbs = KINDS[Target.CHUNKS, kind] or _DISTURBED
        self.site.faults.add(
            Fault(
                Target.CHUNKS,
                kind,
                Window(self._random.choice((0.5, 5.0, 60.0)), self._random.choice((0.1, 0.5, 1.0))),
                tuple(verb for verb in verbs if verb in _DISTURBED),
                keep=self._random.choice((0, 1, 100)),
                seconds=self._random.choice((0.5, 8.0)),
            )
        )

    async def _append(self, folder: Folder, name: str) -> None:
        if name in folder.doubts:
            return

        data = f"{folder.name}{self.operations}.".encode() * self._random.choice((1, 20, 100))
        folder.doubts[name] = data
        if await self._call(folder, lambda store: store.append(name, data)):
            folder.acked[name] += folder.doubts.pop(name)

    async def _truncate(self, folder: Folder, name: str, start: int) -> None:
        folder.starts_sent[name] = max(start, folder.starts_sent.get(name, 0))
        if await self._call(folder, lambda store: store.truncate_segment(name, start)):
            folder.starts[name] = start

    async def _flush(self, folder: Folder) -> None:
        """Some attempts may still meet what a fault has left, such as a breaker."""
        for _ in range(5):
            if await self._call(folder, lambda store: store.flush()):
                return
            await trio.sleep(1.0)
        raise Broken(f"it does not hold that folder {folder.name} can be flushed")

    async def _check(self, folder: Folder) -> None:
        """The folder has what its owners acked, and learns of what was in doubt."""
        process = folder.process
        assert process is not None
        for name, acked in folder.acked.items():
            try:
                data, start = await process.call(lambda store, name=name: read_all(store, name))  # type: ignore[misc]
            except TierlogError as error:
                raise Broken(f"it does not hold that folder {folder.name} can be read\n{error!r}") from error
            whole = acked + folder.doubts.pop(name, b"")
            if start < folder.starts[name] or data not in (acked[start:], whole[start:]):
                raise Broken(
                    f"it does not hold that folder {folder.name} has what was acked\n{name} from {start} on: "
                    f"{len(data)} bytes, not {len(acked) - start} or {len(whole) - start}"
                )
            folder.acked[name] = whole if data == whole[start:] else acked
            folder.starts[name] = start


async def read_all(store: SegmentStore, name: str) -> tuple[bytes, int]:
    info = await store.segment_info(name)
    data, position = b"", info.start_offset
    while block := await store.read(name, position, 1 << 20):
        data += block
        position += len(block)
    return data, info.start_offset

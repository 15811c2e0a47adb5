"""Worlds in which one folder is opened again under hard conditions: long-term storage was put back to an
earlier state, also below a running owner, it is down after very many cycles, or the owner is killed again and
again (rules J3, J4, J6, J8, J11, M6).

Seeds from ``FIRST_REOPENED`` on are such worlds. The end is that of the other worlds of folders: the owner
that is opened last has every byte that was acked, and nothing is left over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import partial

import anyio
import trio

from tierlog.actors.store.store import SegmentStore
from tierlog.journal.log.memory import MemoryLogService
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunk

from .copied_folder import HERE, Folder
from .copies import DELAY, FIRST, NAMES, CopiesRun
from .faults import Fault, Kind, Target, Window
from .invariants import Broken
from .process import Process, ProcessDied
from .published import names_kept_by
from .trace import Trace

FIRST_REOPENED = FIRST + (2 << 32)


class Reopening(StrEnum):
    STORAGE_BACK = "long-term storage that is put back, and then forward"
    STORAGE_BACK_BELOW = "long-term storage that is put back below a running owner"
    STORAGE_DEAD = "long-term storage that is down after very many cycles"
    REBOOTS = "very many deaths in a row"


class ReopenedRun(CopiesRun):
    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self.reopening = self._random.choice(list(Reopening))

    @property
    def title(self) -> str:
        return self.reopening

    async def body(self) -> None:
        stories: Mapping[Reopening, Callable[[Folder], Awaitable[None]]] = {
            Reopening.STORAGE_BACK: self._put_storage_back,
            Reopening.STORAGE_BACK_BELOW: self._put_storage_back_below,
            Reopening.STORAGE_DEAD: self._open_without_storage,
            Reopening.REBOOTS: self._die_again_and_again,
        }
        self._trace.note("story", self.reopening)
        async with anyio.create_task_group() as self._tasks:
            folder = Folder("A", MemoryLogService(), HERE)
            await self._open(folder)
            await self._create(folder)
            await self._work(folder, self._random.randint(5, 25))
            await stories[self.reopening](folder)
            await self._let_one_go_on([folder])
            self.site.kill_all()
            self._tasks.cancel_scope.cancel()

    async def _put_storage_back(self, folder: Folder) -> None:
        """It lacks what was flushed since: the folder is refused, and nothing is changed, until the newest
        state is back in place."""
        earlier, backups = await self._live_on_after_a_copy(folder)
        await self._end(folder)
        await trio.sleep(1.0)  # a call of a killed process may still take effect
        newest = self.site.chunk_contents()
        for _ in range(self._random.randint(1, 2)):
            self._set_storage(earlier)
            await self._expect_refusals(folder)
            if self.site.chunk_contents() != earlier:
                raise Broken("it does not hold that storage which was put back is left alone")
            self._set_storage(newest)
            await self._open(folder)
            await self._check(folder)
            await self._check_backups(folder, backups)
            await self._end(folder)
            await trio.sleep(1.0)
            newest = self.site.chunk_contents()
        await self._open(folder)
        await self._remove_backups(folder)

    async def _live_on_after_a_copy(self, folder: Folder) -> tuple[dict[str, bytes], set[str]]:
        """What long-term storage has, before the folder is used on and backups are made and removed; then the
        backups that there are. What is deleted in between, garbage and what only a backup needed, is missing
        if the copy is put in place."""
        await self._flush(folder)
        backups = {f"b{number}" for number in range(self._random.randint(0, 2))}
        for name in sorted(backups):
            await self._must(folder, lambda store, name=name: store.backup(name))  # type: ignore[misc]
            await self._work(folder, self._random.randint(0, 3), disturbed=False)
        earlier = self.site.chunk_contents()
        for name in sorted(backups):
            if self._random.random() < 0.5:
                await self._must(folder, lambda store, name=name: store.remove_backup(name))  # type: ignore[misc]
                backups.remove(name)
        await self._work(folder, self._random.randint(1, 12), disturbed=False)
        if self._random.random() < 0.5:
            await self._must(folder, lambda store: store.backup("later"))
            backups.add("later")
        await trio.sleep(self._random.choice((0.0, 3 * DELAY)))
        await self._append(folder, NAMES[0])
        await self._flush(folder)
        return earlier, backups

    async def _check_backups(self, folder: Folder, names: set[str]) -> None:
        assert folder.process is not None
        found = {backup.name: backup for backup in await folder.process.call(lambda store: store.backups())}
        contents = self.site.chunk_contents()
        for container in folder.process.containers():
            for pin in container.pins.known:
                if missing := await names_kept_by(container, pin) - contents.keys():
                    raise Broken(f"it does not hold that a backup keeps what it needs\n{pin}: {missing}")
        if found.keys() != names or any(backup.problem for backup in found.values()):
            raise Broken(f"it does not hold that backups are as they were\n{found}, and there were {names}")

    async def _remove_backups(self, folder: Folder) -> None:
        assert folder.process is not None
        for backup in await folder.process.call(lambda store: store.backups()):
            await self._must(folder, lambda store, name=backup.name: store.remove_backup(name))  # type: ignore[misc]
        await self._flush(folder)

    async def _put_storage_back_below(self, folder: Folder) -> None:
        """Its owner answers no flush any more, deletes nothing, and ends at its next check of the chain. What
        it wrote until then is kept when the newest state is put in place."""
        earlier, backups = await self._live_on_after_a_copy(folder)
        newest = self.site.chunk_contents()
        self._set_storage(earlier)
        for number in range(self._random.randint(0, 8)):
            backup = partial(SegmentStore.backup, name=f"n{number}")
            match self._random.choice(("append", "append", "flush", "back up", "remove", "wait")):
                case "append":
                    await self._append(folder, self._random.choice(NAMES))
                case "back up":
                    await self._expect_no_answer(folder, backup)
                case "remove":
                    name = self._random.choice(("b0", "b1", "later"))
                    await self._expect_no_answer(folder, lambda store, name=name: store.remove_backup(name))  # type: ignore[misc]
                case "flush":
                    await self._expect_no_flush(folder)
                case _:
                    await trio.sleep(self._random.choice((0.1, 1.0, 2 * DELAY)))
        await self._expect_no_flush(folder)
        await self._end(folder)
        await trio.sleep(1.0)
        found = self.site.chunk_contents()
        if any(not found.get(name, b"").startswith(data) for name, data in earlier.items()):
            raise Broken("it does not hold that storage which was put back is left alone")
        # What was appended to a chunk too: until the check its owner could not know.
        merged = {
            name: max(newest.get(name, b""), found.get(name, b""), key=len) for name in {**newest, **found}
        }
        gone = earlier.keys() - newest.keys()
        self._set_storage({name: data for name, data in merged.items() if name not in gone})
        await self._open(folder)
        await self._check(folder)
        await self._check_backups(folder, backups)
        await self._remove_backups(folder)

    async def _expect_no_answer(
        self, folder: Folder, verb: Callable[[SegmentStore], Awaitable[object]]
    ) -> None:
        if await self._call(folder, verb):
            raise Broken("it does not hold that no backup is made or removed while storage is put back")

    async def _expect_no_flush(self, folder: Folder) -> None:
        """Of bytes that are not flushed yet: without any, nothing is asked of storage."""
        await self._append(folder, self._random.choice(NAMES))
        if await self._call(folder, lambda store: store.flush()):
            raise Broken("it does not hold that nothing counts as flushed while storage is put back")

    def _set_storage(self, contents: Mapping[str, bytes]) -> None:
        chunks = self.site.chunk_state.chunks
        chunks.clear()
        chunks.update({name: MemoryChunk(bytearray(data)) for name, data in contents.items()})

    async def _open_without_storage(self, folder: Folder) -> None:
        """No element could be deleted, in some worlds. Names and lengths are known without storage."""
        if self._random.random() < 0.5:
            never = Window(1e6, 1.0)
            self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, never, ("delete",), part="/journal/"))
        cycles = self._random.choice((10, 100, 300))
        for _ in range(cycles):
            await self._append(folder, self._random.choice(NAMES))
            await self._flush(folder)
        await self._end(folder)
        self.site.faults.clear()
        self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, Window(1e6, 1.0)))
        await self._open(folder)
        process = folder.process
        assert process is not None
        for name in NAMES:
            info = await process.call(lambda store, name=name: store.segment_info(name))  # type: ignore[misc]
            if info.length not in (
                len(folder.acked[name]),
                len(folder.acked[name]) + len(folder.doubts.get(name, b"")),
            ):
                raise Broken(f"it does not hold that the length of {name} is known without storage")
            await self._append(folder, name)
        self.site.faults.clear()
        await self._check(folder)
        for _ in range(2 + cycles // 20):  # rule J8: old elements are deleted little by little
            await self._append(folder, NAMES[0])
            await self._flush(folder)

    async def _die_again_and_again(self, folder: Folder) -> None:
        """After a moment each time, some with calls under way."""
        for number in range(self._random.choice((10, 100))):
            if self._random.random() < 0.7:
                await self._append(folder, self._random.choice(NAMES))
            process, folder.process = folder.process, None
            assert process is not None
            if self._random.random() < 0.5:
                self._tasks.start_soon(_flush, process)
                await trio.sleep(self._random.choice((0.0, 0.001, 0.01, 0.1)))
            if self._random.random() < 0.5:
                process.kill()
            else:
                self.site.lose_power(self._random.choice(("none", "random")))
            await self._open(folder)
            if number % 10 == 0:
                await self._check(folder)
        await self._check(folder)


async def _flush(process: Process) -> None:
    """The process may die meanwhile."""
    with suppress(TierlogError, ProcessDied):
        await process.call(lambda store: store.flush())

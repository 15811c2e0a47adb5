"""Worlds in which backups are made, removed and restored at random, while owners die between the steps of a
backup, garbage is collected, and calls of long-term storage fail (rules P1 to P7).

Backups are copied to another place, by calls that end anywhere, and what they leave there is damaged. A copy
that is complete has everything by itself (rule P7).

Each backup has what was acked before the call that made it, whatever was deleted since, and however often the
store was restored from others. Of one whose call got no answer this holds if it is listed as complete. In the
end nothing is left of those that were removed, nor of those that never were.

Seeds from ``FIRST_PINNED`` on are such worlds. The end is that of the other worlds of folders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
import attrs
import trio

from tierlog.actors.container.lts_boot import read_boot
from tierlog.actors.container.published_check import pages_of_rows
from tierlog.actors.maintenance.backup_copy import copy_backup
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.pin_record import PINS, pin_record_name, read_pinned, require_pin_record
from tierlog.storage_backends.base.backups import Backup
from tierlog.storage_backends.base.errors import BackupNotFound, StoreMismatch, TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records import ChunkRecord
from tierlog.storage_backends.segments.records.chunk import CHUNK_PREFIX
from tierlog.storage_backends.segments.transaction import decode_record
from tierlog.storage_backends.segments.verify import find_flaws
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns
from tierlog.storage_backends.sorted_runs.table import Table
from tierlog.testing import faulty_chunk_storage as scripted
from tierlog.testing.faulty_chunk_storage import Call, FaultyChunkStorage

from .copied_folder import HERE, Folder
from .copies import DELAY, ELEMENTS, FIRST, NAMES, CopiesRun
from .faults import Fault, Kind, Nth, Target, Window
from .invariants import Broken
from .records import OWN_CHUNKS
from .recovered import RecoveredRun
from .settings import ChunksKind
from .trace import Trace
from .world import Site

FIRST_PINNED = FIRST + (4 << 32)
_KEPT_MAX = 4


@attrs.frozen(eq=False)
class _Snapshot:
    """What a backup has at least, and what it may have."""

    acked: dict[str, bytes]
    starts: dict[str, int]
    most: Folder

    @classmethod
    def of(cls, folder: Folder) -> _Snapshot:
        most = Folder(folder.name, folder.logs, folder.fingerprint)
        most.acked, most.doubts = dict(folder.acked), dict(folder.doubts)
        most.starts_sent = {
            name: max(start, folder.starts_sent.get(name, 0)) for name, start in folder.starts.items()
        }
        return cls(dict(folder.acked), dict(folder.starts), most)


class PinnedRun(RecoveredRun):
    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self._backups: dict[str, _Snapshot] = {}
        """Those that were acked, and that nobody has begun to remove."""
        self._doubtful: dict[str, _Snapshot] = {}
        """Those whose call got no answer."""
        self._removed: set[str] = set()
        """Those whose removal was begun, and got no answer."""
        self._made = self._restored = 0
        self._place = MemoryChunkState()
        """Where backups are copied to."""
        # In some worlds nothing is flushed by itself, so that a backup has to.
        age, size = self._random.choice(((0.2, 100), (2.0, 1500), (60.0, 1 << 20)))
        limits = attrs.evolve(self.site.kind.limits, flush_age=age, flush_bytes=size)
        containers = self._random.choice((1, 1, 2))
        cache = self._random.choice((0, 64 << 10, 1 << 20))
        kind = attrs.evolve(
            self.site.kind,
            limits=limits,
            containers=containers,
            chunk_cache=cache if self.site.kind.chunks is ChunksKind.OBJECTS else 0,
        )
        self.site = Site(kind, self._random, trace)

    @property
    def title(self) -> str:
        return "backups that are made, removed and restored"

    async def body(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            folder = Folder("A", MemoryLogService(), HERE)
            await self._open(folder)
            await self._create(folder)
            for _ in range(self._random.randint(6, 20)):
                folder = await self._step(folder)
            await self._check_backups(folder)
            folder = await self._restore(folder, [*self._backups])
            await self._remove_all(folder)
            await self._let_one_go_on([folder])
            await self._check_pins(folder)
            self.site.kill_all()
            self._tasks.cancel_scope.cancel()

    async def _step(self, folder: Folder) -> Folder:
        match self._random.choice(
            ("work", "work", "back up", "back up", "copy", "remove", "restore", "owner", "confirm")
        ):
            case "work":
                await self._work(folder, self._random.randint(1, 8))
            case "back up":
                await self._disturbed(folder, self._back_up)
            case "copy" if self._backups:
                await self._copy_one(self._random.choice([*self._backups]))
            case "remove" if self._backups:
                await self._disturbed(folder, self._remove)
            case "restore":
                folder = await self._restore(
                    folder, self._random.sample([*self._backups], min(1, len(self._backups)))
                )
            case "confirm":
                for container in self._containers(folder):
                    await container.confirmation.confirm()
            case _:
                await self._end(folder)
                await self._open(folder)
                await self._check(folder)
        await trio.sleep(self._random.choice((0.0, 1.0, 2 * DELAY)))
        return folder

    async def _append(self, folder: Folder, name: str) -> None:
        """Without a writer: a client that meets an earlier state is a subject of the worlds of recoveries."""
        await CopiesRun._append(self, folder, name)

    # --- backups ----------------------------------------------------------------------------------

    async def _disturbed(self, folder: Folder, act: Callable[[Folder], Awaitable[None]]) -> None:
        """``act``, in which a call about an element or a record may fail, or its owner may die."""
        if self._random.random() < 0.6:
            part, kind = self._random.choice((ELEMENTS, PINS)), self._random.choice(list(_STRIKES))
            trigger = Window(5.0, 1.0) if kind is Kind.FULL else Nth(self._random.randint(1, 3))
            self.site.faults.add(Fault(Target.CHUNKS, kind, trigger, _STRIKES[kind], part=part, seconds=40.0))
        await act(folder)
        self.site.faults.clear()
        process = folder.process
        if process is not None and (not process.alive or self._random.random() < 0.2):
            process.kill()
            folder.process = None
            await trio.sleep(self._random.choice((0.0, 1.0)))  # a call of it may still take effect
            await self._open(folder)
            await self._check(folder)

    async def _back_up(self, folder: Folder) -> None:
        if len(self._backups) >= _KEPT_MAX:
            return
        if self._random.random() < 0.5:
            await self._append(folder, self._random.choice(NAMES))
        self._made += 1
        name, snapshot = f"b{self._made}", _Snapshot.of(folder)
        is_acked = await self._call(folder, lambda store: store.backup(name))
        (self._backups if is_acked else self._doubtful)[name] = snapshot

    async def _remove(self, folder: Folder) -> None:
        name = self._random.choice([*self._backups])
        del self._backups[name]
        if not await self._call(folder, lambda store: store.remove_backup(name)):
            self._removed.add(name)

    async def _check_backups(self, folder: Folder) -> None:
        """Those that were acked are complete. Of the others each one is, or it is said what is wrong."""
        found = await self._listed(folder)
        for name in self._backups:
            if name not in found or found[name].problem:
                raise Broken(f"it does not hold that a backup stays until it is removed\n{name}: {found}")
        for name in found.keys() - self._backups.keys() - self._removed:
            if name not in self._doubtful:
                raise Broken(f"it does not hold that a removed backup stays away\n{name}")
            if not found[name].problem:
                self._backups[name] = self._doubtful.pop(name)

    async def _listed(self, folder: Folder) -> dict[str, Backup]:
        assert folder.process is not None
        return {backup.name: backup for backup in await folder.process.call(lambda store: store.backups())}

    async def _restore(self, folder: Folder, names: list[str]) -> Folder:
        """From each of the backups in turn. They all stay (rule P5)."""
        for name in names:
            await self._end(folder)
            await trio.sleep(1.0)  # a call of a killed process may still take effect
            self._restored += 1
            snapshot = self._backups[name]
            recovered = await self._recovered(folder, f"R{self._restored}", name)
            await self._open(recovered)
            recovered.check_versions(folder)
            await self._take_over(recovered, snapshot.most, snapshot.acked, snapshot.starts)
            if self._random.random() < 0.3:
                await self._expect_refusals(folder)
            folder = recovered
            await self._check_backups(folder)
        return folder

    # --- copies -----------------------------------------------------------------------------------

    async def _copy_one(self, name: str) -> None:
        """Copy a backup, half of the time after a call that ended somewhere and whose bytes were damaged."""
        if self._random.random() < 0.5:
            before = {chunk for chunk, _ in self._place.chunks.items()}
            await self._copy_to_place(name, self._random.randint(1, 60))
            left = [chunk for chunk, _ in self._place.chunks.items() if chunk.startswith(OWN_CHUNKS)]
            left = [chunk for chunk in left if chunk not in before and self._place.chunks[chunk].length]
            # With the record all of it was verified.
            if left and pin_record_name(name) not in self._place.chunks:
                data = self._place.chunks[self._random.choice(left)].data
                at = self._random.randrange(len(data))
                if self._random.random() < 0.5:
                    data[at] ^= 1
                else:
                    del data[at:]
        if await self._copy_to_place(name):
            await self._check_copy(name)

    async def _copy_to_place(self, name: str, calls: int | None = None) -> bool:
        """Whether it is complete. ``calls``: the place does not answer after so many."""
        left = None if calls is None else iter(range(calls))

        def script(call: Call) -> scripted.Fault | None:
            is_over = left is not None and next(left, None) is None
            return scripted.Fault(scripted.FaultKind.BEFORE) if is_over else None

        source = MemoryChunkStorage(self.site.chunk_state)
        place = FaultyChunkStorage(MemoryChunkStorage(self._place), script)
        await source.open()
        await place.open()
        try:
            await copy_backup(source, name, place)
        except StoreMismatch:
            return False  # the place has a later backup of a history that was left
        except TierlogError as error:
            if calls is None:
                raise Broken(f"it does not hold that a backup can be copied\n{name}: {error!r}") from error
            return False
        return True

    async def _check_copy(self, name: str) -> None:
        place = MemoryChunkStorage(self._place)
        await place.open()
        try:
            record = await require_pin_record(place, name)
            for index in range(len(record.elements)):
                chosen = await read_pinned(place, record, index)
                runs = RunReader(StoredRuns(place), BlockCache(1 << 20))
                boot = await read_boot(index, chosen, chosen.element, runs)
                found = [str(each) for each in boot.published.inconsistencies]
                with Table(chosen.element.runs).view() as view:
                    async with aclosing(pages_of_rows(view, runs, CHUNK_PREFIX.encode())) as pages:
                        async for rows in pages:
                            for row in rows:
                                assert row.value is not None
                                chunk = decode_record(ChunkRecord, row.key.decode(), row.value)
                                flaws = await find_flaws(place, chunk, lambda size: None)
                                found += [f"{chunk.name}: {flaw.message}" for flaw in flaws]
                if found:
                    raise Broken(f"it does not hold that a copy is complete\n{name}: {found[0]}")
        except TierlogError as error:
            raise Broken(f"it does not hold that a copy is complete\n{name}: {error!r}") from error

    async def _remove_all(self, folder: Folder) -> None:
        for name in await self._listed(folder):
            try:
                assert folder.process is not None
                await folder.process.call(lambda store, name=name: store.remove_backup(name))  # type: ignore[misc]
            except BackupNotFound:
                raise Broken(
                    f"it does not hold that a backup that is listed can be removed\n{name}"
                ) from None
        if found := await self._listed(folder):
            raise Broken(f"it does not hold that removed backups are gone\n{found}")

    async def _check_pins(self, folder: Folder) -> None:
        """Without a record there is no backup: no container keeps anything (rule P3)."""
        await trio.sleep(1.0)
        for container in self._containers(folder):
            if container.pins.known:
                raise Broken(
                    f"it does not hold that pins without a record are dropped\n{container.pins.known}"
                )


_WRITES = ("create_with_content", "delete")
_STRIKES = {
    Kind.KILL: (*_WRITES, "read"),  # once the record is there, it is read
    Kind.POWER: (*_WRITES, "read"),
    Kind.BEFORE: (*_WRITES, "read", "list"),
    Kind.AFTER: _WRITES,
    Kind.LOST: _WRITES,
    Kind.FULL: ("create_with_content",),
    Kind.STALL: _WRITES,
}

"""Worlds in which backups are made, removed and restored at random, while owners die between the steps of a
backup, garbage is collected, and calls of long-term storage fail (rules P1 to P6).

Each backup has what was acked before the call that made it, whatever was deleted since, and however often the
store was restored from others. Of one whose call got no answer this holds if it is listed as complete. In the
end nothing is left of those that were removed, nor of those that never were.

Seeds from ``FIRST_PINNED`` on are such worlds. The end is that of the other worlds of folders."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import attrs
import trio

from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.pin_record import PINS
from tierlog.storage_backends.base.backups import Backup
from tierlog.storage_backends.base.errors import BackupNotFound

from .copied_folder import HERE, Folder
from .copies import DELAY, ELEMENTS, FIRST, NAMES, CopiesRun
from .faults import Fault, Kind, Nth, Target, Window
from .invariants import Broken
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
            ("work", "work", "back up", "back up", "remove", "restore", "owner", "confirm")
        ):
            case "work":
                await self._work(folder, self._random.randint(1, 8))
            case "back up":
                await self._disturbed(folder, self._back_up)
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

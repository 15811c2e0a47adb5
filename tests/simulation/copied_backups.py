"""Worlds in which backups are copied to another storage and restored from there, beside everything that
happens in worlds of backups (``pinned.py``; rules P6 to P8).

A call that copies is killed at any of its calls, or one of them fails, in either storage; it is repeated, in
another order of backups. Bytes rot in the place. A backup is restored from the place into a new storage, by a
call that is killed and repeated, and the store goes on there, or only looks. At every moment each backup that
has a record in the place is whole there. What is restored is exactly the state that was pinned. A copy is
refused if the place is of another history, and for no other reason.

Seeds from ``FIRST_COPIED`` on are such worlds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import attrs
import trio

from support.places_of_copies import backups_of, damage_of
from tierlog.actors.maintenance.backup_copy import copy_backup, copy_for_restore
from tierlog.journal.manifest.chain import list_elements, read_element
from tierlog.journal.manifest.pin_record import read_pin_record
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch, TierlogError
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

from .copied_folder import Folder
from .copies import FIRST, NAMES
from .invariants import Broken
from .pinned import PinnedRun, _Snapshot
from .settings import ChunksKind
from .trace import Trace
from .world import Site

FIRST_COPIED = FIRST + (6 << 32)
_PIECES = "_system/copying/"
_KILLED_AFTER = 5.0
"""Seconds that a call may take; one that hangs is killed then."""
_KINDS = (
    FaultKind.HANG,
    FaultKind.HANG,
    FaultKind.BEFORE,
    FaultKind.AFTER,
    FaultKind.AFTER,
    FaultKind.LOST,
    FaultKind.PARTIAL,
    FaultKind.FULL,
)


class CopiedBackupsRun(PinnedRun):
    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        # A cache would belong to one of several storages.
        self.site = Site(attrs.evolve(self.site.kind, chunk_cache=0), self._random, trace)
        self._place = MemoryChunkState()
        self._grows = self._random.random() < 0.5
        """Whether chunks can grow in the place."""
        self._pinned: dict[str, _Snapshot] = {}
        """All backups that were ever begun."""
        self._ancestors: dict[str, list[str]] = {}
        """Those that each of them follows in its history, and itself."""
        self._history: list[str] = []
        """Those that the store has followed so far."""

    @property
    def title(self) -> str:
        return "backups that are copied, and restored from the copies"

    async def _step(self, folder: Folder) -> Folder:
        match self._random.choice((*["copy"] * 6, "rot", "visit", "move", "recover", *["other"] * 4)):
            case "copy":
                if self._random.random() < 0.7:
                    await self._append(folder, self._random.choice(NAMES))
                    await self._back_up(folder)
                if self._backups:
                    await self._copy_backup(folder, self._random.choice([*self._backups]))
            case "rot" if self._backups:
                await self._rot(self._random.choice([*self._backups]))
            case "visit" | "move" as purpose if there := await self._there():
                folder = await self._elsewhere(folder, self._random.choice(there), goes_on=purpose == "move")
            case "recover":
                folder = await self._recover(folder)
                if self._random.random() < 0.5:
                    await self._forget(folder)
                    await self._back_up(folder)
                    if self._backups:
                        await self._copy_backup(folder, [*self._backups][-1])
            case _:
                folder = await super()._step(folder)
        return folder

    async def _recover(self, folder: Folder) -> Folder:
        """The logs are lost, and nothing that was flushed; often twice, and also before anybody opened the
        store again."""
        await self._flush(folder)
        flushed = dict(folder.acked), dict(folder.starts)
        await self._end(folder)
        await trio.sleep(1.0)
        recovered = folder
        for _ in range(self._random.randint(1, 2)):
            self._restored += 1
            recovered = await self._recovered(folder, f"R{self._restored}")
        await self._open(recovered)
        await self._take_over(recovered, folder, *flushed)
        await self._flush(recovered)
        return recovered

    async def _restore(self, folder: Folder, names: list[str]) -> Folder:
        """Until its first flush a store that was confirmed may lack the logs before (rule P8)."""
        folder = await super()._restore(folder, names)
        await self._flush(folder)
        return folder

    async def _forget(self, folder: Folder) -> None:
        """The store deletes what is not its own log's: no backup and no element of earlier logs is left, but
        a record that names these logs (rule R8)."""
        while self._backups:
            await self._remove(folder)
        for container in self._containers(folder):
            await container.confirmation.confirm()
        for name in NAMES:
            await self._append(folder, name)
            await self._flush(folder)

    async def _back_up(self, folder: Folder) -> None:
        made = self._made
        await super()._back_up(folder)
        if self._made > made:
            name = f"b{self._made}"
            self._pinned[name] = self._backups.get(name) or self._doubtful[name]
            self._history = [*self._history, name]
            self._ancestors[name] = self._history

    async def _remove_all(self, folder: Folder) -> None:
        for name in await self._there():
            await self._elsewhere(folder, name, goes_on=False)
        await super()._remove_all(folder)

    # --- the storages -----------------------------------------------------------------------------

    async def _opened(self, state: MemoryChunkState, *, grows: bool) -> FaultyChunkStorage:
        storage = MemoryChunkStorage(state, append=grows)
        await storage.open()
        return FaultyChunkStorage(storage)

    async def _source(self) -> FaultyChunkStorage:
        return await self._opened(self.site.chunk_state, grows=self.site.kind.chunks is ChunksKind.APPEND)

    async def _target(self) -> FaultyChunkStorage:
        return await self._opened(self._place, grows=self._grows)

    async def _there(self) -> list[str]:
        return await backups_of(await self._target())

    async def _check_place(self) -> None:
        place = await self._target()
        for name in await backups_of(place):
            if damage := await damage_of(place, name):
                raise Broken(f"it does not hold that what a copy has a record of is whole\n{name}: {damage}")

    # --- copies -----------------------------------------------------------------------------------

    async def _copy_backup(self, folder: Folder, name: str) -> None:
        """Killed and repeated. Then the store may remove it, or go on."""
        is_same = await self._is_same_history()
        before = {each: bytes(chunk.data) for each, chunk in self._place.chunks.items()}
        verify = self._random.random() < 0.3

        async def copy(source: FaultyChunkStorage, target: FaultyChunkStorage) -> None:
            await copy_backup(source, name, target, verify=verify)

        is_left = self._random.random() < 0.3
        try:
            await self._repeated(copy, self._source, self._target, is_left=is_left)
        except StoreMismatch as error:
            if is_same:
                raise Broken(
                    f"it does not hold that a copy goes on in a place of its history\n{error}"
                ) from error
            if before != {each: bytes(chunk.data) for each, chunk in self._place.chunks.items()}:
                raise Broken("it does not hold that a refused place is as it was") from error
            return
        if not is_same and not is_left:
            raise Broken(f"it does not hold that a place of another history is refused\n{name}")
        await self._check_place()
        if not is_left and name not in await self._there():
            raise Broken(f"it does not hold that a copy that ended has its record\n{name}")
        if self._random.random() < 0.3 and self._backups:
            await self._remove(folder)

    async def _is_same_history(self) -> bool:
        """Whether the newest backup in the place, of each container, is one that this store followed."""
        place = await self._target()
        for index in range(self.site.kind.containers):
            if numbers := await list_elements(place, index):
                crc = (await read_element(place, index, numbers[-1])).position.crc
                records = [await read_pin_record(place, name) for name in await backups_of(place)]
                of = [record.name for record in records if record.elements[index][1] == crc]
                if not of:
                    raise Broken("it does not hold that an element in a copy is that of a backup there")
                if not {*of} & {*self._history}:
                    return False
        return True

    async def _repeated(
        self,
        act: Callable[[FaultyChunkStorage, FaultyChunkStorage], Awaitable[None]],
        source: Callable[[], Awaitable[FaultyChunkStorage]],
        target: Callable[[], Awaitable[FaultyChunkStorage]],
        *,
        is_left: bool,
    ) -> None:
        """With a fault each time but the last; ``is_left``: the last time never comes. Raises
        ``StoreMismatch`` if it is refused."""
        for _ in range(self._random.choice((0, 1, 1, 2, 3)) + is_left):
            storages = await source(), await target()
            # One flip in a round: two of the same bit, one in each storage, would look right.
            struck, flipped = self._random.choice((0, 1, 1)), self._random.randrange(2)
            for number, storage in enumerate(storages):
                storage.script = self._faults(strikes=number == struck, flips=number == flipped)
            if self._random.random() < 0.3:
                # What was read wrong is written, and nobody learns that it was.
                storages[0].script = _first(Fault(FaultKind.FLIP, bit=7), "read")
                storages[1].script = _first(Fault(FaultKind.AFTER), "write", "create_with_content")
            with trio.move_on_after(_KILLED_AFTER):
                try:
                    await act(*storages)
                except StoreMismatch:
                    raise
                except TierlogError as error:
                    self._trace.note("copy", repr(error))
            await self._check_place()
        if not is_left:
            try:
                await act(await source(), await target())
            except StoreMismatch:
                raise
            except TierlogError as error:
                raise Broken(f"it does not hold that a copy goes on\n{error!r}") from error

    def _faults(self, *, strikes: bool, flips: bool) -> Callable[[Call], Fault | None]:
        """``flips``: a read of a chunk returns a flipped bit. ``strikes``: a call fails or never ends, often
        one that writes."""
        random = self._random
        flipped, struck = random.choice((0, 0, 1, 2, 3, 5, 8)), random.choice((1, 1, 2, 3, 5, 8, 13, 30))
        only_writes, part = random.random() < 0.7, random.choice(("", "containers/"))
        kind, keep, bit = random.choice(_KINDS), random.choice((0, 1, 50)), random.randrange(64)
        reads = calls = 0

        def script(call: Call) -> Fault | None:
            nonlocal reads, calls
            is_read = call.verb in ("read", "info", "list", "exists")
            if call.verb == "read" and call.name.startswith("containers/"):
                reads += 1
                if flips and reads == flipped:
                    return Fault(FaultKind.FLIP, bit=bit)
            if not strikes or (is_read and only_writes) or part not in call.name:
                return None
            calls += 1
            if calls != struck:
                return None
            # A read has no effect that could be in doubt.
            return Fault(FaultKind.BEFORE if is_read and kind is not FaultKind.HANG else kind, keep)

        return script

    async def _rot(self, name: str) -> None:
        """A byte of a chunk is damaged. A copy says that it did not read it, or it is mended."""
        place = await self._target()
        chunks = [each for each, chunk in self._place.chunks.items() if each.startswith("containers/")]
        if not chunks or name not in await backups_of(place) or not await self._is_same_history():
            return
        rotten = self._random.choice(chunks)
        data = self._place.chunks[rotten].data
        at = self._random.randrange(len(data))
        right = bytes(data)
        data[at] ^= 1
        if await damage_of(place, name):
            read = await copy_backup(await self._source(), name, place)
            if not read.unread_objects and await damage_of(place, name):
                raise Broken(f"it does not hold that a copy says what it did not read\n{rotten}")
            await self._kill_while_it_mends(name, rotten)
            try:
                await copy_backup(await self._source(), name, place, verify=True)
                if damage := await damage_of(place, name):
                    raise Broken(f"it does not hold that what is verified is mended\n{damage}")
            except DataCorruption as error:
                # A later backup needs more of it.
                if "copy that one first" not in str(error):
                    raise Broken(f"it does not hold that what is verified is mended\n{error!r}") from error
        data = self._place.chunks[rotten].data
        data[:] = right + data[len(right) :]
        await self._check_place()

    async def _kill_while_it_mends(self, name: str, rotten: str) -> None:
        """At one of the calls that replace the chunk: it is as it was, or whole."""
        place, nth = await self._target(), self._random.randint(1, 4)
        changes = 0

        def script(call: Call) -> Fault | None:
            nonlocal changes
            is_read = call.verb in ("read", "info", "list", "exists")
            changes += not is_read and (call.name == rotten or call.name.startswith(_PIECES))
            return Fault(FaultKind.HANG) if changes == nth and not is_read else None

        before = bytes(self._place.chunks[rotten].data)
        place.script = script
        with trio.move_on_after(_KILLED_AFTER):
            # A later backup may need more of it, so that it is not replaced.
            with suppress(DataCorruption):
                await copy_backup(await self._source(), name, place, verify=True)
        after = self._place.chunks.get(rotten)
        if after is None or len(after.data) < len(before):
            raise Broken(f"it does not hold that a chunk is replaced in one step\n{rotten}")

    # --- restores ---------------------------------------------------------------------------------

    async def _elsewhere(self, folder: Folder, name: str, *, goes_on: bool) -> Folder:
        """The backup is restored from the place into a new storage, which has nothing else."""
        await self._end(folder)
        await trio.sleep(1.0)  # a call of a killed process may still take effect
        here, there = self.site.chunk_state, MemoryChunkState()
        grows = self.site.kind.chunks is ChunksKind.APPEND

        async def fetch(source: FaultyChunkStorage, target: FaultyChunkStorage) -> None:
            await copy_for_restore(source, name, target)

        await self._repeated(fetch, self._target, lambda: self._opened(there, grows=grows), is_left=False)
        self.site.chunk_state = there
        self._restored += 1
        snapshot = self._pinned[name]
        restored = await self._recovered(folder, f"R{self._restored}", name)
        await self._open(restored)
        await self._take_over(restored, snapshot.most, snapshot.acked, snapshot.starts)
        await self._check(restored)
        if goes_on:
            self._backups, self._doubtful = {name: snapshot}, {}
            self._removed.clear()
            self._history = self._ancestors[name]
            await self._flush(restored)
            return restored
        await self._work(restored, self._random.randint(0, 4), disturbed=False)
        await self._end(restored)
        await trio.sleep(1.0)
        self.site.chunk_state = here
        await self._open(folder)
        await self._check(folder)
        return folder


def _first(fault: Fault, *verbs: str) -> Callable[[Call], Fault | None]:
    """At the first call of ``verbs`` about a chunk."""
    left = 1

    def script(call: Call) -> Fault | None:
        nonlocal left
        if not left or call.verb not in verbs or not call.name.startswith("containers/"):
            return None
        left -= 1
        return fault

    return script

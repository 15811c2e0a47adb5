"""Worlds in which everything but long-term storage is lost, again and again. What was flushed is recovered
from that, as ``recover_store`` does it but for the files (rules F10, R1 to R10).

Seeds from ``FIRST_RECOVERED`` on are such worlds. The end is that of the other worlds of folders."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

import anyio
import attrs
import trio

from tierlog.actors.container.container import Container
from tierlog.actors.container.lts_boot import claim_chain, read_boot, read_logs
from tierlog.actors.container.owner import Identity
from tierlog.actors.folder.identity import StoreIdentity
from tierlog.actors.store.lts_view import LtsContainer
from tierlog.journal.log.memory import MemoryLogService
from tierlog.journal.manifest.chain import read_chain
from tierlog.journal.manifest.pin_record import missing_pins, pin_of, read_pinned, require_pin_record
from tierlog.journal.manifest.store_record import require_store_record
from tierlog.storage_backends.base.errors import TierlogError
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.chunks.memory import MemoryChunkStorage
from tierlog.storage_backends.sorted_runs.block_cache import BlockCache
from tierlog.storage_backends.sorted_runs.reader import RunReader, StoredRuns

from .copied_folder import HERE, Folder
from .copies import ELEMENTS, FIRST, NAMES, CopiesRun, read_all
from .faults import Fault, Kind, Target, Window
from .invariants import Broken
from .lost_history import WRITER, LostHistory
from .settings import ChunksKind
from .trace import Trace
from .world import Site

FIRST_RECOVERED = FIRST + (3 << 32)
_CACHE_BYTES = 1 << 20


class RecoveredRun(CopiesRun):
    def __init__(self, seed: int, trace: Trace) -> None:
        super().__init__(seed, trace)
        self._clients = LostHistory(self._random, NAMES)
        one = Random(f"one of several {seed}")
        self._loses_one = one if one.random() < 0.4 else None
        """Chooses the container whose log alone is lost, in a world of several (rule R11)."""
        if self._loses_one is not None:
            kind = attrs.evolve(self.site.kind, containers=3)
            self.site = Site(kind, Random(f"site {seed}"), trace)

    @property
    def title(self) -> str:
        return "long-term storage alone, again and again"

    async def body(self) -> None:
        async with anyio.create_task_group() as self._tasks:
            folder = Folder("A", MemoryLogService(), HERE)
            await self._open(folder)
            await self._create(folder)
            await self._work(folder, self._random.randint(5, 25))
            folder = await self._recover_again_and_again(folder)
            await self._let_one_go_on([folder])
            self.site.kill_all()
            self._tasks.cancel_scope.cancel()

    async def _recover_again_and_again(self, folder: Folder) -> Folder:
        """All but long-term storage is lost. What was flushed is there; of later appends the first ones may
        be. Then somebody finds the lost logs after all."""
        for number in range(self._random.randint(1, 3)):
            await self._flush(folder)
            flushed = dict(folder.acked), dict(folder.starts)
            await self._work(folder, self._random.randint(1, 12))
            if self._random.random() < 0.5:
                await self._open_without_an_element(folder)
            used = {each.index: each.state.epoch for each in self._containers(folder)}
            histories = {each.index: each.state.history for each in self._containers(folder)}
            before = {name: histories[container_of(name, len(histories))] for name in NAMES}
            await self._end(folder)
            await trio.sleep(1.0)  # a call of a killed process may still take effect
            alone = self._choose_one(used)
            for name in NAMES:
                if alone is not None and container_of(name, len(used)) != alone:
                    flushed[0][name], flushed[1][name] = folder.acked[name], folder.starts[name]
            recovered = await self._recovered(folder, f"R{number}", alone=alone)
            await self._open(recovered)
            for container in self._containers(recovered):
                if container.state.epoch <= used[container.index]:
                    raise Broken(
                        f"it does not hold that a recovery takes new epochs\n{container.state.epoch}"
                    )
                is_lost = alone in (None, container.index)
                if is_lost == (container.state.history == histories[container.index]):
                    raise Broken(
                        f"it does not hold that a recovery begins a history of what is lost, and of nothing "
                        f"else\ncontainer {container.index}, and {alone} was lost"
                    )
            recovered.check_versions(folder, alone)
            await self._take_over(recovered, folder, *flushed)
            lost = [name for name in NAMES if alone in (None, container_of(name, len(used)))]
            await self._clients.go_on(recovered, folder, before, lost)
            if alone is None:  # otherwise nobody has the logs of the others twice
                await self._expect_refusals(folder)
            folder = recovered
            await self._work(folder, self._random.randint(0, 6))
        return folder

    def _choose_one(self, containers: Collection[int]) -> int | None:
        if self._loses_one is None or self._loses_one.random() < 0.2:
            return None
        return self._loses_one.choice(sorted(containers))

    def _containers(self, folder: Folder) -> list[Container]:
        assert folder.process is not None
        return folder.process.containers()

    async def _open_without_an_element(self, folder: Folder) -> None:
        """During an outage, more than once: the log has a higher epoch than any element."""
        down, verbs = Window(1000.0, 1.0), ("create_with_content",)
        self.site.faults.add(Fault(Target.CHUNKS, Kind.BEFORE, down, verbs, part=ELEMENTS))
        for _ in range(3):
            await self._end(folder)
            await self._open(folder)
        await self._append(folder, self._random.choice(NAMES))
        await trio.sleep(0.1)

    async def _take_over(
        self, recovered: Folder, lost: Folder, acked: dict[str, bytes], starts: dict[str, int]
    ) -> None:
        """Whatever ``recovered`` shows is what was acked, if it is at least what was ``acked`` before the
        flush and at most what ``lost`` has."""
        self.site.faults.clear()
        process = recovered.process
        assert process is not None
        for name, data in lost.acked.items():
            most = data + lost.doubts.get(name, b"")
            try:
                found, start = await process.call(lambda store, name=name: read_all(store, name))  # type: ignore[misc]
            except TierlogError as error:
                raise Broken(f"it does not hold that what is recovered can be read\n{error!r}") from error
            end = start + len(found)
            if not (
                starts[name] <= start <= lost.starts_sent.get(name, 0)
                and end >= len(acked[name])
                and found == most[start:end]
            ):
                raise Broken(
                    f"it does not hold that what was flushed is recovered\n{name} has {start} to {end}; "
                    f"flushed were {starts[name]} to {len(acked[name])}"
                )
            recovered.acked[name], recovered.starts[name] = most[:end], start
            recovered.starts_sent[name] = start

    async def _append(self, folder: Folder, name: str) -> None:
        """Each append is an event of the segment's only writer."""
        if name in folder.doubts:
            return

        data = f"{folder.name}{self.operations}.".encode() * self._random.choice((1, 20, 100))
        number = self._clients.events[name].next(len(folder.acked[name]), len(data))
        folder.doubts[name] = data
        if await self._call(
            folder, lambda store: store.append(name, data, writer_id=WRITER, event_number=number)
        ):
            folder.acked[name] += folder.doubts.pop(name)

    async def _recovered(
        self, lost: Folder, name: str, backup: str = "", *, alone: int | None = None
    ) -> Folder:
        """Folder ``name``: the store of ``lost`` without its logs and local copies, as of now or of a backup;
        or without those of container ``alone``. What it should have is not known."""
        chunks = MemoryChunkStorage(self.site.chunk_state, append=self.site.kind.chunks is ChunksKind.APPEND)
        await chunks.open()
        logs, log_id = MemoryLogService(), self._random.randbytes(16)
        if alone is not None:
            logs, log_id = lost.copied(name, lost.fingerprint, self.site.disk).logs, lost.log_id
            del logs._states[str(alone)]
        try:
            record = await require_store_record(chunks)
            pins = await require_pin_record(chunks, backup) if backup else None
            if pins is not None and (missing := await missing_pins(chunks, pins)):
                raise Broken(f"it does not hold that a backup stays complete\n{backup}: {missing}")
            for index in range(record.containers) if alone is None else (alone,):
                newest = await LtsContainer(index, chunks, record.store).newest()
                assert newest is not None
                runs = RunReader(StoredRuns(chunks), BlockCache(_CACHE_BYTES))
                chosen, pin = newest, None
                if pins is not None:
                    chosen = await read_pinned(chunks, pins, index)
                    pin = pin_of(backup, chosen)
                chain = await read_chain(chunks, index)
                ended = await read_logs(chain.elements, runs)
                boot = await read_boot(index, newest, chosen.element, runs, pin, ended)
                if boot.published.inconsistencies:
                    raise Broken(f"it does not hold that every flush can be recovered\n{boot.published}")
                log = logs.log(str(index))
                opened = await log.open(above=boot.epoch)
                log_of = StoreIdentity(record.store, log_id, record.containers, 0).container_log_id(index)
                owner = Identity(record.store, log_of, self._random.randbytes(16), lost.fingerprint).signature
                claim = await boot.write(log, owner, opened.epoch, self.site.time_ms())
                await log.close()
                await claim_chain(chunks, index, claim)
        except TierlogError as error:
            raise Broken(f"it does not hold that every flush can be recovered\n{error!r}") from error
        finally:
            await chunks.close()
        return Folder(name, logs, lost.fingerprint, log_id=log_id)

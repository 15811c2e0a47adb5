"""A long-term storage that is full for what users write, in seeds of their own: names below ``_system/`` have
no quota, so elements and runs go on, and it lasts longer than garbage waits (rule G6).

What was joined or moved before, and is not published yet, is needed until the data fits again: only what was
truncated makes room.

In others the file system of the chunks has no room at all but its reserve (rule S22), and the log may be on
the same one (rule W6). Where nothing else goes wrong, and the log has room, a segment that is truncated then
makes room too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import trio

from tierlog.actors.store.store import SegmentStore
from tierlog.storage_backends.base.names import container_of
from tierlog.storage_backends.base.segments import SegmentInfo
from tierlog.storage_backends.chunks.filesystem_programs import RESERVE

from .beside import defrag_later
from .clients import Client
from .disk import BLOCK
from .faults import Fault, Kind, Target, Window
from .invariants import Broken
from .model_calls import Truncate
from .plan import QUIET, FaultKind, PlannedFault
from .process import Process
from .records import OWN_CHUNKS
from .run_state import Ending, RunState
from .settings import ChunksKind, WalKind
from .world import FOLDER

_SECONDS = 60.0
_FREED_SECONDS = 30.0
"""In which the chunks of a truncated segment are deleted: those of a few cycles."""


class FullStorage:
    def __init__(
        self,
        run: RunState,
        tasks: anyio.abc.TaskGroup,
        undo_later: Callable[[Callable[[], None], float], None],
    ) -> None:
        """``tasks`` holds the processes. ``undo_later``: undo something after so many seconds, or when all is
        healed."""
        self._run = run
        self._tasks = tasks
        self._undo_later = undo_later
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {
            FaultKind.USERS_FULL: self._begin,
            FaultKind.FULL_DISK: self._fill_disk,
        }

    def _begin(self, fault: PlannedFault) -> None:
        """Now, or after a defrag of a segment."""
        process, random = self._run.current, Random(f"fault {fault.chance}")
        name = random.choice(random.choice(self._run.plan.families))
        if process is None or process.frozen or random.random() < 0.3:
            self._fill(fault)
        else:
            self._tasks.start_soon(self._run.site.or_all_end, partial(self._fill_after, process, name, fault))

    async def _fill_after(self, process: Process, name: str, fault: PlannedFault) -> None:
        await defrag_later(self._run, process, name)
        if not self._run.is_over:
            self._fill(fault)

    def _fill(self, fault: PlannedFault) -> None:
        window = Window(fault.seconds, 1.0)
        self._run.site.faults.add(Fault(Target.CHUNKS, Kind.FULL, window, start=OWN_CHUNKS))

    # --- a full file system -----------------------------------------------------------------------

    def _fill_disk(self, fault: PlannedFault) -> None:
        random, site, process = Random(f"fault {fault.chance}"), self._run.site, self._run.current
        if site.disk.capacity is not None:
            return

        # What took its room before, and was not used since, has left none (rule S22).
        in_folder = self._run.plan.site.chunks is ChunksKind.FOLDER
        has_reserve = not in_folder or site.disk.exists(f"{FOLDER.chunks}/{RESERVE}")
        self._undo_later(site.damage.fill_disk(random.choice((0, BLOCK, 5 * BLOCK))), fault.seconds)
        if process is None or process.frozen:
            return

        names = {
            segment.name
            for container in process.containers()
            for segment in container.state.segments.by_id.values()
            if segment.flushed > segment.flushed_start
        }
        if flushed := sorted(names & {name for family in self._run.plan.families for name in family}):
            make_room = partial(self._make_room, process, random.choice(flushed), has_reserve=has_reserve)
            self._tasks.start_soon(self._run.site.or_all_end, make_room)

    async def _make_room(self, process: Process, name: str, *, has_reserve: bool) -> None:
        """Truncate all of a segment: its chunks go although there is no room."""
        disk = self._run.site.disk
        info = await self._run.attempt(process, f"looks at {name}", partial(_look_at, name), seconds=_SECONDS)
        if info.ending is not Ending.ANSWERED:
            return

        sid: int = info.value.segment_id
        chunks = self._chunks_of(name, sid)
        visitor = Client(self._run.plan.clients, (), self._run)
        await visitor.visit(process, Truncate(name, info.value.length))
        plan = self._run.plan
        is_quiet = all(each.kind in QUIET for each in plan.faults) and plan.site.wal is WalKind.SERVICE
        if not is_quiet or not has_reserve or not chunks:
            return

        self._run.hold()  # or the plan would be over long before
        with trio.move_on_after(_FREED_SECONDS):
            while self._chunks_of(name, sid) & chunks:
                await trio.sleep(1.0)
        self._run.release()
        if process is self._run.current and disk.capacity is not None:
            self._run.counts["segments truncated on a full disk"] += 1
            if left := self._chunks_of(name, sid) & chunks:
                # What was appended meanwhile may be in the last chunk.
                now = await self._run.attempt(
                    process, f"looks at {name}", partial(_look_at, name), seconds=_SECONDS
                )
                if now.ending is Ending.ANSWERED and now.value.length == info.value.length:
                    raise Broken(
                        f"it does not hold that a full disk can be freed\n{name} still has {sorted(left)}"
                    )

    def _chunks_of(self, name: str, segment_id: int) -> set[str]:
        index = container_of(name, self._run.plan.site.containers)
        prefix = f"{OWN_CHUNKS}{index:04d}/{segment_id:016x}/"
        return {chunk for chunk in self._run.site.chunk_names() if chunk.startswith(prefix)}


async def _look_at(name: str, store: SegmentStore) -> SegmentInfo:
    return await store.segment_info(name)

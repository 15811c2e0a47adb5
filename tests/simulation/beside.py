"""What happens beside the storage writer: an operator defragments segments that are in use, and calls of
long-term storage hang.

Both find flushes that wait for each other. A defrag may be refused, but takes turns with flushes (rule S12).
While one call hangs, the other segments of its owner reach long-term storage (rule F7); that is checked only
where nothing else goes wrong, because other faults delay flushes too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from random import Random

import anyio.abc
import trio

from tierlog.actors.container.container import Container
from tierlog.actors.maintenance.defrag import defrag_segment

from .faults import Fault, Kind, Nth, Target
from .invariants import Broken
from .plan import QUIET, FaultKind, PlannedFault
from .process import Process
from .records import OWN_CHUNKS
from .run_state import RunState

_DEFRAG_SECONDS = 60.0
_OTHERS_SECONDS = 3.5
"""Longer than cycles wait for a segment, shorter than the deadline of a call."""
_HANG_SECONDS = 8.0
_WRITES = ("create_with_content", "write")
"""Verbs that write chunks and elements: the names of both have ``OWN_CHUNKS`` (rule J5)."""


Act = Callable[[PlannedFault], None]


async def defrag_later(run: RunState, process: Process, name: str, seconds: float = 0.0) -> None:
    """An operator defragments the segment, if it is there."""
    await trio.sleep(seconds)
    run.expect_import(name, process.number)
    await run.attempt(process, f"defrag {name}", partial(defrag_segment, name=name), seconds=_DEFRAG_SECONDS)


class BesideTheWriter:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, acts: Mapping[FaultKind, Act]) -> None:
        """``tasks`` holds the processes: a fault may be met, and start something, as long as one of them
        lives. ``acts``: those of further kinds."""
        self._run = run
        self._tasks = tasks
        self._act = {
            FaultKind.DEFRAG: self._defrag,
            FaultKind.HANGING_CHUNK_CALL: self._hang,
            **acts,
        }
        self._hangs_until = 0.0

    async def carry_out(self) -> None:
        """Each fault begins when the action of its number does; none waits for another."""
        for fault in sorted(self._run.plan.beside, key=lambda fault: fault.count):
            await self._run.until(partial(self._is_due, fault))
            self._run.counts[fault.kind.value] += 1
            self._act[fault.kind](fault)

    def _is_due(self, fault: PlannedFault) -> bool:
        return self._run.reached >= fault.count

    def _start(self, part: Callable[[], Awaitable[object]]) -> None:
        self._tasks.start_soon(self._run.site.or_all_end, part)

    def _defrag(self, fault: PlannedFault) -> None:
        """Now, or in the middle of the next write to long-term storage."""
        process, random = self._run.current, Random(f"fault {fault.chance}")
        name = random.choice(random.choice(self._run.plan.families))
        if process is None or process.frozen:
            return

        if random.random() < 0.5:
            self._start_defrag(process, name)
            return

        def met(_: int) -> None:
            self._start_defrag(process, next(_under_flush(process), name))

        late = Fault(
            Target.CHUNKS, Kind.STALL, Nth(), _WRITES, process.number, OWN_CHUNKS, seconds=0.1, then=met
        )
        self._run.site.faults.add(late)

    def _start_defrag(self, process: Process, name: str) -> None:
        self._start(partial(defrag_later, self._run, process, name))

    def _hang(self, fault: PlannedFault) -> None:
        process, random = self._run.current, Random(f"fault {fault.chance}")
        if process is None or process.frozen or trio.current_time() < self._hangs_until:
            return

        def met(_: int) -> None:
            self._hangs_until = trio.current_time() + 2 * _HANG_SECONDS
            if all(fault.kind in QUIET for fault in self._run.plan.faults):
                self._start(partial(self._check_others, process))

        self._hangs_until = float("inf")
        self._run.site.faults.add(
            Fault(
                Target.CHUNKS,
                Kind.STALL,
                Nth(random.randint(1, 3)),
                _WRITES,
                process.number,
                OWN_CHUNKS,
                seconds=_HANG_SECONDS,
                then=met,
            )
        )

    async def _check_others(self, process: Process) -> None:
        """Rule F7: what was unflushed when the call began to hang is flushed soon, except its own segment."""
        before = {container: _unflushed(container) for container in process.containers()}
        with trio.move_on_after(_OTHERS_SECONDS):
            await self._run.attempt(process, "flush beside", lambda store: store.flush())
            await trio.sleep_forever()
        if not process.serving or process.frozen:
            return

        for container in set(before) & set(process.containers()):
            for sid, length in before[container].items():
                if _may_wait(container, sid):
                    continue

                segment = container.state.segments.by_id[sid]
                if segment.flushed < length:
                    raise Broken(
                        f"it does not hold that a call that hangs delays its own segment only\n{segment!r} "
                        f"has not {length} flushed bytes after {_OTHERS_SECONDS} s"
                    )


def _under_flush(process: Process) -> Iterator[str]:
    """The names of segments whose flush is under way."""
    for container in process.containers():
        for segment in container.state.segments.by_id.values():
            if segment.sid in container._components.writer._flushes and not segment.is_gone:
                yield segment.name


def _unflushed(container: Container) -> dict[int, int]:
    """Live segments in memory with unflushed bytes, and their lengths."""
    segments = container.state.segments.by_id.values()
    return {s.sid: s.durable_length for s in segments if not s.is_gone and s.flushed < s.durable_length}


def _may_wait(container: Container, sid: int) -> bool:
    """Whether the segment may be unflushed: it is gone, or the call that hangs is its own or a source's."""
    segment = container.state.segments.by_id.get(sid)
    writer = container._components.writer
    return (
        segment is None
        or segment.is_gone
        or bool(segment.merges)
        or sid in writer._flushes
        or sid in container.storage._context.writers
    )

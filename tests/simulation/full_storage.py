"""A long-term storage that is full for what users write, in seeds of their own: names below ``_system/`` have
no quota, so elements and runs go on, and it lasts longer than garbage waits (rule G6).

What was joined or moved before, and is not published yet, is needed until the data fits again: only what was
truncated makes room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import anyio.abc

from .beside import defrag_later
from .faults import Fault, Kind, Target, Window
from .plan import FaultKind, PlannedFault
from .process import Process
from .records import OWN_CHUNKS
from .run_state import RunState


class FullStorage:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup) -> None:
        """``tasks`` holds the processes."""
        self._run = run
        self._tasks = tasks
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.USERS_FULL: self._begin}

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

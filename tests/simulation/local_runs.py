"""What happens to the local copies of sorted runs, in seeds of their own: they are lost or damaged, the disk
has no room for them, an opening stops before it looks for them while a newer owner works, and their records
cannot be read while a batch of chunks is deleted (rules M6, G3). In other seeds reads of runs are slow, and
calls wait for cold segments (rules M4, C4).

These seeds have hardly any block cache, so that records are read. A missing copy is never an absent row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import anyio.abc

from tierlog.actors.container.container import Container
from tierlog.actors.container.local_disk import run_folder
from tierlog.journal.log.local_layout import log_folder
from tierlog.storage_backends.sorted_runs.run_files import file_name

from .clients import Client
from .compound_faults import ProcessControl
from .disk import SimulatedDisk
from .faults import Fault, Kind, Nth, Target, Window
from .file_layer import SimulatedFiles
from .invariants import Broken
from .model_calls import Append
from .parked import waits_with
from .plan import FaultKind, Plan, PlannedFault
from .run_state import RunState
from .settings import WalKind
from .world import FOLDER

LOCAL_RUNS = "+runs+"
"""A part of the name of each local copy."""
_STORED_RUNS = "/runs/"
"""A part of the name of each run in long-term storage."""
_RIVALS_MAX = 3


def copies_on(disk: SimulatedDisk) -> list[str]:
    """The paths of all local copies, those that are being written too."""
    return sorted(path for path in disk.files_below("/") if LOCAL_RUNS in path)


class LocalRunFaults:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, hands: ProcessControl) -> None:
        self._run = run
        self._tasks = tasks
        self._site = run.site
        self._hands = hands
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {
            FaultKind.LOST_RUNS: self._lose_copies,
            FaultKind.RUNS_WITHOUT_ROOM: self._leave_no_room,
            FaultKind.FROZEN_OPENING: self._freeze_an_opening,
            FaultKind.UNREADABLE_RUNS: self._fail_reads_at_a_delete,
            FaultKind.SLOW_RUNS: self._slow_down_reads,
        }

    def _lose_copies(self, fault: PlannedFault) -> None:
        """Lose local copies, beside a living process or while none runs."""
        random, disk = Random(f"fault {fault.chance}"), self._site.disk
        paths = copies_on(disk)
        if random.random() < 0.5:
            self._kill_current()
        if random.random() < 0.5:
            for path in paths:
                disk.unlink(path)
        elif paths and (size := len(disk.content(path := random.choice(paths)))):
            damage = self._site.damage
            match random.choice(("gone", "flipped", "cut")):
                case "gone":
                    disk.unlink(path)
                case "flipped":
                    damage.flip_file(path, random.randrange(8 * size))
                case _:
                    damage.cut_file(path, random.randrange(size))

    def _leave_no_room(self, fault: PlannedFault) -> None:
        """For copies only, at one of the calls that write them: the log goes on."""
        random = Random(f"fault {fault.chance}")
        kind = random.choice((Kind.FULL, Kind.FULL, Kind.BEFORE, Kind.PARTIAL))
        verbs: tuple[str, ...] = ("Write",)
        if kind is Kind.FULL:
            verbs = random.choice((("Write",), ("Open",), ("Write", "Open")))
        elif kind is Kind.BEFORE:
            verbs = (random.choice(("Write", "Sync", "Rename")),)
        window = Window(fault.seconds, random.choice((0.5, 1.0)))
        self._site.faults.add(Fault(Target.FILES, kind, window, verbs, part=LOCAL_RUNS, keep=512))

    def _freeze_an_opening(self, fault: PlannedFault) -> None:
        """After its recovery, before it lists the copies; it goes on when it has a successor."""
        random = Random(f"fault {fault.chance}")

        def succeed(number: int) -> None:
            process = self._site.processes[number - 1]
            if process is self._run.current:
                self._hands.make_zombie(process, random)
            process.opened.set()  # whoever waits for it finds it frozen
            self._tasks.start_soon(self._hands.resume_later, process, fault.seconds)

        is_local = self._site.kind.wal is WalKind.DISK
        folder = run_folder(log_folder(FOLDER.wal, 0)) if is_local else "/runs/0"
        self._site.faults.add(
            Fault(Target.FILES, Kind.FREEZE, Nth(), ("ListFolder",), part=folder, then=succeed)
        )
        self._kill_current()

    def _fail_reads_at_a_delete(self, fault: PlannedFault) -> None:
        """Fail reads from the first deletion of a batch on."""
        random = Random(f"fault {fault.chance}")

        def fail(number: int) -> None:
            window = Window(min(fault.seconds, 5.0), random.choice((0.5, 1.0)))
            for target, verbs, part in (
                (Target.FILES, ("Open", "Read"), LOCAL_RUNS),
                (Target.CHUNKS, ("read",), _STORED_RUNS),
            ):
                self._site.faults.add(Fault(target, Kind.BEFORE, window, verbs, number, part))

        nth = Nth(random.randint(1, 4))
        self._site.faults.add(Fault(Target.CHUNKS, Kind.STALL, nth, ("delete",), seconds=0.0, then=fail))

    def _slow_down_reads(self, fault: PlannedFault) -> None:
        """And when a request that waits for a cold segment is also about one in memory, another call about
        that one comes behind it."""
        random, rivals = Random(f"fault {fault.chance}"), 0
        visitor = Client(self._run.plan.clients, (), self._run)

        def send_rival(number: int) -> None:
            nonlocal rivals
            process = self._site.processes[number - 1]
            name = waits_with(process)
            if process is self._run.current and name and rivals < _RIVALS_MAX and not self._run.is_over:
                rivals += 1
                append = Append(name, (f"<{fault.number}.{rivals}>".encode(),))
                call = partial(visitor.visit, process, append)
                self._tasks.start_soon(self._site.or_all_end, call)

        late = random.choice((0.05, 0.3))
        window = Window(fault.seconds, 1.0)
        self._site.faults.add(
            Fault(Target.FILES, Kind.STALL, window, ("Read",), part=LOCAL_RUNS, seconds=late, then=send_rival)
        )
        self._run.at_slow_runs()

    def _kill_current(self) -> None:
        if self._run.current is not None:
            self._hands.kill(self._run.current)


def may_leave_copies(plan: Plan) -> bool:
    """Whether the removal of a copy may fail: then it is left to the next opening."""
    return any(fault.kind in (FaultKind.FILE_ERROR, FaultKind.FILE_ERRORS) for fault in plan.faults)


def left_over_copies(containers: Sequence[Container]) -> list[str]:
    """Files of the owners themselves that are no copies of runs in use: what failed leaves none, so that a
    full disk gets room again."""
    left: list[str] = []
    for container in containers:
        used = _used(container)
        own = f"{LOCAL_RUNS}{container.state.epoch:016x}-"
        left += sorted(name for name in _files(container) - used if own in name)
    return left


def held_back(containers: Sequence[Container]) -> list[str]:
    """Segments whose rows in long-term storage are those of an earlier cycle."""
    return [
        f"segment {sid:x} of container {container.index}"
        for container in containers
        for sid in container.state.manifest.runs.held
    ]


def _used(container: Container) -> set[str]:
    """The copies of runs that count, and of those that a merge under way reads, or has written."""
    manifest, table_runs = container.state.manifest, container._components.table_runs
    waiting = () if table_runs._written is None else table_runs._written.runs
    runs = (*manifest.runs, *manifest.intended_runs, *table_runs._merged, *waiting)
    return {file_name(run) for run in runs}


def _files(container: Container) -> set[str]:
    folder = container.disk.runs
    assert isinstance(folder.files, SimulatedFiles)
    return {path.rpartition("/")[2] for path in folder.files.disk.files_below(f"{folder.path}/")}


def check_copies(containers: Sequence[Container]) -> None:
    """Nothing is wrong any more: the newest owner has a copy of each run, and no other file."""
    for container in containers:
        found, expected = _files(container), {file_name(run) for run in container.state.table.runs}
        # While transactions were listed a merge may have begun.
        missing, left = expected - found, found - expected - _used(container)
        if missing or left:
            raise Broken(
                f"it does not hold that runs have local copies, and nothing else does\ncontainer "
                f"{container.index}: missing {sorted(missing)}, left over {sorted(left)}"
            )

"""What happens to a log that is elsewhere, in a bucket or in ledgers, in seeds of their own: calls that are
refused, lost, late or repeated for a while, an outage of all of it, and owners that die, stand still or are
succeeded at a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import anyio.abc
import attrs
import trio

from .compound_faults import ProcessControl
from .damage import Undo
from .faults import Fault, Kind, Nth, Target, Window, any_fault
from .plan import FaultKind, PlannedFault
from .run_state import RunState

Call = tuple[str, str]
"""A verb, and a part of the name."""
Strike = Callable[[PlannedFault, Random], None]


class RemoteLogFaults:
    kind: FaultKind
    target: Target
    calls: Sequence[Call]
    """At which owners end or stand still."""
    late: Sequence[Call]
    """Which arrive later."""
    append: Call
    creating: Sequence[str]
    """The verbs of a first opening's changes."""

    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, hands: ProcessControl) -> None:
        self._run = run
        self._tasks = tasks
        self._site = run.site
        self._hands = hands
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {self.kind: self._strike}

    def _strike(self, fault: PlannedFault) -> None:
        random = Random(f"fault {fault.chance}")
        random.choice(self.strikes())(fault, random)

    def strikes(self) -> Sequence[Strike]:
        return (
            self._disturb,
            self._cut_off,
            self._delay_a_change,
            self._delay_a_change,
            self._kill_at_a_call,
            self._freeze_at_a_call,
            self._freeze_at_a_call,
            self._freeze_for_long,
        )

    def damage(self, random: Random) -> Undo | None:
        """Damage something of a log at rest, if there is anything."""
        raise NotImplementedError

    def at_first_opening(self, fault: PlannedFault, random: Random) -> None:
        """The first opening of all ends or stands still in its middle, or one of its changes is late: the
        next one makes the same ones."""
        kind = random.choice((Kind.KILL, Kind.FREEZE, Kind.LATE))
        call = Nth(random.choice((1, 1, 2, 2, 3, 4, 6, 9)))
        seconds = random.choice((0.01, 0.5, 5.0))
        then = self._succeed(seconds, random) if kind is Kind.FREEZE else None
        verbs = tuple(self.creating)
        self._site.faults.add(Fault(self.target, kind, call, verbs, process=1, seconds=seconds, then=then))

    # --- calls -----------------------------------------------------------------------------------

    def _disturb(self, fault: PlannedFault, random: Random) -> None:
        """Some calls fail in every way for a while."""
        for _ in range(random.randint(1, 3)):
            window = Window(fault.seconds, random.choice((0.02, 0.1, 0.5)))
            self._site.faults.add(any_fault(self.target, window, fault.seconds, random))

    def _cut_off(self, fault: PlannedFault, random: Random) -> None:
        """It refuses everything for a while, and so do the chunks."""
        for target in (self.target, Target.CHUNKS):
            self._site.faults.add(Fault(target, Kind.BEFORE, Window(fault.seconds, 1.0)))

    def _delay_a_change(self, fault: PlannedFault, random: Random) -> None:
        """A change, or the same one again, arrives later, perhaps after its owner died or was succeeded."""

        def act(number: int) -> None:
            process = self._site.processes[number - 1]
            match random.choice(("nothing", "kill", "succeed")):
                case "kill":
                    self._hands.kill(process)
                case "succeed" if process is self._run.current:
                    self._hands.make_zombie(process, random)

        kind, (verb, part) = random.choice((Kind.LATE, Kind.AGAIN)), random.choice(self.late)
        seconds = random.choice((0.01, 0.5, 5.0, 20.0))
        self._add(Fault(self.target, kind, verbs=(verb,), part=part, seconds=seconds, then=act), random)

    # --- owners ----------------------------------------------------------------------------------

    def _kill_at_a_call(self, fault: PlannedFault, random: Random) -> None:
        verb, part = random.choice(self.calls)
        self._add(Fault(self.target, Kind.KILL, verbs=(verb,), part=part), random)
        self._maybe_open(random)

    def _freeze_at_a_call(self, fault: PlannedFault, random: Random) -> None:
        """An owner or an opener stands still, and goes on beside its successor, or the next opener."""
        verb, part = random.choice(self.calls)
        seconds = min(fault.seconds, random.choice((0.05, 1.0, 20.0)))
        self._add(
            Fault(self.target, Kind.FREEZE, verbs=(verb,), part=part, then=self._succeed(seconds, random)),
            random,
        )
        self._maybe_open(random)

    def _freeze_for_long(self, fault: PlannedFault, random: Random) -> None:
        """An owner stands still in an append, until its successors have truncated the log."""
        succeed = self._succeed(random.choice((20.0, 60.0)), random)

        def act(number: int) -> None:
            succeed(number)
            for seconds in random.sample((0.2, 0.7, 2.0, 5.0), 2):
                self._tasks.start_soon(self._site.or_all_end, partial(self._kill_successor, number, seconds))

        verb, part = self.append
        self._add(Fault(self.target, Kind.FREEZE, verbs=(verb,), part=part, then=act), random)

    async def _kill_successor(self, number: int, seconds: float) -> None:
        await trio.sleep(seconds)
        process = self._run.current
        if process is not None and process.number > number and not self._run.is_over:
            self._hands.kill(process)

    def _succeed(self, seconds: float, random: Random) -> Callable[[int], None]:
        def succeed(number: int) -> None:
            process = self._site.processes[number - 1]
            if process is self._run.current:
                self._hands.make_zombie(process, random)
            process.opened.set()  # whoever waits for it finds it frozen
            self._tasks.start_soon(self._hands.resume_later, process, seconds)

        return succeed

    def _maybe_open(self, random: Random) -> None:
        """So that it is the next opener that is met."""
        if self._run.current is not None and random.random() < 0.5:
            self._hands.kill(self._run.current)

    def _add(self, fault: Fault, random: Random) -> None:
        """At one of the next few requests that it can happen to."""
        self._site.faults.add(attrs.evolve(fault, trigger=Nth(random.choice((1, 1, 2, 3, 6)))))

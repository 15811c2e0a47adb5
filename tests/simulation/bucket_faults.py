"""What happens to a log in a bucket, in seeds of their own: requests that are refused, lost, late or repeated
for a while, an outage of the whole bucket, and owners that die, stand still or are succeeded at a request
(rules L1 to L7). Damage of its objects, too, while no process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import anyio.abc
import attrs
import trio

from tierlog.journal.log.s3_layout import S3LogLayout
from tierlog.journal.log.s3_slot import SlotKind

from .bucket import LOGS, REGISTER, SLOT
from .bucket_invariants import slot_headers
from .compound_faults import ProcessControl
from .damage import Undo, flipped
from .faults import Fault, Kind, Nth, Target, Window, any_fault
from .plan import FaultKind, PlannedFault
from .run_state import RunState

_CALLS = (
    ("put", SLOT),
    ("put", SLOT),
    ("put", REGISTER),
    ("get", SLOT),
    ("get", REGISTER),
    ("list", SLOT),
    ("delete", SLOT),
)
"""Verbs and parts of keys."""


class BucketFaults:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup, hands: ProcessControl) -> None:
        self._run = run
        self._tasks = tasks
        self._site = run.site
        self._hands = hands
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.BUCKET: self._strike}

    def _strike(self, fault: PlannedFault) -> None:
        random = Random(f"fault {fault.chance}")
        strike = random.choice(
            (
                self._disturb,
                self._cut_off,
                self._delay_a_put,
                self._delay_a_put,
                self._kill_at_a_request,
                self._freeze_at_a_request,
                self._freeze_at_a_request,
                self._freeze_for_long,
            )
        )
        strike(fault, random)

    def at_first_opening(self, fault: PlannedFault, random: Random) -> None:
        """The first opening of all ends or stands still in its middle, or one of its puts is late: the next
        one creates the same objects."""
        kind = random.choice((Kind.KILL, Kind.FREEZE, Kind.LATE))
        call = Nth(random.choice((1, 1, 2, 2, 3, 4, 6, 9)))
        seconds = random.choice((0.01, 0.5, 5.0))
        then = self._succeed(seconds, random) if kind is Kind.FREEZE else None
        self._site.faults.add(
            Fault(Target.OBJECTS, kind, call, ("put",), process=1, seconds=seconds, then=then)
        )

    # --- requests --------------------------------------------------------------------------------

    def _disturb(self, fault: PlannedFault, random: Random) -> None:
        """Some requests fail in every way for a while."""
        for _ in range(random.randint(1, 3)):
            window = Window(fault.seconds, random.choice((0.02, 0.1, 0.5)))
            self._site.faults.add(any_fault(Target.OBJECTS, window, fault.seconds, random))

    def _cut_off(self, fault: PlannedFault, random: Random) -> None:
        """The bucket refuses everything for a while."""
        for target in (Target.OBJECTS, Target.CHUNKS):
            self._site.faults.add(Fault(target, Kind.BEFORE, Window(fault.seconds, 1.0)))

    def _delay_a_put(self, fault: PlannedFault, random: Random) -> None:
        """A put, or the same one again, arrives later, perhaps after its owner died or was succeeded."""

        def act(number: int) -> None:
            process = self._site.processes[number - 1]
            match random.choice(("nothing", "kill", "succeed")):
                case "kill":
                    self._hands.kill(process)
                case "succeed" if process is self._run.current:
                    self._hands.make_zombie(process, random)

        kind, part = random.choice((Kind.LATE, Kind.AGAIN)), random.choice((SLOT, SLOT, REGISTER))
        seconds = random.choice((0.01, 0.5, 5.0, 20.0))
        self._add(Fault(Target.OBJECTS, kind, verbs=("put",), part=part, seconds=seconds, then=act), random)

    # --- owners ----------------------------------------------------------------------------------

    def _kill_at_a_request(self, fault: PlannedFault, random: Random) -> None:
        verb, part = random.choice(_CALLS)
        self._add(Fault(Target.OBJECTS, Kind.KILL, verbs=(verb,), part=part), random)
        self._maybe_open(random)

    def _freeze_at_a_request(self, fault: PlannedFault, random: Random) -> None:
        """An owner or an opener stands still, and goes on beside its successor, or the next opener."""
        verb, part = random.choice(_CALLS)
        seconds = min(fault.seconds, random.choice((0.05, 1.0, 20.0)))
        self._add(
            Fault(Target.OBJECTS, Kind.FREEZE, verbs=(verb,), part=part, then=self._succeed(seconds, random)),
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

        self._add(Fault(Target.OBJECTS, Kind.FREEZE, verbs=("put",), part=SLOT, then=act), random)

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

    # --- damage ----------------------------------------------------------------------------------

    def damage(self, random: Random) -> Undo | None:
        """An object of a log or the identity has a flipped bit, or is cut, or a group is gone that is not the
        newest."""
        objects = self._site.bucket.objects
        keys = [key for key in objects if key.startswith(LOGS) or key == "store"]
        gone = [key for key in keys if SLOT in key and _was_settled(key, objects)]
        if gone and random.random() < 0.4:
            return self._exchange(random.choice(gone), None, "is gone")
        if not keys:
            return None

        key = random.choice(keys)
        data = objects[key]
        if random.random() < 0.5:
            bit = random.randrange(8 * len(data))
            return self._exchange(key, flipped(data, bit), f"bit {bit} flipped")
        size = random.randrange(len(data))
        return self._exchange(key, data[:size], f"cut to {size} bytes")

    def _exchange(self, key: str, data: bytes | None, what: str) -> Undo:
        self._site.trace.note("damage", f"{key} {what}")
        return self._site.bucket.exchange(key, data)


def _was_settled(key: str, objects: Mapping[str, bytes]) -> bool:
    """Whether it is a group, and a later object of its log says that it was settled (rule L5)."""
    layout = S3LogLayout(key.partition(SLOT)[0] + "/")
    slot = layout.slot_in(key)
    headers = slot_headers(layout, objects)
    return (
        slot is not None
        and headers[slot].kind is SlotKind.GROUP
        and any(each.settled > slot for each in headers.values())
    )

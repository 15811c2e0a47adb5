"""What writers were acked, and whether a segment contains exactly that.

Writers send one record for each outcome. A lane is one writer id on one segment: an *identified* lane numbers
its events and repeats a call until it is acked; a *plain* lane sends each event once. ``SegmentCheck``
compares a segment's bytes with the lanes:

- every acked event is there exactly once; events of identified lanes are in order and without gaps
- a rejected event is not there; an event with an unknown outcome is there at most once
- nothing is torn, and nothing is there that nobody sent

Times are of the monotonic clock, which all processes of a machine share. A record that a killed process wrote
half is ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import anyio
import attrs
import msgspec

from chaos_parts.events import Event, EventReader, TornError

_REPORTED_MAX = 5
"""Violations reported for each lane: the first ones tell enough."""


class Outcome(enum.IntEnum):
    ACKED = 1
    """These events are durable."""
    UNKNOWN = 2
    """They may be there, once; nobody sends them again."""
    REJECTED = 3
    """They were not applied and never will be."""
    FULL = 4
    """Rejected because the disk is full; an identified lane sends them again."""
    RETRIED = 5
    """The call failed, and the same events are sent again."""
    HUNG = 6
    """A call did not return."""
    ENDED = 7
    """The lane has ended: events from this number on were never sent."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What became of ``count`` events of a lane; a line of JSON."""

    outcome: Outcome
    lane: int
    first: int
    count: int = 0
    began: float = 0.0
    ended: float = 0.0

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def split_records(data: bytes) -> tuple[list[Record], bytes]:
    """Every whole record, and the beginning of one whose end is still missing."""
    *lines, rest = data.split(b"\n")
    return [msgspec.json.decode(line, type=Record) for line in lines], rest


@attrs.define
class Lane:
    """One writer id on one segment, and all outcomes so far."""

    writer: str
    segment: str
    container: int
    identified: bool
    ordered: bool = True
    """One call after the other; otherwise several at the same time."""
    acked: int = 0
    """Number of acked events; of an identified lane the first ones."""
    next: int = 0
    """All events below this number have an outcome."""
    unknown: set[int] = attrs.field(factory=set)
    rejected: set[int] = attrs.field(factory=set)
    sent_max: int | None = None
    """No event from this number on was ever sent; None until the lane has ended."""
    retried: int = 0
    full: int = 0


@attrs.define(eq=False)
class Wait:
    """Waits for the first outcome of a kind in each container, of a call that began after a moment: such an
    ack comes from the container's owner of that time."""

    outcome: Outcome
    since: float
    missing: set[int]
    seconds: dict[int, float] = attrs.field(factory=dict)
    done: anyio.Event = attrs.field(factory=anyio.Event)


class Ledger:
    def __init__(self) -> None:
        self.lanes: list[Lane] = []
        self.problems: list[str] = []
        self._waits: list[Wait] = []
        self.acked = 0

    def add_lane(self, lane: Lane) -> int:
        self.lanes.append(lane)
        return len(self.lanes) - 1

    def fail(self, problem: str) -> None:
        """The run is over: nobody waits any longer."""
        self.problems.append(problem)
        for wait in self._waits:
            wait.done.set()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            self._add(record, self.lanes[record.lane])

    def _add(self, record: Record, lane: Lane) -> None:
        numbers = range(record.first, record.first + record.count)
        match record.outcome:
            case Outcome.ACKED:
                if lane.identified and record.first != lane.next:
                    self.problems.append(
                        f"{lane.writer} on {lane.segment}: event {record.first} was acked "
                        f"after {lane.next - 1}"
                    )
                lane.acked += record.count
                self.acked += record.count
            case Outcome.UNKNOWN:
                lane.unknown.update(numbers)
            case Outcome.REJECTED:
                lane.rejected.update(numbers)
            case Outcome.FULL:
                lane.full += 1
            case Outcome.RETRIED:
                lane.retried += 1
            case Outcome.HUNG:
                self.problems.append(
                    f"{lane.writer} on {lane.segment}: a call did not return within "
                    f"{record.ended - record.began:.1f} s"
                )
            case Outcome.ENDED:
                lane.sent_max = record.first
        if record.outcome in (Outcome.ACKED, Outcome.UNKNOWN, Outcome.REJECTED):
            lane.next = max(lane.next, numbers.stop)
        for wait in self._waits:
            if (
                record.outcome is wait.outcome
                and lane.container in wait.missing
                and record.began >= wait.since
            ):
                wait.missing.discard(lane.container)
                wait.seconds[lane.container] = record.ended - wait.since
                if not wait.missing:
                    wait.done.set()

    async def first(self, outcome: Outcome, containers: Iterable[int], since: float, limit: float) -> Wait:
        """Wait up to ``limit`` seconds for the first such outcome in each container, of a call that began
        after ``since``; containers that took longer are ``missing``."""
        wait = Wait(outcome, since, set(containers))
        self._waits.append(wait)
        try:
            if wait.missing and not self.problems:
                with anyio.move_on_after(limit):
                    await wait.done.wait()
        finally:
            self._waits.remove(wait)
        return wait


# --- checks -------------------------------------------------------------------------------------


class LaneCheck:
    """One lane's events, in the order of the segment."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.found = 0
        self.unknown = 0
        """Events with an unknown outcome that were there."""
        self.violations: list[str] = []
        self._next = 0
        self._seen: set[int] = set()
        self._last_acked = -1

    def see(self, event: Event) -> None:
        self.found += 1
        violation = self._identified(event.number) if self.lane.identified else self._plain(event.number)
        if violation and len(self.violations) < _REPORTED_MAX:
            self.violations.append(
                f"{self.lane.segment}, offset {event.offset}: event {event.number} of {event.writer} "
                f"{violation}"
            )

    def _identified(self, number: int) -> str:
        expected, self._next = self._next, max(self._next, number + 1)
        if number < expected:
            return "is there twice"
        if number > expected:
            return f"comes where {expected} should: events were lost or reordered"
        is_sent = self.lane.sent_max is None or number < self.lane.sent_max
        return "" if is_sent else "was never sent"

    def _plain(self, number: int) -> str:
        if number in self._seen:
            return "is there twice"
        self._seen.add(number)
        if number in self.lane.rejected:
            return "is there, though it was rejected"
        if number in self.lane.unknown:
            self.unknown += 1  # It may arrive late, over a connection that its writer had given up.
            return ""
        if number >= self.lane.next:
            return "has no outcome"
        if self.lane.ordered and number < self._last_acked:
            return f"follows {self._last_acked}, which was sent later"
        self._last_acked = number
        return ""

    def finish(self) -> list[str]:
        lane = self.lane
        missing: Sequence[int] = range(self._next, lane.acked)
        if not lane.identified:
            known = self._seen | lane.unknown | lane.rejected
            missing = [number for number in range(lane.next) if number not in known]
        if missing:
            self.violations.append(
                f"{lane.segment}: {len(missing)} acked events of {lane.writer} are lost, "
                f"the first is {missing[0]}"
            )
        return self.violations


class SegmentCheck:
    """One segment, block by block."""

    def __init__(self, name: str, lanes: Iterable[Lane]) -> None:
        self.name = name
        self.lanes = {lane.writer: LaneCheck(lane) for lane in lanes if lane.segment == name}
        self.bytes = 0
        self._reader = EventReader()
        self._violations: list[str] = []

    def feed(self, block: bytes) -> None:
        self.bytes += len(block)
        if self._violations:
            return

        try:
            for event in self._reader.feed(block):
                if event.writer in self.lanes:
                    self.lanes[event.writer].see(event)
                else:
                    self._violations.append(
                        f"{self.name}, offset {event.offset}: there is no writer {event.writer}"
                    )
        except TornError as error:
            self._violations.append(f"{self.name}, {error}")

    def finish(self) -> list[str]:
        """The segment ends here: every violation."""
        if not self._violations:
            try:
                self._reader.finish()
            except TornError as error:
                self._violations.append(f"{self.name}, {error}")
        return [*self._violations, *(each for lane in self.lanes.values() for each in lane.finish())]

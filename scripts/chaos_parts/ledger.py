"""What the writers were told: every ack, doubt and refusal of every lane, and when.

Owns: the records that a writer's process sends, the sums of them, and who waits for an ack. Does not own:
sending (``writers.py``), nor what the segments hold (``checker.py``).

A lane is one writer id on one segment. Times are of the monotonic clock, which all processes of a machine
share. A record that a pipe cut in half was never told.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator

import anyio
import attrs

RECORD = struct.Struct("<BHQIdd")
"""Kind, lane, first number, events, when the call began, when it ended."""


class Told(enum.IntEnum):
    ACKED = 1
    """These events are durable."""
    DOUBTFUL = 2
    """They may be there, once; nobody will send them again."""
    REFUSED = 3
    """They are not there and never will be."""
    FULL = 4
    """Refused because the disk is full; an identified one is sent again."""
    RETRIED = 5
    """The call failed, and the same events are sent again."""
    HUNG = 6
    """A call did not come back at all."""
    ENDED = 7
    """The lane has ended: events from this number on were never sent."""


@attrs.frozen
class Record:
    told: Told
    lane: int
    first: int
    count: int
    began: float
    ended: float

    def encode(self) -> bytes:
        return RECORD.pack(self.told, self.lane, self.first, self.count, self.began, self.ended)


def decode_records(data: bytes) -> Iterator[Record]:
    """Every whole record."""
    for told, *fields in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]):
        yield Record(Told(told), *fields)


@attrs.define
class Lane:
    """One writer id on one segment, as far as it was told."""

    writer: str
    segment: str
    container: int
    identified: bool
    """It sends again what it has no answer for, with its event numbers. One that is not gives doubts up."""
    ordered: bool = True
    """One event after the other; a lane that is not sends several at the same time."""
    acked: int = 0
    """Events that were acked; of an identified lane the first so many."""
    next: int = 0
    """All events below this number were told of."""
    doubtful: set[int] = attrs.field(factory=set)
    refused: set[int] = attrs.field(factory=set)
    ended: bool = False
    sent_max: int | None = None
    """No event from this number on was ever sent; None while that is open."""
    hung: int = 0
    retried: int = 0
    full: int = 0


@attrs.define(eq=False)
class Wait:
    """For the first outcome of a kind, per container, of a call that began after a moment: an ack comes from
    the owner of that time."""

    told: Told
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

    def note(self, records: Iterable[Record]) -> None:
        for record in records:
            self._note(record, self.lanes[record.lane])

    def _note(self, record: Record, lane: Lane) -> None:
        numbers = range(record.first, record.first + record.count)
        match record.told:
            case Told.ACKED:
                self._note_acked(record, lane)
            case Told.DOUBTFUL:
                lane.doubtful.update(numbers)
            case Told.REFUSED:
                lane.refused.update(numbers)
            case Told.FULL:
                lane.full += 1
            case Told.RETRIED:
                lane.retried += 1
            case Told.HUNG:
                lane.hung += 1
                self.problems.append(
                    f"{lane.writer} on {lane.segment}: a call did not come back within "
                    f"{record.ended - record.began:.1f} s"
                )
            case Told.ENDED:
                lane.ended, lane.sent_max = True, record.first
        if record.told in (Told.ACKED, Told.DOUBTFUL, Told.REFUSED):
            lane.next = max(lane.next, numbers.stop)
        self._tell_waiting(record, lane)

    def _note_acked(self, record: Record, lane: Lane) -> None:
        if lane.identified and record.first != lane.next:
            self.problems.append(
                f"{lane.writer} on {lane.segment}: event {record.first} was acked after {lane.next - 1}"
            )
        lane.acked += record.count
        self.acked += record.count

    def _tell_waiting(self, record: Record, lane: Lane) -> None:
        for wait in self._waits:
            if record.told is wait.told and lane.container in wait.missing and record.began >= wait.since:
                wait.missing.discard(lane.container)
                wait.seconds[lane.container] = record.ended - wait.since
                if not wait.missing:
                    wait.done.set()

    async def first_told(self, told: Told, containers: Iterable[int], since: float, limit: float) -> Wait:
        """Wait for the first such outcome in each container, of a call that began after ``since``; the
        ``missing`` took too long."""
        wait = Wait(told, since, set(containers))
        self._waits.append(wait)
        try:
            if wait.missing and not self.problems:
                with anyio.move_on_after(limit):
                    await wait.done.wait()
        finally:
            self._waits.remove(wait)
        return wait

"""What writers were acked: the one record of a run with real processes.

Writer processes send one ``Record`` for each outcome. A *numbered* writer gives its events numbers and
repeats a call until it is acked; a *plain* writer sends each event once. ``events.SegmentCheck`` compares a
segment with this. Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import anyio
import attrs
import msgspec


class Outcome(enum.IntEnum):
    ACKED = 1
    """These events are durable."""
    UNKNOWN = 2
    """They may be there, once; nobody sends them again."""
    REJECTED = 3
    """They were not applied and never will be."""
    FULL = 4
    """Rejected because the disk is full; a numbered writer sends them again."""
    RETRIED = 5
    """The call failed, and the same events are sent again."""
    HUNG = 6
    """A call did not return."""
    ENDED = 7
    """The writer has ended: events from this number on were never sent."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """What became of ``count`` events of a writer; a line of JSON."""

    outcome: Outcome
    writer: int
    first: int
    count: int = 0
    began: float = 0.0
    ended: float = 0.0
    offset: int | None = None
    """The offset of the first event, if the ack named it."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def split_records(data: bytes) -> tuple[list[Record], bytes]:
    """Every whole record, and the rest: a killed process may have written half of one."""
    *lines, rest = data.split(b"\n")
    return [msgspec.json.decode(line, type=Record) for line in lines], rest


@attrs.define
class Writer:
    """One writer id on one segment, and all outcomes so far."""

    id: str
    segment: str
    container: int
    numbered: bool
    ordered: bool = True
    """One call after the other; otherwise several at the same time."""
    next: int = 0
    """All events below this number have an outcome; those that are not unknown or rejected were acked."""
    offsets: dict[int, int] = attrs.field(factory=dict)
    """Where acked events are, as far as the acks named it."""
    unknown: set[int] = attrs.field(factory=set)
    rejected: set[int] = attrs.field(factory=set)
    sent_max: int | None = None
    """No event from this number on was ever sent; None until the writer has ended."""
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

    def see(self, record: Record, container: int) -> None:
        if record.outcome is self.outcome and container in self.missing and record.began >= self.since:
            self.missing.discard(container)
            self.seconds[container] = record.ended - self.since
            if not self.missing:
                self.done.set()


class Ledger:
    def __init__(self) -> None:
        self.writers: list[Writer] = []
        self.problems: list[str] = []
        self._waits: list[Wait] = []
        self.acked = 0

    def add_writer(self, writer: Writer) -> int:
        self.writers.append(writer)
        return len(self.writers) - 1

    def fail(self, problem: str) -> None:
        """The run is over: nobody waits any longer."""
        self.problems.append(problem)
        for wait in self._waits:
            wait.done.set()

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            writer = self.writers[record.writer]
            self._add(record, writer)
            for wait in self._waits:
                wait.see(record, writer.container)

    def _add(self, record: Record, writer: Writer) -> None:
        numbers = range(record.first, record.first + record.count)
        where = f"{writer.id} on {writer.segment}"
        match record.outcome:
            case Outcome.ACKED:
                if writer.numbered and record.first != writer.next:
                    self.problems.append(f"{where}: event {record.first} was acked after {writer.next - 1}")
                if record.offset is not None:
                    writer.offsets[record.first] = record.offset
                self.acked += record.count
            case Outcome.UNKNOWN:
                writer.unknown.update(numbers)
            case Outcome.REJECTED:
                writer.rejected.update(numbers)
            case Outcome.FULL:
                writer.full += 1
            case Outcome.RETRIED:
                writer.retried += 1
            case Outcome.HUNG:
                seconds = record.ended - record.began
                self.problems.append(f"{where}: a call did not return within {seconds:.1f} s")
            case Outcome.ENDED:
                writer.sent_max = record.first
        if record.outcome in (Outcome.ACKED, Outcome.UNKNOWN, Outcome.REJECTED):
            writer.next = max(writer.next, numbers.stop)

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

"""The judge of the bytes: compares what a segment holds with what its writers were told.

Owns: the rules. Every acked event is there exactly once; the events of an identified lane are there in order
and without gaps; what was refused is not there; what is in doubt is there at most once; nothing is torn;
nothing is there that nobody sent. Sync and pure: blocks come from whoever reads them, through the service or
out of the folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaos_parts.events import Event, EventReader, TornError
from chaos_parts.ledger import Lane

_TOLD_MAX = 5
"""Violations of one kind told for each lane: the first ones say enough."""


class LaneCheck:
    """One lane's events, in the order of the segment."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.found = 0
        self.doubts = 0
        """Doubtful events that were there."""
        self.violations: list[str] = []
        self._next = 0
        self._seen: set[int] = set()
        self._last_acked = -1

    def see(self, event: Event) -> None:
        self.found += 1
        if self.lane.identified:
            self._see_identified(event)
        else:
            self._see_plain(event)

    def _see_identified(self, event: Event) -> None:
        if event.number < self._next:
            self._tell(event, "is there a second time")
        elif event.number > self._next:
            self._tell(event, f"comes where {self._next} should: events were lost or overtaken")
        elif self.lane.sent_max is not None and event.number >= self.lane.sent_max:
            self._tell(event, "was never sent")
        self._next = max(self._next, event.number + 1)

    def _see_plain(self, event: Event) -> None:
        number = event.number
        if number in self._seen:
            self._tell(event, "is there a second time")
        elif number in self.lane.refused:
            self._tell(event, "is there, but its writer was told that it was not applied")
        elif number in self.lane.doubtful:
            self.doubts += 1  # It may have come late, from a connection that its writer had given up.
        elif number >= self.lane.next:
            self._tell(event, "was never told of")
        elif self.lane.ordered and number < self._last_acked:
            self._tell(event, f"comes after {self._last_acked}, which was sent later")
        else:
            self._last_acked = number
        self._seen.add(number)

    def finish(self) -> list[str]:
        lane = self.lane
        if lane.identified:
            missing: Sequence[int] = range(self._next, lane.acked)
        else:
            missing = [
                number
                for number in range(lane.next)
                if number not in self._seen | lane.doubtful | lane.refused
            ]
        if missing:
            self.violations.append(
                f"{lane.segment}: {len(missing)} acked events of {lane.writer} are lost, the first is "
                f"{missing[0]}"
            )
        return self.violations

    def _tell(self, event: Event, what: str) -> None:
        if len(self.violations) < _TOLD_MAX:
            self.violations.append(
                f"{self.lane.segment}, offset {event.offset}: event {event.number} of {event.writer} {what}"
            )


class SegmentCheck:
    """One segment, block by block."""

    def __init__(self, name: str, lanes: Iterable[Lane]) -> None:
        self.name = name
        self.lanes = {lane.writer: LaneCheck(lane) for lane in lanes if lane.segment == name}
        self.bytes = 0
        self._reader = EventReader()
        self._violations: list[str] = []

    def feed(self, block: bytes) -> None:
        """Once something is torn, nothing behind it can be taken apart."""
        self.bytes += len(block)
        if self._violations:
            return

        try:
            for event in self._reader.feed(block):
                self._see(event)
        except TornError as error:
            self._violations.append(f"{self.name}, {error}")

    def _see(self, event: Event) -> None:
        lane = self.lanes.get(event.writer)
        if lane is None:
            self._violations.append(f"{self.name}, offset {event.offset}: nobody is called {event.writer}")
        else:
            lane.see(event)

    def finish(self) -> list[str]:
        """The segment ends here: everything that is wrong with it."""
        if not self._violations:
            try:
                self._reader.finish()
            except TornError as error:
                self._violations.append(f"{self.name}, {error}")
        return [
            *self._violations,
            *(violation for lane in self.lanes.values() for violation in lane.finish()),
        ]

    @property
    def events(self) -> int:
        return sum(lane.found for lane in self.lanes.values())

    @property
    def doubts(self) -> int:
        return sum(lane.doubts for lane in self.lanes.values())

"""What Spark wrote: the right events once each, in order, and no reader ever saw a part of a write.

Each event names its row, the partition and the attempt of the task that wrote it, and its number in that
attempt. So the check sees that a partition is what one attempt wrote, from beginning to end, even where a
shuffle brings the rows in another order each time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby

import anyio
import attrs

import tierlog
from chaos_parts.processes import counted
from chaos_parts.spark_scenarios import Scenario
from tierlog.spark_bridge import events
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.transactions import TransactionState

PAD = "x" * 160
"""So that some hundred events are several appends."""
_EVENT = re.compile(rb"r(\d{6}) p(\d{5}) a(\d{12}) n(\d{6}) x{%d}" % len(PAD))
_REPORTED_MAX = 4
_POLL = 0.01
_AFTER_LEASE = 6.0
"""Seconds beyond the lease and its quarter (rule T7) that a busy machine is given."""
_POLL_LEFT = 0.1


@attrs.frozen
class Event:
    row: int
    partition: int
    attempt: int
    number: int

    def encode(self) -> bytes:
        return f"r{self.row:06d} p{self.partition:05d} a{self.attempt:012d} n{self.number:06d} {PAD}".encode()


EVENT_BYTES = events.HEADER_BYTES + len(Event(0, 0, 0, 0).encode())
"""All are of one size, so a segment's length gives their number."""


def parse_event(data: bytes) -> Event | None:
    found = _EVENT.fullmatch(data)
    return None if found is None else Event(*map(int, found.groups()))


def lengths_allowed(batches: Iterable[int]) -> set[int]:
    """The lengths that readers may see when writes of so many rows follow each other."""
    return {0, *(rows * EVENT_BYTES for rows in accumulate(batches))}


def check_writes(data: bytes, batches: Sequence[int], *, shuffled: bool) -> list[str]:
    """Violations in a segment to which so many rows were written, write by write; all rows are numbered in
    one sequence."""
    try:
        found = [parse_event(event) for event in events.decode(data)]
    except DecodeError as error:
        return [f"the segment is torn: {error}"]

    foreign = sum(event is None for event in found)
    if foreign:
        return [f"{counted(foreign, 'event')} found that no task wrote"]

    known = [event for event in found if event is not None]
    return [*_rows(known, sum(batches)), *_writes(known, batches, shuffled=shuffled)][:_REPORTED_MAX]


def _rows(found: Sequence[Event], rows: int) -> Iterator[str]:
    counts, expected = Counter(event.row for event in found), Counter(range(rows))
    if lost := expected - counts:
        yield f"{counted(lost.total(), 'row')} of {rows} lost, such as {min(lost)}"
    if extra := counts - expected:
        yield f"{counted(extra.total(), 'row')} too many, such as {min(extra)}"


def _writes(found: Sequence[Event], batches: Sequence[int], *, shuffled: bool) -> Iterator[str]:
    ends = list(accumulate(batches))
    for first, end in zip([0, *ends], ends, strict=False):
        written = found[first:end]
        if misplaced := [event.row for event in written if not first <= event.row < end]:
            yield f"row {misplaced[0]} is among the rows {first} to {end}, which are another write"
        yield from _order(written, shuffled=shuffled)


def _order(written: Sequence[Event], *, shuffled: bool) -> Iterator[str]:
    """Partitions in order, each as one attempt wrote it."""
    groups = [
        (partition, list(group)) for partition, group in groupby(written, key=lambda event: event.partition)
    ]
    numbers = [partition for partition, _ in groups]
    if numbers != sorted(set(numbers)):
        yield f"the partitions are in the order {numbers}"
    for partition, group in groups:
        if len({event.attempt for event in group}) > 1:
            yield f"partition {partition} has events of several attempts"
        elif [event.number for event in group] != list(range(len(group))):
            yield f"the events of partition {partition} are not in the order in which they were written"
    rows = [event.row for event in written]
    if not shuffled and rows != sorted(rows):
        yield "the rows are not in order"


# --- readers ------------------------------------------------------------------------------------


class Poller:
    """A reader during a write: at every moment it must see all of it, or nothing."""

    def __init__(self, store: tierlog.Client, target: str, allowed: Collection[int]) -> None:
        self._store = store
        self._target = target
        self._allowed = allowed
        self._seen = 0
        self.polls = 0
        self.unanswered = 0
        """Polls without an answer."""
        self.problems: list[str] = []

    async def run(self) -> None:
        while not self.problems:
            try:
                self._see((await self._store.segment_info(self._target)).length)
            except (tierlog.SegmentNotFound, tierlog.Unavailable):
                self.unanswered += 1  # not created yet, or its host was just lost
            await anyio.sleep(_POLL)

    def _see(self, length: int) -> None:
        self.polls += 1
        if length not in self._allowed:
            self.problems.append(
                f"a reader saw {length} bytes, which is a part of a write ({length / EVENT_BYTES:g} events)"
            )
        elif length < self._seen:
            self.problems.append(f"a reader saw {length} bytes after {self._seen}")
        self._seen = length


async def left_staged(store: tierlog.Client, targets: Mapping[str, Scenario]) -> dict[str, str]:
    """What is still staged or open when every lease must have expired, by target."""
    left: dict[str, str] = {}
    lease = max((each.lease for each in targets.values()), default=0.0)
    with anyio.move_on_after(lease * 1.25 + _AFTER_LEASE):
        while left := await _staged(store, targets):
            await anyio.sleep(_POLL_LEFT)
    return left


async def _staged(store: tierlog.Client, targets: Iterable[str]) -> dict[str, str]:
    found = {}
    for target in targets:
        names = await store.list_segments(f"{target}#txn.")
        known = [info for info in await store.list_transactions(target) if info.target == target]
        opened = [info.transaction_id for info in known if info.state is TransactionState.OPEN]
        if names or opened:
            staged, begun = counted(len(names), "staged segment"), counted(len(opened), "open transaction")
            found[target] = f"{staged} and {begun} left after the lease: {[*names, *opened][:3]}"
    return found

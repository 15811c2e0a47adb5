"""The judge of what Spark wrote: the right events once each, in order, and nobody ever saw a part of them.

Owns: what an event says of itself, and the rules. Pure.

Each event names its row, the partition and the attempt of the task that wrote it, and its place in what that
attempt wrote. So it can be seen that a partition is what one attempt wrote, from beginning to end, even where
a shuffle brings the rows in another order each time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby

import attrs

from tierlog.spark_bridge import events
from tierlog.storage_backends.base.codec import DecodeError

PAD = "x" * 160
"""So that some hundred events are several appends."""
_EVENT = re.compile(rb"r(\d{6}) p(\d{5}) a(\d{12}) n(\d{6}) x{%d}" % len(PAD))
_TOLD_MAX = 4


@attrs.frozen
class Event:
    row: int
    partition: int
    attempt: int
    number: int

    def encode(self) -> bytes:
        return f"r{self.row:06d} p{self.partition:05d} a{self.attempt:012d} n{self.number:06d} {PAD}".encode()


EVENT_BYTES = events.HEADER_BYTES + len(Event(0, 0, 0, 0).encode())
"""All are of one size, so a segment's length says how many there are."""


def parse_event(data: bytes) -> Event | None:
    found = _EVENT.fullmatch(data)
    return None if found is None else Event(*map(int, found.groups()))


def lengths_allowed(batches: Iterable[int]) -> set[int]:
    """What readers may see, when writes of so many rows follow each other."""
    return {0, *(rows * EVENT_BYTES for rows in accumulate(batches))}


def judge(data: bytes, batches: Sequence[int], *, shuffled: bool) -> list[str]:
    """What is wrong with a segment to which so many rows were written, write by write; rows are numbered
    through."""
    try:
        found = [parse_event(event) for event in events.decode(data)]
    except DecodeError as error:
        return [f"the segment is torn: {error}"]

    strange = sum(event is None for event in found)
    if strange:
        return [f"{strange} events are none that were written"]

    there = [event for event in found if event is not None]
    return [*_rows(there, sum(batches)), *_writes(there, batches, shuffled=shuffled)][:_TOLD_MAX]


def _rows(there: Sequence[Event], rows: int) -> Iterator[str]:
    counts, expected = Counter(event.row for event in there), Counter(range(rows))
    if lost := expected - counts:
        yield f"{lost.total()} of {rows} rows are lost, such as {min(lost)}"
    if extra := counts - expected:
        yield f"{extra.total()} rows are there that should not be, such as {min(extra)}"


def _writes(there: Sequence[Event], batches: Sequence[int], *, shuffled: bool) -> Iterator[str]:
    ends = list(accumulate(batches))
    for first, end in zip([0, *ends], ends, strict=False):
        written = there[first:end]
        if strangers := [event.row for event in written if not first <= event.row < end]:
            yield f"row {strangers[0]} is among the rows {first} to {end}, which are another write"
        yield from _order(written, shuffled=shuffled)


def _order(written: Sequence[Event], *, shuffled: bool) -> Iterator[str]:
    """Partitions in their order, each as one attempt wrote it."""
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

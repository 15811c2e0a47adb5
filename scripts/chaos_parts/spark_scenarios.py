"""The rounds of ``chaos_spark.py``: which fault, at which point of a write, and what is written.

Each deck contains every cell of the matrix once, and decks are shuffled, so a run with as many rounds as
there are cells covers all of them. A round depends on the seed and its number alone: it can be repeated by
itself. A JVM has one master at a time, so rounds are run master by master."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from random import Random

import attrs

POINT_REACHED, COPY_DONE = 0, 1
"""What a sync point reports: the point of the fault; that the copy of a slow task has written."""

EXECUTOR = "CoarseGrainedExecutorBackend"
"""Part of an executor's command line."""


class Point(StrEnum):
    """How far a write is when the fault comes."""

    BEFORE_APPENDS = "before any append"
    MIDWAY = "mid-way"
    AFTER_APPENDS = "after the last append"
    COMMIT_UNSENT = "commit, before the server"
    COMMIT_DONE = "commit, reply lost"

    @property
    def in_commit(self) -> bool:
        return self in (Point.COMMIT_UNSENT, Point.COMMIT_DONE)


class FaultKind(StrEnum):
    RETRY = "plain retry"
    ELSEWHERE = "retry elsewhere after a shuffle"
    EXECUTOR_KILLED = "executor killed"
    SPECULATION = "speculation on two hosts"
    STREAM_RESTARTED = "stream restarted, other partitions"
    DRIVER_KILLED = "driver killed"
    HOST_KILLED = "tierlog host killed"
    HOST_FROZEN = "tierlog host frozen"


class Master(StrEnum):
    LOCAL = "local[2,4]"
    CLUSTER = "local-cluster[2,1,1024]"
    TWO_HOSTS = "standalone, two hosts"


CELLS = tuple(product(FaultKind, Point))
_MASTERS = {
    FaultKind.ELSEWHERE: Master.CLUSTER,
    FaultKind.EXECUTOR_KILLED: Master.CLUSTER,
    FaultKind.SPECULATION: Master.TWO_HOSTS,
}
_ALWAYS_STREAM = (FaultKind.STREAM_RESTARTED,)
_ALWAYS_BATCH = (FaultKind.ELSEWHERE, FaultKind.EXECUTOR_KILLED, FaultKind.SPECULATION)
_ATTEMPTS = 4
"""Attempts of a task, under each of the masters."""


@attrs.frozen(kw_only=True)
class Scenario:
    """One round."""

    number: int
    kind: FaultKind
    point: Point
    stream: bool
    rows: int
    more_rows: int
    """Rows of a stream's second micro-batch."""
    partitions: int
    partitions_later: int
    """When the write is repeated."""
    victim: int
    """The partition whose task fails."""
    failing: int
    """How many attempts of the victim fail."""
    killed: bool
    """By SIGKILL of their Python process, not by an exception."""
    batches: int
    """Mid-way: how many batches of rows are written before the fault."""
    arrow: bool
    versioned: bool
    """Of a batch: named by application and version, not by ``txnId``."""
    again: bool
    """Of a batch: it is repeated when it has succeeded."""
    delay: float
    """Seconds between the point and the kill of a host."""
    frozen: float
    """Seconds."""

    @property
    def master(self) -> Master:
        return _MASTERS.get(self.kind, Master.LOCAL)

    @property
    def cell(self) -> tuple[FaultKind, Point]:
        return self.kind, self.point

    @property
    def lease(self) -> float:
        """Seconds: short, so that the staged data of a lost write is soon dropped; longer than Spark takes to
        see that a task is slow."""
        return 60.0 if self.kind is FaultKind.SPECULATION else 15.0

    @property
    def succeeds(self) -> bool:
        """Whether Spark or tierlog's client recovers, so that the application sees no error."""
        if self.kind in (FaultKind.STREAM_RESTARTED, FaultKind.DRIVER_KILLED):
            return False
        return not self.point.in_commit or (
            self.point is Point.COMMIT_UNSENT and self.kind in (FaultKind.HOST_KILLED, FaultKind.HOST_FROZEN)
        )

    @property
    def holds_a_task(self) -> bool:
        """A task must be slow for Spark to copy it, whatever the point."""
        return self.kind is FaultKind.SPECULATION


def scenario(seed: int, number: int) -> Scenario:
    """The round of that number, counted from 1."""
    deck, position = divmod(number - 1, len(CELLS))
    kind, point = Random(f"spark/{seed}/deck {deck}").sample(CELLS, len(CELLS))[position]
    chance = Random(f"spark/{seed}/round {number}")
    partitions = chance.randint(2, 4)
    return Scenario(
        number=number,
        kind=kind,
        point=point,
        stream=kind in _ALWAYS_STREAM or (kind not in _ALWAYS_BATCH and chance.random() < 0.4),
        rows=chance.randint(1_600, 3_200),
        more_rows=chance.randint(1, 400),
        partitions=partitions,
        partitions_later=chance.choice([count for count in range(1, 6) if count != partitions]),
        victim=chance.randrange(partitions),
        failing=_ATTEMPTS
        if kind is FaultKind.STREAM_RESTARTED
        else 1
        if kind is not FaultKind.RETRY
        else chance.randint(1, _ATTEMPTS - 1),
        killed=kind is FaultKind.RETRY and chance.random() < 0.3,
        batches=chance.randint(1, 3),
        # Python rows are framed ten thousand at a time, so there would be nothing mid-way.
        arrow=point is Point.MIDWAY or chance.random() < 0.7,
        versioned=chance.random() < 0.5,
        again=chance.random() < 0.3,
        delay=chance.choice((0.0, 0.002, 0.01, 0.05)),
        frozen=chance.choice((0.3, 1.0, 3.0)),
    )


def scenarios(seed: int, rounds: int) -> list[Scenario]:
    """In the order in which they are run."""
    order = list(Master)
    return sorted(
        (scenario(seed, number) for number in range(1, rounds + 1)),
        key=lambda each: (order.index(each.master), each.number),
    )

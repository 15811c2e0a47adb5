"""What each round of ``chaos_spark.py`` does: where in a write the trouble comes, which trouble, and what is
written.

Owns: the matrix, and how a seed draws from it. Pure: nothing here knows Spark or a service.

Every cell of the matrix is in each deck once, and decks are shuffled, so a run with as many rounds as there
are cells meets all of them. A round depends on the seed and its number alone: it can be run again by itself.
A JVM takes one master at a time, so rounds are done master by master.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import groupby, product
from random import Random

import attrs

AT_THE_POINT, COPY_DONE = 0, 1
"""What is told at the gate: someone has come to the point; the copy of a slow task has written."""

EXECUTOR = "CoarseGrainedExecutorBackend"
"""What an executor's command line has."""


class Point(StrEnum):
    """How far a write is when the trouble comes."""

    BEFORE_APPENDS = "before any append"
    MIDWAY = "mid-way"
    AFTER_APPENDS = "after the last append"
    COMMIT_UNSENT = "commit, before the server"
    COMMIT_DONE = "commit, reply lost"

    @property
    def in_commit(self) -> bool:
        return self in (Point.COMMIT_UNSENT, Point.COMMIT_DONE)


class Way(StrEnum):
    """What the trouble is."""

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


CELLS = tuple(product(Way, Point))
_MASTERS = {
    Way.ELSEWHERE: Master.CLUSTER,
    Way.EXECUTOR_KILLED: Master.CLUSTER,
    Way.SPECULATION: Master.TWO_HOSTS,
}
_ALWAYS_STREAM = (Way.STREAM_RESTARTED,)
_ALWAYS_BATCH = (Way.ELSEWHERE, Way.EXECUTOR_KILLED, Way.SPECULATION)
_ATTEMPTS = 4
"""That Spark makes of a task under each of the masters."""


@attrs.frozen(kw_only=True)
class Draw:
    """One round."""

    number: int
    way: Way
    point: Point
    stream: bool
    rows: int
    more_rows: int
    """Of a stream: what its second micro-batch has."""
    partitions: int
    partitions_later: int
    """When the write is done again."""
    victim: int
    """The partition whose task is hit."""
    failing: int
    """How many attempts of the victim fail."""
    killed: bool
    """Whether they fail because their Python process is killed, not by an exception."""
    batches: int
    """Mid-way: how many batches of rows were written."""
    arrow: bool
    versioned: bool
    """Of a batch: named by application and version, not by ``txnId``."""
    again: bool
    """Of a batch: it is run once more when it has succeeded."""
    delay: float
    """Seconds by which a kill of a host comes later than the point."""
    frozen: float
    """Seconds."""

    @property
    def master(self) -> Master:
        return _MASTERS.get(self.way, Master.LOCAL)

    @property
    def cell(self) -> tuple[Way, Point]:
        return self.way, self.point

    @property
    def lease(self) -> float:
        """Seconds: short, so that what a lost write leaves is soon gone; longer than Spark needs to see that
        a task is slow."""
        return 60.0 if self.way is Way.SPECULATION else 15.0

    @property
    def succeeds(self) -> bool:
        """Whether Spark or tierlog's client gets over the trouble, so that the application hears nothing of
        it."""
        if self.way in (Way.STREAM_RESTARTED, Way.DRIVER_KILLED):
            return False
        return not self.point.in_commit or (
            self.point is Point.COMMIT_UNSENT and self.way in (Way.HOST_KILLED, Way.HOST_FROZEN)
        )

    @property
    def holds_a_task(self) -> bool:
        """A copy is made of a task that does not come forward, wherever the other trouble is."""
        return self.way is Way.SPECULATION


def draw(seed: int, number: int) -> Draw:
    """The round of that number, counted from 1."""
    deck, place = divmod(number - 1, len(CELLS))
    way, point = Random(f"spark/{seed}/deck {deck}").sample(CELLS, len(CELLS))[place]
    chance = Random(f"spark/{seed}/round {number}")
    partitions = chance.randint(2, 4)
    return Draw(
        number=number,
        way=way,
        point=point,
        stream=way in _ALWAYS_STREAM or (way not in _ALWAYS_BATCH and chance.random() < 0.4),
        rows=chance.randint(1_600, 3_200),
        more_rows=chance.randint(1, 400),
        partitions=partitions,
        partitions_later=chance.choice([count for count in range(1, 6) if count != partitions]),
        victim=chance.randrange(partitions),
        failing=_ATTEMPTS
        if way is Way.STREAM_RESTARTED
        else 1
        if way is not Way.RETRY
        else chance.randint(1, _ATTEMPTS - 1),
        killed=way is Way.RETRY and chance.random() < 0.3,
        batches=chance.randint(1, 3),
        # Python rows are framed ten thousand at a time, so there would be nothing mid-way.
        arrow=point is Point.MIDWAY or chance.random() < 0.7,
        versioned=chance.random() < 0.5,
        again=chance.random() < 0.3,
        delay=chance.choice((0.0, 0.002, 0.01, 0.05)),
        frozen=chance.choice((0.3, 1.0, 3.0)),
    )


def draw_all(seed: int, rounds: int) -> list[Draw]:
    """In the order in which they are done."""
    order = list(Master)
    return sorted(
        (draw(seed, number) for number in range(1, rounds + 1)),
        key=lambda drawn: (order.index(drawn.master), drawn.number),
    )


def by_master(draws: Iterable[Draw]) -> list[tuple[Master, list[Draw]]]:
    return [(master, list(group)) for master, group in groupby(draws, key=lambda drawn: drawn.master)]


def table_of(counts: Counter[tuple[Way, Point]]) -> list[Sequence[str]]:
    """A row for each way, and a column for each point."""
    return [(way.value, *(str(counts[way, point]) for point in Point)) for way in Way]

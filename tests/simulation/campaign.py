"""Many seeds: which ones, how long, and the tally of their verdicts.

A campaign ends when its seeds are through, when its time is over (seeds that have begun are finished), at the
first violation if asked, or at Ctrl-C. The tally is right at any of these ends.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator

import attrs

from .verdict import Verdict
from .workers import Job, Runner, WorkerPool

SEED_SECONDS_MAX = 120.0


@attrs.frozen
class CampaignOptions:
    """What a campaign runs, and until when."""

    first: int
    count: int | None
    """None: no end to the seeds."""
    seconds: float | None
    """None: no end but that of the seeds."""
    jobs: int
    operations: int = 200
    stop_at_first: bool = False
    seed_seconds_max: float = SEED_SECONDS_MAX


@attrs.define
class Tally:
    """What the seeds that are through came to."""

    jobs: int
    seeds: int = 0
    operations: int = 0
    simulated_seconds: float = 0.0
    real_seconds: float = 0.0
    counts: Counter[str] = attrs.Factory(Counter)
    failures: list[Verdict] = attrs.Factory(list)
    interrupted: bool = False

    def add(self, verdict: Verdict) -> None:
        self.seeds += 1
        self.operations += verdict.operations
        self.simulated_seconds += verdict.simulated_seconds
        self.counts.update(verdict.counts)
        if verdict.violation is not None:
            self.failures.append(verdict)

    @property
    def seeds_a_minute(self) -> float:
        return 60 * self.seeds / self.real_seconds if self.real_seconds else 0.0

    @property
    def times_real_time(self) -> float:
        return self.simulated_seconds / self.real_seconds if self.real_seconds else 0.0


def fresh_base() -> int:
    """Where fresh seeds begin: short enough to be typed, and no two campaigns of a year begin at the same."""
    return int.from_bytes(os.urandom(5), "big")


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_campaign(
    options: CampaignOptions, runner: Runner, on_verdict: Callable[[Verdict, Tally], None]
) -> Tally:
    """Run the seeds; ``on_verdict`` is called with each verdict, after it is counted."""
    begin = time.monotonic()
    tally = Tally(options.jobs)
    try:
        with WorkerPool(runner, options.jobs, options.seed_seconds_max) as pool:
            for verdict in pool.run(_jobs(options, begin)):
                tally.add(verdict)
                tally.real_seconds = time.monotonic() - begin
                on_verdict(verdict, tally)
                if options.stop_at_first and tally.failures:
                    break
    except KeyboardInterrupt:
        tally.interrupted = True
    tally.real_seconds = time.monotonic() - begin
    return tally


def _jobs(options: CampaignOptions, begin: float) -> Iterator[Job]:
    seeds = (
        itertools.count(options.first)
        if options.count is None
        else range(options.first, options.first + options.count)
    )
    for seed in seeds:
        if options.seconds is not None and time.monotonic() - begin >= options.seconds:
            return
        yield Job(seed, options.operations)

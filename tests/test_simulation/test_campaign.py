"""Many seeds in many processes: each is run once, and one that breaks, dies or hangs is a finding with its
seed."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable

import pytest
from simulation.campaign import CampaignOptions, Tally, run_campaign
from simulation.verdict import Verdict
from simulation.workers import Job, WorkerPool, WorkersCannotStart

from support.fake_seeds import BREAKING, DYING, FAILING, HANGING, LEAKING, run_fake


def options(
    first: int = 1,
    count: int | None = 12,
    *,
    seconds: float | None = None,
    jobs: int = 2,
    stop_at_first: bool = False,
) -> CampaignOptions:
    return CampaignOptions(first, count, seconds, jobs, operations=50, stop_at_first=stop_at_first)


def nobody(verdict: Verdict, tally: Tally) -> None:
    pass


def run_jobs(*jobs: Job, size: int = 1, seed_seconds_max: float = 60) -> dict[int, Verdict]:
    with WorkerPool(run_fake, size, seed_seconds_max) as pool:
        return {verdict.seed: verdict for verdict in pool.run(iter(jobs))}


def test_every_seed_is_run_once_and_counted() -> None:
    on_verdict: list[int] = []

    tally = run_campaign(options(), run_fake, lambda verdict, tally: on_verdict.append(verdict.seed))

    assert sorted(on_verdict) == list(range(1, 13))
    assert (tally.seeds, tally.operations, tally.simulated_seconds) == (12, 12 * 50, 12 * 1800)
    assert tally.counts == {"acked": 1200, "kills": 24}
    assert (tally.failures, tally.interrupted) == ([], False)
    assert tally.seeds_a_minute > 0


def test_a_failing_seed_does_not_stop_the_others() -> None:
    tally = run_campaign(options(FAILING - 2, 4), run_fake, nobody)

    assert tally.seeds == 4
    assert [verdict.seed for verdict in tally.failures] == [FAILING]
    assert str(tally.failures[0].violation).startswith("segment 'a-40' lost 40 bytes\n")


def test_it_ends_at_the_first_violation_if_asked_to() -> None:
    tally = run_campaign(options(FAILING - 2, None, jobs=1, stop_at_first=True), run_fake, nobody)

    assert (tally.seeds, [verdict.seed for verdict in tally.failures]) == (3, [FAILING])


def test_it_ends_when_its_time_is_over() -> None:
    tally = run_campaign(options(1_000, None, seconds=0.5), run_fake, nobody)

    assert tally.seeds > 0
    assert 0.5 <= tally.real_seconds < 30


def test_ctrl_c_leaves_the_tally_of_what_was_done_and_no_process() -> None:
    def interrupt(verdict: Verdict, tally: Tally) -> None:
        if tally.seeds == 3:
            raise KeyboardInterrupt

    tally = run_campaign(options(1_000, None), run_fake, interrupt)

    assert (tally.seeds, tally.interrupted) == (3, True)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    "seed, says",
    [
        (BREAKING, "the simulator broke: LookupError: no such segment in the plan\n"),
        (DYING, "the run killed its process, exit code -9"),
        (HANGING, "the run did not end within 1 s of real time\n"),
        (LEAKING, "the simulator broke: RuntimeWarning: coroutine '_never_awaited' was never awaited\n"),
    ],
)
def test_a_run_without_a_verdict_is_a_finding_and_the_next_seed_is_run(seed: int, says: str) -> None:
    verdicts = run_jobs(Job(seed), Job(1), seed_seconds_max=1)

    assert str(verdicts[seed].violation).startswith(says)
    assert verdicts[1].violation is None


def test_a_run_that_breaks_or_hangs_is_reported_with_its_stack() -> None:
    verdicts = run_jobs(Job(BREAKING), Job(HANGING), seed_seconds_max=1)

    assert "in run_fake" in str(verdicts[BREAKING].violation)
    assert "in _hang" in str(verdicts[HANGING].violation)


def test_a_worker_is_used_again_and_idle_ones_are_not_started() -> None:
    with WorkerPool(run_fake, 8, 60) as pool:
        for seed in range(1, 5):
            assert pool.run_one(Job(seed)).seed == seed
        assert len(multiprocessing.active_children()) == 1

    assert multiprocessing.active_children() == []


def test_a_job_reaches_the_run_as_it_was_given() -> None:
    verdicts = run_jobs(Job(1, operations=7, keep=(3, 9), full_trace=True))

    assert (verdicts[1].operations, verdicts[1].steps, len(verdicts[1].trace)) == (7, (3, 9), 2)


class Unloadable:
    """A runner that ends the process which unpacks it."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return sys.exit, (3,)

    def __call__(self, seed: int) -> Verdict:
        raise AssertionError("never reached")


def test_workers_that_cannot_start_end_the_campaign() -> None:
    """Every seed would fail in the same way, and it would not be the seed's fault."""
    with pytest.raises(WorkersCannotStart, match="exit code 3 before its first seed"):
        run_campaign(options(), Unloadable(), nobody)

    assert multiprocessing.active_children() == []


def test_failures_are_kept_in_the_order_in_which_they_were_found() -> None:
    found: list[Verdict] = []

    tally = run_campaign(
        options(FAILING, 5),
        run_fake,
        lambda verdict, tally: found.extend([verdict] * (verdict.violation is not None)),
    )

    assert tally.failures == found
    assert {verdict.seed for verdict in found} == {FAILING, BREAKING}

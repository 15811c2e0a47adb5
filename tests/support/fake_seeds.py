"""Runs of seeds that simulate nothing: what they come to depends on the seed alone, so that tests of
campaigns know it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection

from simulation.verdict import Verdict

STEPS = tuple(range(1, 41))
NEEDED = (7, 8, 30)
"""The steps without which the failing seeds do not fail."""
FAILING, BREAKING, DYING, HANGING, LEAKING = 13, 17, 19, 23, 29


def run_fake(
    seed: int,
    *,
    operations: int = 200,
    keep: Collection[int] | None = None,
    full_trace: bool = False,
) -> Verdict:
    kept = STEPS if keep is None else tuple(sorted(keep))
    if seed == BREAKING:
        raise ExceptionGroup("tasks", [LookupError("no such segment in the plan")])
    if seed == DYING:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == HANGING:
        _hang()
    if seed == LEAKING:
        _ = _never_awaited()
    fails = seed == FAILING and set(NEEDED) <= set(kept)
    trace = tuple(f"{number}.0 client step {number} of seed {seed}" for number in kept)
    return Verdict(
        seed=seed,
        violation=f"segment 'a-{len(kept)}' lost {len(kept)} bytes\nmore about it" if fails else None,
        trace=trace if full_trace else trace[-200:],
        digest=f"{seed:x}",
        steps=kept,
        operations=operations,
        simulated_seconds=1800.0,
        counts={"acked": 100, "kills": 2},
    )


async def _never_awaited() -> None:
    pass


def _hang() -> None:
    sys.stderr.write(f"hanging in {os.getpid()}\n")
    sys.stderr.flush()
    while True:
        time.sleep(3600)

"""What a seed came to. The processes that run seeds import this and not the simulator, which takes longer to
import than a short run."""

from __future__ import annotations

from collections.abc import Mapping

import attrs


@attrs.frozen
class Verdict:
    """The verdict on one run."""

    seed: int
    violation: str | None
    """The first line names it, the next ones say where."""
    trace: tuple[str, ...]
    digest: str
    steps: tuple[int, ...]
    """The numbers of the plan's steps."""
    operations: int
    simulated_seconds: float
    counts: Mapping[str, int]

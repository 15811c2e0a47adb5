"""When a flush cycle is due. Pure: facts in, answer out.

Owns: the rule of size, age and request (rule F5). Only what clients caused makes a cycle due; what a cycle
writes itself never does.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class Due:
    """``now``: begin a cycle; ``full``: every segment takes part; ``wait``: seconds until age makes one due
    (None: not at all)."""

    now: bool
    full: bool = False
    wait: float | None = None


def decide_due(
    *,
    requested: bool,
    segments_by_size: int,
    dirty_since: float | None,
    now: float,
    flush_age: float,
    not_before: float,
    deferred_due: float | None = None,
) -> Due:
    """``dirty_since``: when the oldest caused operation outside a full cycle was first seen; ``not_before``:
    the end of a pause after a failure; ``deferred_due``: when a step of maintenance may be done (rule F6; None:
    there is nothing to do).

    All times are monotonic seconds of one ownership (rule C8).
    """
    aged = dirty_since is not None and now >= dirty_since + flush_age
    if requested or aged or segments_by_size:
        if now < not_before:
            return Due(False, wait=not_before - now)

        return Due(True, full=requested or aged)

    if deferred_due is not None and now >= deferred_due:
        return Due(True)

    times = [
        time
        for time in (None if dirty_since is None else dirty_since + flush_age, deferred_due)
        if time is not None
    ]
    return Due(False, wait=max(0.0, min(times) - now) if times else None)

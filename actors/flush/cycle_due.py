"""When a flush cycle is due: by size, age and request (rule F5). Pure."""

from __future__ import annotations

from msgspec import Struct


class Due(Struct, frozen=True):
    """When a flush cycle is due."""

    now: bool
    full: bool = False
    """Whether every segment takes part."""
    wait: float | None = None
    """Seconds until a cycle is due by age; None if none will be."""


def decide_due(
    *,
    requested: bool,
    segments_by_size: int,
    by_size_at: float,
    dirty_since: float | None,
    now: float,
    flush_age: float,
    not_before: float,
    deferred_due: float | None = None,
) -> Due:
    """Decide by size, age and request (rule F5). All times are monotonic seconds of one ownership (rule C8).

    ``by_size_at``: when the next cycle by size may begin. ``dirty_since``: when the oldest operation of a
    client outside a full cycle was first seen. ``not_before``: the end of the pause after a failure.
    ``deferred_due``: when a step of deferred work is due (rule F6), if one is."""
    aged = dirty_since is not None and now >= dirty_since + flush_age
    if requested or aged or (segments_by_size and now >= by_size_at):
        # A pause holds up requests too: each attempt against a storage that fails costs a cycle.
        if now < not_before:
            return Due(False, wait=not_before - now)

        # F5: size makes only the large segments take part; the others would go to chunks in small pieces.
        return Due(True, full=requested or aged)

    if deferred_due is not None and now >= deferred_due:
        return Due(True)

    times = [
        time
        for time in (
            None if dirty_since is None else dirty_since + flush_age,
            by_size_at if segments_by_size else None,
            deferred_due,
        )
        if time is not None
    ]
    return Due(False, wait=max(0.0, min(times) - now) if times else None)

"""Trouble with long-term storage as one state with a cause, for health, pages and metrics (rules A16 and S7).

Owns: what was last heard from the backend, and the choice of the one state out of all that is known; sync and
pure. Does not own: the breaker, the quota and the pools, which say what they know, nor anything that is done
about trouble: appends go on into the log and the cache whatever is said here, and flushes resume by
themselves.

The order of the choice is the order of what an operator would do first: make room, then see why nothing
answers, then why it is slow.
"""

from __future__ import annotations

import enum

import attrs

from ...storage_backends.base.errors import StorageFull
from ...storage_backends.base.statistics import state


class TroubleKind(enum.Enum):
    NONE = "none"
    FULL = "full"
    """Users' chunks cannot grow: above the safe size, or the backend has no room. Reads, deletes and
    truncations go on."""
    UNREACHABLE = "unreachable"
    """The breaker is open: one probe at a time is let through."""
    SLOW = "slow"
    """Calls run past their deadline and have not returned."""


@attrs.frozen
class StorageHealthStatistics:
    kind: TroubleKind = attrs.field(
        default=TroubleKind.NONE,
        metadata=state("Trouble with long-term storage: none, full, unreachable, slow."),
    )
    cause: str = ""
    """For people: what was seen, and what helps."""

    def document(self) -> dict[str, str]:
        return {"trouble": self.kind.value, "cause": self.cause}


class LastFailure:
    """What the backend's answers said last."""

    __slots__ = ("full", "last")

    def __init__(self) -> None:
        self.full = ""
        """Why the last growth was refused, until one succeeds."""
        self.last = ""
        """The last error that says nothing about a chunk."""

    def heard(self, error: BaseException | None, *, grows: bool, is_failure: bool) -> None:
        """How an attempt ended: ``grows`` if it would take more space, ``is_failure`` if its error is about
        the storage itself."""
        if isinstance(error, StorageFull):
            self.full = str(error)
        elif is_failure:
            self.last = str(error) or type(error).__name__
        elif error is None and grows:
            self.full = ""


def trouble_of(
    heard: LastFailure, *, over_quota: str, failures: int, is_open: bool, late: int
) -> StorageHealthStatistics:
    """``over_quota``: why growth is refused by the safe size, empty if it is not. ``failures`` in a row;
    ``late`` calls."""
    if over_quota or heard.full:
        return StorageHealthStatistics(TroubleKind.FULL, over_quota or heard.full)
    if is_open:
        return StorageHealthStatistics(
            TroubleKind.UNREACHABLE, f"{failures} calls in a row failed, the last one with: {heard.last}"
        )
    if late:
        return StorageHealthStatistics(TroubleKind.SLOW, f"{late} calls have not returned at their deadline")
    return StorageHealthStatistics()

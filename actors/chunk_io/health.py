"""The health of long-term storage: one state with its cause, for probes, pages and metrics (rules A16 and
S7).

Bad health stops nothing: appends go on into the log and the cache, and flushes resume by themselves. The
order of the states is the order in which an operator acts: make room, then see why nothing answers, then why
it is slow.
"""

from __future__ import annotations

import enum

import attrs

from ...storage_backends.base.errors import StorageFull
from ...storage_backends.base.statistics import state
from ...storage_backends.base.values import Value


class StorageHealth(enum.Enum):
    OK = "ok"
    FULL = "full"
    """Users' chunks cannot grow: the safe size is exceeded, or the backend has no room. Reads, deletes and
    truncations go on."""
    UNREACHABLE = "unreachable"
    """The breaker is open: one probe at a time passes."""
    SLOW = "slow"
    """Calls run past their deadline and have not returned."""


@attrs.frozen(eq=False, repr=False)
class StorageHealthStatistics(Value):
    state: StorageHealth = attrs.field(
        default=StorageHealth.OK, metadata=state("Health of long-term storage: ok, full, unreachable, slow.")
    )
    cause: str = ""
    """What happened and what to do, for people."""

    def document(self) -> dict[str, str]:
        return {"state": self.state.value, "cause": self.cause}


class LastFailure:
    """The state of the storage itself, by the backend's last answers."""

    __slots__ = ("full", "message")

    def __init__(self) -> None:
        self.full = ""
        """Why the last growth was refused; empty again once one succeeds."""
        self.message = ""
        """The last error that is about the storage and not about a chunk."""

    def note(self, error: BaseException | None, *, grows: bool, is_failure: bool) -> None:
        """Note how an attempt ended. ``grows``: it takes space. ``is_failure``: its error is about the
        storage itself."""
        # Kept until a growth succeeds: reads and deletes work on a full storage too, and show nothing.
        if isinstance(error, StorageFull):
            self.full = str(error)
        elif is_failure:
            self.message = str(error) or type(error).__name__
        elif error is None and grows:
            self.full = ""


def health_of(
    last: LastFailure, *, over_quota: str, failures: int, is_open: bool, late: int
) -> StorageHealthStatistics:
    """``over_quota``: why the quota refuses growth, empty if it does not. ``failures`` in a row. ``is_open``:
    the breaker is not closed. ``late``: calls past their deadline."""
    if over_quota or last.full:
        return StorageHealthStatistics(StorageHealth.FULL, over_quota or last.full)
    if is_open:
        return StorageHealthStatistics(
            StorageHealth.UNREACHABLE, f"{failures} calls in a row failed, the last one with: {last.message}"
        )
    if late:
        return StorageHealthStatistics(
            StorageHealth.SLOW, f"{late} calls have not returned at their deadline"
        )
    return StorageHealthStatistics()

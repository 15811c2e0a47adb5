"""The quota: users' chunks stop growing while the storage holds more than its safe size (rule A15).

Between two measurements the bytes written since are added, so that a burst cannot run far past the limit. The
store's own chunks, reads and deletes are exempt: they make space (rule C6). Synchronous and pure; the actor
measures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...storage_backends.base.errors import StorageFull
from .calls import SYSTEM_PREFIX

if TYPE_CHECKING:
    from .statistics import QuotaStatistics


class Quota:
    __slots__ = ("_measured", "_missed", "_refused", "_safe_size", "_used")

    def __init__(self, safe_size_bytes: int) -> None:
        self._safe_size = safe_size_bytes
        self._used = 0
        self._measured = 0
        self._missed = 0
        self._refused = 0

    def __repr__(self) -> str:
        return f"<Quota {self._used} of {self._safe_size or 'unlimited'} B>"

    @property
    def is_limited(self) -> bool:
        return self._safe_size > 0

    @property
    def reason(self) -> str:
        """Why users' chunks may not grow now; empty if they may."""
        # Compared with what is used already, without the new bytes: the last call may pass the limit, and a
        # chunk larger than what is left does not wait forever.
        if not self._safe_size or self._used < self._safe_size:
            return ""

        return (
            f"long-term storage holds {self._used} bytes, its safe size is {self._safe_size}: "
            "delete or truncate segments, or raise the safe size"
        )

    def measure(self, used_bytes: int) -> None:
        """Note the space in use, as the backend measured it."""
        # Replaces what was added since: deletions are known only by measuring.
        self._used = used_bytes
        self._measured += 1

    def missed(self) -> None:
        """Note that a measurement failed."""
        self._missed += 1

    def add(self, size_bytes: int) -> None:
        """Note what was written since the last measurement."""
        self._used += size_bytes

    def check(self, name: str) -> None:
        """Raise ``StorageFull`` if the chunk ``name`` may not be created or grow now."""
        # C6: a claim or a journal element is what lets deletions go on, so the store's own chunks pass.
        if self.reason and not name.startswith(SYSTEM_PREFIX):
            self._refused += 1
            raise StorageFull(self.reason)

    def statistics(self) -> QuotaStatistics:
        from .statistics import QuotaStatistics

        return QuotaStatistics(
            safe_size_bytes=self._safe_size,
            used_bytes=self._used,
            measured=self._measured,
            missed=self._missed,
            refused=self._refused,
        )

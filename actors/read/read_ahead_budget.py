"""What all read-aheads of a store share: memory, and how many fetches run at a time.

Owns: the sums and the limits. Does not own: windows, nor who gets one.

Every call is synchronous and none waits: who is refused reads without a window. So a read-ahead can make
nobody slower, and the memory of all readers together stays below the limit, however many there are. Crash:
nothing is durable.
"""

from __future__ import annotations

import attrs

from ...storage_backends.base.errors import InvalidArgument


@attrs.define
class ReadAheadBudget:
    limit_bytes: int = 128 << 20
    """Of all windows: those that are on their way, and those that wait for their reader."""
    fetches_max: int = 8
    """Windows on their way at a time. Below the number of reads that long-term storage serves at a time, so
    that others find a place."""
    held_bytes: int = attrs.field(default=0, init=False)
    fetching: int = attrs.field(default=0, init=False)
    streams: int = attrs.field(default=0, init=False)
    """Readers that hold a window."""

    def __attrs_post_init__(self) -> None:
        if self.limit_bytes < 1 or self.fetches_max < 1:
            raise InvalidArgument(f"limit_bytes and fetches_max are at least 1: {self}")

    @property
    def share_bytes(self) -> int:
        """What one reader may hold, so that all have the same."""
        return self.limit_bytes // max(1, self.streams)

    def begin(self, size: int) -> bool:
        """Take the memory of a window and begin to fetch it, if there is room for both."""
        if self.fetching >= self.fetches_max or self.held_bytes + size > self.limit_bytes:
            return False

        self.fetching += 1
        self.held_bytes += size
        return True

    def fetched(self) -> None:
        """The fetch has ended, whichever way; the memory is still held."""
        self.fetching -= 1

    def release(self, size: int) -> None:
        self.held_bytes -= size

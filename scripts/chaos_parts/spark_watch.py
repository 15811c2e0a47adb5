"""Readers beside a write, and what is left behind it.

Owns: the reader that polls a target while it is written, and the wait for the end of leases. Does not own:
what may be seen (``spark_oracle.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import anyio
import anyio.abc

import tierlog
from chaos_parts.spark_draws import Draw
from chaos_parts.spark_oracle import EVENT_BYTES
from tierlog.storage_backends.base.transactions import TransactionState

_POLL = 0.01
_AFTER_LEASE = 6.0
"""Seconds beyond the lease and its quarter (rule T7) that a busy machine is given."""
_LOOK = 0.1


class Watch:
    """Sees a write at whatever moment: all of it is there, or nothing."""

    def __init__(self, store: tierlog.Client, target: str, allowed: Collection[int]) -> None:
        self._store = store
        self._target = target
        self._allowed = allowed
        self._seen = 0
        self.polls = 0
        self.blind = 0
        """Polls that saw nothing."""
        self.problems: list[str] = []

    async def run(self) -> None:
        while not self.problems:
            try:
                self._see((await self._store.segment_info(self._target)).length)
            except (tierlog.SegmentNotFound, tierlog.Unavailable):
                self.blind += 1  # not made yet, or its host has just been lost
            await anyio.sleep(_POLL)

    def _see(self, length: int) -> None:
        self.polls += 1
        if length not in self._allowed:
            self.problems.append(
                f"a reader saw {length} bytes, which is a part of a write ({length / EVENT_BYTES:g} events)"
            )
        elif length < self._seen:
            self.problems.append(f"a reader saw {length} bytes after {self._seen}")
        self._seen = length


async def left_staged(store: tierlog.Client, targets: Mapping[str, Draw]) -> dict[str, str]:
    """What is still staged or open when every lease must be over, by target."""
    left: dict[str, str] = {}
    lease = max((drawn.lease for drawn in targets.values()), default=0.0)
    with anyio.move_on_after(lease * 1.25 + _AFTER_LEASE):
        while left := await _staged(store, targets):
            await anyio.sleep(_LOOK)
    return left


async def _staged(store: tierlog.Client, targets: Iterable[str]) -> dict[str, str]:
    found = {}
    for target in targets:
        names = await store.list_segments(f"{target}#txn.")
        known = [info for info in await store.list_transactions(target) if info.target == target]
        opened = [info.transaction_id for info in known if info.state is TransactionState.OPEN]
        if names or opened:
            found[target] = (
                f"{len(names)} staged segments and {len(opened)} open transactions are left after the "
                f"lease: {[*names, *opened][:3]}"
            )
    return found

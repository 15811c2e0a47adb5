"""How segments report the chunks that they create and no longer need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GarbageSink(Protocol):
    """What chunked segments report to the garbage collector. Nothing in this package deletes a chunk (rules
    F2, G1).

    ``track`` is awaited before a chunk is created, so that a crash at any later moment leaves a trace of the
    name (PDP-53). Once the outcome of the transaction is known, each of its names is reported exactly once
    with ``keep``, ``release`` or ``doubt``. A name whose chunk was certainly not created may instead stay
    tracked for the segment's next transaction to use. The three are plain functions, so that they run even
    while a task is being cancelled.
    """

    async def track(self, names: Sequence[str]) -> None:
        """Remember ``names`` before they are created. If this raises, they must not be created."""

    def keep(self, names: Sequence[str]) -> None:
        """Tracked names that a successful commit refers to."""

    def release(self, names: Sequence[str]) -> None:
        """Names that nothing refers to: dropped by a commit, or perhaps created by a failed transaction. The
        chunk may not exist."""

    def doubt(self, names: Sequence[str]) -> None:
        """Names of a commit with unknown outcome: new ones are garbage if it failed, dropped ones if it
        succeeded. The durable metadata decides."""

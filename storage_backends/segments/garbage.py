"""What chunked segments tell the garbage collector, and when.

Owns: the ``GarbageSink`` protocol. Does not own: any deletion. Nothing in this package deletes a chunk (rules
F2, G1); the collector decides on durable state, after the flush cycle that made something garbage is
complete.

Order: ``track`` is awaited before a chunk is created, so that a crash at any later moment leaves a trace of
the name (PDP-53). When the transaction's end is known, each of its names is told once: ``keep`` (it is
referenced now), ``release`` (nothing refers to it: its commit succeeded without it, or definitely failed) or
``doubt`` (the commit's outcome is unknown: whether ``c:<name>`` exists in the durable metadata decides). A
name whose chunk was surely not created may instead wait, tracked, for the segment's next transaction, which
uses it. The three are plain functions, so that they can run while a task is being cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class GarbageSink(Protocol):
    async def track(self, names: Sequence[str]) -> None:
        """Remember ``names`` before they are created. An error means: do not create them."""

    def keep(self, names: Sequence[str]) -> None:
        """Tracked names that a successful commit refers to."""

    def release(self, names: Sequence[str]) -> None:
        """Names that nothing refers to any more, or that a failed transaction may have created (the chunk may
        also not exist)."""

    def doubt(self, names: Sequence[str]) -> None:
        """Names of a commit with unknown outcome: new ones are garbage if it failed, dropped ones if it
        succeeded."""

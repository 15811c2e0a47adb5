"""The contract of a register: one small compare-and-set cell that only grows.

A log's epoch lives in one. ``raise_above`` is atomic between processes; ``current`` may be read by anybody.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Register(ABC):
    @abstractmethod
    async def load(self) -> int | None:
        """The value, or None if the register was never written. ``DataCorruption`` if it is damaged."""

    @abstractmethod
    async def raise_above(self, floor: int) -> int:
        """Atomically set the value to 1 + max(value, floor), durably, and return it."""

"""The contract of a register: a small compare-and-set cell that only grows. A log's epoch is kept in one."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Register(ABC):
    @abstractmethod
    async def load(self) -> int | None:
        """The value, or None if the register was never written. Raises ``DataCorruption`` if it is
        damaged."""

    @abstractmethod
    async def raise_above(self, floor: int) -> int:
        """Atomically and durably set the value to 1 + max(value, floor), and return it. Atomic between
        processes."""

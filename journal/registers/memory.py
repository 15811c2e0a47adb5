"""A register in memory: shared by all who hold the object, gone with the process."""

from __future__ import annotations

import anyio.lowlevel

from .contract import Register


class MemoryRegister(Register):
    def __init__(self) -> None:
        self._value: int | None = None

    async def load(self) -> int | None:
        await anyio.lowlevel.checkpoint()
        return self._value

    async def raise_above(self, floor: int) -> int:
        await anyio.lowlevel.checkpoint()
        # No await between reading and writing: that is what makes it atomic.
        self._value = 1 + max(self._value or 0, floor)
        return self._value

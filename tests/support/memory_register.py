"""A register in memory."""

from __future__ import annotations

import anyio.lowlevel

from tierlog.journal.registers.contract import Register


class MemoryRegister(Register):
    def __init__(self) -> None:
        self._value: int | None = None

    async def load(self) -> int | None:
        await anyio.lowlevel.checkpoint()
        return self._value

    async def raise_above(self, floor: int) -> int:
        await anyio.lowlevel.checkpoint()
        # Atomic, because there is no await between reading and writing.
        self._value = 1 + max(self._value or 0, floor)
        return self._value

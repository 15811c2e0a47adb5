"""A service of ledgers with one fault: at its n-th call, of a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from support.call_faults import CallFault, CallFaults
from support.memory_ledgers import Cluster, MemoryLedgers

T = TypeVar("T")
READS = {"count", "open", "list", "describe", "load", "children", "check", "watch", "read"}


class FaultyLedgers(MemoryLedgers):
    def __init__(self, cluster: Cluster, fault: CallFault | None = None) -> None:
        super().__init__(cluster)
        self.faults = CallFaults(fault, READS)

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        return await self.faults.ask(name, effect)

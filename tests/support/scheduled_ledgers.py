"""A service of ledgers whose calls arrive, take effect and are answered when a seed says so, as the requests
of ``scheduled_objects``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from support.faulty_ledgers import READS
from support.memory_ledgers import Cluster, MemoryLedgers
from support.scheduled_objects import Requests

T = TypeVar("T")


class ScheduledLedgers(MemoryLedgers):
    """The service as ``caller`` sees it."""

    def __init__(self, requests: Requests, cluster: Cluster, caller: int) -> None:
        super().__init__(cluster)
        self._requests = requests
        self._caller = caller

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        answer: T = await self._requests.ask(self._caller, effect, changes=name not in READS)
        return answer

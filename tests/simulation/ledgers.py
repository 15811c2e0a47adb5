"""The service of ledgers of a simulation, as a log in ledgers uses it, behind the contract ``LedgerService``.

Its calls are requests (``transit.py``). When a process's sidecar ends, whatever was under way has no answer,
and every ledger that was open is none any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import trio

from support.memory_ledgers import Cluster, MemoryLedger, MemoryLedgers
from tierlog.storage_backends.base.errors import OutcomeUnknown
from tierlog.storage_backends.base.ledger_service import Ledger, Quorum

from .faults import LEDGER_CHANGES, Faults, Target
from .gates import Gate
from .transit import RemoteCalls, Transit

T = TypeVar("T")
LOGS = "/logs/"
"""Below it are the logs' records."""


def log_path(index: int) -> str:
    return f"{LOGS}{index:04d}"


class SharedLedgers(Transit):
    """What all processes see."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster()


class SimulatedLedgers(MemoryLedgers):
    """The service as one process sees it, behind its gate, with faults."""

    def __init__(self, shared: SharedLedgers, process: int, gate: Gate, faults: Faults) -> None:
        super().__init__(shared.cluster)
        self._calls = RemoteCalls(shared, process, gate, faults, Target.LEDGERS, LEDGER_CHANGES)
        self._made: list[MemoryLedger] = []
        self._sidecar_ended = trio.Event()

    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        return self._note(await super().create_ledger(quorum, metadata))

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        return self._note(await super().open_ledger(ledger, recover=recover))

    def _note(self, ledger: Ledger) -> Ledger:
        assert isinstance(ledger, MemoryLedger)
        self._made.append(ledger)
        return ledger

    def end_sidecar(self) -> None:
        """As its death. The next call starts another one, which has another session."""
        self.end_session()
        made, self._made = self._made, []
        for ledger in made:
            ledger.end()
        ended, self._sidecar_ended = self._sidecar_ended, trio.Event()
        ended.set()

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        ended = self._sidecar_ended
        answer: T = await self._calls.ask(name, "", f"ledgers {name}", effect)
        if ended.is_set():
            raise OutcomeUnknown(f"simulated: the sidecar ended during {name}")
        return answer

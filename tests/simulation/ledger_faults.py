"""What happens to a log in ledgers (rules B1 to B10): trouble with its calls, too few bookies, a sidecar that
ends, and damage of its entries while no process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import trio

from support.memory_ledgers import StoredLedger

from .damage import Undo, flipped
from .faults import Target
from .plan import FaultKind, PlannedFault
from .remote_log_faults import RemoteLogFaults, Strike

_BOOKIES = 3


class LedgerFaults(RemoteLogFaults):
    kind, target = FaultKind.LEDGERS, Target.LEDGERS
    calls = (
        ("append", ""),
        ("append", ""),
        ("replace", ""),
        ("recover", ""),
        ("create_ledger", ""),
        ("load", ""),
        ("delete_ledger", ""),
    )
    late = (("append", ""), ("replace", ""), ("recover", ""), ("create_ledger", ""), ("delete_ledger", ""))
    append = ("append", "")
    creating = ("create", "replace", "create_ledger")

    def strikes(self) -> Sequence[Strike]:
        return (*super().strikes(), self._lose_bookies, self._end_sidecar, self._end_sidecar)

    def _lose_bookies(self, fault: PlannedFault, random: Random) -> None:
        """No ledger can be made for a while."""
        cluster = self._site.ledgers.cluster
        cluster.bookies = 1

        async def come_back() -> None:
            await trio.sleep(min(fault.seconds, 20.0))
            cluster.bookies = _BOOKIES

        self._tasks.start_soon(come_back)

    def _end_sidecar(self, fault: PlannedFault, random: Random) -> None:
        """Every ledger that the owner has open is none any more."""
        if (process := self._run.current) is not None and process.alive:
            self._site.trace.note(process.gate.name, "sidecar ends")
            self._site.ledgers_of[process.number].end_sidecar()

    def damage(self, random: Random) -> Undo | None:
        """An entry has a flipped bit, or is cut, or a ledger is gone that is not the newest."""
        ledgers = self._site.ledgers.cluster.ledgers
        filled = sorted(ledger for ledger, stored in ledgers.items() if stored.entries)
        if not filled:
            return None

        ledger = random.choice(filled)
        if len(filled) > 1 and random.random() < 0.3:
            self._site.trace.note("damage", f"ledger {filled[0]} is gone")
            gone = ledgers.pop(filled[0])
            return lambda: ledgers.update({filled[0]: gone})
        stored = ledgers[ledger]
        entry = random.choice(sorted(stored.entries))
        data = stored.entries[entry]
        if random.random() < 0.5:
            changed = flipped(data, random.randrange(8 * len(data)))
        else:
            changed = data[: random.randrange(len(data))]
        self._site.trace.note("damage", f"entry {entry} of ledger {ledger}")
        return _exchange(stored, entry, changed)


def _exchange(stored: StoredLedger, entry: int, changed: bytes) -> Callable[[], None]:
    before, stored.entries[entry] = stored.entries[entry], changed

    def undo() -> None:
        if stored.entries.get(entry) is changed:
            stored.entries[entry] = before

    return undo

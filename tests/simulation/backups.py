"""Backups beside everything else, in seeds of their own: they are made and removed while owners change, calls
fail, and garbage is collected. Whatever happens, a backup that was acked has all that it needs until it is
removed, and what only removed ones needed is collected (rules P2 to P4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import anyio.abc

from tierlog.storage_backends.base.errors import BackupNotFound

from .invariants import Broken
from .plan import FaultKind, PlannedFault
from .process import Process
from .published import names_kept_by
from .run_state import RunState

_KEPT_MAX = 4
_SECONDS = 120.0


class Backups:
    def __init__(self, run: RunState, tasks: anyio.abc.TaskGroup) -> None:
        """``tasks`` holds the processes."""
        self._run = run
        self._tasks = tasks
        self._acked: list[str] = []
        """Those that nobody has begun to remove."""
        self.acts: Mapping[FaultKind, Callable[[PlannedFault], None]] = {FaultKind.BACKUP: self._begin}

    def _begin(self, fault: PlannedFault) -> None:
        process, random = self._run.current, Random(f"fault {fault.chance}")
        if process is None or process.frozen:
            return

        # Names are not used again: a removal that hangs may take effect late (rule P3).
        make = partial(self._make, process, f"b{fault.number}")
        removes = self._acked and (len(self._acked) >= _KEPT_MAX or random.random() < 0.3)
        act = partial(self._remove, process, random.choice(self._acked)) if removes else make
        self._tasks.start_soon(self._run.site.or_all_end, act)

    async def _make(self, process: Process, name: str) -> None:
        async def make() -> None:
            await process.store.backup(name)
            self._acked.append(name)

        await self._run.attempt(process, f"backup {name}", lambda store: make(), seconds=_SECONDS)

    async def _remove(self, process: Process, name: str) -> None:
        if name in self._acked:
            self._acked.remove(name)
            await self._run.attempt(
                process, f"remove {name}", lambda store: store.remove_backup(name), seconds=_SECONDS
            )

    async def check_and_remove(self, process: Process) -> None:
        """At the end, when nothing is wrong any more."""
        store = process.store
        found = {backup.name: backup for backup in await store.backups()}
        for name in self._acked:
            if name not in found or found[name].problem:
                raise Broken(f"it does not hold that a backup stays until it is removed\n{name}: {found}")

        contents = self._run.site.chunk_contents().keys()
        for container in process.containers():
            for pin in container.pins.known:
                await container.pins.among((), ())  # resolves what a crash has left
                if pin in container.pins.known and (
                    missing := await names_kept_by(container, pin) - contents
                ):
                    raise Broken(
                        f"it does not hold that a backup keeps what it needs\n{pin}: {sorted(missing)}"
                    )
        for name in found:
            try:
                await store.remove_backup(name)
            except BackupNotFound:
                raise Broken(
                    f"it does not hold that a backup that is listed can be removed\n{name}"
                ) from None

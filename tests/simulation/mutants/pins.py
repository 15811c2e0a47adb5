"""The planted bugs of backups."""

from __future__ import annotations

from typing import Any

import attrs

from tierlog.actors.container import lts_boot
from tierlog.actors.container.pins import Pins

from ..pinned import FIRST_PINNED
from .planting import Planter, mutant


@mutant("P3", worlds_from=FIRST_PINNED)
def pins_without_a_record_stay(plant: Planter) -> None:
    """Backups that were never completed take the room of others."""

    async def resolve(original: Any, self: Pins, name: str) -> bool:
        return await self._find(name) is not None and await original(self, name)

    plant(Pins._resolve, resolve)


@mutant("P4", worlds_from=FIRST_PINNED)
def garbage_that_a_backup_needs_is_deleted(plant: Planter) -> None:
    """A backup is listed, and cannot be restored."""

    async def among(original: Any, self: Pins, chunks: Any, runs: Any) -> set[str]:
        return set()

    plant(Pins.among, among)


@mutant("P5", worlds_from=FIRST_PINNED)
def recovery_forgets_the_backups(plant: Planter) -> None:
    """After a restore from one backup nothing keeps what the others need."""

    async def read_boot(original: Any, container: int, newest: Any, *arguments: Any) -> lts_boot.LtsBoot:
        element = attrs.evolve(newest.element, pins=())
        boot: lts_boot.LtsBoot = await original(container, attrs.evolve(newest, element=element), *arguments)
        return boot

    plant(lts_boot.read_boot, read_boot)

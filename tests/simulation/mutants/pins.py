"""The planted bugs of backups."""

from __future__ import annotations

from typing import Any

import attrs

from tierlog.actors.container import lts_boot
from tierlog.actors.container.manifest_state import ManifestState
from tierlog.actors.container.pins import Pins
from tierlog.actors.store.store import SegmentStore, _new_id
from tierlog.journal.manifest.element import Kind
from tierlog.storage_backends.base.backups import make_backup, take_steps

from ..pinned import FIRST_PINNED
from .planting import Planter, mutant


@mutant("P1", worlds_from=FIRST_PINNED)
def backup_is_made_without_a_flush(plant: Planter) -> None:
    """A backup lacks what was acked before the call that made it."""

    async def publish(original: Any, self: Pins) -> None:
        pass

    async def backup(original: Any, self: SegmentStore, name: str) -> None:
        token = await self.on_container(0, _new_id)
        await take_steps(make_backup(name, token, self.containers), self.take_backup_step)

    plant(Pins.publish_all, publish)
    plant(SegmentStore.backup, backup)


@mutant("P2", worlds_from=FIRST_PINNED)
def pin_ends_with_the_next_element(plant: Planter) -> None:
    """A backup keeps nothing once its container has flushed again."""

    def pins(original: Any, self: ManifestState) -> Any:
        newest = self.head if self.intent is None else self.intent
        is_pinned = newest is not None and newest.element.kind is Kind.PINNED
        return original(self) if is_pinned else ()

    plant(vars(ManifestState)["pins"].fget, pins)


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


@mutant("P6", worlds_from=FIRST_PINNED)
def restore_goes_on_with_the_numbers_of_the_backup(plant: Planter) -> None:
    """Epochs and versions that were given after the backup are given again."""

    async def read_boot(original: Any, container: int, newest: Any, chosen: Any, *arguments: Any) -> Any:
        known = newest.element.progress
        progress = attrs.evolve(known, highest_version=chosen.progress.highest_version)
        element = attrs.evolve(newest.element, epoch=chosen.epoch, progress=progress)
        return await original(container, attrs.evolve(newest, element=element), chosen, *arguments)

    plant(lts_boot.read_boot, read_boot)

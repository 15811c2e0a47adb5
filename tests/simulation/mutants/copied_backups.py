"""The planted bugs of copies of backups."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from tierlog.actors.container import lts_boot
from tierlog.actors.maintenance import place_of_copies
from tierlog.actors.maintenance.backup_copy import _Copy, _Rest
from tierlog.actors.maintenance.copied_objects import CopiedObjects, Needed, PutRanges
from tierlog.actors.maintenance.place_of_copies import _History
from tierlog.journal.manifest.pin_record import encode_pin_record, pin_record_name
from tierlog.storage_backends.base.errors import ChunkNotFound

from ..copied_backups import FIRST_COPIED
from .planting import Planter, mutant

_planted = partial(mutant, worlds_from=FIRST_COPIED)


@_planted("P7")
def damaged_chunks_of_a_copy_are_deleted_first(plant: Planter) -> None:
    """A call that is killed in between leaves earlier backups without them."""

    async def put_parts(original: Any, self: CopiedObjects, needed: Needed, put: PutRanges) -> None:
        with suppress(ChunkNotFound):
            await self._target.delete(needed.name)
        await original(self, needed, self._target.concat)

    plant(CopiedObjects._put_parts, put_parts)


@_planted("P7")
def record_of_a_copy_comes_first(plant: Planter) -> None:
    """A copy that was killed is listed as a backup, and cannot be restored."""

    async def run(original: Any, self: _Copy, rest: _Rest) -> Any:
        if rest is not _Rest.STORE:
            await _put_record(self)
        return await original(self, rest)

    plant(_Copy.run, run)


async def _put_record(copy: _Copy) -> None:
    record = copy._record
    parts = encode_pin_record(record.name, record.store, copy.elements)
    await copy._objects.put(pin_record_name(record.name), parts)


@_planted("P7")
def nothing_in_a_copy_is_read_again(plant: Planter) -> None:
    """What was damaged there since stays so, though all of it was to be verified."""

    def init(original: Any, self: CopiedObjects, *arguments: Any, rereads: bool) -> None:
        original(self, *arguments, rereads=False)

    plant(CopiedObjects.__init__, init)


@_planted("P8")
def copies_of_two_histories_mix(plant: Planter) -> None:
    """The backups of a store and of one that was restored elsewhere are taken for those of one store."""
    plant(_History.has, lambda original, self, there: True)


@_planted("P8")
def recovery_forgets_the_logs_before(plant: Planter) -> None:
    """After two recoveries the place of a store's own copies is refused."""

    async def read_boot(original: Any, *arguments: Any) -> lts_boot.LtsBoot:
        boot: lts_boot.LtsBoot = await original(*arguments)
        return attrs.evolve(boot, ended_logs=())

    plant(lts_boot.read_boot, read_boot)


@_planted("P6")
def restore_from_a_copy_that_was_killed_is_not_repeated(plant: Planter) -> None:
    """The record of the store comes before its elements, whose journal seems to be lost then."""

    async def run(original: Any, self: _Copy, rest: _Rest) -> Any:
        return await original(self, _Rest.COPY if rest is _Rest.STORE else rest)

    plant(_Copy.run, run)


@_planted("P7")
def what_lies_in_the_place_of_a_copy_is_trusted(plant: Planter) -> None:
    """A copy has what a call that was killed has left: a part of a chunk, or damage."""

    async def damage(original: Any, chunk: Any, chunks: Any) -> None:
        return None

    plant(place_of_copies.chunk_damage, damage)

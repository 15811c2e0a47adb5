"""The planted bugs of the chain in long-term storage, and of the ownership that it proves."""

from __future__ import annotations

from typing import Any

from tierlog.actors.container.confirmation import Confirmation
from tierlog.actors.container.listed_chain import ListedChain
from tierlog.actors.container.ownership import StorageOwnership
from tierlog.actors.container.recovery import _CheckpointRecords
from tierlog.actors.container.sources import ContainerManifestSource
from tierlog.actors.flush.cycle_publisher import CyclePublisher
from tierlog.actors.flush.flush_cycle import FlushCycle
from tierlog.journal.operations.log_element import CheckpointManifest, LogElement, LogElementChange
from tierlog.journal.operations.operation import Operation

from ..copies import FIRST
from .planting import Planter, mutant


@mutant("J3")
def element_is_created_before_it_is_recorded(plant: Planter) -> None:
    """A crash between the creation and the record makes the next owner take its own folder for a copy."""

    async def log(original: Any, self: ContainerManifestSource, op: Operation) -> object:
        return None if isinstance(op, LogElement | LogElementChange) else await original(self, op)

    async def create(original: Any, self: StorageOwnership, op: LogElement) -> ListedChain:
        listed: ListedChain = await original(self, op)
        source: Any = self._source
        await source._container.log_operation(op)
        return listed

    plant(ContainerManifestSource.log, log)
    plant(StorageOwnership._create, create)


@mutant("J5")
def flush_is_answered_before_its_element_counts(plant: Planter) -> None:
    """Long-term storage alone does not have what a flush has returned for."""

    def begin(original: Any, self: CyclePublisher, cycle: FlushCycle) -> None:
        original(self, cycle)
        if cycle.cut is not None and not cycle.cut.held:
            self._callers.published(cycle.sequence)

    plant(CyclePublisher.begin, begin)


@mutant("J4")
def listing_alone_proves_that_storage_was_put_back(plant: Planter) -> None:
    """One listing that lacks an element ends an ownership until an operator acts."""

    async def check(original: Any, self: StorageOwnership, position: Any) -> None:
        pass

    plant(StorageOwnership._check_is_gone, check)


@mutant("J8")
def old_elements_stay(plant: Planter) -> None:
    """Each cycle leaves an object forever."""

    async def delete(original: Any, self: StorageOwnership, kept: int = 2) -> bool:
        return False

    plant(StorageOwnership._delete_old, delete)


@mutant("J11")
def checkpoint_leaves_out_the_chain(plant: Planter) -> None:
    """Once the log is truncated, it does not know its own elements, and the store is refused as a copy."""
    plant(
        _CheckpointRecords.add,
        lambda original, self, op: None if type(op) is CheckpointManifest else original(self, op),
    )


@mutant("J7", worlds_from=FIRST)
def chain_is_checked_only_once(plant: Planter) -> None:
    """An original whose copy was opened goes on to flush and to delete, and one of the two loses data."""

    async def check(original: Any, self: StorageOwnership) -> None:
        pass

    async def advance(original: Any, self: StorageOwnership, *arguments: Any) -> None:
        if not self._is_open:
            await original(self, *arguments)

    plant(StorageOwnership._check_chain, check)
    plant(StorageOwnership._advance, advance)


@mutant("J6", worlds_from=FIRST)
def versions_of_another_history_are_used_again(plant: Planter) -> None:
    """A client of the lost history overwrites a row that it has not read, and misses changes."""

    async def begin(original: Any, self: Confirmation, highest: int = 0) -> None:
        pass

    plant(Confirmation.begin_history, begin)


@mutant("J6", worlds_from=FIRST)
def foreign_element_is_adopted(plant: Planter) -> None:
    """A copy goes on above its original, and deletes what only the original knows."""

    async def refuse(original: Any, self: StorageOwnership, step: Any, listed: Any) -> None:
        pass

    plant(StorageOwnership._refuse, refuse)

"""The planted bugs of users' tables: conditions, repeats, reads, and what deleted tables leave."""

from __future__ import annotations

from copy import copy
from typing import Any

from msgspec.structs import replace

from tierlog.actors.container.left_rows import MARK_PREFIX
from tierlog.actors.container.operations import append, table
from tierlog.actors.container.row_removal import RowRemoval
from tierlog.actors.container.tables import Tables
from tierlog.storage_backends.sorted_runs import scan
from tierlog.storage_backends.sorted_runs.scan import Page

from .planting import Planter, mutant


class _Undurable:
    """A container that waits for nothing to become durable."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def __getattr__(self, name: str) -> Any:
        return getattr(self._container, name)

    async def wait_durable(self) -> None:
        pass


@mutant("C1")
def row_is_shown_before_it_is_durable(plant: Planter) -> None:
    """A read shows a row that a crash then takes."""

    async def read(original: Any, self: Tables, *arguments: Any) -> Any:
        hasty = copy(self)
        hasty._container = _Undurable(self._container)  # type: ignore[assignment]
        return await original(hasty, *arguments)

    for verb in (Tables.get, Tables.page, Tables.changes):
        plant(verb, read)


@mutant("M15")
def condition_is_not_compared_with_the_rows(plant: Planter) -> None:
    """Two updates that expect the same version of a row are both applied, and one is lost."""
    plant(table._is_as_expected, lambda original, state, segment, request: True)


@mutant("M9")
def condition_counts_as_of_its_lookup(plant: Planter) -> None:
    """A row that changed after it was looked up is overwritten."""

    def find(original: Any, state: Any, segment: Any, request: Any) -> bool:
        released, request.seen = request.seen, 1 << 62
        try:
            return bool(original(state, segment, request))
        finally:
            request.seen = released

    plant(table._is_as_expected, find)


@mutant("C3")
def repeated_update_is_applied_again(plant: Planter) -> None:
    """After a lost answer an update is applied twice, over what others have changed since."""

    def repeat(original: Any, state: Any, segment: Any, request: Any) -> Any:
        known = original(state, segment, request)
        return None if segment.is_table else known

    plant(append.find_repeat, repeat)


@mutant("M16")
def changes_leave_removals_out(plant: Planter) -> None:
    """Who follows the changes of a table keeps rows that were removed."""

    async def page(original: Any, *arguments: Any, changed_after: int | None = None) -> Page:
        found: Page = await original(*arguments, changed_after=changed_after)
        return replace(found, rows=[row for row in found.rows if row.value is not None])

    plant(scan.scan_rows, page)


@mutant("M17")
def rows_of_a_deleted_table_stay(plant: Planter) -> None:
    """A deleted table takes its room forever."""

    async def page(original: Any, self: RowRemoval, prefix: bytes, start: bytes) -> Page:
        found: Page = await original(self, prefix, start)
        return Page([], None) if prefix == MARK_PREFIX else found

    plant(RowRemoval._page, page)

"""The tables of an embedded store: what ``Table`` asks of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...storage_backends.base.errors import TooLarge
from ...storage_backends.base.tables import TABLE_BYTES_MAX, ChangesPage, TablePage, TableRow
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits
from ..container.operations.table import UpdateTableRequest
from .containers import StoreContainers

if TYPE_CHECKING:
    from ...storage_backends.base.table import WriterEvent


class StoreTables:
    """The ``TableAccess`` of a store."""

    def __init__(self, containers: StoreContainers, append_bytes_max: int) -> None:
        self._call = containers.call
        self._append_bytes_max = append_bytes_max

    async def update(
        self,
        name: str,
        rows: Sequence[tuple[bytes, bytes | None]],
        expected: Mapping[bytes, int],
        event: WriterEvent,
    ) -> int | None:
        identity = event.writer, event.number, event.previous, event.history
        request = UpdateTableRequest(name, rows, expected, *identity)
        most = min(self._append_bytes_max, TABLE_BYTES_MAX)
        if request.size > most:
            raise TooLarge(
                f"an update has at most {most} bytes of keys and values, not {request.size}: divide it"
            )
        return await self._call("update_table", name, lambda owner: owner.tables.update(request))

    async def get(self, name: str, keys: Sequence[bytes]) -> list[TableRow | None]:
        return await self._call("get_rows", name, lambda owner: owner.tables.get(name, keys))

    async def page(
        self, name: str, start: bytes, end: bytes | None, token: str | None, limit: int
    ) -> TablePage:
        keys, limits = KeyRange(start, end), PageLimits(limit)
        return await self._call(
            "page_of_rows", name, lambda owner: owner.tables.page(name, keys, token, limits)
        )

    async def changes(self, name: str, since: int, token: str | None, limit: int) -> ChangesPage:
        limits = PageLimits(limit)
        return await self._call(
            "changes_of_rows", name, lambda owner: owner.tables.changes(name, since, token, limits)
        )

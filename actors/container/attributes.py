"""Attributes that are rows (rule M19): pages of them, and what is done about them in the background.

Owns: pages, the removal of rows that removed segments left, and the move of attributes into rows where an
earlier version left too many in an image. Does not own: decisions (``operations/attributes.py``).

Cancellation and crash: a removal goes on from its mark, a move from what the log has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from ...storage_backends.base.codec import DecodeError
from ...storage_backends.base.errors import CLAIM_REFUSED, DataCorruption, Throttled, TierlogError
from ...storage_backends.base.segments import AttributeName, AttributePage
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, prefix_end, successor
from ...storage_backends.sorted_runs.scan import KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from ..telemetry.logging import get_logger
from .attribute_rows import (
    REMOVAL_PREFIX,
    attribute_key,
    attributes_prefix,
    name_of_key,
    removed_sid,
    value_of,
)
from .metadata_store import LoggedMetadataStore
from .operations.attributes import SpillRequest
from .requests import Request
from .segments import SegmentState
from .state import ContainerState

if TYPE_CHECKING:
    from .container import Container

_log = get_logger("container")
_REMOVED_AT_ONCE = 128
_RETRY_SECONDS = 30.0
_ROWS_WAITING_MAX = 32 << 20
"""Bytes of rows in memory up to which attributes are removed: each removal is a row, too, until it is
published."""


async def attribute_page(
    state: ContainerState,
    runs: RunReader,
    segment: SegmentState,
    prefix: AttributeName,
    after: AttributeName | None,
    limit: int,
) -> AttributePage:
    """The next attributes of ``segment`` whose names, or ids, begin with ``prefix``, as of the first step.
    Raises ``Unavailable``, ``DataCorruption``."""
    # In one step: a change may move attributes from the image to rows.
    shown = _in_image(segment, prefix, after)
    stored: list[tuple[AttributeName, int]] = []
    if segment.has_attribute_rows:
        with state.table.view() as view:
            stored = await _in_rows(view, runs, segment.sid, prefix, after, limit + 1)
    # Each is either in the image or a row.
    found = list(islice(merge(shown, stored), limit + 1))
    page = found[:limit]
    return AttributePage(dict(page), page[-1][0] if len(found) > limit else None)


async def list_attributes(
    container: Container, name: str, prefix: AttributeName, after: AttributeName | None, limit: int
) -> AttributePage:
    """As ``attribute_page``, of the segment ``name``, once all of it is durable."""
    segment = await container.find_durable(name)
    page = await container.as_owner(
        attribute_page(container.state, container.runs, segment, prefix, after, limit)
    )
    await container.wait_durable()
    return page


def _in_image(
    segment: SegmentState, prefix: AttributeName, after: AttributeName | None
) -> list[tuple[AttributeName, int]]:
    if not isinstance(prefix, str):
        return []

    start = after if isinstance(after, str) else ""
    return sorted(
        (name, value)
        for name, value in segment.attributes.items()
        if name > start and name.startswith(prefix)
    )


async def _in_rows(
    view: TableView,
    runs: RunReader,
    sid: int,
    prefix: AttributeName,
    after: AttributeName | None,
    limit: int,
) -> list[tuple[AttributeName, int]]:
    first = attribute_key(sid, prefix)
    start = first if after is None else max(first, successor(attribute_key(sid, after)))
    page = await scan_rows(view, runs, KeyRange(start, prefix_end(first)), PageLimits(limit))
    return [decode_attribute(row) for row in page.rows]


def decode_attribute(row: Row) -> tuple[AttributeName, int]:
    """Raises ``DataCorruption``."""
    try:
        value = value_of(row)
        assert value is not None, "a scan shows no tombstones"
        return name_of_key(row.key), value
    except DecodeError as error:
        raise DataCorruption(f"a row of an attribute does not decode: {error}", file=repr(row)) from error


class Attributes:
    """The background work of one ownership on attributes that are rows."""

    def __init__(
        self,
        state: ContainerState,
        rows: LoggedMetadataStore,
        ask: Callable[[Request, int], Awaitable[object]],
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        """``ask`` sends an internal request of a size in bytes; ``flush`` returns once rows are published."""
        self._state = state
        self._rows = rows
        self._ask = ask
        self._flush = flush
        self._due = anyio.Event()
        self._due.set()  # an earlier owner may have left marks
        state.on_attributes_left = self._wake

    def _wake(self) -> None:
        self._due.set()

    async def run(self) -> None:
        """Work until cancelled. What fails is tried again after a pause."""
        await self._shorten_images()
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            try:
                await self._remove_left()
            except CLAIM_REFUSED:
                raise
            except TierlogError as error:
                _log.warning("attributes_not_removed", container=self._state.container, error=str(error))
                self._due.set()
                await anyio.sleep(_RETRY_SECONDS)

    async def _shorten_images(self) -> None:
        """Earlier versions had all attributes in images; one that is too large is no row (rule M13)."""
        for sids in in_slices(self._state.segments.ids()):
            for sid in sids:
                while self._is_too_long(sid):
                    await self._ask(SpillRequest(sid), 64)
            await anyio.lowlevel.checkpoint()

    def _is_too_long(self, sid: int) -> bool:
        segment = self._state.segments.get(sid)
        return segment is not None and len(segment.attributes) > self._state.attributes_in_image

    async def _remove_left(self) -> None:
        """Remove the attributes of removed segments, and then their marks."""
        while marks := await self._rows.some(REMOVAL_PREFIX.decode(), _REMOVED_AT_ONCE):
            for mark, (version, _) in marks.items():
                await self._remove(attributes_prefix(removed_sid(mark)).decode())
                await self._rows.commit({mark: version}, {mark: None})

    async def _remove(self, prefix: str) -> None:
        """Some in each commit. Nobody adds any."""
        after = ""
        while left := await self._rows.some(prefix, _REMOVED_AT_ONCE, after):
            if self._state.table.memory >= _ROWS_WAITING_MAX:
                await self._flush()
                if self._state.table.memory >= _ROWS_WAITING_MAX:
                    raise Throttled("there is no room to publish the rows that wait in memory")
            await self._rows.commit({key: version for key, (version, _) in left.items()}, dict.fromkeys(left))
            after = next(reversed(left))

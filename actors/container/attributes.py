"""Attributes that are rows (rule M19): pages of them, and the move of attributes into rows where an earlier
version left too many in an image. The decisions are in ``operations/attributes.py``.

Cancellation and crash: a move goes on from what the log has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

import anyio.lowlevel

from ...storage_backends.base.segments import AttributeName, AttributePage
from ...storage_backends.sorted_runs.reader import RunReader
from ...storage_backends.sorted_runs.rows import Row, decoded, prefix_end, successor
from ...storage_backends.sorted_runs.scan import SLICE_ROWS, KeyRange, PageLimits, scan_rows
from ...storage_backends.sorted_runs.table import TableView
from ..kernel.slices import in_slices
from .attribute_rows import attribute_key, name_of_key, value_of
from .operations.attributes import SpillRequest
from .requests import Request
from .segments import SegmentState
from .state import ContainerState

if TYPE_CHECKING:
    from .container import Container


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
    found: list[tuple[AttributeName, int]] = []
    for rows in in_slices(page.rows, SLICE_ROWS):
        found += map(decode_attribute, rows)
        await anyio.lowlevel.checkpoint()
    return found


def decode_attribute(row: Row) -> tuple[AttributeName, int]:
    """Raises ``DataCorruption``."""
    value = decoded(value_of, row, row.key)
    assert value is not None, "a scan shows no tombstones"
    return decoded(name_of_key, row.key, row.key), value


async def shorten_images(state: ContainerState, ask: Callable[[Request, int], Awaitable[object]]) -> None:
    """Move attributes and writers into rows where an earlier version, which had all of them in images, left
    too many: an image that is too large is no row (rule M13). ``ask`` sends an internal request of a size in
    bytes."""
    for sids in in_slices(state.segments.ids()):
        for sid in sids:
            while (found := state.segments.get(sid)) and state.has_long_image(found):
                await ask(SpillRequest(sid), 64)
        await anyio.lowlevel.checkpoint()

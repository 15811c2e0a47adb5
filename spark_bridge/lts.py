"""Planning a read of a store that has no service, from its long-term storage alone (``open_lts``).

The driver finds out which chunks have each task's range, and tasks read those. The view is open while the
plan is made, on an event loop in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
from anyio.from_thread import BlockingPortal, start_blocking_portal

from ..storage_backends.base.segment_layout import ChunkExtent, StoragePlace
from ..storage_backends.base.segments import SegmentInfo

if TYPE_CHECKING:
    from .. import LtsView


@attrs.frozen
class Chunks:
    """Where one task's bytes are."""

    place: StoragePlace
    extents: tuple[ChunkExtent, ...]


class LtsPlanner:
    """What planning asks of a client, answered by a view."""

    def __init__(self, view: LtsView, portal: BlockingPortal) -> None:
        self._view = view
        self._portal = portal

    def segment_info(self, name: str) -> SegmentInfo:
        return self._portal.call(self._view.segment_info, name)

    def list_segments(self, prefix: str = "") -> list[str]:
        return self._portal.call(self._view.list_segments, prefix)

    def append_starts(self, name: str, start: int, end: int) -> list[int]:
        return self._portal.call(self._view.append_starts, name, start, end)

    def read(self, name: str, offset: int, size: int) -> bytes:
        return self._portal.call(self._view.read, name, offset, size)

    def chunks(self, name: str, start: int, end: int, location: str = "") -> Chunks:
        """``location``: where tasks find the storage, if not where the view does."""
        found: list[ChunkExtent] = []
        begin: int | None = start
        while begin is not None:
            layout = self._portal.call(self._view.segment_layout, name, begin, end)
            found += layout.extents
            begin = layout.next_start
        place = self._view.place
        return Chunks(StoragePlace(place.store, location) if location else place, tuple(found))


@contextmanager
def planner(place: str) -> Iterator[LtsPlanner]:
    """Raises as ``open_lts``."""
    from .. import open_lts

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_lts(place)) as view:
        yield LtsPlanner(view, portal)

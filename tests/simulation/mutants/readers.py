"""The planted bugs of what readers of long-term storage itself rely on."""

from __future__ import annotations

from typing import Any

import attrs
from msgspec.structs import replace

from tierlog.actors.container import segment_layout
from tierlog.actors.gc.collector import Collector
from tierlog.actors.store.lts_view import LtsContainer

from .planting import Planter, mutant


@mutant("G2")
def garbage_does_not_wait(plant: Planter) -> None:
    """A reader that holds a layout meets chunks that are gone."""

    def init(original: Any, self: Collector, chunks: Any, source: Any, options: Any) -> None:
        original(self, chunks, source, attrs.evolve(options, delay=0.0))

    plant(Collector.__init__, init)


@mutant("S21")
def layout_lacks_what_was_truncated_meanwhile(plant: Planter) -> None:
    """A reader takes the bytes of another offset for those that it asked for."""

    async def find(original: Any, storage: Any, segment: Any, *arguments: Any, **options: Any) -> Any:
        layout = await original(storage, segment, *arguments, **options)
        shift = segment.flushed_start
        extents = tuple(replace(each, start=each.start - shift) for each in layout.extents)
        return replace(layout, extents=extents)

    plant(segment_layout.find_layout, find)


@mutant("S21")
def view_keeps_its_snapshot(plant: Planter) -> None:
    """A reader of a living store's storage meets damage where there is none."""

    async def refresh(original: Any, self: LtsContainer) -> bool:
        return False

    plant(LtsContainer.refresh, refresh)

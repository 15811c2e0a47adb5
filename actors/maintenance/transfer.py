"""Import and export of legacy segments, for tools that have a store open; others may use it meanwhile."""

from __future__ import annotations

from enum import Enum

import attrs

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
)
from ...storage_backends.base.names import check_segment_name
from ..container.container import Container
from ..legacy_rolling import export, importing
from ..legacy_rolling.export import Exported
from ..legacy_rolling.find import list_segments
from ..legacy_rolling.importing import Progress
from ..store.store import SegmentStore


class ImportOutcome(Enum):
    IMPORTED = "imported"
    SKIPPED = "skipped"
    """It is already a segment of the store, or cannot be imported."""
    FAILED = "failed"
    """Its files contradict each other."""


@attrs.frozen
class Imported:
    name: str
    outcome: ImportOutcome
    length: int = 0
    reason: str = ""
    """Why it was not imported."""


async def import_segment(store: SegmentStore, name: str, progress: Progress) -> Imported:
    """Import a segment of the legacy layout. Raises ``SegmentExists``, ``SegmentNotFound``,
    ``DataCorruption``."""
    check_segment_name(name)
    length = await store.on_container(
        store.container_of(name), lambda container: importing.import_segment(container, name, progress)
    )
    return Imported(name, ImportOutcome.IMPORTED, length)


async def try_import(store: SegmentStore, name: str, progress: Progress) -> Imported:
    """``import_segment`` for one of many: a failure is an outcome, so that the others go on."""
    try:
        return await import_segment(store, name, progress)
    except (InvalidArgument, SegmentExists, SegmentNotFound) as error:
        return Imported(name, ImportOutcome.SKIPPED, reason=str(error))
    except DataCorruption as error:
        return Imported(name, ImportOutcome.FAILED, reason=str(error))


async def legacy_segments(store: SegmentStore, prefix: str) -> list[str]:
    """The names of legacy segments that have a header file and begin with ``prefix``."""
    return await list_segments(await chunks_of(store), prefix)


async def chunks_of(store: SegmentStore) -> ChunkStorage:
    """The store's long-term storage."""

    async def get(container: Container) -> ChunkStorage:
        return container.chunks

    # All containers share it.
    return await store.on_container(0, get)


async def export_segment(store: SegmentStore, name: str, *, replace: bool = False) -> Exported:
    """Write the legacy header file of a segment's flushed bytes. Raises ``SegmentNotFound``,
    ``WrongSegmentKind``, ``Unsupported``, ``InvalidArgument``."""
    check_segment_name(name)
    return await store.on_container(
        store.container_of(name), lambda container: export.export_segment(container, name, replace=replace)
    )

"""What tools do to an open store, beyond its verbs: import, export, defragment, back up.

Owns: the way to each container and what an operator is told. Does not own: the work (``container/older.py``,
``backup/taking.py``, ``storage_backends/chunked``). The caller owns the store; other callers of it may go on
meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import anyio
import attrs

from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import (
    DataCorruption,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    Unavailable,
)
from ...storage_backends.base.names import check_segment_name
from ...storage_backends.segments.operations.defrag import DefragResult
from ..container.container import Container
from ..legacy_rolling import export, importing
from ..legacy_rolling.export import Exported
from ..legacy_rolling.find import list_segments
from ..store.store import SegmentStore
from .backup import BackupOptions, BackupSource, create_backup
from .backup_objects import Manifest

_MAINTENANCE_SECONDS = 600.0
Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes found to do) since the last call."""


class ImportOutcome(Enum):
    IMPORTED = "imported"
    PASSED_OVER = "passed over"
    """It is a segment already, or none that could be imported."""
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
    """Import a segment of the legacy layout. ``SegmentExists``, ``SegmentNotFound``, ``DataCorruption``."""
    check_segment_name(name)
    length = await store.on_container(
        store.container_of(name), lambda container: importing.import_segment(container, name, progress)
    )
    return Imported(name, ImportOutcome.IMPORTED, length)


async def try_import(store: SegmentStore, name: str, progress: Progress) -> Imported:
    """``import_segment`` for one of many: what cannot be imported does not keep the others from it."""
    try:
        return await import_segment(store, name, progress)
    except (InvalidArgument, SegmentExists, SegmentNotFound) as error:
        return Imported(name, ImportOutcome.PASSED_OVER, reason=str(error))
    except DataCorruption as error:
        return Imported(name, ImportOutcome.FAILED, reason=str(error))


async def legacy_segments(store: SegmentStore, prefix: str) -> list[str]:
    """The names of the legacy layout's segments that have a header and begin with ``prefix``."""
    return await list_segments(await chunks_of(store), prefix)


async def chunks_of(store: SegmentStore) -> ChunkStorage:
    """The store's long-term storage, as its parts reach it."""

    async def look(container: Container) -> ChunkStorage:
        return container.chunks

    return await store.on_container(0, look)


async def export_segment(store: SegmentStore, name: str, *, replace: bool = False) -> Exported:
    """Write the header file of a segment's flushed bytes. ``SegmentNotFound``, ``Unsupported``,
    ``InvalidArgument``."""
    check_segment_name(name)
    return await store.on_container(
        store.container_of(name),
        lambda container: export.export_segment(container, name, replace=replace),
    )


async def defrag_segment(store: SegmentStore, name: str) -> DefragResult:
    """Join a segment's small chunks; what is not flushed yet is not looked at. Nobody else may use the store
    meanwhile: a segment has one transaction at a time. ``Unavailable`` if the container's own maintenance of
    long-term storage does not come to its end."""
    check_segment_name(name)

    async def act(container: Container) -> DefragResult:
        segment = await container.find_durable(name)
        await _finish_maintenance(container)
        return await container.storage.defrag(segment.sid) if segment.has_record else DefragResult(0, 0, 0)

    return await store.on_container(store.container_of(name), act)


async def _finish_maintenance(container: Container) -> None:
    """Let the container's cycles finish the deferred work: after that no transaction is open but the caller's."""
    with anyio.move_on_after(_MAINTENANCE_SECONDS):
        while await container.storage.deferred_work():
            await container.wait_cycle()
        return

    raise Unavailable(
        f"maintenance of container {container.index} does not end; see its log of events, and try again later"
    )


async def back_up(
    store: SegmentStore, target: ChunkStorage | None, terms: BackupOptions, progress: Progress
) -> Manifest:
    """Back up all segments to ``target``, or to the store's own long-term storage. Only what is flushed is
    backed up."""
    sources = [await store.on_container(index, _source) for index in range(store.containers)]
    return await create_backup(sources, target or await chunks_of(store), terms, progress)


async def _source(container: Container) -> BackupSource:
    return BackupSource(container.index, container.state.epoch, container.state, container.storage)

"""What tools do to an open store beyond its verbs: import, export, defragment, back up.

The caller owns the store; other callers may go on using it unless a function says otherwise.
"""

from __future__ import annotations

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
from ..legacy_rolling.importing import Progress
from ..store.store import SegmentStore
from .backup import BackupOptions, BackupSource, create_backup
from .backup_objects import Manifest

_DEFERRED_WORK_SECONDS = 600.0


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

    return await store.on_container(0, get)


async def export_segment(store: SegmentStore, name: str, *, replace: bool = False) -> Exported:
    """Write the legacy header file of a segment's flushed bytes. Raises ``SegmentNotFound``, ``Unsupported``,
    ``InvalidArgument``."""
    check_segment_name(name)
    return await store.on_container(
        store.container_of(name), lambda container: export.export_segment(container, name, replace=replace)
    )


async def defrag_segment(store: SegmentStore, name: str) -> DefragResult:
    """Join the small chunks of a segment's flushed bytes.

    Nothing else may use the store meanwhile, because a segment has one metadata transaction at a time. Raises
    ``Unavailable`` if the container's deferred work does not finish within ten minutes.
    """
    check_segment_name(name)

    async def act(container: Container) -> DefragResult:
        segment = await container.find_durable(name)
        await _finish_deferred_work(container)
        return await container.storage.defrag(segment.sid) if segment.has_record else DefragResult(0, 0, 0)

    return await store.on_container(store.container_of(name), act)


async def _finish_deferred_work(container: Container) -> None:
    """Wait until no metadata transaction is open but the caller's."""
    with anyio.move_on_after(_DEFERRED_WORK_SECONDS):
        while await container.storage.deferred_work():
            await container.wait_cycle()
        return

    raise Unavailable(
        f"the deferred work of container {container.index} does not finish: see the log, and try again later"
    )


async def back_up(
    store: SegmentStore, target: ChunkStorage | None, options: BackupOptions, progress: Progress
) -> Manifest:
    """Back up what is flushed of all segments to ``target``; None: to the store's long-term storage."""
    sources = [await store.on_container(index, _source) for index in range(store.containers)]
    return await create_backup(sources, target or await chunks_of(store), options, progress)


async def _source(container: Container) -> BackupSource:
    return BackupSource(container.index, container.state.epoch, container.state, container.storage)

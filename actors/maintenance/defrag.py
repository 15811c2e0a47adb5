"""Defragmentation of one segment, for tools that have a store open."""

from __future__ import annotations

import anyio

from ...storage_backends.base.errors import Unavailable
from ...storage_backends.base.names import check_segment_name
from ...storage_backends.segments.operations.defrag import DefragResult
from ..container.container import Container
from ..store.store import SegmentStore

_DEFERRED_WORK_SECONDS = 600.0


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

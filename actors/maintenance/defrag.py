"""Defragmentation of one segment, for tools that have a store open."""

from __future__ import annotations

from ...storage_backends.base.names import check_segment_name
from ...storage_backends.segments.operations.defrag import DefragResult
from ..container.container import Container
from ..store.store import SegmentStore


async def defrag_segment(store: SegmentStore, name: str) -> DefragResult:
    """Join the small chunks of a segment's flushed bytes, while this owner has long-term storage (rule J7).
    Appends and flushes go on (rule S12)."""
    check_segment_name(name)

    async def act(container: Container) -> DefragResult:
        segment = await container.find_kind(name)
        if not segment.has_record:
            return DefragResult(0, 0, 0)

        return await container.storage.defrag(segment.sid, container.ownership.keep_proven)

    return await store.on_container(store.container_of(name), act)

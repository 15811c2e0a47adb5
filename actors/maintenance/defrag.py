"""Defragmentation of one segment, for tools that have a store open."""

from __future__ import annotations

from ...storage_backends.base.names import check_segment_name
from ...storage_backends.segments.operations.defrag import DefragResult
from ..container.container import Container
from ..store.store import SegmentStore


async def defrag_segment(store: SegmentStore, name: str) -> DefragResult:
    """Join the small chunks of a segment's flushed bytes. Appends and flushes go on (rule S12)."""
    check_segment_name(name)

    async def act(container: Container) -> DefragResult:
        segment = await container.find_durable(name)
        return await container.storage.defrag(segment.sid) if segment.has_record else DefragResult(0, 0, 0)

    return await store.on_container(store.container_of(name), act)

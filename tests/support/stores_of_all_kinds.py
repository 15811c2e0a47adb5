"""What a store may have, all of it, and what happens to it during a flush."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from tierlog import SegmentStore, StagedPart
from tierlog.storage_backends.base.checksum import Buffer
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage


async def fill(store: SegmentStore) -> None:
    """Segments of all kinds."""
    for number in range(30):
        name = f"s#{number}"
        await store.create_segment(name)
        await store.append(name, bytes(100), writer_id="w", event_number=0)
        if number % 3 == 0:
            await store.seal_segment(name)
        if number % 5 == 0:
            await store.truncate_segment(name, 40)
    await store.merge_segments("s#1", ["s#3", "s#9"])
    await store.delete_segment("s#7")
    await store.create_segment("s#7")
    await store.create_table("table")
    await store.table("table").put(b"key", b"value")
    await store.begin_transaction("s#2", "t")
    part = StagedPart(await store.stage_segment("s#2", "t", "0"), 5)
    await store.append(part.name, bytes(5))
    await store.commit_transaction("s#2", "t", [part])


def during_a_flush(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Awaitable[object]]) -> None:
    """``act`` runs before the first chunk of a segment is created."""
    left = [act]
    create = FileSystemChunkStorage._create_with_content

    async def after_act(self: FileSystemChunkStorage, name: str, data: Sequence[Buffer]) -> int:
        if left and name.startswith("containers/"):
            await left.pop()()
        return await create(self, name, data)

    monkeypatch.setattr(FileSystemChunkStorage, "_create_with_content", after_act)

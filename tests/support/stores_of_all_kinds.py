"""What a store may have, all of it, and what happens to it during a flush."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

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


async def whole(store: SegmentStore, name: str, position: int) -> bytes:
    found = b""
    while block := await store.read(name, position + len(found), 1 << 20):
        found += block
    return found


async def contents(store: SegmentStore) -> dict[str, Any]:
    """All that a client can see but the history, which a recovery begins."""
    found: dict[str, Any] = {"names": await store.list_segments()}
    for name in found["names"]:
        info = await store.segment_info(name)
        found[name] = replace(info, history=0)
        if info.is_table:
            found[f"{name} rows"] = (await store.table(name).page()).rows
        else:
            found[f"{name} bytes"] = await whole(store, name, info.start_offset)
            found[f"{name} attributes"] = await store.list_attributes(name)
            found[f"{name} event"] = await store.last_event_number(name, "w")
    found["transactions"] = [(each.target, each.state) for each in await store.list_transactions()]
    return found

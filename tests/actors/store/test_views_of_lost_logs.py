"""A read-only view of a folder that lacks the log of one container (rule R11)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.folders import fingerprint
from tierlog import StoreMismatch, open_store
from tierlog.actors.container.listed_chain import ListedChain, list_chain
from tierlog.actors.maintenance.report import garbage_of, verify
from tierlog.actors.store.read_only import open_reader
from tierlog.storage_backends.base.chunk_storage import ChunkStorage

pytestmark = pytest.mark.anyio


async def test_r11_a_container_whose_log_is_lost_is_reported_and_not_shown_as_empty(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=2) as store:
        for number in range(4):
            await store.create_segment(f"s{number}")
        await store.flush()
        lost = [name for name in await store.list_segments() if (await store.segment_info(name)).container]
    assert lost
    shutil.rmtree(tmp_path / "wal/0001")
    before = fingerprint(tmp_path)
    async with open_reader(tmp_path) as view:
        garbage = garbage_of(view, view.containers[1], {})
        for attempt in (view.list_segments(), view.read(lost[0], 0, 10), verify(view), garbage):
            with pytest.raises(StoreMismatch, match="container 1: its log is lost"):
                await attempt
    assert fingerprint(tmp_path) == before


async def test_a_first_opening_beside_a_view_is_no_lost_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner claims the chain after the view found the log empty."""
    async with open_store(tmp_path / "made", containers=1):
        pass
    shutil.copytree(tmp_path / "made", tmp_path / "new")
    shutil.rmtree(tmp_path / "new/wal/0000")

    async def after_the_owner(chunks: ChunkStorage, container: int) -> ListedChain:
        chain = await list_chain(chunks, container)
        shutil.copytree(tmp_path / "made/wal/0000", tmp_path / "new/wal/0000")
        return chain

    monkeypatch.setattr("tierlog.actors.store.read_only.list_chain", after_the_owner)
    async with open_reader(tmp_path / "new") as view:
        assert await view.list_segments() == []

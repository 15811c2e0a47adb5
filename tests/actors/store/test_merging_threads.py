"""Merges that run in threads, beside everything else that uses the local disk."""

from __future__ import annotations

import threading
from pathlib import Path

import anyio
import pytest

import tierlog
from support.live_service import name_in
from support.patience import scaled
from tierlog.storage_backends.base.files import ListFolder, Program
from tierlog.storage_backends.sorted_runs import merge_helper
from tierlog.storage_backends.sorted_runs.merge import MergeOrder
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry

CONTAINERS = 4


@pytest.mark.anyio
async def test_w7_merges_take_no_thread_that_others_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge takes minutes; each flush writes a local copy."""
    is_over = threading.Event()
    begun: list[MergeOrder] = []

    def endless(order: MergeOrder, is_cancelled: object) -> Program[list[RunEntry]]:
        yield ListFolder(order.folder)
        begun.append(order)
        is_over.wait()
        raise OSError("given up by the test")

    monkeypatch.setattr(merge_helper, "merge_runs", endless)
    async with tierlog.open_store(tmp_path / "data", containers=CONTAINERS) as store:
        names = [name_in(container, CONTAINERS) for container in range(CONTAINERS)]
        for name in names:
            await store.create_segment(name)
        try:
            with anyio.fail_after(scaled(60)):
                # Ten runs in each container: a merge is due.
                while not begun:
                    await flush_all(store, names)
                for _ in range(5):
                    await flush_all(store, names)
        finally:
            is_over.set()


async def flush_all(store: tierlog.SegmentStore, names: list[str]) -> None:
    for name in names:
        await store.append(name, b"x")
    await store.flush()

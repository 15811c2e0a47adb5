"""Backups of an open store: what they keep, what is resolved, and what is refused (rules P1 to P6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tierlog import InvalidArgument, SegmentStore, StoreConfig, open_store
from tierlog.actors.settings.configuration import GcConfig, WriterConfig

pytestmark = pytest.mark.anyio
QUIET = StoreConfig(writer=WriterConfig(flush_age=3600.0), gc=GcConfig(delay=0.0))


async def test_backup_is_listed_and_removed(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=2, config=QUIET) as store:
        await store.create_segment("a")
        await store.append("a", b"hello")
        await store.backup("one")
        with pytest.raises(InvalidArgument, match="already a backup"):
            await store.backup("one")
        [one] = await store.backups()
        assert (one.name, one.containers, one.problem) == ("one", 2, "")
    async with open_store(tmp_path, config=QUIET) as store:
        await store.remove_backup("one")
        assert await store.backups() == []
        with pytest.raises(InvalidArgument, match="no backup"):
            await store.remove_backup("one")
        await store.backup("one")

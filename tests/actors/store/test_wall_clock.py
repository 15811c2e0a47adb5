"""A machine whose wall clock is wrong: what a folder says about times is for people, and must stop nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tierlog import open_store
from tierlog.actors.folder.paths import check_path, live_owners
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio


async def test_a_folder_created_with_a_clock_before_1970_shows_its_owner(tmp_path: Path) -> None:
    world = replace(system_world(), wall_clock=lambda: -3600.0)
    async with open_store(tmp_path, containers=1, world=world) as store:
        await store.create_segment("s")
        [owner] = await live_owners(LocalFiles(), check_path(tmp_path))
        assert owner.since_ms == 0

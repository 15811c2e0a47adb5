"""A store whose long-term storage, a folder of its own, is not mounted when it is opened (rule S20)."""

from __future__ import annotations

import shutil
import traceback
from pathlib import Path

import pytest

import tierlog
from support.stores import CONFIG

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("mount_point", [False, True])
async def test_an_opening_leaves_the_folder_of_a_missing_mount_empty(
    tmp_path: Path, mount_point: bool, adopt: bool
) -> None:
    lts, mounted = tmp_path / "data/lts", tmp_path / "mounted"
    async with tierlog.open_store(tmp_path / "data", containers=1, config=CONFIG) as store:
        await store.create_segment("s")
        await store.append("s", b"abc")
        await store.flush()
    lts.rename(mounted)
    if mount_point:
        lts.mkdir()
    async with tierlog.open_store(tmp_path / "data", config=CONFIG, adopt=adopt) as store:
        await store.append("s", b"def")
        with pytest.raises(tierlog.Unavailable, match="unmounted") as refused:
            await store.flush()
        assert "FileNotFoundError" not in "".join(traceback.format_exception(refused.value))
        assert lts.exists() is mount_point
        assert not mount_point or not list(lts.iterdir())

        shutil.rmtree(lts, ignore_errors=True)
        mounted.rename(lts)
    async with tierlog.open_store(tmp_path / "data", config=CONFIG) as store:
        await store.flush()
        assert await store.read("s", 0, 10) == b"abcdef"

"""What is told of chunks while a living owner goes on: only what stays wrong. What is told of a quiet folder is in ``command_line``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.folders import chunk_files
from tierlog import open_store
from tierlog.actors.chunk_report import verify
from tierlog.actors.inspection import open_reader

pytestmark = pytest.mark.anyio

NAME = "app/events"


async def test_a_chunk_that_its_owner_took_away_meanwhile_is_no_problem(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME, rolling_size=4)
        await store.append(NAME, b"0123456789")
        await store.flush()
        async with open_reader(tmp_path) as view:
            assert (await verify(view)).chunks == 3
            await store.truncate_segment(NAME, 9)
            await store.flush()
            gone = [path for path in chunk_files(tmp_path) if path.stat().st_size == 4]
            for path in gone:
                path.unlink()  # as the collector does
            report = await verify(view)

    assert len(gone) == 2
    assert (report.problems, report.chunks) == ((), 1)


async def test_progress_ends_where_it_was_said_to(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, bytes(5 << 20))
        await store.flush()
    steps: list[tuple[int, int]] = []
    async with open_reader(tmp_path) as view:
        await verify(view, progress=lambda done, found: steps.append((done, found)))

    assert (sum(done for done, _ in steps), sum(found for _, found in steps)) == (5 << 20, 5 << 20)
    assert len(steps) > 2

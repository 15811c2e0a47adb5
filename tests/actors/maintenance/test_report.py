"""The chunk report beside a running owner: only problems that stay are reported. Reports of a quiet folder
are in ``command_line``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from support.folders import chunk_files
from support.legacy_layout import write_legacy
from tierlog import open_store
from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.doctor import examine
from tierlog.actors.maintenance.report import (
    ChunkUse,
    list_lengths,
    pages_of_chunks,
    unreferenced_names,
    verify,
)
from tierlog.actors.maintenance.transfer import import_segment
from tierlog.actors.store.folder_opening import system_world
from tierlog.actors.store.read_only import open_reader
from tierlog.actors.store.store import RollingSizes
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles

pytestmark = pytest.mark.anyio

NAME = "app/events"


async def test_a_chunk_collected_by_its_owner_meanwhile_is_no_problem(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        store._rolling_sizes = RollingSizes(4)  # smaller than a configuration may say
        await store.create_segment(NAME)
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


async def test_chunks_that_an_owner_deletes_during_each_reading_are_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(tmp_path, containers=1) as store:

        async def add(n: int) -> None:
            await store.create_segment(f"s{n}")
            await store.append(f"s{n}", b"data")
            await store.flush()

        async def list_late(chunks: ChunkStorage, container: int, names: Iterable[str]) -> dict[str, int]:
            (last,) = await store.list_segments()
            (chunk,) = chunk_files(tmp_path)
            await store.delete_segment(last)
            await add(int(last[1:]) + 1)
            chunk.unlink()  # as the collector does
            return await list_lengths(chunks, container, names)

        await add(0)
        monkeypatch.setattr("tierlog.actors.maintenance.report.list_lengths", list_late)
        async with open_reader(tmp_path) as view:
            assert (await verify(view, deep=False)).problems == ()


async def test_s19_a_released_file_of_the_legacy_layout_is_unreferenced_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    chunks = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), system_world())
    await chunks.open()
    await write_legacy(chunks, "app/old", b"0123", b"45")
    async with open_store(tmp_path, containers=1) as store:
        await import_segment(store, "app/old", no_progress)
        await store.truncate_segment("app/old", 4)
        await store.flush()

    async with open_reader(tmp_path) as view:
        assert [(each.name, each.use) async for page in pages_of_chunks(view, "app/") for each in page] == [
            ("app/old$header", ChunkUse.OTHER),
            ("app/old$offset.0", ChunkUse.UNREFERENCED),
            ("app/old$offset.4", ChunkUse.REFERENCED),
        ]
        report = await verify(view)
        assert (report.unreferenced, report.unreferenced_bytes, report.chunks) == (1, 4, 1)
        examined = (await examine(view, LocalFiles())).containers[0]
        assert (examined.chunks_unreferenced, examined.chunks_on_storage, examined.chunks_missing) == (
            1,
            2,
            0,
        )

    (tmp_path / "lts" / "app/old$offset.0").unlink()  # as the collector does, before the record goes
    async with open_reader(tmp_path) as view:
        assert (await verify(view)).unreferenced == 0
        assert (await examine(view, LocalFiles())).containers[0].chunks_unreferenced == 0


async def test_chunks_of_a_store_that_lies_inside_are_no_garbage(tmp_path: Path) -> None:
    """Such stores were made once."""
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment("s")
        await store.append("s", b"data")
        await store.flush()
    own = tmp_path / "lts" / "containers" / "0000"
    inner = own / "lts" / own.relative_to(tmp_path / "lts") / f"{1:016x}" / f"{0:016x}-{0:016x}-{'0' * 32}"
    orphan = own / f"{1:016x}" / f"{0:016x}-{0:016x}-{'1' * 32}"
    for path in (inner, orphan):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"bytes")

    async with open_reader(tmp_path) as view:
        assert (await verify(view)).unreferenced == 1
        assert (await examine(view, LocalFiles())).containers[0].chunks_unreferenced == 1
        assert await unreferenced_names(view, view.containers[0]) == [
            str(orphan.relative_to(tmp_path / "lts"))
        ]
        uses = {each.name: each.use async for page in pages_of_chunks(view) for each in page}
        assert uses[str(inner.relative_to(tmp_path / "lts"))] is ChunkUse.OTHER


async def test_progress_ends_at_the_announced_total(tmp_path: Path) -> None:
    async with open_store(tmp_path, containers=1) as store:
        await store.create_segment(NAME)
        await store.append(NAME, bytes(5 << 20))
        await store.flush()
    steps: list[tuple[int, int]] = []
    async with open_reader(tmp_path) as view:
        await verify(view, progress=lambda done, found: steps.append((done, found)))

    assert (sum(done for done, _ in steps), sum(found for _, found in steps)) == (5 << 20, 5 << 20)
    assert len(steps) > 2

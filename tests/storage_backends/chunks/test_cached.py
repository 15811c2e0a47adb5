"""The local chunk cache: what it serves, what it never serves, and what happens to its folder (rules K1 to
K6)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from support.chunk_caches import ANY_NAME, CachedStorage, cached, cached_files
from tierlog.actors.store.folder_opening import system_world
from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.errors import ChunkNotFound, OutcomeUnknown, Unavailable
from tierlog.storage_backends.chunks.cached_blocks import (
    BLOCK,
    Block,
    blocks_of,
    file_name,
    write_blocks,
)
from tierlog.storage_backends.chunks.chunk_cache import ChunkCacheOptions
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.files.local import LocalFiles, drive
from tierlog.testing.chunk_conformance import ChunkStorageConformance
from tierlog.testing.faulty_chunk_storage import Fault, FaultKind, every

CONTENT = Random(1).randbytes(3 * BLOCK + 500)
NAME = "containers/0001/0000000100000001/0000000000000001-0000000000000000-00000000000000000000000000000001"
TESTS = str(Path(__file__).parents[2])


class InFrontOfMemory(ChunkStorageConformance):
    @pytest.fixture(autouse=True)
    def _state(self) -> None:
        self.state = MemoryChunkState()


@pytest.mark.one_loop
class TestInFrontOfMemory(InFrontOfMemory):
    def make(self, folder: Path) -> ChunkStorage:
        return cached(MemoryChunkStorage(self.state, delete_many=True), folder / "cache").storage


@pytest.mark.one_loop
class TestInFrontOfAnObjectStore(InFrontOfMemory):
    def make(self, folder: Path) -> ChunkStorage:
        return cached(MemoryChunkStorage(self.state, append=False, concat=False), folder / "cache").storage


pytestmark = pytest.mark.anyio


def cached_names(folder: Path) -> set[str]:
    return {path.name.removesuffix(".blocks").replace("+", "/") for path in cached_files(folder / "cache")}


async def opened(
    folder: Path, state: MemoryChunkState | None = None, options: ChunkCacheOptions = ANY_NAME
) -> CachedStorage:
    made = cached(MemoryChunkStorage(state, append=False, concat=False), folder / "cache", options=options)
    await made.storage.open()
    return made


async def test_k1_what_was_written_is_read_from_the_cache(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    await one.storage.create_with_content(NAME, [CONTENT[:7], CONTENT[7:]])

    assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
    assert await one.storage.read(NAME, BLOCK - 3, 6) == CONTENT[BLOCK - 3 : BLOCK + 3]
    assert one.remote_reads == 0
    assert one.storage.statistics().cache is not None
    assert one.cache.statistics().hits == 2


async def test_k1_what_was_read_once_is_read_from_the_cache_by_block(tmp_path: Path) -> None:
    state = MemoryChunkState()
    await (await opened(tmp_path / "other", state)).storage.create_with_content(NAME, [CONTENT])
    one = await opened(tmp_path, state)

    assert await one.storage.read(NAME, BLOCK, BLOCK) == CONTENT[BLOCK : 2 * BLOCK]
    assert cached_names(tmp_path) == {NAME}
    assert await one.storage.read(NAME, BLOCK, 2 * BLOCK) == CONTENT[BLOCK : 3 * BLOCK]
    assert [(call.name, call.verb) for call in one.remote.calls] == [(NAME, "read")] * 2
    assert await one.storage.read(NAME, BLOCK, 2 * BLOCK) == CONTENT[BLOCK : 3 * BLOCK]
    assert one.remote_reads == 2


async def test_k1_only_the_storage_says_where_a_chunk_ends(tmp_path: Path) -> None:
    state = MemoryChunkState()
    one = await opened(tmp_path, state)
    await one.storage.create_with_content(NAME, [CONTENT])

    assert await one.storage.read(NAME, 3 * BLOCK, BLOCK) == CONTENT[3 * BLOCK :]
    assert await one.storage.read(NAME, len(CONTENT), 1) == b""
    assert one.remote_reads == 2


@pytest.mark.parametrize("kind", [FaultKind.BEFORE, FaultKind.LOST, FaultKind.AFTER])
async def test_k1_a_creation_that_was_not_acked_is_not_cached(tmp_path: Path, kind: FaultKind) -> None:
    one = await opened(tmp_path)
    one.remote.script = every(Fault(kind), "create_with_content")
    with pytest.raises((Unavailable, OutcomeUnknown)):
        await one.storage.create_with_content(NAME, [CONTENT])

    assert cached_files(tmp_path / "cache") == []


async def test_k1_only_chunks_of_segments_are_cached(tmp_path: Path) -> None:
    """Elements change, runs have local copies of their own, imported files have names of others."""
    one = await opened(tmp_path, options=ChunkCacheOptions(64 * BLOCK))
    for name in ("_system/store", "_system/containers/0001/runs/1", "app/events$offset.0", NAME):
        await one.storage.create_with_content(name, [CONTENT])
        assert await one.storage.read(name, 0, 10) == CONTENT[:10]

    assert cached_names(tmp_path) == {NAME}


async def test_k1_chunks_deleted_together_leave_the_cache(tmp_path: Path) -> None:
    """Whatever the outcome."""
    names = [f"containers/0000/1/{number}" for number in range(3)]
    memory = MemoryChunkStorage(delete_many=True)
    one = cached(memory, tmp_path / "cache")
    await one.storage.open()
    for name in names:
        await one.storage.create_with_content(name, [CONTENT])
    await memory.delete(names[1])

    assert await one.storage.delete_many(names[:2]) == [names[1]]
    assert len(cached_files(tmp_path / "cache")) == 1
    one.remote.script = every(Fault(FaultKind.BEFORE), "delete")
    with pytest.raises(Unavailable):
        await one.storage.delete_many(names[2:])
    assert cached_files(tmp_path / "cache") == []


async def test_k1_a_read_that_overtakes_a_delete_leaves_nothing(tmp_path: Path) -> None:
    state = MemoryChunkState()
    await (await opened(tmp_path / "other", state)).storage.create_with_content(NAME, [CONTENT])
    one = await opened(tmp_path, state)
    read, go = anyio.Event(), anyio.Event()
    inner_read = one.remote.inner.read

    async def slow_read(name: str, offset: int, size: int) -> bytes:
        data = await inner_read(name, offset, size)
        read.set()
        await go.wait()
        return data

    one.remote.inner.read = slow_read  # type: ignore[method-assign]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.storage.read, NAME, 0, len(CONTENT))
        await read.wait()
        await one.storage.delete(NAME)
        go.set()
    one.remote.inner.read = inner_read  # type: ignore[method-assign]

    assert cached_files(tmp_path / "cache") == []
    with pytest.raises(ChunkNotFound):
        await one.storage.read(NAME, 0, 1)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def damage_the_table(path: Path) -> None:
    path.write_bytes(b"\xff" * 64 + path.read_bytes()[64:])


def swap(path: Path) -> None:
    """Another chunk's file, whole, under this name."""
    path.write_bytes((path.parent / file_name("another")).read_bytes())


def link(path: Path) -> None:
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def folder(path: Path) -> None:
    path.unlink()
    (path / "something").mkdir(parents=True)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [flip, shorten, empty, damage_the_table, swap, remove])
async def test_k2_a_file_that_holds_anything_else_is_replaced_and_never_served(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    one = await opened(tmp_path)
    await one.storage.create_with_content(NAME, [CONTENT])
    await one.storage.create_with_content("another", [CONTENT[::-1]])
    path = tmp_path / "cache" / file_name(NAME)
    harm(path)

    assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
    assert one.remote_reads == 1
    assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
    assert one.remote_reads == 1
    assert one.reports == []


@pytest.mark.parametrize("what", [link, pipe, folder])
async def test_k2_what_is_no_file_costs_its_chunk_only_and_is_left_alone(
    tmp_path: Path, what: Callable[[Path], None]
) -> None:
    one = await opened(tmp_path)
    await one.storage.create_with_content(NAME, [CONTENT])
    await one.storage.create_with_content("another", [CONTENT[::-1]])
    path = tmp_path / "cache" / file_name(NAME)
    what(path)
    before = path.lstat()

    for _ in range(2):
        assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
        assert await one.storage.read("another", 0, len(CONTENT)) == CONTENT[::-1]
    assert one.remote_reads == 2
    assert path.lstat() == before
    assert one.reports == []
    assert one.cache.statistics().failures == 2


async def test_k2_bytes_damaged_on_their_way_are_asked_for_again(tmp_path: Path) -> None:
    """The reader verifies them: what it drops is not read from the cache again (rule S5)."""
    state = MemoryChunkState()
    await (await opened(tmp_path / "other", state)).storage.create_with_content(NAME, [CONTENT])
    one = await opened(tmp_path, state)
    one.remote.script = every(Fault(FaultKind.FLIP, bit=9), "read")
    assert await one.storage.read(NAME, 0, BLOCK) != CONTENT[:BLOCK]
    one.remote.script = None
    assert await one.storage.read(NAME, 0, BLOCK) != CONTENT[:BLOCK]

    assert await one.storage.drop_copy(NAME)
    assert await one.storage.read(NAME, 0, BLOCK) == CONTENT[:BLOCK]
    assert await one.storage.read(NAME, 0, BLOCK) == CONTENT[:BLOCK]


async def test_k3_the_blocks_used_longest_ago_go_first(tmp_path: Path) -> None:
    one = await opened(tmp_path, options=ChunkCacheOptions(32 * BLOCK, prefix=""))
    names = [f"c/{number}" for number in range(40)]
    for name in names:
        await one.storage.create_with_content(name, [CONTENT[:BLOCK]])
        assert await one.storage.read(names[0], 0, BLOCK) == CONTENT[:BLOCK]

    held = cached_names(tmp_path)
    assert names[0] in held
    assert names[1] not in held
    assert names[-1] in held
    assert 26 <= len(held) <= 32
    assert one.cache.statistics().evicted == 40 - len(held)
    assert one.remote_reads == 0


async def test_k3_files_of_few_bytes_count_with_the_disk_blocks_that_they_take(tmp_path: Path) -> None:
    size = 2 * BLOCK
    one = await opened(tmp_path, options=ChunkCacheOptions(size, prefix=""))
    for number in range(600):
        await one.storage.create_with_content(f"c/{number}", [CONTENT[:100]])
        if number % 10 == 0:
            held = sum(path.stat().st_blocks * 512 for path in cached_files(tmp_path / "cache"))
            assert held <= size
    assert one.cache.statistics().evicted


async def test_k3_processes_that_share_the_folder_share_the_bound(tmp_path: Path) -> None:
    state, options = MemoryChunkState(), ChunkCacheOptions(32 * BLOCK, prefix="")
    both = [await opened(tmp_path, state, options) for _ in range(2)]
    for number in range(60):
        await both[number % 2].storage.create_with_content(f"c/{number}", [CONTENT[:BLOCK]])

    held = sum(path.stat().st_size for path in cached_files(tmp_path / "cache"))
    assert held <= 32 * BLOCK
    for number in range(60):
        assert await both[0].storage.read(f"c/{number}", 0, BLOCK) == CONTENT[:BLOCK]


async def test_k3_a_chunk_that_would_drive_out_most_others_is_not_cached(tmp_path: Path) -> None:
    one = await opened(tmp_path, options=ChunkCacheOptions(8 * BLOCK, prefix=""))
    await one.storage.create_with_content(NAME, [CONTENT])

    assert cached_files(tmp_path / "cache") == []
    assert await one.storage.read(NAME, 0, BLOCK) == CONTENT[:BLOCK]
    assert len(cached_files(tmp_path / "cache")) == 1


async def test_k3_an_opening_with_a_smaller_bound_removes_what_is_above_it(tmp_path: Path) -> None:
    state = MemoryChunkState()
    one = await opened(tmp_path, state)
    for number in range(30):
        await one.storage.create_with_content(f"c/{number}", [CONTENT[:BLOCK]])
    await one.storage.close()
    await opened(tmp_path, state, ChunkCacheOptions(10 * BLOCK, prefix=""))

    assert 7 <= len(cached_files(tmp_path / "cache")) <= 9


async def test_k4_the_folder_may_be_removed_at_any_time(tmp_path: Path) -> None:
    state = MemoryChunkState()
    one = await opened(tmp_path, state)
    folder = tmp_path / "cache"
    for number in range(3):
        name = f"c/{number}"
        await one.storage.create_with_content(name, [CONTENT])
        for path in cached_files(folder):
            path.unlink()
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir()
        folder.rmdir()
        assert await one.storage.read(name, 0, len(CONTENT)) == CONTENT
        assert await one.storage.read(name, 0, len(CONTENT)) == CONTENT
        assert one.remote_reads == number + 1
        await one.storage.delete(name)
    assert one.reports == []


async def test_k4_files_of_others_are_left_alone(tmp_path: Path) -> None:
    one = await opened(tmp_path, options=ChunkCacheOptions(32 * BLOCK, prefix=""))
    (tmp_path / "cache" / "README").write_text("somebody else's")
    (tmp_path / "cache" / "more").mkdir()
    # No chunk's: bytes that are no text, a part that begins with '.', none at all.
    odd = {b"c+\xff\xfe.blocks", b"c+.hidden.blocks", b".blocks", b"c+.blocks"}
    for file in odd:
        (tmp_path / "cache" / os.fsdecode(file)).write_bytes(b"somebody else's")
    for number in range(40):
        await one.storage.create_with_content(f"c/{number}", [CONTENT[:BLOCK]])
    asked: list[str] = []

    async def nothing_encoded(names: Sequence[str]) -> set[str]:
        asked.extend(name.encode().decode() for name in names)
        return set()

    await one.cache.retain("", nothing_encoded)

    left = {path.name for path in cached_files(tmp_path / "cache")}
    assert left == {"README", *map(os.fsdecode, odd)}
    assert asked
    assert (tmp_path / "cache" / "more").is_dir()


async def test_k5_chunks_that_are_not_listed_are_removed_and_others_reused(tmp_path: Path) -> None:
    state = MemoryChunkState()
    one = await opened(tmp_path, state)
    for name in ("c/1/old", "c/1/listed", "c/2/other"):
        await one.storage.create_with_content(name, [CONTENT])
    later = await opened(tmp_path, state)
    asked: list[str] = []

    async def keep(names: Sequence[str]) -> set[str]:
        asked.extend(names)
        return {"c/1/listed"}

    await later.cache.retain("c/1/", keep)

    assert sorted(asked) == ["c/1/listed", "c/1/old"]
    assert cached_names(tmp_path) == {"c/1/listed", "c/2/other"}
    assert await later.storage.read("c/1/listed", 0, len(CONTENT)) == CONTENT
    assert later.remote_reads == 0
    assert later.cache.statistics().unlisted == 1


async def test_k6_a_folder_in_which_others_may_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    one = await opened(tmp_path)
    await one.storage.create_with_content(NAME, [CONTENT])

    assert await one.storage.read(NAME, 0, 10) == CONTENT[:10]
    assert cached_files(tmp_path / "cache") == []
    assert [event for event, _ in one.reports] == ["chunk_cache_bypassed"]
    assert one.cache.statistics().bypassed == 1


async def test_k6_a_folder_in_one_where_others_may_write_is_used_if_they_cannot_replace_it(
    tmp_path: Path,
) -> None:
    for mode, is_used in ((0o777, False), (0o1777, True), (0o775, False), (0o755, True)):
        tmp_path.chmod(mode)
        one = await opened(tmp_path)
        await one.storage.create_with_content(f"{NAME}-{mode:o}", [CONTENT])
        assert (one.reports == []) == is_used
        assert (cached_files(tmp_path / "cache") != []) == is_used
        shutil.rmtree(tmp_path / "cache")


@pytest.mark.parametrize("of_parent", [False, True], ids=["folder", "parent"])
async def test_k6_the_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_parent: bool
) -> None:
    """Who knows a chunk can make a block that passes for it (rule K2), so only this user may fill it."""
    (tmp_path / "cache").mkdir(0o755)
    stat, foreign = os.stat, tmp_path if of_parent else tmp_path / "cache"

    def status(path: Any, *args: Any, **options: Any) -> os.stat_result:
        found = stat(path, *args, **options)
        fields = list(found)
        if str(path) == str(foreign):
            fields[4] = os.geteuid() + 1
        return os.stat_result(fields)

    monkeypatch.setattr("tierlog.storage_backends.base.modes.os.stat", status)
    one = await opened(tmp_path)
    monkeypatch.undo()
    await one.storage.create_with_content(NAME, [CONTENT])
    assert cached_files(tmp_path / "cache") == []
    [(event, reason)] = one.reports
    assert event == "chunk_cache_bypassed"
    assert "not this user's" in reason


async def test_k6_a_file_in_the_place_of_the_folder_bypasses_the_cache(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    one = await opened(tmp_path)
    await one.storage.create_with_content(NAME, [CONTENT])

    assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
    await one.storage.delete(NAME)
    assert len(one.reports) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_k6_a_folder_without_permissions_bypasses_the_cache(tmp_path: Path) -> None:
    one = await opened(tmp_path)
    (tmp_path / "cache").chmod(0)
    await one.storage.create_with_content(NAME, [CONTENT])
    assert await one.storage.read(NAME, 0, len(CONTENT)) == CONTENT
    (tmp_path / "cache").chmod(0o700)

    assert [event for event, _ in one.reports] == ["chunk_cache_bypassed"]


async def test_k6_a_disk_without_spare_room_is_left_to_the_log(tmp_path: Path) -> None:
    one = await opened(tmp_path, options=ChunkCacheOptions(64 * BLOCK, spare=1 << 60, prefix=""))
    for number in range(3):
        await one.storage.create_with_content(f"c/{number}", [CONTENT])
        assert await one.storage.read(f"c/{number}", 0, len(CONTENT)) == CONTENT

    assert cached_files(tmp_path / "cache") == []
    assert [event for event, _ in one.reports] == ["chunk_cache_bypassed"]
    assert "left to the log" in one.reports[0][1]


async def test_blocks_are_cut_from_any_buffers_at_any_offset() -> None:
    random = Random(3)
    for offset in (0, 1, BLOCK - 1, BLOCK, BLOCK + 7):
        left, pieces = len(CONTENT) - offset, []
        while left:
            size = min(left, random.choice([1, 1000, BLOCK - 1, BLOCK, 2 * BLOCK]))
            start = len(CONTENT) - left
            pieces.append(CONTENT[start : start + size])
            left -= size
        found = {block.number: b"".join(block.pieces) for block in blocks_of(offset, pieces)}
        first = -(-offset // BLOCK)
        assert found == {number: CONTENT[number * BLOCK : (number + 1) * BLOCK] for number in range(first, 4)}


def test_the_bytes_of_a_block_are_its_format(tmp_path: Path) -> None:
    drive(write_blocks(str(tmp_path), "containers/0001/a", [Block(1, [b"ab", b"c"])], 0))
    (path,) = cached_files(tmp_path)
    content = path.read_bytes()

    assert path.name == "containers+0001+a.blocks"
    assert content[:24].hex() == "0000000000000000000000031e0fe4170000000000000000"
    assert content.rstrip(b"c") == content[:24] + bytes(65536 - 24 + BLOCK) + b"ab"


SHARING_PROCESS = """
import random, sys
import anyio
from support.chunk_caches import cached
from tierlog.storage_backends.chunks.cached_blocks import BLOCK
from tierlog.storage_backends.chunks.chunk_cache import ChunkCacheOptions
from tierlog.storage_backends.chunks.filesystem import FileSystemChunkStorage
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.actors.store.folder_opening import system_world

async def main(root, cache, seed):
    chance = random.Random(seed)
    inner = FileSystemChunkStorage(LocalFiles(), root, system_world())
    one = cached(inner, cache, options=ChunkCacheOptions(24 * BLOCK, prefix=""))
    await one.storage.open()
    for turn in range(150):
        name = f"c/{chance.randrange(40)}"
        content = random.Random(name).randbytes(BLOCK)
        assert await one.storage.read(name, 0, BLOCK) == content, name
        if turn % 50 == seed:
            for path in __import__("pathlib").Path(cache).rglob("*"):
                path.is_dir() or path.unlink(missing_ok=True)
    assert one.reports == [], one.reports
    assert one.cache.statistics().damaged == 0
    print(one.cache.statistics().hits)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@pytest.mark.one_loop
async def test_k4_processes_share_the_folder_while_it_is_emptied_under_them(tmp_path: Path) -> None:
    """They fill, evict and read the same blocks at the same time; no read is wrong, none is damaged."""
    remote = FileSystemChunkStorage(LocalFiles(), str(tmp_path / "lts"), system_world())
    await remote.open()
    for number in range(40):
        await remote.create_with_content(f"c/{number}", [Random(f"c/{number}").randbytes(BLOCK)])
    root, folder = str(tmp_path / "lts"), str(tmp_path / "cache")
    hits: list[int] = []

    async def run(seed: int) -> None:
        command = [sys.executable, "-c", SHARING_PROCESS, root, folder, str(seed)]
        ended = await anyio.run_process(command, env={**os.environ, "PYTHONPATH": TESTS}, stderr=None)
        hits.append(int(ended.stdout))

    async with anyio.create_task_group() as tasks:
        for seed in range(3):
            tasks.start_soon(run, seed)

    assert min(hits) > 0
    assert sum(path.stat().st_size for path in cached_files(tmp_path / "cache")) <= 26 * BLOCK

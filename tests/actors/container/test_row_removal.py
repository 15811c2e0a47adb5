"""Damage under the removal of the rows that removed segments leave (rule M17)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from support.container_world import OPTIONS, ContainerWorld, Owner, virtual_time
from support.table_rows import records_of
from tierlog.actors.container import row_removal
from tierlog.actors.container.left_rows import MARK_PREFIX, mark_key
from tierlog.actors.container.table_rows import row_prefix
from tierlog.storage_backends.base.errors import DataCorruption, Unavailable
from tierlog.storage_backends.chunks.memory import MemoryChunk
from tierlog.storage_backends.sorted_runs.rows import Row, label_of
from tierlog.storage_backends.sorted_runs.run_entry import RunEntry
from tierlog.storage_backends.sorted_runs.run_files import path_of
from tierlog.storage_backends.sorted_runs.scan import PageLimits, scan_rows

pytestmark = [pytest.mark.anyio, virtual_time]

KEYS = [b"%03d" % number for number in range(50)]


async def made(owner: Owner, name: str) -> int:
    """The id of a new table with rows."""
    await owner.store.create_table(name)
    await owner.store.table(name).put_many(dict.fromkeys(KEYS, b"x"))
    return (await owner.store.segment_info(name)).segment_id


def left(owner: Owner, sid: int) -> int:
    """Rows of a removed table, and its mark."""
    starts = row_prefix(sid).decode(), mark_key(sid).decode()
    return sum(key.startswith(starts) for key in records_of(owner.container))


@pytest.mark.parametrize("limit", [1, 256])
async def test_m17_a_mark_that_does_not_decode_is_reported_and_holds_up_no_other_one(
    limit: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(row_removal, "_LIMITS", PageLimits(limit))
    async with ContainerWorld().owner() as owner:
        first, second = await made(owner, "t/1"), await made(owner, "t/2")
        state = owner.container.state
        damaged = [MARK_PREFIX + name for name in (b"!", mark_key(first)[len(MARK_PREFIX) :] + b"?", b"zz")]
        state.table.put(tuple(Row(key, state.sequence, b"") for key in damaged))
        await owner.store.delete_segment("t/1")
        await anyio.sleep(60)
        assert left(owner, first) == 1  # the damaged one that begins alike
        await owner.store.delete_segment("t/2")
        await anyio.sleep(60)
        assert left(owner, second) == 0

        assert not owner.ended.is_set()
        assert {key.decode() for key in damaged} <= records_of(owner.container).keys()
        for key in damaged:
            assert any("does not decode" in line and label_of(key) in line for line in caplog.messages)


@pytest.mark.parametrize("position", [0, 1, 2])
async def test_m17_rows_that_cannot_be_read_hold_up_those_of_no_other_segment(
    position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ContainerWorld().owner() as owner:
        sids = [await made(owner, f"t/{number}") for number in range(3)]
        broken = sids[position]

        async def fail(view: Any, runs: Any, keys: Any, limits: Any, **options: Any) -> Any:
            if keys.start.startswith(row_prefix(broken)):
                raise DataCorruption("a block is damaged", file="runs/1")
            return await scan_rows(view, runs, keys, limits, **options)

        async def fail_all(*_: Any, **__: Any) -> Any:
            raise Unavailable("storage is down")

        with monkeypatch.context() as patch:
            patch.setattr(row_removal, "scan_rows", fail_all)  # until there are all marks
            for number in range(3):
                await owner.store.delete_segment(f"t/{number}")
            patch.setattr(row_removal, "scan_rows", fail)
            await anyio.sleep(60)
            assert [left(owner, sid) for sid in sids if sid != broken] == [0, 0]
            assert left(owner, broken) == len(KEYS) + 1
        await anyio.sleep(60)
        assert left(owner, broken) == 0


async def flushed(owner: Owner, *names: str) -> tuple[RunEntry, list[int]]:
    """A run with new tables, and their ids."""
    sids = [await made(owner, name) for name in names]
    await owner.store.flush()
    return owner.container.state.table.runs.runs[0], sids


def is_removed(owner: Owner, sid: int) -> bool:
    """Whether the mark of a removed segment was removed."""
    mark = owner.container.state.table.find_in_memory(mark_key(sid))
    return mark is not None and mark.value is None


@pytest.mark.parametrize("damage", ["lost", "damaged"])
async def test_m17_a_run_that_cannot_be_read_holds_up_only_what_it_has(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The segment's other rows go too. The damaged one comes first, so each attempt meets it."""
    world = ContainerWorld(replace(OPTIONS, merge_fan_out=100))
    async with world.owner() as owner:
        run, [first, second] = await flushed(owner, "t/1", "t/2")
        await owner.store.table("t/1").put(b"later", b"x")
        _, [third] = await flushed(owner, "t/3")

        whole = world.memory.chunks.pop(run.name)
        if damage == "damaged":
            world.memory.chunks[run.name] = MemoryChunk(bytearray(len(whole.data)))
        world.files.disk.unlink(path_of(owner.container.disk.runs.path, run))
        world.options.table_cache.clear()
        for name in ("t/1", "t/2"):
            await owner.store.delete_segment(name)
        await anyio.sleep(1)
        await owner.store.delete_segment("t/3")
        await anyio.sleep(1)
        assert is_removed(owner, third)
        assert not is_removed(owner, first)
        assert not is_removed(owner, second)
        later = owner.container.state.table.find_in_memory(row_prefix(first) + b"later")
        assert later is not None
        assert later.value is None, "it is in another run"
        assert any(run.name in line for line in caplog.messages)

        await anyio.sleep(24 * 3600)
        reports = len(caplog.messages)
        await anyio.sleep(24 * 3600)
        assert len(caplog.messages) - reports <= 24 * 6, "ever less often"

        world.memory.chunks[run.name] = whole
        await anyio.sleep(2 * 3600)
        assert [left(owner, sid) for sid in (first, second, third)] == [0, 0, 0]

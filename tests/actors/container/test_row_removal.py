"""Damage under the removal of the rows that removed segments leave (rule M17)."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from support.container_world import ContainerWorld, Owner, virtual_time
from support.table_rows import records_of
from tierlog.actors.container import row_removal
from tierlog.actors.container.left_rows import MARK_PREFIX, mark_key
from tierlog.actors.container.table_rows import row_prefix
from tierlog.storage_backends.base.errors import DataCorruption, Unavailable
from tierlog.storage_backends.sorted_runs.rows import Row, label_of
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

        async def fail(view: Any, runs: Any, keys: Any, limits: Any) -> Any:
            if keys.start.startswith(row_prefix(broken)):
                raise DataCorruption("a block is damaged", file="runs/1")
            return await scan_rows(view, runs, keys, limits)

        async def fail_all(*_: Any) -> Any:
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

"""``LockTable``: one holder per key, in order, and nothing left behind."""

from __future__ import annotations

import anyio
import pytest

from tierlog.storage_backends.base.lock_table import LockTable

pytestmark = pytest.mark.anyio


async def test_those_who_wait_for_a_key_get_it_in_order_and_other_keys_are_free() -> None:
    locks: LockTable[str] = LockTable()
    order: list[str] = []

    async def take(key: str, who: str) -> None:
        async with locks.holding(key):
            order.append(who)

    await locks.acquire("a")
    async with anyio.create_task_group() as tasks:
        for who in ("first", "second"):
            tasks.start_soon(take, "a", who)
            await anyio.wait_all_tasks_blocked()
        await take("b", "other")
        locks.release("a")

    assert order == ["other", "first", "second"]
    assert len(locks) == 0


async def test_a_cancelled_wait_leaves_nothing() -> None:
    locks: LockTable[int] = LockTable()
    await locks.acquire(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(locks.acquire, 1)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()

    locks.release(1)
    assert len(locks) == 0

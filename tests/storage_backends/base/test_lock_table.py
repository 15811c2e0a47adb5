"""``LockTable``: one holder per key, in order, and nothing left behind."""

from __future__ import annotations

import anyio
import pytest

from tierlog.storage_backends.base.lock_table import LockTable

pytestmark = pytest.mark.anyio


async def test_waiters_for_a_key_get_it_in_order_and_other_keys_are_free() -> None:
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


async def test_a_wait_cancelled_after_its_turn_came_passes_the_key_on() -> None:
    locks: LockTable[int] = LockTable()
    got: list[str] = []

    async def take(who: str, scope: anyio.CancelScope) -> None:
        with scope:
            async with locks.holding(1):
                got.append(who)

    await locks.acquire(1)
    scopes = [anyio.CancelScope(), anyio.CancelScope()]
    async with anyio.create_task_group() as tasks:
        for who, scope in zip(("first", "second"), scopes, strict=True):
            tasks.start_soon(take, who, scope)
            await anyio.wait_all_tasks_blocked()
        locks.release(1)
        scopes[0].cancel()

    assert got[-1] == "second"
    assert len(locks) == 0

"""Locks by key: one holder per key at a time, the others wait in order.

A key's lock exists while somebody holds it or waits for it. Cancelling ``acquire`` leaves nothing behind. A
task that acquires a key again which it holds gets ``RuntimeError``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)


class LockTable(Generic[K]):
    __slots__ = ("_locks",)

    def __init__(self) -> None:
        self._locks: dict[K, anyio.Lock] = {}

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._locks)

    def __contains__(self, key: object) -> bool:
        """Whether somebody holds the key."""
        return key in self._locks

    async def acquire(self, key: K) -> None:
        """Return once the calling task holds ``key``. Does not suspend if nobody else does."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = anyio.Lock(fast_acquire=True)
        try:
            await lock.acquire()
        finally:
            self._drop_unused(key, lock)

    def release(self, key: K) -> None:
        """Only the task that holds ``key`` may call it."""
        lock = self._locks[key]
        lock.release()
        self._drop_unused(key, lock)

    @asynccontextmanager
    async def holding(self, key: K) -> AsyncIterator[None]:
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

    def _drop_unused(self, key: K, lock: anyio.Lock) -> None:
        if not lock.locked() and not lock.statistics().tasks_waiting and self._locks.get(key) is lock:
            del self._locks[key]

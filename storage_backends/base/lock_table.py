"""Locks by key: one holder per key at a time, the others wait in order.

A key that nobody holds costs one dictionary entry, because every metadata transaction acquires one.
Cancelling ``acquire`` leaves nothing behind. A task that acquires a key again which it holds gets
``RuntimeError``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)


class LockTable(Generic[K]):
    __slots__ = ("_holders", "_waiting")

    def __init__(self) -> None:
        self._holders: dict[K, int] = {}
        """The task that holds each key."""
        self._waiting: dict[K, deque[tuple[int, anyio.Event]]] = {}
        """The tasks that wait for a key, in order. A key that nobody waits for has no entry."""

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._holders)

    def __contains__(self, key: object) -> bool:
        """Whether somebody holds the key."""
        return key in self._holders

    async def acquire(self, key: K) -> None:
        """Return once the caller holds ``key``. Does not suspend if nobody else does."""
        task = anyio.get_current_task().id
        if key not in self._holders:
            self._holders[key] = task
            return

        if self._holders[key] == task:
            raise RuntimeError(f"{key!r} is already held by this task")
        entry = task, anyio.Event()
        self._waiting.setdefault(key, deque()).append(entry)
        try:
            await entry[1].wait()
        except BaseException:
            if entry[1].is_set():  # cancelled after the key was handed over
                self.release(key)
            else:
                self._forget(key, entry)
            raise

    def release(self, key: K) -> None:
        """Only the holder of ``key`` may call it. The task that has waited longest holds it from now on."""
        waiting = self._waiting.get(key)
        if waiting is None:
            del self._holders[key]
            return

        entry = waiting[0]
        self._forget(key, entry)
        self._holders[key] = entry[0]
        entry[1].set()

    def _forget(self, key: K, entry: tuple[int, anyio.Event]) -> None:
        self._waiting[key].remove(entry)
        if not self._waiting[key]:
            del self._waiting[key]

    @asynccontextmanager
    async def holding(self, key: K) -> AsyncIterator[None]:
        await self.acquire(key)
        try:
            yield
        finally:
            self.release(key)

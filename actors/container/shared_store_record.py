"""The store record, checked once for all containers that a process serves (rule J10).

Several containers open at the same time: the first one asks long-term storage, the others get its answer. An
attempt that failed, was cancelled, or had no room to check the storage, is made again by the next one that
asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ...journal.manifest.store_record import (
    StoreRecord,
    check_store_record,
    ensure_store_record,
    read_store_record,
)
from ...storage_backends.base.chunk_storage import ChunkStorage
from ...storage_backends.base.errors import TierlogError, Unavailable
from ..kernel.reply import Reply


class SharedStoreRecord:
    def __init__(self, store: bytes, containers: int) -> None:
        """``containers``: how many the store has."""
        self._store = store
        self._containers = containers
        self._found: StoreRecord | None = None
        self._check, self._ensure = _Once(self._check_once), _Once(self._ensure_once)

    async def check(self, chunks: ChunkStorage) -> None:
        """Return if long-term storage has this store's record, or none. Raises ``StoreMismatch``,
        ``DataCorruption``."""
        await self._check.run(chunks)

    async def ensure(self, chunks: ChunkStorage) -> bool:
        """Return once the record exists: True if long-term storage has shown that its creation is
        conditional, False if it has no room to show that. Raises ``StoreMismatch``, ``DataCorruption``."""
        return await self._ensure.run(chunks)

    async def _check_once(self, chunks: ChunkStorage) -> bool:
        if (found := await read_store_record(chunks)) is not None:
            check_store_record(found, self._store, self._containers)
        self._found = found
        return True

    async def _ensure_once(self, chunks: ChunkStorage) -> bool:
        return await ensure_store_record(chunks, self._store, self._containers, self._found)


class _Once:
    """An act that succeeds once for all callers."""

    def __init__(self, act: Callable[[ChunkStorage], Awaitable[bool]]) -> None:
        """``act`` returns whether its success stands for callers after it too."""
        self._act = act
        self._answer: Reply[bool] | None = None

    async def run(self, chunks: ChunkStorage) -> bool:
        if self._answer is not None:
            return await self._answer.wait()

        self._answer = answer = Reply[bool]()
        try:
            done = await self._act(chunks)
        except BaseException as error:
            self._answer = None
            cancelled = Unavailable("the container that asked for the store record was stopped: try again")
            answer.fail(error if isinstance(error, TierlogError) else cancelled)
            raise

        if not done:
            self._answer = None
        answer.resolve(done)
        return done

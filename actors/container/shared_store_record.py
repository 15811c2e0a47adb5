"""The store record, checked once for all containers that a process serves (rule J10).

Several containers open at the same time: the first one asks long-term storage, the others get its answer. An
attempt that failed, or was cancelled, is made again by the next one that asks."""

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

    async def ensure(self, chunks: ChunkStorage) -> None:
        """Return once the record exists and long-term storage has shown that its creation is conditional.
        Raises ``StoreMismatch``, ``DataCorruption``."""
        await self._ensure.run(chunks)

    async def _check_once(self, chunks: ChunkStorage) -> None:
        if (found := await read_store_record(chunks)) is not None:
            check_store_record(found, self._store, self._containers)
        self._found = found

    async def _ensure_once(self, chunks: ChunkStorage) -> None:
        await ensure_store_record(chunks, self._store, self._containers, self._found)


class _Once:
    """An act that succeeds once for all callers."""

    def __init__(self, act: Callable[[ChunkStorage], Awaitable[None]]) -> None:
        self._act = act
        self._answer: Reply[None] | None = None

    async def run(self, chunks: ChunkStorage) -> None:
        if self._answer is not None:
            await self._answer.wait()
            return

        self._answer = answer = Reply[None]()
        try:
            await self._act(chunks)
        except BaseException as error:
            self._answer = None
            cancelled = Unavailable("the container that asked for the store record was stopped: try again")
            answer.fail(error if isinstance(error, TierlogError) else cancelled)
            raise

        answer.resolve(None)

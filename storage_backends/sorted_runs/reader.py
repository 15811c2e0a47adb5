"""Reads tails and blocks of runs, through the block cache, and verifies every byte (rules M2 and M3).

A cold row takes two reads: the tail, whose length the run's entry has, and the block. Cancellation leaves
nothing behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from ..base.chunk_storage import ChunkStorage
from ..base.codec import DecodeError
from ..base.errors import ChunkNotFound, DataCorruption, Unavailable
from ..base.lock_table import LockTable
from ..base.parallel import in_parallel
from .block import check_block
from .block_cache import BlockCache, BlockCacheStatistics
from .run_entry import RunEntry
from .tail import Tail, decode_tail

T = TypeVar("T")
_TAIL = -1
"""The number of a run's tail in the cache."""
_READS_MAX = 8
"""Reads of one lookup at a time."""


class RunSource(ABC):
    """Where the bytes of runs come from."""

    @abstractmethod
    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        """Those bytes of a run, fewer only at its end. Raises ``ChunkNotFound`` if it is missing, else what
        ``ChunkStorage.read`` raises."""

    async def distrust(self, run: RunEntry) -> bool:
        """Bytes of the run were damaged: replace what is kept of it. Returns whether another read may
        succeed; raises ``Unavailable`` or ``DataCorruption`` if it cannot be replaced."""
        return False


def missing(run: RunEntry) -> Unavailable:
    """A lookup that began before a merge, or a storage that went back: never proof of absence (rule M3)."""
    return Unavailable(
        f"the sorted run {run.name} is missing; retry, and restore the table if it stays missing"
    )


class StoredRuns(RunSource):
    """Runs in chunk storage."""

    def __init__(self, chunks: ChunkStorage) -> None:
        self._chunks = chunks

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        return await self._chunks.read(run.name, offset, length)


class RunReader:
    def __init__(self, source: RunSource, cache: BlockCache[Tail | bytes]) -> None:
        self._source = source
        self._cache = cache
        self._reading: LockTable[tuple[str, int]] = LockTable()
        self._replacing: LockTable[str] = LockTable()

    def statistics(self) -> BlockCacheStatistics:
        return self._cache.statistics()

    def cached_tail(self, run: RunEntry) -> Tail | None:
        found = self._cache.get(run.name, _TAIL)
        assert found is None or isinstance(found, Tail)
        return found

    def cached_block(self, run: RunEntry, number: int) -> bytes | None:
        found = self._cache.get(run.name, number)
        assert found is None or isinstance(found, bytes)
        return found

    async def tail(self, run: RunEntry) -> Tail:
        """The run's tail. Raises ``Unavailable`` if the run is missing, and ``DataCorruption``."""
        if (tail := self.cached_tail(run)) is not None:
            return tail

        async with self._reading.holding((run.name, _TAIL)):
            if (tail := self.cached_tail(run)) is not None:
                return tail  # Another lookup has read it.

            tail = await self._sound(run, partial(self._read_tail, run))
            self._cache.put(run.name, _TAIL, tail, tail.memory)
            return tail

    async def block(self, run: RunEntry, tail: Tail, number: int) -> bytes:
        """A block. Errors as for ``tail``."""
        if (block := self.cached_block(run, number)) is not None:
            return block

        async with self._reading.holding((run.name, number)):
            if (block := self.cached_block(run, number)) is not None:
                return block

            (block,) = await self.blocks(run, tail, number, number + 1)
            self._cache.put(run.name, number, block, len(block))
            return block

    async def blocks(self, run: RunEntry, tail: Tail, first: int, end: int) -> list[bytes]:
        """The blocks ``first .. end`` in one read, for scans: they are not entered into the cache."""
        return await self._sound(run, partial(self._read_blocks, run, tail, first, end))

    async def some_blocks(self, run: RunEntry, tail: Tail, numbers: Iterable[int]) -> dict[int, bytes]:
        """Those blocks by number; what is not cached is read, several at a time."""
        blocks: dict[int, bytes] = {}
        unknown: list[int] = []
        for number in numbers:
            if (block := self.cached_block(run, number)) is not None:
                blocks[number] = block
            else:
                unknown.append(number)
        if unknown:
            calls = [partial(self.block, run, tail, number) for number in unknown]
            blocks.update(zip(unknown, await in_parallel(_READS_MAX, calls), strict=True))
        return blocks

    async def load_tails(self, runs: Iterable[RunEntry]) -> None:
        """Read the tails of all ``runs`` into the cache, several at a time: lookups then take one read."""
        await in_parallel(_READS_MAX, [partial(self.tail, run) for run in runs])

    async def _sound(self, run: RunEntry, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` returns; if that is damaged, of a replaced run. Many readers may meet the same
        damage: the first one replaces the run, the others read again."""
        with suppress(DataCorruption):
            return await read()

        async with self._replacing.holding(run.name):
            try:
                return await read()
            except DataCorruption:
                if not await self._source.distrust(run):
                    raise
            return await read()

    async def _read_tail(self, run: RunEntry) -> Tail:
        data = await self._read(run, run.length - run.tail_length, run.tail_length)
        tail = decode_tail(data, run.name, run.length)
        if tail.summary != run.summary:
            raise DataCorruption(
                "a sorted run is not the one that the manifest names", file=run.name, offset=run.length
            )
        return tail

    async def _read_blocks(self, run: RunEntry, tail: Tail, first: int, end: int) -> list[bytes]:
        start = tail.offsets[first]
        data = await self._read(run, start, tail.offsets[end] - start)
        blocks = []
        for number in range(first, end):
            block = data[tail.offsets[number] - start : tail.offsets[number + 1] - start]
            try:
                check_block(block)
            except DecodeError as error:
                raise DataCorruption(
                    f"a sorted run is damaged: {error}", file=run.name, offset=tail.offsets[number]
                ) from error
            blocks.append(block)
        return blocks

    async def _read(self, run: RunEntry, offset: int, length: int) -> bytes:
        try:
            data = await self._source.read_range(run, offset, length)
        except ChunkNotFound as error:
            raise missing(run) from error
        if len(data) != length:
            raise DataCorruption("a sorted run is cut off", file=run.name, offset=offset + len(data))
        return data

"""Reads tails and blocks of runs, through the block cache, and verifies every byte (rules M2 and M3).

A cold row takes two reads: the tail, whose length the run's entry has, and the block. Cancellation leaves
nothing behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from anyio.lowlevel import checkpoint

from ..base.chunk_storage import ChunkStorage
from ..base.errors import ChunkNotFound, DataCorruption, Unavailable
from ..base.lock_table import LockTable
from ..base.parallel import in_parallel
from .block import require_block
from .block_cache import BlockCache
from .run_entry import RunEntry
from .run_list import RunList
from .tail import Tail, tail_in_steps

if TYPE_CHECKING:
    from .statistics import BlockCacheStatistics

T = TypeVar("T")
_TAIL = -1
"""The number of a run's tail in the cache."""
_RECENT_ROWS = 8192
"""Rows of the newest runs that one search rules out. To sort their fingerprints takes less than a
millisecond, once for each run list."""
_READS_MAX = 8
"""Reads of one lookup at a time."""


Probe = tuple[bytes, bytes, RunEntry, Callable[[], Tail | None]]
"""The first and the last key of a run, the run, and its tail if that is in memory."""


def _nothing() -> None:
    return None


class RunSource(ABC):
    """Where the bytes of runs come from."""

    @abstractmethod
    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        """Read those bytes of a run, fewer only at its end. Raises ``ChunkNotFound`` if it is missing, else
        what ``ChunkStorage.read`` raises."""

    async def replace_damaged(self, run: RunEntry) -> bool:
        """Bytes of the run were damaged: replace what is kept of it. Returns whether another read may
        succeed; raises ``Unavailable`` or ``DataCorruption`` if it cannot be replaced."""
        return False


def missing(run: RunEntry) -> Unavailable:
    """The lookup began before a merge, or storage was rolled back: never proof of absence (rule M3)."""
    return Unavailable(
        f"the sorted run {run.name} is missing from long-term storage: retry; if it stays missing, "
        f"`tierlog doctor` lists what to do"
    )


_UNCHECKED_MAX = 16 << 20
"""Bytes of a run that are read without asking for the object's length first."""


class StoredRuns(RunSource):
    """Runs in chunk storage."""

    def __init__(self, chunks: ChunkStorage) -> None:
        self._chunks = chunks

    async def read_range(self, run: RunEntry, offset: int, length: int) -> bytes:
        # A read takes the memory of all that is asked for, whether the object has it or not.
        if length > _UNCHECKED_MAX:
            found = (await self._chunks.info(run.name)).length
            if found != run.length:
                raise DataCorruption(f"it has {found} bytes, and its entry says {run.length}", file=run.name)
        return await self._chunks.read(run.name, offset, length)


class RunReader:
    def __init__(self, source: RunSource, cache: BlockCache[Tail | bytes]) -> None:
        self._source = source
        self._cache = cache
        self._reading: LockTable[tuple[str, int]] = LockTable()
        self._replacing: LockTable[str] = LockTable()
        self._runs: RunList | None = None
        """The list that the following is about."""
        self._probes: list[Probe] = []
        self._recent = array("I")
        """The fingerprints of the newest runs, ascending: most runs of a table are small, and one search
        rules them out together."""
        self._older_probes: list[Probe] = []
        """Without those runs."""

    def statistics(self) -> BlockCacheStatistics:
        return self._cache.statistics()

    def cached_tail(self, run: RunEntry) -> Tail | None:
        found = self._cache.get((run.name, run.crc), _TAIL)
        assert found is None or isinstance(found, Tail)
        return found

    def probes(self, runs: RunList, sought: int) -> Sequence[Probe]:
        """What may hold a key with the fingerprint ``sought``, of ``runs`` from new to old. Computed once for
        each list."""
        if self._runs is not runs:
            self._probe(runs)
        at = bisect_left(self._recent, sought)
        if at < len(self._recent) and self._recent[at] == sought:
            return self._probes
        return self._older_probes

    def _probe(self, runs: RunList) -> None:
        # Weak references, because only the cache bounds the memory that tails take (rule M5).
        self._runs, self._probes = runs, []
        recent: list[int] = []
        count = 0
        for run in runs:
            tail = self.cached_tail(run)
            known_tail = _nothing if tail is None else ref(tail)
            self._probes.append((run.summary.first_key, run.summary.last_key, run, known_tail))
            # Only an unbroken sequence from the newest run on can be skipped together.
            is_recent = count == len(self._probes) - 1 and len(recent) + run.summary.rows <= _RECENT_ROWS
            if tail is not None and is_recent:
                recent += tail.fingerprints
                count += 1
        self._recent = array("I", sorted(recent))
        self._older_probes = self._probes[count:]

    def cached_block(self, run: RunEntry, number: int) -> bytes | None:
        found = self._cache.get((run.name, run.crc), number)
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
            self._cache.put((run.name, run.crc), _TAIL, tail, tail.memory)
            self._runs = None  # What may hold a key is computed with this tail.
            return tail

    async def block(self, run: RunEntry, tail: Tail, number: int) -> bytes:
        """A block. Errors as for ``tail``."""
        if (block := self.cached_block(run, number)) is not None:
            return block

        async with self._reading.holding((run.name, number)):
            if (block := self.cached_block(run, number)) is not None:
                return block

            (block,) = await self.blocks(run, tail, number, number + 1)
            self._cache.put((run.name, run.crc), number, block, len(block))
            return block

    async def blocks(self, run: RunEntry, tail: Tail, first: int, end: int) -> list[bytes]:
        """The blocks ``first .. end`` in one read, for scans: they are not entered into the cache."""
        return await self._sound(run, partial(self._read_blocks, run, tail, first, end))

    async def some_blocks(self, run: RunEntry, tail: Tail, numbers: Iterable[int]) -> dict[int, bytes]:
        """The blocks ``numbers``, by number; what is not cached is read, several at a time."""
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

    async def _sound(self, run: RunEntry, read: Callable[[], Awaitable[T]]) -> T:
        """What ``read`` returns; if that is damaged, of a replaced run. Many readers may meet the same
        damage: the first one replaces the run, the others read again."""
        with suppress(DataCorruption):
            return await read()

        async with self._replacing.holding(run.name):
            try:
                return await read()
            except DataCorruption:
                if not await self._source.replace_damaged(run):
                    raise
            return await read()

    async def _read_tail(self, run: RunEntry) -> Tail:
        if not run.is_of_a_writer:
            raise DataCorruption(
                f"no run has {run.length} bytes with a tail of {run.tail_length}, as the manifest says",
                file=run.name,
            )
        data = await self._read(run, run.length - run.tail_length, run.tail_length)
        tail = None
        for tail in tail_in_steps(data, run.name, run.length):
            if tail is None:
                await checkpoint()
        assert tail is not None
        # Its bytes are sound, but of another run: a wrong copy, or an object that was replaced.
        if tail.summary != run.summary:
            raise DataCorruption(
                "a sorted run is not the one that the manifest names",
                file=run.name,
                offset=run.length - run.tail_length,
            )
        return tail

    async def _read_blocks(self, run: RunEntry, tail: Tail, first: int, end: int) -> list[bytes]:
        start = tail.offsets[first]
        data = await self._read(run, start, tail.offsets[end] - start)
        blocks = []
        for number in range(first, end):
            block = data[tail.offsets[number] - start : tail.offsets[number + 1] - start]
            require_block(block, run.name, tail.offsets[number])
            blocks.append(block)
        return blocks

    async def _read(self, run: RunEntry, offset: int, length: int) -> bytes:
        try:
            data = await self._source.read_range(run, offset, length)
        except ChunkNotFound as error:
            raise missing(run) from error
        # Shorter only at the end of the object, which is then not whole.
        if len(data) != length:
            raise DataCorruption("a sorted run is cut off", file=run.name, offset=offset + len(data))
        return data

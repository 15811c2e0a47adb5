"""The local chunk cache: blocks of remote chunks on the local disk, in a folder that processes share (rules
K1 to K6).

The folder is the only state. A process that looks for a block opens its file, so it finds what another one
has put there, and misses what somebody has removed. What is counted here is only how much this process added
since it last listed the folder. Above the bound the blocks that were read or written longest ago go first, in
all processes.

No failure of the local disk leaves this module: a lookup finds nothing, and what cannot be written is
bypassed, for ``retry`` seconds, then tried again. ``report`` is called when that begins and when it ends.
Cancellation: a block that was being written is there or not; programs are never abandoned (rule W7).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

import anyio
import anyio.lowlevel
import attrs

from ..base.checksum import Buffer
from ..base.files import Files
from ..base.os_errors import explain
from ..base.storage_statistics import ChunkCacheStatistics
from ..base.values import Value
from .cached_blocks import (
    FILE_OVERHEAD,
    Block,
    CachedFile,
    Found,
    NoRoom,
    blocks_of,
    file_name,
    is_cacheable,
    is_in_the_way,
    list_files,
    prepare_folder,
    read_blocks,
    remove_files,
    write_blocks,
)

_TOGETHER = 512
"""Names looked up, and files removed, in one step."""
OWN_CHUNKS = "containers/"
"""The names of segments' chunks, which are used once (rule S2). Others are not cached (rule K1): elements of
the journal are read because the chain may have changed, runs have local copies of their own (rule M6), and
imported files keep names that somebody else chose."""


@attrs.frozen(eq=False, repr=False)
class ChunkCacheOptions(Value):
    size: int
    """Bytes of files. Each process exceeds them by a 32nd at most before it removes some (rule K3)."""
    spare: int = 0
    """Bytes that stay free on the disk, for the log (rule W6)."""
    prefix: str = OWN_CHUNKS
    """Of the names of the chunks that are cached."""
    retry: float = 30.0
    """Seconds for which nothing is written after a failure."""


class Filling:
    """Bytes on their way from the storage into the cache. Their chunk may be deleted meanwhile."""

    __slots__ = ("is_stale",)

    def __init__(self) -> None:
        self.is_stale = False


class ChunkCache:
    def __init__(
        self,
        files: Files,
        folder: str,
        options: ChunkCacheOptions,
        report: Callable[[str, str], None],
    ) -> None:
        """``report(event, reason)`` logs that the cache is bypassed, or used again."""
        self._files = files.lane("chunk-cache", width=4, nofollow_root=folder)
        self.folder = folder
        self.options = options
        self._report = report
        self._step = options.size // 32
        self._added = 0
        """Bytes of disk blocks, at most, written since the folder was last listed."""
        self._held = 0
        """Bytes in it then."""
        self._is_trimming = False
        self._is_open = False
        self._bypassed_until: float | None = None
        """None if the last attempt to write succeeded."""
        self._filling: dict[str, list[Filling]] = {}
        self._hits = self._misses = self._hit_bytes = self._filled_bytes = 0
        self._evicted = self._unlisted = self._damaged = self._failures = 0

    # --- life ------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Use the folder: make it, and remove what is above the bound. A folder that others can change or
        replace is not used (rule K6): whoever knows a chunk can make blocks that pass for it."""
        try:
            if not await self._files.run(prepare_folder(self.folder)):
                self._bypass(
                    f"other users may change {self.folder}, because it is not this user's, or they may write "
                    f"to it or to the folder that it is in: change that (chown, chmod go-w), or name another"
                )
                return
        except OSError as error:
            self._failed(error)
            return
        self._is_open = True
        await self._trim()

    def close(self) -> None:
        self._is_open = False

    def holds(self, chunk: str, end: int) -> bool:
        """Whether the chunk is one that is cached, up to its byte ``end``."""
        return self._is_open and chunk.startswith(self.options.prefix) and is_cacheable(chunk, end)

    # --- blocks ----------------------------------------------------------------------------------

    async def look_up(self, chunk: str, offset: int, size: int) -> Buffer:
        """What is cached of a range, from its beginning on. Verified (rule K2)."""
        try:
            found = await self._files.run(read_blocks(self.folder, chunk, offset, size))
        except OSError as error:  # of the folder itself
            self._failed(error)
            found = Found(b"")
        self._damaged += found.is_damaged
        self._hit_bytes += len(found.data)
        if len(found.data) == size:
            self._hits += 1
        else:
            self._misses += 1
        return found.data

    @contextmanager
    def filling(self, chunk: str) -> Iterator[Filling]:
        """Around a call of the storage whose bytes ``fill`` may then take."""
        fill = Filling()
        self._filling.setdefault(chunk, []).append(fill)
        try:
            yield fill
        finally:
            fills = self._filling[chunk]
            fills.remove(fill)
            if not fills:
                del self._filling[chunk]

    async def fill(self, chunk: str, offset: int, data: Sequence[Buffer], fill: Filling) -> None:
        """Cache bytes that the storage has, unless the chunk was deleted since."""
        blocks = list(blocks_of(offset, data))
        now = anyio.current_time()
        is_bypassed = self._bypassed_until is not None and now < self._bypassed_until
        # What fills a large part of the cache is worth less than what it would drive out.
        if not blocks or fill.is_stale or is_bypassed or sum(map(len, data)) > self.options.size // 4:
            return

        if await self._write(chunk, blocks):
            if fill.is_stale:
                await self.remove(chunk)
            if self._added >= self._step:
                await self._trim()

    async def remove(self, chunk: str) -> None:
        """Forget a chunk: it was deleted, or what is cached of it is wrong."""
        for fill in self._filling.get(chunk, ()):
            fill.is_stale = True
        with suppress(OSError):  # The folder is not there, or cannot be used: then nothing is read from it.
            await self._files.run(remove_files([f"{self.folder}/{file_name(chunk)}"]))

    async def retain(self, prefix: str, keep: Callable[[Sequence[str]], Awaitable[Collection[str]]]) -> None:
        """Remove the chunks whose names begin with ``prefix`` and that ``keep``, asked about some names at a
        time, does not return (rule K5)."""
        if not self._is_open:
            return

        files = [file for file in (await self._list())[0] if file.chunk.startswith(prefix)]
        for start in range(0, len(files), _TOGETHER):
            part = files[start : start + _TOGETHER]
            kept = await keep([file.chunk for file in part])
            self._unlisted += await self._remove([file for file in part if file.chunk not in kept])

    def statistics(self) -> ChunkCacheStatistics:
        return ChunkCacheStatistics(
            hits=self._hits,
            misses=self._misses,
            hit_bytes=self._hit_bytes,
            filled_bytes=self._filled_bytes,
            held_bytes=self._held + self._added,
            evicted=self._evicted,
            unlisted=self._unlisted,
            damaged=self._damaged,
            failures=self._failures,
            bypassed=int(self._bypassed_until is not None),
        )

    # --- inside ----------------------------------------------------------------------------------

    async def _write(self, chunk: str, blocks: Sequence[Block]) -> bool:
        try:
            written = await self._files.run(write_blocks(self.folder, chunk, blocks, self.options.spare))
        except NoRoom as error:
            self._failed(error)
            await self._trim()
            return False
        except FileNotFoundError:
            return False  # K4: the folder is being removed, or emptied
        except OSError as error:
            if is_in_the_way(error):
                self._failures += 1
            else:
                self._failed(error)
            return False

        self._added += written + FILE_OVERHEAD
        self._filled_bytes += written
        if self._bypassed_until is not None:
            self._bypassed_until = None
            self._report("chunk_cache_used_again", "")
        return True

    def _failed(self, error: OSError) -> None:
        self._failures += 1
        self._bypass(explain(error, self.folder))

    def _bypass(self, reason: str) -> None:
        # Once for all attempts that fail in a row.
        if self._bypassed_until is None:
            self._report("chunk_cache_bypassed", reason)
        self._bypassed_until = anyio.current_time() + self.options.retry

    async def _list(self) -> tuple[list[CachedFile], int]:
        """The files, and the bytes free on the disk."""
        try:
            return await self._files.run(list_files(self.folder))
        except FileNotFoundError:
            return [], self.options.spare
        except OSError as error:
            self._failed(error)
            return [], self.options.spare

    async def _trim(self) -> None:
        """List the folder, and remove what was used longest ago until it is a 16th below the bound, and the
        disk has its spare bytes."""
        if self._is_trimming:
            return

        self._is_trimming = True
        try:
            await self._trim_once()
            while self._added >= self._step:  # meanwhile
                await self._trim_once()
        finally:
            self._is_trimming = False

    async def _trim_once(self) -> None:
        self._added = 0
        held, free = await self._list()
        total = sum(file.size for file in held)
        is_full = total + self._step > self.options.size
        excess = max(self.options.spare - free, total - self.options.size // 16 * 15 if is_full else 0)
        evicted = _oldest(held, excess)
        self._evicted += await self._remove(evicted)
        self._held = total - sum(file.size for file in evicted)

    async def _remove(self, files: Sequence[CachedFile]) -> int:
        removed = 0
        for start in range(0, len(files), _TOGETHER):
            paths = [file.path for file in files[start : start + _TOGETHER]]
            with suppress(OSError):
                removed += await self._files.run(remove_files(paths))
        return removed


def _oldest(held: Sequence[CachedFile], size: int) -> list[CachedFile]:
    """The files that were used longest ago, up to ``size`` bytes."""
    found: list[CachedFile] = []
    for file in sorted(held, key=lambda file: file.modified) if size > 0 else ():
        if size <= 0:
            break
        found.append(file)
        size -= file.size
    return found

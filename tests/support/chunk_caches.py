"""Chunk caches for tests: which chunks they hold, what they report, and the storage behind them."""

from __future__ import annotations

from pathlib import Path

import attrs

from tierlog.storage_backends.base.chunk_storage import ChunkStorage
from tierlog.storage_backends.base.files import Files
from tierlog.storage_backends.chunks.cached import CachedChunkStorage
from tierlog.storage_backends.chunks.cached_blocks import BLOCK
from tierlog.storage_backends.chunks.chunk_cache import ChunkCache, ChunkCacheOptions
from tierlog.storage_backends.files.local import LocalFiles
from tierlog.testing.faulty_chunk_storage import FaultyChunkStorage

ANY_NAME = ChunkCacheOptions(64 * BLOCK, prefix="")


@attrs.define
class CachedStorage:
    """A cached storage, and what can be observed of it."""

    storage: CachedChunkStorage
    cache: ChunkCache
    remote: FaultyChunkStorage
    reports: list[tuple[str, str]]

    @property
    def remote_reads(self) -> int:
        return sum(call.verb == "read" for call in self.remote.calls)


def cached(
    inner: ChunkStorage,
    folder: Path | str,
    *,
    options: ChunkCacheOptions = ANY_NAME,
    files: Files | None = None,
) -> CachedStorage:
    """``inner`` behind a cache in ``folder``, not open yet."""
    remote, reports = FaultyChunkStorage(inner), []
    cache = ChunkCache(files or LocalFiles(), str(folder), options, lambda *report: reports.append(report))
    return CachedStorage(CachedChunkStorage(remote, cache), cache, remote, reports)


def cached_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if not path.is_dir())

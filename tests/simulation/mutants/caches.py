"""The planted bugs of the local chunk cache."""

from __future__ import annotations

from typing import Any

from tierlog.actors.container import cached_chunks
from tierlog.storage_backends.base.chunk_storage import is_chunk_name
from tierlog.storage_backends.chunks import cached_blocks
from tierlog.storage_backends.chunks.cached import CachedChunkStorage
from tierlog.storage_backends.chunks.chunk_cache import ChunkCache

from .planting import Planter, mutant


@mutant("K1")
def deleted_chunk_stays_in_the_cache(plant: Planter) -> None:
    """What is deleted takes room on the local disk until the next opening."""

    async def remove(original: Any, self: ChunkCache, name: str) -> None:
        pass

    plant(ChunkCache.remove, remove)


@mutant("K2")
def cached_bytes_are_not_verified(plant: Planter) -> None:
    """What was damaged in the cache is refused as damage in long-term storage, where nothing is wrong."""

    async def drop_copy(original: Any, self: CachedChunkStorage, name: str) -> bool:
        return False

    plant(CachedChunkStorage.drop_copy, drop_copy)
    plant(
        cached_blocks._entry,
        lambda original, chunk, number, pieces: cached_blocks._ENTRY.pack(sum(map(len, pieces)), 0),
    )


@mutant("K3")
def cache_grows_without_a_bound(plant: Planter) -> None:
    """The cache fills the disk."""

    async def trim(original: Any, self: ChunkCache) -> None:
        pass

    plant(ChunkCache._trim, trim)


@mutant("K4")
def files_of_others_are_removed(plant: Planter) -> None:
    """What another program keeps in the folder goes as a chunk that no record names."""
    plant(is_chunk_name, lambda original, name: True)


@mutant("K5")
def cache_is_not_reconciled(plant: Planter) -> None:
    """What other owners deleted stays in the cache until it is full."""

    async def reconcile(original: Any, *arguments: Any) -> None:
        pass

    plant(cached_chunks.reconcile, reconcile)


@mutant("K6")
def failure_of_the_cache_is_one_of_the_storage(plant: Planter) -> None:
    """A full local disk fails reads and flushes."""

    def failed(original: Any, self: ChunkCache, error: OSError) -> None:
        raise error

    plant(ChunkCache._failed, failed)

"""Reconciles the local chunk cache with a container's records at its start, in the background (rule K5).

The records are the layout: a cached chunk that none of them names is removed. What is listed stays without
being read; its bytes are verified when they are used (rule K2). Chunks of this owner's epoch are left alone:
a record comes after its chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...storage_backends.base.errors import TierlogError
from ...storage_backends.chunks.chunk_cache import OWN_CHUNKS, ChunkCache
from ...storage_backends.segments.records import chunk_key
from ..telemetry.logging import get_logger
from .metadata_store import LoggedMetadataStore

_log = get_logger("container")


async def reconcile(cache: ChunkCache, metadata: LoggedMetadataStore, container: int, epoch: int) -> None:
    """``epoch`` is that of the container's owner."""
    prefix = f"{OWN_CHUNKS}{container:04d}/"

    async def listed(names: Sequence[str]) -> Collection[str]:
        old = {chunk_key(name): name for name in names if _epoch_of(name) < epoch}
        _, found = await metadata.look_up(old)
        return {name for key, name in old.items() if key in found} | (set(names) - set(old.values()))

    try:
        await cache.retain(prefix, listed)
    except TierlogError as error:
        # A cold run that cannot be read now: unlisted blocks are harmless, and leave with the oldest.
        _log.warning("chunk_cache_not_reconciled", prefix=prefix, error=str(error))


def _epoch_of(name: str) -> int:
    """The epoch in the name of a segment's chunk (rule S2); -1 if it has none."""
    try:
        return int(name.rpartition("/")[2].partition("-")[0], 16)
    except ValueError:
        return -1

"""Stores on real folders, with numbers that suit tests."""

from __future__ import annotations

from typing import Any

import attrs

from tierlog import SegmentStore, StoreConfig
from tierlog.actors.settings.configuration import (
    CacheConfig,
    GcConfig,
    StorageConfig,
    SupervisionConfig,
    TimeoutsConfig,
    WalConfig,
    WriterConfig,
)

KIB = 1 << 10
CONFIG = StoreConfig(
    wal=WalConfig(file_size=256 * KIB, reserve=64 * KIB, low_water=0),
    cache=CacheConfig(bytes=16 << 20),
    writer=WriterConfig(flush_bytes=64 * KIB, flush_age=3600.0, rolling_size=64 * KIB),
    storage=StorageConfig(attempts=1, probe_interval=0.01),
    gc=GcConfig(delay=0.0),
    supervision=SupervisionConfig(backoff=0.001, backoff_max=0.002),
    timeouts=TimeoutsConfig(unavailable=10.0),
)


def config(**sections: Any) -> StoreConfig:
    """``CONFIG`` with other sections."""
    return attrs.evolve(CONFIG, **sections)


async def follow(store: SegmentStore, name: str, seen: list[bytes], offset: int = 0) -> None:
    """Put the blocks of a tail into ``seen`` as they come, until the segment is sealed."""
    async for block in store.tail(name, offset):
        seen.append(block)  # noqa: PERF401 - others look at it meanwhile


async def make(
    store: SegmentStore, name: str, data: bytes = b"", *, sealed: bool = False, flushed: bool = False
) -> None:
    """A segment with ``data`` in it. ``flushed``: in long-term storage too, with all else."""
    await store.create_segment(name)
    if data:
        await store.append(name, data)
    if sealed:
        await store.seal_segment(name)
    if flushed:
        await store.flush()

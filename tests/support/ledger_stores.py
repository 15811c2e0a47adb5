"""Stores on BookKeeper whose ledgers and records are in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import attrs
import pytest

from support.memory_ledgers import Cluster, MemoryLedgers
from support.stores import config
from tierlog import StoreConfig
from tierlog.actors.settings.configuration import ChunkCacheConfig
from tierlog.actors.store import ledgers


class ConnectedLedgers(MemoryLedgers):
    """With the life of a sidecar, of which it needs none."""

    async def run(self) -> None:
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        """There is nothing to end."""


@attrs.frozen
class LedgerSite:
    """A cluster, and a folder that all machines share."""

    cluster: Cluster
    chunks: Path

    place = "bookkeeper://zk1:2181/stores/first"

    def settings(self, disk: Path, **more: Any) -> StoreConfig:
        """Of a machine with that local disk."""
        defaults = {"chunks": str(self.chunks), "chunk_cache": ChunkCacheConfig(path=str(disk))}
        return config(**defaults | more)


def in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerSite:
    """From now on stores on BookKeeper are in this memory."""
    site = LedgerSite(Cluster(), folder / "shared")
    site.chunks.mkdir()
    monkeypatch.setattr(ledgers, "make_service", lambda location, config: ConnectedLedgers(site.cluster))
    return site

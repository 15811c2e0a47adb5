"""Stores on BookKeeper whose ledgers and records are in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
import pytest

from support.memory_ledgers import Cluster, MemoryLedger, MemoryLedgers
from support.stores import config
from tierlog import StoreConfig, Unavailable
from tierlog.actors.folder.place import BookKeeperLocation
from tierlog.actors.settings.configuration import ChunkCacheConfig
from tierlog.actors.store import ledgers
from tierlog.storage_backends.base.ledger_service import Ledger, Quorum, SidecarNotStarted

T = TypeVar("T")
_OF_BOOKIES = ("append", "read")
"""The calls that need no record: not even of a ledger, which is in ZooKeeper."""


class ConnectedLedgers(MemoryLedgers):
    """With the life of a sidecar: its end breaks the ledgers that it has open, and the next call starts
    another one."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._open: list[MemoryLedger] = []
        self.sidecars = 1
        self.can_start = True
        self.has_records = True
        """Whether ZooKeeper answers. Ledgers that are open are written to without it."""

    async def run(self) -> None:
        await anyio.lowlevel.checkpoint()

    def close(self) -> None:
        self.end_sidecar()

    def end_sidecar(self) -> None:
        opened, self._open = self._open, []
        self.end_session()
        self.sidecars += 1
        for ledger in opened:
            ledger.end()

    async def _ask(self, name: str, effect: Callable[[], T]) -> T:
        if not self.can_start:
            raise SidecarNotStarted("the sidecar has ended at its start")
        if not self.has_records and name not in _OF_BOOKIES:
            raise Unavailable("ZooKeeper does not answer")
        return await super()._ask(name, effect)

    async def create_ledger(self, quorum: Quorum, metadata: Mapping[str, bytes]) -> Ledger:
        return self._opened(await super().create_ledger(quorum, metadata))

    async def open_ledger(self, ledger: int, *, recover: bool) -> Ledger:
        return self._opened(await super().open_ledger(ledger, recover=recover))

    def _opened(self, ledger: Ledger) -> Ledger:
        assert isinstance(ledger, MemoryLedger)
        self._open.append(ledger)
        return ledger


@attrs.frozen
class LedgerSite:
    """A cluster, and a folder that all machines share."""

    cluster: Cluster
    chunks: Path
    services: list[ConnectedLedgers] = attrs.field(factory=list)
    """Of each opening one."""

    place = "bookkeeper://zk1:2181/stores/first"

    def settings(self, disk: Path, **more: Any) -> StoreConfig:
        """Of a machine with that local disk."""
        defaults = {"chunks": str(self.chunks), "chunk_cache": ChunkCacheConfig(path=str(disk))}
        return config(**defaults | more)


def in_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LedgerSite:
    """From now on stores on BookKeeper are in this memory."""
    site = LedgerSite(Cluster(), folder / "shared")
    site.chunks.mkdir()

    def make(location: BookKeeperLocation, config: StoreConfig) -> ConnectedLedgers:
        site.services.append(ConnectedLedgers(site.cluster))
        return site.services[-1]

    monkeypatch.setattr(ledgers, "make_service", make)
    return site

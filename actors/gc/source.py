"""What the collector needs of its container: the contract that ``actors/container/sources.py`` fulfils."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ...storage_backends.base.chunk_storage import ChunkInfo


class KnownNames(Protocol):
    async def among(self, names: Sequence[str]) -> Collection[str]:
        """Which of ``names`` are known. Raises ``Unavailable`` if that cannot be read now."""
        ...


class ReleasedFiles(KnownNames, Protocol):
    """The durable records of released files that no listing finds (rule S19)."""

    async def names(self) -> Sequence[str]:
        """The names in records that can be read."""
        ...

    async def forget(self, names: Sequence[str]) -> None:
        """Remove the records of these files, which are deleted; returns once that is durable."""


class CollectorSource(Protocol):
    """What the collector needs of its container."""

    @property
    def epoch(self) -> int: ...
    @property
    def prefixes(self) -> Sequence[str]:
        """The prefixes of the container's chunks, and of its runs."""
        ...

    @property
    def referenced(self) -> KnownNames:
        """The names of chunks in metadata, and of runs in elements."""
        ...

    @property
    def pinned(self) -> KnownNames:
        """Those of them that a backup keeps: at its end ``Collector.list_own`` is called (rule P4)."""
        ...

    @property
    def unpublished(self) -> KnownNames:
        """The names of chunks that long-term storage alone may still need (rule G6)."""
        ...

    @property
    def released(self) -> ReleasedFiles: ...

    @property
    def is_confirmed(self) -> bool: ...

    async def wait_confirmed(self) -> None:
        """Returns once the container may delete what it does not know (rule G4)."""

    async def check_history(self, chunks: Sequence[ChunkInfo]) -> None:
        """The container is unconfirmed, durably, if one of these chunks of dead owners proves that its log
        is older than long-term storage (rule G4)."""

    def history_checked(self) -> None:
        """All of them were given to ``check_history``."""

    async def check_chain(self) -> None:
        """Returns if long-term storage has this owner's element, read again, and no other history's is newer
        (rule J7)."""

    async def prove_anew(self) -> None:
        """Returns once an element counts that this owner has recorded since the call (rule J9)."""

    async def barrier(self) -> object:
        """Returns once a fenced append is durable, which proves the ownership (rule G1)."""

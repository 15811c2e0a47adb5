"""The contract of the record store of chunked segments (PDP-34's ``ChunkMetadataStore``, rule S6). Keys have
at most 1,024 bytes of UTF-8; values are opaque. ``tierlog.testing.MetadataStoreConformance`` tests it.

* A commit is atomic and durable: all of its writes are visible to every later call and every later owner, or
  none is.
* A commit is conditional: ``expected`` names every key that was read or is written, with the version seen (0
  means absent). If any differs, ``MetadataConflict`` is raised and nothing changes. So two commits from one
  state never both succeed.
* Versions are positive and grow over the whole store: a key that is deleted and written again never gets an
  old version.
* Calls see all commits that returned before them; a commit that is still running is seen whole or not at all.

Errors of ``commit``: ``InvalidArgument``, ``MetadataConflict``, ``Unavailable`` and ``StorageFull`` (nothing
changed), ``OutcomeUnknown`` and ``NotOwner`` (it may have been applied; the durable state decides).
Cancellation: the outcome is unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

TRANSACTION_BYTES_MAX = 32 << 20
"""Every store accepts commits of up to this many bytes of keys and values. Above that it may raise
``InvalidArgument``."""


class ChunkMetadataStore(ABC):
    @abstractmethod
    async def get(self, key: str) -> tuple[int, bytes] | None:
        """The version and the value of ``key``, or None if it is absent."""

    @abstractmethod
    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        """Apply ``writes`` (None deletes) if every key of ``expected`` has the version given there.

        Every key of ``writes`` must be in ``expected``, else ``InvalidArgument``. Deleting an absent key is
        allowed. Returns the version that all written keys now have. Without ``writes`` it only checks, and
        returns the store's newest version.
        """

    @abstractmethod
    async def scan(self, prefix: str) -> list[str]:
        """The keys that start with ``prefix``, sorted."""

"""The contract of the record store beneath chunked segments (PDP-34's ``ChunkMetadataStore``, rule S6).

Owns: what ``get``, ``commit`` and ``scan`` promise. Values are opaque bytes here; ``records/`` gives them
meaning and ``transaction.py`` gathers them. ``tierlog.testing.metadata_store_conformance`` is this page as
tests.

* A commit is atomic and durable: all of its writes are visible to every later call and every later owner, or
  none is.
* A commit is conditional: ``expected`` names every key that was read or is written, with the version seen (0
  means absent). One difference anywhere raises ``MetadataConflict`` and nothing is changed. So two commits
  from one state never both succeed.
* Versions are positive and only grow, over the whole store: a key that is deleted and written again never
  gets an old version back.
* Calls see the commits that returned before them; a commit that is still running is seen whole or not at all.

Errors of ``commit``: ``MetadataConflict``, ``Unavailable`` and ``StorageFull`` (nothing was changed),
``OutcomeUnknown`` and ``NotOwner`` (it may have been changed; only durable state tells). Cancellation: the
outcome is unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

KEY_BYTES_MAX = 1024
"""The longest key, in UTF-8 bytes."""
TRANSACTION_BYTES_MAX = 32 << 20
"""The largest sum of keys and values that every store takes in one commit, in bytes."""


class ChunkMetadataStore(ABC):
    @abstractmethod
    async def get(self, key: str) -> tuple[int, bytes] | None:
        """The version and the value of ``key``, or None if it is absent."""

    @abstractmethod
    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        """Write all of ``writes`` (None deletes) if every key of ``expected`` still has the version given
        there.

        Every key of ``writes`` must be in ``expected``, else ``InvalidArgument``. Deleting an absent key is
        allowed. Returns the version that all written keys now have; with no ``writes`` it only checks, and
        returns the store's newest version.
        """

    @abstractmethod
    async def scan(self, prefix: str) -> list[str]:
        """The keys that start with ``prefix``, sorted."""

"""``MemoryMetadataStore``: the record store in memory, for tests and simulations.

Its state outlives any instance, so that several owners can share one store as they share a log. A commit is
one synchronous step: it is never seen in part, and a cancellation cannot tear it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from anyio.lowlevel import checkpoint

from ..base.errors import InvalidArgument, MetadataConflict
from ..base.sorted_dict import SortedDict, with_prefix
from .metadata_store import ChunkMetadataStore


@attrs.define
class MemoryMetadataState:
    """The newest version, and (version, value) of each key in key order."""

    version: int = 0
    entries: SortedDict[str, tuple[int, bytes]] = attrs.field(factory=SortedDict)


class MemoryMetadataStore(ChunkMetadataStore):
    def __init__(self, state: MemoryMetadataState | None = None) -> None:
        self._state = MemoryMetadataState() if state is None else state

    async def get(self, key: str) -> tuple[int, bytes] | None:
        found: tuple[int, bytes] | None = self._state.entries.get(key)
        return found

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        await checkpoint()
        # No await from here on: of two commits from one state only one finds its versions (S6).
        check_commit(self._state.entries, expected, writes)
        if not writes:
            return self._state.version

        self._state.version += 1
        for key, value in writes.items():
            if value is None:
                self._state.entries.pop(key, None)
            else:
                self._state.entries[key] = (self._state.version, bytes(value))
        return self._state.version

    async def scan(self, prefix: str) -> list[str]:
        await checkpoint()
        return list(with_prefix(self._state.entries.runs_from(prefix), prefix))


def check_commit(
    entries: Mapping[str, tuple[int, bytes]], expected: Mapping[str, int], writes: Mapping[str, bytes | None]
) -> None:
    """Raise unless every written key is expected and every expected version is current in ``entries``."""
    if unexpected := writes.keys() - expected.keys():
        raise InvalidArgument(f"written without an expected version: {sorted(unexpected)[:5]}")

    for key, version in expected.items():
        found = entries.get(key)
        current = 0 if found is None else found[0]
        if current != version:
            raise MetadataConflict(f"{key} has version {current}, this commit read {version}; begin again")

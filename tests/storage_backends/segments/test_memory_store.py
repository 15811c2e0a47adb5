"""The in-memory record store keeps the contract."""

from __future__ import annotations

import pytest

from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.testing.metadata_store_conformance import MetadataStoreConformance


class TestMemoryStore(MetadataStoreConformance):
    def make(self) -> MemoryMetadataStore:
        return MemoryMetadataStore()


@pytest.mark.anyio
async def test_a_second_instance_on_the_same_state_sees_the_first_ones_commits() -> None:
    state = MemoryMetadataState()
    version = await MemoryMetadataStore(state).commit({"a": 0}, {"a": b"1"})

    assert await MemoryMetadataStore(state).get("a") == (version, b"1")

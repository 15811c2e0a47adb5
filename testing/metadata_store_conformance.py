"""``MetadataStoreConformance``: the contract of ``ChunkMetadataStore`` as tests.

Inherit from it and implement ``make``. If your store needs a running container around it, override the
``store`` fixture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import anyio
import pytest
from msgspec.structs import replace

from ..storage_backends.base.errors import InvalidArgument, MetadataConflict
from ..storage_backends.segments.metadata_store import ChunkMetadataStore
from ..storage_backends.segments.records import ChunkRecord
from ..storage_backends.segments.transaction import MetadataTransaction


class MetadataStoreConformance(ABC):
    pytestmark = pytest.mark.anyio

    @abstractmethod
    def make(self) -> ChunkMetadataStore:
        """Return a new, empty store."""

    @pytest.fixture
    async def store(self) -> AsyncIterator[ChunkMetadataStore]:
        yield self.make()

    async def test_an_absent_key_has_no_value(self, store: ChunkMetadataStore) -> None:
        assert await store.get("a") is None
        assert await store.scan("") == []

    async def test_committed_values_come_back_with_one_version(self, store: ChunkMetadataStore) -> None:
        version = await store.commit({"a": 0, "b": 0}, {"a": b"1", "b": b""})

        assert version > 0
        assert await store.get("a") == (version, b"1")
        assert await store.get("b") == (version, b"")

    async def test_a_conflict_on_any_key_changes_nothing(self, store: ChunkMetadataStore) -> None:
        version = await store.commit({"a": 0, "b": 0}, {"a": b"1", "b": b"2"})
        wrong = [
            {"a": 0, "b": version},
            {"a": version, "b": version + 1},
            {"a": version, "b": version, "c": version},
        ]
        for expected in wrong:
            with pytest.raises(MetadataConflict):
                await store.commit(expected, {"a": b"x", "b": b"x"})

        assert await store.get("a") == (version, b"1")
        assert await store.get("b") == (version, b"2")

    async def test_a_key_that_was_only_read_conflicts_too(self, store: ChunkMetadataStore) -> None:
        old = await store.commit({"read": 0}, {"read": b"1"})
        await store.commit({"read": old}, {"read": b"2"})
        with pytest.raises(MetadataConflict):
            await store.commit({"read": old, "other": 0}, {"other": b"x"})

        assert await store.get("other") is None

    async def test_versions_only_grow_over_deletion(self, store: ChunkMetadataStore) -> None:
        first = await store.commit({"a": 0}, {"a": b"1"})
        second = await store.commit({"a": first}, {"a": None})
        assert await store.get("a") is None
        third = await store.commit({"a": 0}, {"a": b"2"})

        assert first < second < third
        with pytest.raises(MetadataConflict):
            await store.commit({"a": first}, {"a": b"3"})

    async def test_deleting_an_absent_key_is_allowed(self, store: ChunkMetadataStore) -> None:
        await store.commit({"a": 0, "b": 0}, {"a": None, "b": b"1"})

        assert await store.scan("") == ["b"]

    async def test_a_write_without_an_expected_version_is_refused(self, store: ChunkMetadataStore) -> None:
        with pytest.raises(InvalidArgument):
            await store.commit({"a": 0}, {"a": b"1", "b": b"2"})

        assert await store.scan("") == []

    async def test_a_commit_without_writes_only_checks(self, store: ChunkMetadataStore) -> None:
        version = await store.commit({"a": 0}, {"a": b"1"})
        await store.commit({"a": version, "b": 0}, {})
        with pytest.raises(MetadataConflict):
            await store.commit({"a": 0}, {})

        assert await store.get("a") == (version, b"1")

    async def test_of_parallel_commits_from_one_state_one_wins(self, store: ChunkMetadataStore) -> None:
        outcomes: list[bytes] = []

        async def commit(value: bytes) -> None:
            try:
                await store.commit({"a": 0}, {"a": value})
                outcomes.append(value)
            except MetadataConflict:
                outcomes.append(b"")

        async with anyio.create_task_group() as group:
            for index in range(5):
                group.start_soon(commit, b"%d" % index)
        winners = [value for value in outcomes if value]
        found = await store.get("a")

        assert len(outcomes) == 5
        assert found is not None
        assert winners == [found[1]]

    async def test_scan_is_sorted_and_bound_to_its_prefix(self, store: ChunkMetadataStore) -> None:
        keys = ["k:2", "k:10", "k:1", "l:x", "m", "k"]
        await store.commit(dict.fromkeys(keys, 0), dict.fromkeys(keys, b"v"))

        assert await store.scan("k:") == ["k:1", "k:10", "k:2"]
        assert await store.scan("") == sorted(keys)
        assert await store.scan("u") == []

    # --- transactions over the store -------------------------------------------------------------

    async def test_a_record_that_is_not_sound_is_not_committed(self, store: ChunkMetadataStore) -> None:
        transaction = _adding(store, "a")
        transaction.put(ChunkRecord("empty"))
        with pytest.raises(RuntimeError, match="unsound"):
            await transaction.commit()
        assert await store.scan("") == []

    async def test_a_transaction_conflicts_on_what_it_only_read(self, store: ChunkMetadataStore) -> None:
        await _adding(store, "read").commit()
        transaction = _adding(store, "new")
        await transaction.chunk("read")
        change = MetadataTransaction(store)
        change.put(replace(await change.chunk("read"), next_chunk="other"))
        await change.commit()
        with pytest.raises(MetadataConflict):
            await transaction.commit()
        assert await store.scan("") == ["c:read"]


def _chunk(name: str) -> ChunkRecord:
    return ChunkRecord(name, 1, packed_crcs=bytes(4))


def _adding(store: ChunkMetadataStore, *names: str) -> MetadataTransaction:
    transaction = MetadataTransaction(store)
    for name in names:
        transaction.put(_chunk(name))
    return transaction

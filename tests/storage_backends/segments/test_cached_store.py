"""The write-through cache keeps the record store's contract, its bounds, and never answers with what is no
longer true."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from support.chunked import CountingStore, FaultyMetadataStore
from tierlog.storage_backends.base.errors import InvalidArgument, MetadataConflict, OutcomeUnknown
from tierlog.storage_backends.segments.cached_store import CachedMetadataStore
from tierlog.storage_backends.segments.memory_store import MemoryMetadataState, MemoryMetadataStore
from tierlog.testing.metadata_store_conformance import MetadataStoreConformance


class TestCachedStore(MetadataStoreConformance):
    def make(self) -> CachedMetadataStore:
        return CachedMetadataStore(MemoryMetadataStore())


class TestCachedStoreThatForgetsAtOnce(MetadataStoreConformance):
    def make(self) -> CachedMetadataStore:
        return CachedMetadataStore(MemoryMetadataStore(), entries_max=1, bytes_max=1)


class SlowStore(MemoryMetadataStore):
    """Answers are on their way until ``go`` is set."""

    def __init__(self, state: MemoryMetadataState) -> None:
        super().__init__(state)
        self.go = anyio.Event()

    async def get(self, key: str) -> tuple[int, bytes] | None:
        go = self.go
        found = await super().get(key)
        await go.wait()
        return found

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        go = self.go
        version = await super().commit(expected, writes)
        await go.wait()
        return version


@pytest.mark.anyio
async def test_what_was_read_or_written_is_not_asked_for_again() -> None:
    state = MemoryMetadataState()
    await MemoryMetadataStore(state).commit({"old": 0}, {"old": b"1"})
    store = CountingStore(state)
    cached = CachedMetadataStore(store)
    version = await cached.commit({"new": 0, "none": 0}, {"new": b"2", "none": None})
    for _ in range(3):
        assert await cached.get("old") == (1, b"1")
        assert await cached.get("new") == (version, b"2")
        assert await cached.get("none") is None

    assert store.records == 2 + 1
    assert (cached.statistics().hits, cached.statistics().misses) == (8, 1)


@pytest.mark.anyio
@pytest.mark.parametrize("after", [False, True])
async def test_after_a_commit_of_unknown_outcome_the_store_is_asked(after: bool) -> None:
    state = MemoryMetadataState()
    cached = CachedMetadataStore(FaultyMetadataStore(state, 2, OutcomeUnknown("scripted"), after=after))
    version = await cached.commit({"a": 0}, {"a": b"1"})
    with pytest.raises(OutcomeUnknown):
        await cached.commit({"a": version}, {"a": b"2"})

    assert await cached.get("a") == state.entries["a"]


@pytest.mark.anyio
async def test_a_conflict_empties_the_cache() -> None:
    """Somebody else has written: nothing that is remembered can be trusted."""
    state = MemoryMetadataState()
    cached = CachedMetadataStore(MemoryMetadataStore(state))
    version = await cached.commit({"a": 0, "b": 0}, {"a": b"1", "b": b"1"})
    newer = await MemoryMetadataStore(state).commit({"a": version, "b": version}, {"a": b"2", "b": b"2"})
    with pytest.raises(MetadataConflict):
        await cached.commit({"a": version}, {"a": b"3"})

    assert await cached.get("b") == (newer, b"2")


@pytest.mark.anyio
async def test_a_read_that_overlaps_a_commit_is_not_remembered() -> None:
    state = MemoryMetadataState()
    first = await MemoryMetadataStore(state).commit({"a": 0}, {"a": b"1"})
    slow = SlowStore(state)
    cached = CachedMetadataStore(slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cached.get, "a")
        await anyio.wait_all_tasks_blocked()
        read, slow.go = slow.go, anyio.Event()
        slow.go.set()
        await cached.commit({"a": first}, {"a": b"2"})
        read.set()

    assert await cached.get("a") == state.entries["a"]


@pytest.mark.anyio
async def test_of_overlapping_commits_the_later_one_is_remembered() -> None:
    """The first one's answer comes last."""
    state = MemoryMetadataState()
    slow = SlowStore(state)
    cached = CachedMetadataStore(slow)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cached.commit, {"a": 0}, {"a": b"1"})
        await anyio.wait_all_tasks_blocked()
        first, slow.go = slow.go, anyio.Event()
        slow.go.set()
        await cached.commit({"a": state.entries["a"][0]}, {"a": b"2"})
        first.set()

    assert await cached.get("a") == state.entries["a"] == (2, b"2")


@pytest.mark.anyio
async def test_the_bounds_hold_and_the_oldest_goes_first() -> None:
    cached = CachedMetadataStore(MemoryMetadataStore(), entries_max=3, bytes_max=2000)
    for number in range(10):
        await cached.commit({f"k{number}": 0}, {f"k{number}": bytes(100)})
        assert cached.statistics().entries <= 3
    await cached.get("k9")
    assert cached.statistics().hits == 1
    await cached.commit({"large": 0}, {"large": bytes(5000)})

    assert (cached.statistics().entries, cached.statistics().bytes) == (0, 0)
    assert await cached.get("large") is not None
    with pytest.raises(InvalidArgument):
        CachedMetadataStore(MemoryMetadataStore(), entries_max=0)

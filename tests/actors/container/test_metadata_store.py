"""The metadata store on the container's system table: the contract, on a running pipeline, with rows in
memory and in runs (rules S6, M9)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from unittest import mock

import pytest

from support.pipeline import PipelineWorld
from support.table_rows import NO_RUNS, RunsInMemory
from tierlog.actors.container import metadata_store
from tierlog.actors.container.metadata_store import ATTEMPTS_MAX, LoggedMetadataStore
from tierlog.actors.container.requests import Request
from tierlog.storage_backends.base.errors import InvalidArgument, MetadataConflict, Unavailable
from tierlog.storage_backends.segments.metadata_store import ChunkMetadataStore
from tierlog.storage_backends.segments.records.segment import SEGMENT_PREFIX
from tierlog.testing.metadata_store_conformance import MetadataStoreConformance


class PublishingStore(LoggedMetadataStore):
    """Rows are released before calls: all of them, or those of every other call."""

    def __init__(self, world: PipelineWorld, every: int = 1, *, publications: int = 0) -> None:
        self.runs = RunsInMemory(world.parts.state)
        super().__init__(world.parts.state, self._publish_and_ask, self.runs.reader)
        self._world = world
        self._every = every
        self._calls = 0
        self.publications = publications
        """How many more commits meet a publication between their lookup and their decision."""
        self.asked = 0

    async def _publish_and_ask(self, request: Request, size: int) -> object:
        self.asked += 1
        if self.publications:
            self.publications -= 1
            # A row of another key, as the log's own operations bring the sequence forward.
            state = self._world.parts.state
            state.sequence += 1
            state.write_records([(f"other:{state.sequence}", b"")])
            await self.runs.publish()
        return await self._world.ask_internal(request, size)

    async def _publish_sometimes(self) -> None:
        self._calls += 1
        if self._calls % self._every == 0:
            await self.runs.publish()

    async def get(self, key: str) -> tuple[int, bytes] | None:
        await self._publish_sometimes()
        return await super().get(key)

    async def commit(self, expected: Mapping[str, int], writes: Mapping[str, bytes | None]) -> int:
        await self._publish_sometimes()
        return await super().commit(expected, writes)

    async def scan(self, prefix: str) -> list[str]:
        await self._publish_sometimes()
        return await super().scan(prefix)


class TestRowsInMemory(MetadataStoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ChunkMetadataStore]:
        async with PipelineWorld().running() as world:
            yield LoggedMetadataStore(world.parts.state, world.ask_internal, NO_RUNS)


class TestRowsInRuns(MetadataStoreConformance):
    @pytest.fixture(params=[1, 2], ids=["all", "some"])
    async def store(self, request: pytest.FixtureRequest) -> AsyncIterator[ChunkMetadataStore]:
        async with PipelineWorld().running() as world:
            store = PublishingStore(world, request.param)
            await store.runs.chunks.open()
            yield store


@pytest.fixture
async def store() -> AsyncIterator[PublishingStore]:
    """With two records in runs."""
    async with PipelineWorld().running() as world:
        store = PublishingStore(world)
        await store.runs.chunks.open()
        await store.commit({"a": 0, "b": 0}, {"a": b"1", "b": b"2"})
        await store.runs.publish()
        store.asked = 0
        yield store


@pytest.mark.anyio
async def test_m9_a_commit_starts_over_if_rows_were_released_after_its_lookup(store: PublishingStore) -> None:
    (version, _) = await store.get("a") or (0, b"")
    store.publications = 2

    await store.commit({"a": version, "new": 0}, {"new": b"3"})

    assert store.asked == 3
    assert await store.get("new") is not None


@pytest.mark.anyio
async def test_m9_a_row_that_changed_and_was_released_after_the_lookup_is_a_conflict(
    store: PublishingStore,
) -> None:
    (version, _) = await store.get("a") or (0, b"")
    ask = store._ask

    async def change_first(request: Request, size: int) -> object:
        store._ask = ask
        await store.commit({"a": version}, {"a": b"changed"})
        await store.runs.publish()
        return await ask(request, size)

    store._ask = change_first
    with pytest.raises(MetadataConflict):
        await store.commit({"a": version, "b": version}, {"b": b"x"})
    assert await store.get("b") == (version, b"2")


@pytest.mark.anyio
async def test_m9_attempts_are_bounded(store: PublishingStore) -> None:
    store.publications = ATTEMPTS_MAX

    with pytest.raises(Unavailable, match="try again"):
        await store.commit({"new": 0}, {"new": b"3"})

    assert await store.get("new") is None


@pytest.mark.anyio
async def test_m9_a_conflict_with_a_row_in_a_run_is_not_sent(store: PublishingStore) -> None:
    with pytest.raises(MetadataConflict, match="'a' is at version"):
        await store.commit({"a": 0}, {"a": b"x"})

    assert store.asked == 0


@pytest.mark.anyio
async def test_m9_rows_that_are_cached_are_compared_in_one_step(store: PublishingStore) -> None:
    (version, _) = await store.get("a") or (0, b"")
    check = store._check({"a": version, "aa": 0})

    with pytest.raises(StopIteration) as found:
        check.send(None)

    assert found.value.value == store._state.table.version
    with pytest.raises(MetadataConflict, match="'aa' is at version 0"):
        await store._check({"a": version, "aa": 7})


@pytest.mark.anyio
async def test_m3_commits_of_many_keys_give_the_loop_turns(store: PublishingStore) -> None:
    await store.get("aa")
    with mock.patch.object(metadata_store, "find_cached", side_effect=AssertionError("in one step")):
        await store._check({f"a{number}": 0 for number in range(513)})


@pytest.mark.anyio
async def test_m8_resident_records_are_found_without_a_read(store: PublishingStore) -> None:
    state = store._world.parts.state
    key = f"{SEGMENT_PREFIX}{7:016x}"
    state.sequence += 1
    state.write_records([(key, b"record")])
    await store.runs.publish()
    for run in state.table.runs:
        await store.runs.chunks.delete(run.name)

    assert await store.get(key) == (state.sequence, b"record")
    assert await store.get(f"{SEGMENT_PREFIX}{8:016x}") is None
    with pytest.raises(Unavailable, match="missing"):
        await store.get("aa")  # in the range of the first run


@pytest.mark.anyio
async def test_first_finds_a_record_in_memory_and_in_runs(store: PublishingStore) -> None:
    assert await store.first("b") == "b"
    await store.commit({"c:x": 0}, {"c:x": b""})
    assert await store.first("c:") == "c:x"
    assert await store.first("z") is None


@pytest.mark.anyio
async def test_a_commit_is_one_operation_in_the_log() -> None:
    """S6: atomic, durable and fenced because it is one logged operation."""
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal, NO_RUNS)
        version = await store.commit({"a": 0, "b": 0}, {"a": b"1", "b": b"2"})

        assert version == world.parts.state.sequence == 1
        assert world.log.next_group == 2


@pytest.mark.anyio
async def test_a_commit_that_is_too_large_is_refused_before_it_is_logged() -> None:
    """C5: as a group above the log's limit it would end every owner that tries it."""
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal, NO_RUNS)
        values = dict.fromkeys(("a", "b", "c"), bytes(11 << 20))
        with pytest.raises(InvalidArgument, match="at most 33554432 bytes"):
            await store.commit(dict.fromkeys(values, 0), values)

        assert world.parts.state.sequence == 0
        del values["c"]
        assert await store.commit(dict.fromkeys(values, 0), values) == 1


@pytest.mark.anyio
async def test_a_bad_commit_is_refused_before_it_is_logged() -> None:
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal, NO_RUNS)
        with pytest.raises(InvalidArgument, match="'b'"):
            await store.commit({"a": 0}, {"a": b"1", "b": b"2"})

        assert world.parts.state.sequence == 0

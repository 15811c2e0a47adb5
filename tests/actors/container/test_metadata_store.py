"""The metadata store in the container's log: the contract, on a running pipeline."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from support.pipeline import PipelineWorld
from tierlog.actors.container.metadata_store import LoggedMetadataStore
from tierlog.storage_backends.base.errors import InvalidArgument
from tierlog.storage_backends.segments.metadata_store import ChunkMetadataStore
from tierlog.testing.metadata_store_conformance import MetadataStoreConformance


class TestLoggedMetadataStore(MetadataStoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ChunkMetadataStore]:
        async with PipelineWorld().running() as world:
            yield LoggedMetadataStore(world.parts.state, world.ask_internal)


@pytest.mark.anyio
async def test_a_commit_is_one_operation_in_the_log() -> None:
    """S6: atomic, durable and fenced because it is one logged operation."""
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal)
        version = await store.commit({"a": 0, "b": 0}, {"a": b"1", "b": b"2"})

        assert version == world.parts.state.sequence == 1
        assert world.log.next_group == 2


@pytest.mark.anyio
async def test_a_commit_that_is_too_large_is_refused_before_it_is_logged() -> None:
    """C5: as a group above the log's limit it would end every owner that tries it."""
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal)
        values = dict.fromkeys(("a", "b", "c"), bytes(11 << 20))
        with pytest.raises(InvalidArgument, match="at most 33554432 bytes"):
            await store.commit(dict.fromkeys(values, 0), values)

        assert world.parts.state.sequence == 0
        del values["c"]
        assert await store.commit(dict.fromkeys(values, 0), values) == 1


@pytest.mark.anyio
async def test_a_bad_commit_is_refused_before_it_is_logged() -> None:
    async with PipelineWorld().running() as world:
        store = LoggedMetadataStore(world.parts.state, world.ask_internal)
        with pytest.raises(InvalidArgument, match="'b'"):
            await store.commit({"a": 0}, {"a": b"1", "b": b"2"})

        assert world.parts.state.sequence == 0

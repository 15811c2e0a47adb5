"""Capabilities agree with behaviour: what is promised works, what is not raises ``Unsupported`` and does
nothing."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from ...storage_backends.base.chunk_storage import Capabilities, ChunkRange, ChunkStorage
from ...storage_backends.base.errors import Unsupported
from .suite import ChunkSuite, names_in


async def works(call: Awaitable[Any]) -> bool:
    try:
        await call
    except Unsupported:
        return False
    return True


class CapabilityConformance(ChunkSuite):
    async def test_create_works_exactly_with_the_append_flag(self, storage: ChunkStorage) -> None:
        promised = storage.capabilities.append

        assert await works(storage.create("new")) is promised
        assert await storage.exists("new") is promised

    async def test_write_works_exactly_with_the_append_flag(self, storage: ChunkStorage) -> None:
        promised = storage.capabilities.append
        await storage.create_with_content("a", [b"abc"])

        assert await works(storage.write("a", 3, [b"d"])) is promised
        assert await storage.read("a", 0, 9) == (b"abcd" if promised else b"abc")

    async def test_concat_works_exactly_with_its_flag(self, storage: ChunkStorage) -> None:
        promised = storage.capabilities.concat
        await storage.create_with_content("a", [b"abc"])

        assert await works(storage.concat("joined", [ChunkRange("a", 0, 2)])) is promised
        assert await names_in(storage) == (["a", "joined"] if promised else ["a"])

    async def test_delete_many_works_exactly_with_its_flag(self, storage: ChunkStorage) -> None:
        promised = storage.capabilities.delete_many
        for name in ("a", "b/1"):
            await storage.create_with_content(name, [b"abc"])

        assert await works(storage.delete_many(["b/1", "a"])) is promised
        assert await names_in(storage) == ([] if promised else ["a", "b/1"])

    async def test_an_unsupported_verb_is_refused_whether_or_not_the_chunk_exists(
        self, storage: ChunkStorage
    ) -> None:
        """Callers decide by the flag, so a missing chunk must not hide a missing capability."""
        with pytest.raises(Exception) as caught:
            await storage.write("missing", 0, [])
        assert isinstance(caught.value, Unsupported) is not storage.capabilities.append

    async def test_flags_are_the_same_closed_and_open(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        before = storage.capabilities
        await storage.open()
        during = storage.capabilities
        await storage.close()

        assert [type(before), before, during, storage.capabilities] == [Capabilities] + [before] * 3

    async def test_flags_are_the_same_for_every_instance(
        self, storage: ChunkStorage, other: ChunkStorage
    ) -> None:
        assert storage.capabilities == other.capabilities

    async def test_an_open_storage_admits_new_chunks(self, storage: ChunkStorage) -> None:
        storage.admit("containers/0000/")
        await storage.create_with_content("containers/0000/a", [b"x"])

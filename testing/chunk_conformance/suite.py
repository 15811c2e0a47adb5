"""What the parts of the conformance suite share: the hooks of a subclass, the verbs as a table, and content
that reveals wrong offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from functools import cache
from pathlib import Path
from random import Random

import pytest

from ...storage_backends.base.chunk_storage import ChunkInfo, ChunkRange, ChunkStorage
from ...storage_backends.base.errors import InvalidArgument, Unsupported

BLOCK = 1 << 20
"""Readers of long-term storage read whole blocks of this size."""
PART = 5 << 20
"""The smallest part of an object store's multipart upload."""
SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, PART - 1, PART, PART + 1)


LARGE = 32 * BLOCK


@cache
def _sample() -> bytes:
    return Random(0).randbytes(LARGE)


def content(size: int, seed: int = 0) -> bytes:
    """Bytes without repetitions, so that a wrong offset is noticed."""
    # To make them takes most of the time of many cases.
    return Random(seed).randbytes(size) if seed or size > LARGE else _sample()[:size]


async def listed(storage: ChunkStorage, prefix: str = "") -> list[ChunkInfo]:
    async with aclosing(storage.list(prefix)) as infos:
        return [info async for info in infos]


async def refuses(call: Awaitable[object]) -> bool:
    """Whether the call raises `InvalidArgument`."""
    try:
        await call
    except InvalidArgument:
        return True
    return False


async def names_in(storage: ChunkStorage, prefix: str = "") -> list[str]:
    return [info.name for info in await listed(storage, prefix)]


READS: dict[str, Callable[[ChunkStorage, str], Awaitable[object]]] = {
    "exists": lambda storage, name: storage.exists(name),
    "info": lambda storage, name: storage.info(name),
    "read": lambda storage, name: storage.read(name, 0, 1),
}
MUTATIONS: dict[str, Callable[[ChunkStorage, str], Awaitable[object]]] = {
    "create_with_content": lambda storage, name: storage.create_with_content(name, [b"x"]),
    "delete": lambda storage, name: storage.delete(name),
    "set_read_only": lambda storage, name: storage.set_read_only(name, True),
}
BY_CAPABILITY: dict[str, Callable[[ChunkStorage, str], Awaitable[object]]] = {
    "create": lambda storage, name: storage.create(name),
    "write": lambda storage, name: storage.write(name, 0, [b"x"]),
    "concat": lambda storage, name: storage.concat(name, [ChunkRange("source", 0, 1)]),
    "delete_many": lambda storage, name: storage.delete_many([name]),
}
VERBS = {**READS, **MUTATIONS, **BY_CAPABILITY}
"""Each verb about one name."""


class ChunkSuite(ABC):
    pytestmark = pytest.mark.anyio
    large = LARGE
    """Bytes of the largest chunk."""

    @abstractmethod
    def make(self, folder: Path) -> ChunkStorage:
        """A storage with its chunks in ``folder``, or under a prefix that corresponds to it; not open yet."""

    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[ChunkStorage]:
        storage = self.make(tmp_path)
        await storage.open()
        yield storage
        await storage.close()

    @pytest.fixture
    async def other(self, storage: ChunkStorage, tmp_path: Path) -> AsyncIterator[ChunkStorage]:
        """A second instance on the same folder or prefix."""
        other = self.make(tmp_path)
        await other.open()
        yield other
        await other.close()

    async def can_append(self, storage: ChunkStorage) -> bool:
        """Whether it has the capability; without it, the verbs must be refused and change nothing."""
        if storage.capabilities.append:
            return True

        await storage.create_with_content("refused", [b"abc"])
        with pytest.raises(Unsupported):
            await storage.write("refused", 3, [b"d"])
        with pytest.raises(Unsupported):
            await storage.create("refused-too")
        assert await storage.read("refused", 0, 9) == b"abc"
        assert not await storage.exists("refused-too")
        return False

    async def can_concat(self, storage: ChunkStorage) -> bool:
        if storage.capabilities.concat:
            return True

        await storage.create_with_content("refused", [b"abc"])
        with pytest.raises(Unsupported):
            await storage.concat("refused-too", [ChunkRange("refused", 0, 3)])
        assert await names_in(storage, "refused") == ["refused"]
        return False

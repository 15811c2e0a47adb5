"""``_system/store``: one store has a long-term storage, and only one that creates conditionally (rule
J10)."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tierlog.journal.manifest.store_record import (
    STORE_RECORD,
    StoreRecord,
    ensure_store_record,
    read_store_record,
)
from tierlog.storage_backends.base.checksum import crc32c
from tierlog.storage_backends.base.codec import DecodeError
from tierlog.storage_backends.base.errors import ChunkExists, DataCorruption, StoreMismatch
from tierlog.storage_backends.chunks.memory import MemoryChunk, MemoryChunkState, MemoryChunkStorage

RECORD = StoreRecord(b"S" * 16, 4)
GOLDEN = bytes.fromhex("544c53520001" + "53" * 16 + "0000000401" + "c2d24ad2")


class Overwriting(MemoryChunkStorage):
    """A storage without conditional creation."""

    def _add(self, name: str, chunk: MemoryChunk) -> int:
        self.state.chunks.pop(name, None)
        return super()._add(name, chunk)


async def opened(storage: type[MemoryChunkStorage] = MemoryChunkStorage) -> MemoryChunkStorage:
    chunks = storage(MemoryChunkState())
    await chunks.open()
    return chunks


def sealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "big")


def test_the_record_has_its_golden_bytes() -> None:
    assert RECORD.encode() == GOLDEN
    assert StoreRecord.decode(GOLDEN) == RECORD


def test_every_changed_byte_is_noticed() -> None:
    for position in range(len(GOLDEN)):
        with pytest.raises(DecodeError):
            StoreRecord.decode(GOLDEN[:position] + bytes([GOLDEN[position] ^ 1]) + GOLDEN[position + 1 :])


@pytest.mark.parametrize("position", [5, 26])
def test_a_newer_version_or_layout_is_refused_as_such(position: int) -> None:
    body = bytearray(GOLDEN[:-4])
    body[position] += 1
    with pytest.raises(StoreMismatch, match="use a newer tierlog"):
        StoreRecord.decode(sealed(bytes(body)))


@pytest.mark.anyio
async def test_the_first_owner_creates_the_record_and_later_ones_find_it() -> None:
    chunks = await opened()
    assert await read_store_record(chunks) is None
    for _ in range(2):
        await ensure_store_record(chunks, b"S" * 16, 4)
    assert await read_store_record(chunks) == RECORD


@pytest.mark.anyio
@pytest.mark.parametrize(("store", "containers"), [(b"T" * 16, 4), (b"S" * 16, 5)])
async def test_another_store_is_refused(store: bytes, containers: int) -> None:
    chunks = await opened()
    await ensure_store_record(chunks, b"S" * 16, 4)
    with pytest.raises(StoreMismatch):
        await ensure_store_record(chunks, store, containers)
    assert await read_store_record(chunks) == RECORD


@pytest.mark.anyio
async def test_a_storage_that_overwrites_is_refused_and_loses_nothing() -> None:
    chunks = await opened(Overwriting)
    for _ in range(2):
        with pytest.raises(StoreMismatch, match="use a storage with conditional creation"):
            await ensure_store_record(chunks, b"S" * 16, 4)
        assert await read_store_record(chunks) == RECORD


class AnswersLost(MemoryChunkStorage):
    """Every answer to a creation is lost, and what exists is read back."""

    def _add(self, name: str, chunk: MemoryChunk) -> int:
        with suppress(ChunkExists):
            return super()._add(name, chunk)
        if self.state.chunks[name].data != chunk.data:
            raise ChunkExists(name)
        return chunk.length


@pytest.mark.anyio
async def test_lost_answers_are_not_taken_for_a_storage_that_overwrites() -> None:
    chunks = await opened(AnswersLost)
    await ensure_store_record(chunks, b"S" * 16, 4)
    assert await read_store_record(chunks) == RECORD


@pytest.mark.anyio
async def test_a_damaged_record_is_corruption_with_its_name() -> None:
    chunks = await opened()
    await chunks.create_with_content(STORE_RECORD, [GOLDEN[:-1]])
    with pytest.raises(DataCorruption) as refused:
        await ensure_store_record(chunks, b"S" * 16, 4)
    assert (refused.value.file, refused.value.offset) == (STORE_RECORD, 0)

"""One object of a copy: created, verified, and replaced by nothing worse (rule P7)."""

from __future__ import annotations

from functools import partial

import pytest

from tierlog.actors.legacy_rolling.importing import no_progress
from tierlog.actors.maintenance.copied_objects import CopiedObjects, Known
from tierlog.actors.maintenance.place_of_copies import chunk_damage, needed_chunk
from tierlog.storage_backends.base.errors import DataCorruption, StoreMismatch
from tierlog.storage_backends.chunks.memory import MemoryChunkState, MemoryChunkStorage
from tierlog.storage_backends.segments.records import ChunkRecord
from tierlog.testing.faulty_chunk_storage import Call, Fault, FaultKind, FaultyChunkStorage

pytestmark = pytest.mark.anyio

NAME = "containers/0000/0000000000000001/chunk"
grows = pytest.mark.parametrize("grows", [True, False], ids=["chunks grow there", "chunks cannot grow there"])
rereads = pytest.mark.parametrize("rereads", [True, False], ids=["all is verified", "what is known is not"])


async def storage(content: bytes | None = None, *, grows: bool = True) -> MemoryChunkStorage:
    made = MemoryChunkStorage(MemoryChunkState(), append=grows)
    await made.open()
    if content is not None:
        await made.create_with_content(NAME, [content])
    return made


def record(content: bytes) -> ChunkRecord:
    return ChunkRecord(NAME).grown([content])


def known(content: bytes) -> Known:
    return Known(len(content), partial(chunk_damage, record(content)))


async def copy(
    source: MemoryChunkStorage,
    target: MemoryChunkStorage,
    content: bytes,
    there: bytes | None,
    *,
    rereads: bool = True,
) -> CopiedObjects:
    objects = CopiedObjects(source, target, "one", no_progress, rereads=rereads)
    await objects.copy(needed_chunk(record(content)), None if there is None else known(there))
    return objects


@grows
@pytest.mark.parametrize("more", [b"", b"more"], ids=["as long", "longer"])
async def test_p7_what_another_history_has_under_a_name_does_not_take_the_place_of_what_is_right(
    grows: bool, more: bytes
) -> None:
    source, target = await storage(b"bbbb" + more), await storage(b"aaaa", grows=grows)
    with pytest.raises(StoreMismatch, match="a clone of this store"):
        await copy(source, target, b"bbbb" + more, b"aaaa")
    assert (await target.read(NAME, 0, 100))[:4] == b"aaaa"


@grows
async def test_p7_what_was_damaged_since_it_was_verified_is_replaced(grows: bool) -> None:
    source, target = await storage(b"aaaamore"), await storage(b"aaxa", grows=grows)
    objects = await copy(source, target, b"aaaamore", b"aaaa", rereads=False)
    assert await target.read(NAME, 0, 100) == b"aaaamore"
    assert (objects.totals.copied_objects, objects.totals.unread_objects) == (1, 0)


@rereads
async def test_p7_what_a_record_there_names_is_read_if_that_is_asked_for(rereads: bool) -> None:
    source, target = await storage(b"aaaa"), await storage(b"aaxa")
    objects = await copy(source, target, b"aaaa", b"aaaa", rereads=rereads)
    assert await target.read(NAME, 0, 100) == (b"aaaa" if rereads else b"aaxa")
    assert objects.totals.unread_objects == (not rereads)


async def test_p7_what_a_later_backup_needs_more_of_is_not_replaced() -> None:
    source, target = await storage(b"aaaamore"), await storage(b"aaxamore")
    with pytest.raises(DataCorruption, match="copy that one first"):
        await copy(source, target, b"aaaa", b"aaaa")
    assert await target.read(NAME, 0, 100) == b"aaxamore"


@pytest.mark.parametrize("length", [512, 4])
async def test_p7_a_chunk_with_a_name_of_any_length_is_replaced(length: int) -> None:
    """Imported chunks have names of the earlier layout."""
    name = "/".join(["n" * 200] * 3)[:length].rstrip("/")
    source, target = await storage(), await storage()
    await source.create_with_content(name, [b"aaaa"])
    await target.create_with_content(name, [b"aaxa"])
    objects = CopiedObjects(source, target, "b" * 100, no_progress, rereads=True)
    await objects.copy(needed_chunk(ChunkRecord(name).grown([b"aaaa"])))
    assert await target.read(name, 0, 100) == b"aaaa"


class _Misread:
    """One read of a storage returns a flipped bit."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __call__(self, call: Call) -> Fault | None:
        self._number -= call.verb == "read"
        return Fault(FaultKind.FLIP) if not self._number and call.verb == "read" else None


@grows
async def test_p7_a_read_that_goes_wrong_has_nothing_replaced(grows: bool) -> None:
    source, target = await storage(b"aaaa"), await storage(b"aaaa", grows=grows)
    misread = FaultyChunkStorage(target, _Misread(1))
    objects = CopiedObjects(source, misread, "one", no_progress, rereads=True)
    await objects.copy(needed_chunk(record(b"aaaa")), known(b"aaaa"))
    assert not [call for call in misread.calls if call.verb not in ("read", "info")]


async def test_p7_what_a_read_got_wrong_takes_nothings_place() -> None:
    source = FaultyChunkStorage(await storage(b"aaaamore"), _Misread(4))
    target = await storage(b"aaaa", grows=False)
    objects = CopiedObjects(source, target, "one", no_progress, rereads=True)
    with pytest.raises(DataCorruption, match="checksum"):
        await objects.copy(needed_chunk(record(b"aaaamore")), known(b"aaaa"))
    assert await target.read(NAME, 0, 100) == b"aaaa"
    await objects.copy(needed_chunk(record(b"aaaamore")), known(b"aaaa"))
    assert await target.read(NAME, 0, 100) == b"aaaamore"
